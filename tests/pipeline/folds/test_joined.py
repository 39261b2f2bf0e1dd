"""One history: a bronze table up to its end and the topic from there, folded only where both are shown to
join.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

from holdfast.cli.__main__ import main
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.types import AlterConfig
from holdfast.core.engine.declared.processor import Processor
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import ConfigError, LakeError, LostRecordsError, PipelineError
from holdfast.kafka.clients import make_admin
from holdfast.kafka.fetching.records import Records
from holdfast.pipeline.bootstrap.bootstrap import bootstrap
from holdfast.pipeline.bronze.extent import Until
from holdfast.pipeline.landing import local_table
from holdfast.pipeline.landing.land import land
from holdfast.pipeline.landing.options import LandOptions
from holdfast.pipeline.logs import joined
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.topic import TopicLog, TopicReader
from holdfast.pipeline.verify.table import verify
from tests.pipeline.accounts import Record
from tests.pipeline.lakes import write_bronze
from tests.support.books_app import LOCAL, PARTITIONS, SEND, Books
from tests.support.patience import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Cmd = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(seed=29) as running:
        yield running


@pytest.fixture
def books(kafka: EmbeddedKafka) -> Books:
    """Give a live table at offset 119, of a source that has records up to offset 199."""
    made = Books(kafka)
    bootstrap(made.first, made.settings, SEND)
    made.write(80, first=120)
    return made


def history(lake: Path, **more: Any) -> ReplayOptions:
    return ReplayOptions(**{"engine": "local", "source": "history", "lake": str(lake), **more})


def trim(books: Books, offset: int) -> None:
    """Have the source delete the records before *offset*."""
    Admin(books.settings).delete_before({(books.source, at): offset for at in range(PARTITIONS)})


# -- folded records


@pytest.mark.long
def test_a_table_whose_topic_has_lost_its_beginning_verifies_live_with_the_lake(
    books: Books, lake: Path
) -> None:
    whole = replay(books.first, books.settings, LOCAL)
    land(books.settings, books.source, str(lake))
    books.write(30, first=200)
    trim(books, 150)
    assert verify(books.first, books.settings, LOCAL).partial, "the topic alone proves little"
    verdict = verify(books.first, books.settings, history(lake))
    assert verdict.equal
    assert not verdict.partial
    now = replay(books.first, books.settings, history(lake))
    assert now.applied == {0: 229, 1: 229}
    upto = history(lake, until=Until(offsets={0: 199, 1: 199}))
    assert replay(books.first, books.settings, upto).digest == whole.digest


@pytest.mark.variants("118", "199", "229", "0")
@pytest.mark.long
@pytest.mark.parametrize("last", [0, 118, 199, 200, 229])
def test_a_replay_up_to_any_offset_is_the_same_from_history(books: Books, lake: Path, last: int) -> None:
    land(books.settings, books.source, str(lake))
    books.write(30, first=200)
    at_ms = 1_000 + 40 * last
    until = [Until(offsets={0: last, 1: 17}), Until(at_ms=at_ms)]
    want = [
        replay(books.first, books.settings, replace(LOCAL, until=each, transitions=True)) for each in until
    ]
    trim(books, 180)
    for each, whole in zip(until, want, strict=True):
        got = replay(books.first, books.settings, history(lake, until=each, transitions=True))
        assert (got.partitions, got.results) == (whole.partitions, whole.results)


@pytest.mark.variant
def test_spark_gives_the_results_of_this_process(spark: SparkSession, books: Books, lake: Path) -> None:
    land(books.settings, books.source, str(lake))
    books.write(30, first=200)
    trim(books, 150)
    want = replay(books.first, books.settings, history(lake))
    got = replay(books.first, books.settings, history(lake, engine="spark"))
    assert (got.partitions, got.engine) == (want.partitions, "spark")


@pytest.mark.long
def test_a_partition_that_was_added_after_the_landing_is_read_from_the_topic(
    books: Books, lake: Path
) -> None:
    land(books.settings, books.source, str(lake))
    client = make_admin(books.settings.client())
    new = [NewPartitions(books.source, PARTITIONS + 1)]
    client.create_partitions(new)[books.source].result(DEADLINE_S)
    got = replay(books.first, books.settings, history(lake))
    assert got.applied == {0: 199, 1: 199, 2: -1}


# -- where they do not join


def fails(books: Books, lake: Path, kind: type[PipelineError], match: str, **more: Any) -> None:
    """Expect both a replay and a verification to be refused."""
    with pytest.raises(kind, match=match):
        replay(books.first, books.settings, history(lake, **more))
    with pytest.raises(kind, match=match):
        verify(books.first, books.settings, history(lake))


@pytest.mark.long
def test_a_gap_between_lake_and_topic_is_named(books: Books, lake: Path) -> None:
    land(books.settings, books.source, str(lake))
    books.write(30, first=200)
    trim(books, 205)
    told = (
        rf"partition 0 ends at offset 200, and topic {books.source} begins at 205: offsets 200 to 204 are in"
        r" neither"
    )
    fails(books, lake, LostRecordsError, told, allow_holes=True)


@pytest.mark.long
def test_without_an_overlap_they_still_join(books: Books, lake: Path) -> None:
    land(books.settings, books.source, str(lake))
    books.write(30, first=200)
    want = replay(books.first, books.settings, LOCAL)
    trim(books, 200)
    assert verify(books.first, books.settings, history(lake)).equal
    assert replay(books.first, books.settings, history(lake)).partitions == want.partitions


@pytest.mark.long
def test_a_topic_that_was_made_again_is_another_one(books: Books, lake: Path, kafka: EmbeddedKafka) -> None:
    land(books.settings, books.source, str(lake))
    Admin(books.settings).delete([books.source])
    kafka.create_topic(books.source, partitions=PARTITIONS)
    books.write(250)
    fails(books, lake, LakeError, "was deleted and made again")


@pytest.mark.long
def test_a_topic_that_ends_before_its_table_is_refused(books: Books, lake: Path) -> None:
    with TopicLog(books.settings, books.source) as found:
        topic_id = found.identity()
    log: dict[int, list[Record]] = {
        at: [Record(offset, 1_000, None, b"") for offset in range(200 + at)] for at in range(PARTITIONS)
    }
    write_bronze(lake, books.source, log, topic_id=topic_id)
    fails(books, lake, LakeError, "holds partition 1 up to offset 201, but topic .* ends at 200")


def land_otherwise(books: Books, lake: Path, patch: pytest.MonkeyPatch, offset: int, **changed: Any) -> None:
    """Land the source as if the record at *offset* of partition 0 were another one, or, with nothing
    *changed*, did not exist.
    """

    class Other(TopicReader):
        def records(self, partition: int, span: Any) -> Iterator[tuple[Records, int]]:
            for records, size in super().records(partition, span):
                yield (records if partition else _other(records, offset, changed)), size

    with patch.context() as planted:
        planted.setattr(local_table, "TopicReader", Other)
        # Named, because otherwise a session that other tests have left would land with Spark.
        land(books.settings, books.source, str(lake), options=LandOptions(engine="local"))


def _other(records: Records, at: int, changed: dict[str, Any]) -> Records:
    out = Records()
    rows = zip(records.offsets, records.times_ms, records.values, records.keys, records.headers, strict=True)
    for offset, time_ms, value, key, headers in rows:
        if offset == at and not changed:
            continue
        if offset == at:
            time_ms, value = changed.get("time_ms", time_ms), changed.get("value", value)
        out.append([offset], [time_ms], [value], [key], [headers], records.origins[0][1])
    return out


CHANGED = "offset 199: the table's row is not the topic's record.*are not one history"


@pytest.mark.long
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"value": b"add k1 7"}, CHANGED),
        ({"time_ms": 8_961}, CHANGED),
        ({}, "offset 199: the topic has a record, and the table none"),
    ],
)
def test_an_overlap_that_is_not_equal_is_refused(
    books: Books, lake: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], told: str
) -> None:
    land_otherwise(books, lake, monkeypatch, 199, **changed)
    fails(books, lake, LakeError, told)


@pytest.mark.long
def test_the_overlap_is_compared_as_far_as_it_is_said(
    books: Books, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_otherwise(books, lake, monkeypatch, 189, value=b"other")
    fails(books, lake, LakeError, "offset 189")
    monkeypatch.setattr(joined, "PROVED_OFFSETS", 10)
    replay(books.first, books.settings, history(lake))


@pytest.mark.long
def test_records_removed_by_compaction_are_no_fault(
    books: Books, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(books.settings, books.source, str(lake))
    changed: dict[str, Any] = {}

    class Compacted(TopicReader):
        def records(self, partition: int, span: Any) -> Iterator[tuple[Records, int]]:
            for records, size in super().records(partition, span):
                yield _other(records, 198, changed), size

    monkeypatch.setattr(joined, "TopicReader", Compacted)
    with pytest.raises(LakeError, match="offset 198: the table has a row"):
        joined.open_joined(books.settings, books.source, str(lake), {})
    Admin(books.settings).apply([AlterConfig(topic=books.source, config={"cleanup.policy": "compact"})])
    joined.open_joined(books.settings, books.source, str(lake), {})
    changed["value"] = b"add k1 7"
    with pytest.raises(LakeError, match="offset 198: the table's row is not"):
        joined.open_joined(books.settings, books.source, str(lake), {})


@pytest.mark.long
def test_history_needs_a_lake_that_has_the_topic(books: Books, lake: Path) -> None:
    with pytest.raises(ConfigError, match="replay from history needs the lake"):
        ReplayOptions(source="history")
    fails(books, lake, LakeError, "no Delta table")


# -- from the command line


@pytest.fixture
def command(books: Books, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cmd:
    """Give a function that runs a command in this process, and returns its exit code and its output."""
    module = ModuleType(f"app_{books.name.replace('-', '_')}")
    module.__dict__["processors"] = [books.first]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    kafka = [
        part for name, value in books.settings.kafka.items() for part in ("--set", f"kafka.{name}={value}")
    ]

    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["--set", f"app={books.name}", *kafka, "-A", module.__name__, *words])
        return int(ended.value.code or 0), capsys.readouterr().err

    return run


@pytest.mark.long
def test_the_command_takes_both_where_it_is_given_a_lake(books: Books, lake: Path, command: Cmd) -> None:
    land(books.settings, books.source, str(lake))
    books.write(30, first=200)
    trim(books, 150)
    code, said = command("verify", "accounts", "--strict", "--engine", "local")
    assert (code, "partial" in said) == (1, True)
    assert command("verify", "accounts", "--strict", "--engine", "local", "--lake", str(lake))[0] == 0
    code, said = command("replay", "accounts", "--engine", "local", "--lake", str(lake))
    assert (code, f"{230 * PARTITIONS} records" in said) == (0, True), said
    code, said = command("replay", "accounts", "--from", "bronze", "--engine", "local", "--lake", str(lake))
    assert (code, f"{200 * PARTITIONS} records" in said) == (0, True), said
    trim(books, 205)
    code, said = command("verify", "accounts", "--engine", "local", "--lake", str(lake))
    assert (code, "offsets 200 to 204 are in neither" in said) == (1, True), said


@pytest.mark.long
def test_a_version_begins_from_both(books: Books, lake: Path) -> None:
    land(books.settings, books.source, str(lake))
    books.write(30, first=200)
    trim(books, 150)
    second: Processor[Any, Any] = books.version(2)
    with pytest.raises(LostRecordsError):
        bootstrap(second, books.settings, replace(SEND, replay=LOCAL))
    done = bootstrap(second, books.settings, replace(SEND, replay=history(lake)))
    assert [each.applied for each in done.partitions] == [229, 229]
    assert verify(second, books.settings, history(lake)).equal
