"""Landing on a real broker: everything committed, once, whatever is killed, lost or raced."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet

from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.engine.declared.serdes import Bytes
from holdfast.core.engine.declared.streams import Stream
from holdfast.core.streams.steps import Map
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import LakeError, LostRecordsError, TopicError
from holdfast.pipeline.bronze.commits import TableCommit, history_of, last_landed
from holdfast.pipeline.bronze.lake import COLUMNS, Landed, bronze_path
from holdfast.pipeline.checks.check import check_table
from holdfast.pipeline.landing.land import land as land_topic
from holdfast.pipeline.landing.land_several import land_processor
from holdfast.pipeline.landing.landing import Landing
from holdfast.pipeline.landing.local_table import LocalTable
from holdfast.pipeline.landing.options import LandEngine, LandOptions, LandReport
from holdfast.pipeline.landing.task_table import TaskTable
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.topic import TopicLog
from holdfast.pipeline.upkeep.expire import expire
from tests.pipeline.accounts import Log, Record, accounts
from tests.pipeline.conftest import FOR_TINY_DATA, MakeTopic
from tests.pipeline.lakes import write_bronze
from tests.support.harness import wait_for_ends
from tests.support.parts import QUICK_JAVA
from tests.support.patience import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TINY = [part for name, value in FOR_TINY_DATA.items() for part in ("--conf", f"{name}={value}")]
ON_SPARK = ["--master", "local[2]", *TINY]
MakeTable = Callable[[str], LocalTable]
DEFAULT = LandOptions()

TEN: Log = {p: [Record(at, 1_000 + at, b"k", b"add k %d" % at) for at in range(10)] for p in range(2)}


ENGINES = [pytest.param("local"), pytest.param("spark", marks=pytest.mark.spark)]


class Land(Protocol):
    def __call__(
        self,
        settings: Settings,
        topic: str,
        lake: str,
        *,
        options: LandOptions = ...,
        stop: threading.Event | None = None,
        progress: Callable[[Landed], None] | None = None,
    ) -> LandReport: ...


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> LandEngine:
    if request.param == "spark":
        request.getfixturevalue("spark")
    return cast(LandEngine, request.param)


@pytest.fixture
def land(engine: LandEngine) -> Land:
    """Give the landing of each engine in turn: both write one table."""

    def landing(
        settings: Settings, topic: str, lake: str, *, options: LandOptions = DEFAULT, **more: Any
    ) -> LandReport:
        return land_topic(settings, topic, lake, options=replace(options, engine=engine), **more)

    return landing


@pytest.fixture
def table_at(engine: LandEngine, settings: Settings, request: pytest.FixtureRequest) -> MakeTable:
    if engine == "local":
        return partial(LocalTable, settings)
    return partial(TaskTable, request.getfixturevalue("spark"), settings)


def rows(path: str) -> list[dict[str, Any]]:
    found = DeltaTable(path).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def places(path: str) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in rows(path)]


def send(broker: SessionBroker, topic: str, values: list[bytes], partition: int = 0) -> None:
    producer = Producer(broker.client_config())
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(DEADLINE_S) == 0


def delete_before(settings: Settings, topic: str, partition: int, offset: int) -> None:
    client = AdminClient({**settings.client()})
    for deleted in client.delete_records([TopicPartition(topic, partition, offset)]).values():
        deleted.result(DEADLINE_S)


def test_every_field_of_a_record_is_kept(
    land: Land, settings: Settings, make_topic: MakeTopic, lake: Path
) -> None:
    log = {
        0: [
            Record(0, 1_700_000_000_123, b"key", b"value", (("a", b"1"), ("a", None), ("ü", b""))),
            Record(1, 1_700_000_000_000, None, None),
            Record(2, 5, b"", b"", ()),
        ],
        1: [],
    }
    topic = make_topic(log)
    report = land(settings, topic, str(lake))
    assert (report.commits, report.offsets, report.vector) == (1, 3, {0: 3, 1: 0})
    verdict = check_table(settings, topic, str(lake), deep=True, against_topic=True)
    assert (verdict.faults, verdict.undigested) == ((), {}), (
        "digests of both engines are those of rows and records"
    )
    got = rows(report.path)
    assert [(r["topic"], r["partition"], r["offset"], r["timestamp_type"]) for r in got] == [
        (topic, 0, at, 0) for at in range(3)
    ]
    assert [(r["key"], r["value"]) for r in got] == [(b"key", b"value"), (None, None), (b"", b"")]
    assert [int(r["timestamp"].timestamp() * 1000) for r in got] == [1_700_000_000_123, 1_700_000_000_000, 5]
    assert [[(h["key"], h["value"]) for h in r["headers"] or ()] for r in got] == [
        [("a", b"1"), ("a", None), ("ü", b"")],
        [],
        [],
    ]
    files = [
        Path(report.path) / each
        for each in pa.table(DeltaTable(report.path).get_add_actions(flatten=True))["path"].to_pylist()
    ]
    assert {parquet.read_schema(file).field("timestamp").type for file in files} == {
        pa.timestamp("us", "UTC")
    }, "INT96 would read as ns"


NS = 1_700_000_000_123_456_789


@pytest.mark.variants("spark")
def test_times_that_no_calendar_has_are_kept_as_numbers(
    land: Land,
    engine: LandEngine,
    settings: Settings,
    fresh_topic: FreshTopic,
    broker: SessionBroker,
    lake: Path,
) -> None:
    limits = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str((1 << 63) - 1)}
    topic = fresh_topic("times", config=limits)
    times = [1_700_000_000_123, 1 << 62, NS, 300_000_000_000_000, 5]
    producer = Producer(broker.client_config())
    for at_ms in times:
        producer.produce(topic, b"add k 1", b"k", 0, timestamp=at_ms)
    assert producer.flush(DEADLINE_S) == 0
    got = rows(land(settings, topic, str(lake)).path)
    assert [row["timestamp_ms"] for row in got] == times
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)
    assert [row["timestamp"] for row in got[1:4]] == [last] * 3
    assert [str(row["date"]) for row in got] == ["2023-11-14", *["9999-12-31"] * 3, "1970-01-01"]
    told = {source: fold_of(topic, settings, source, lake) for source in ("topic", "bronze")}
    assert told["bronze"] == told["topic"], "a fold sees Kafka's time, not the clamped one"


def fold_of(topic: str, settings: Settings, source: Any, lake: Path) -> str:
    options = ReplayOptions(engine="local", source=source, lake=str(lake))
    return replay(accounts(topic), settings, options).digest


@pytest.mark.variant
def test_engines_take_turns_on_one_table_with_the_same_columns(
    spark: SparkSession,
    broker: SessionBroker,
    settings: Settings,
    make_topic: MakeTopic,
    lake: Path,
) -> None:
    topic = make_topic(TEN)
    for engine in ("local", "spark", "spark", "local"):
        report = land_topic(settings, topic, str(lake), options=LandOptions(engine=engine))
        assert (report.commits, report.rows) == (1, report.offsets)
        send(broker, topic, [b"add k 1"], partition=1)
    assert places(report.path) == [(0, at) for at in range(10)] + [(1, at) for at in range(13)]
    last = last_landed(report.path, history_of(DeltaTable(report.path)))
    assert last is not None
    assert (last.rows, last.added) == ({0: 10, 1: 12}, {1: 1})
    assert set(pa.schema(DeltaTable(report.path).schema().to_arrow()).names) == set(COLUMNS)
    assert {row["leader_epoch"] for row in rows(report.path)} == {0}
    assert check_table(settings, topic, str(lake), deep=True, against_topic=True).faults == ()
    options = ReplayOptions(engine="spark", source="bronze", lake=str(lake))
    assert replay(accounts(topic), settings, options).digest == fold_of(topic, settings, "bronze", lake)


@pytest.mark.variants("spark")
def test_a_table_of_the_first_version_gets_the_newer_columns_and_is_read_as_before(
    land: Land, settings: Settings, make_topic: MakeTopic, lake: Path
) -> None:
    topic = make_topic(TEN)
    log = {p: records[:4] for p, records in TEN.items()}
    with TopicLog(settings, topic) as opened:
        path = write_bronze(lake, topic, log, topic_id=opened.identity())
    report = land(settings, topic, str(lake))
    assert (report.commits, report.rows) == (1, 12)
    got = rows(path)
    assert [(row["partition"], row["offset"]) for row in got] == [
        (p, at) for p in range(2) for at in range(10)
    ]
    assert [row["timestamp_ms"] for row in got[:10]] == [None] * 4 + [1_004 + at for at in range(6)]
    assert fold_of(topic, settings, "bronze", lake) == fold_of(topic, settings, "topic", lake)
    DeltaTable(path).optimize.compact()
    assert fold_of(topic, settings, "bronze", lake) == fold_of(topic, settings, "topic", lake), (
        "in joined files"
    )


@pytest.mark.variants("spark")
def test_landing_again_adds_only_new_records(
    land: Land, broker: SessionBroker, settings: Settings, make_topic: MakeTopic, lake: Path
) -> None:
    topic = make_topic(TEN)
    first = land(settings, topic, str(lake), options=LandOptions(max_records=11))
    assert first.commits == 2
    assert land(settings, topic, str(lake)).commits == 0
    send(broker, topic, [b"x", b"y"], partition=1)
    again = land(settings, topic, str(lake))
    assert (again.commits, again.offsets, again.vector) == (1, 2, {0: 10, 1: 12})
    assert places(first.path) == [(0, at) for at in range(10)] + [(1, at) for at in range(12)]


@pytest.mark.variants("spark")
def test_aborted_records_are_not_landed_and_open_ones_wait(
    land: Land, broker: SessionBroker, settings: Settings, fresh_topic: FreshTopic, lake: Path
) -> None:
    topic = fresh_topic("transactional")
    producer = Producer(broker.client_config(**{"transactional.id": topic}))
    producer.init_transactions(DEADLINE_S)
    for verdict in ("committed", "aborted", "committed", "open"):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(topic, verdict.encode())
        producer.flush(DEADLINE_S)
        if verdict != "open":
            (producer.commit_transaction if verdict == "committed" else producer.abort_transaction)(
                DEADLINE_S
            )
    report = land(settings, topic, str(lake))
    assert [(r["offset"], r["value"]) for r in rows(report.path)] == [
        (at, b"committed") for at in (0, 1, 2, 8, 9, 10)
    ]
    assert report.vector == {0: 12}, "up to the first record of the open transaction"
    producer.abort_transaction(DEADLINE_S)
    wait_for_ends(settings, topic)
    empty = land(settings, topic, str(lake))
    assert (empty.commits, empty.vector) == (1, {0: 16}), (
        "offsets without records move the vector all the same"
    )
    assert land(settings, topic, str(lake)).commits == 0
    assert len(rows(report.path)) == 6


@pytest.mark.variants("spark")
def test_following_lands_new_records_until_it_is_stopped(
    land: Land, broker: SessionBroker, settings: Settings, make_topic: MakeTopic, lake: Path
) -> None:
    topic = make_topic(TEN)
    stop, seen = threading.Event(), list[Landed]()

    def told(landed: Landed) -> None:
        seen.append(landed)
        if len(seen) == 1:
            send(broker, topic, [b"late"])
        else:
            stop.set()

    report = land(
        settings, topic, str(lake), options=LandOptions(follow=True, every_s=0), stop=stop, progress=told
    )
    assert [each.end for each in seen] == [{0: 10, 1: 10}, {0: 11, 1: 10}]
    assert [each.start for each in seen] == [{}, {0: 10, 1: 10}]
    assert len(places(report.path)) == 21


# -- two at once, and tables that something else wrote


@pytest.fixture
def log_of(settings: Settings) -> Iterator[Any]:
    opened: list[TopicLog] = []

    def make(topic: str) -> TopicLog:
        opened.append(TopicLog(settings, topic))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def two_landings(
    table_at: MakeTable, settings: Settings, topic: str, lake: Path, log_of: Any
) -> tuple[Landing, Landing]:
    """Return two landings that both read the same vector before either wrote."""
    path = bronze_path(str(lake), topic)
    one, other = (Landing(table_at(path), settings, log_of(topic), LandOptions()) for _ in range(2))
    return one, other


@pytest.mark.variants("spark")
def test_of_two_landings_one_is_refused_and_nothing_is_doubled(
    table_at: MakeTable, settings: Settings, make_topic: MakeTopic, lake: Path, log_of: Any
) -> None:
    one, other = two_landings(table_at, settings, make_topic(TEN), lake, log_of)
    assert one.step({0: 5, 1: 5}) is not None
    with pytest.raises(LakeError, match="another landing extended the table from the same offsets"):
        other.step({0: 7, 1: 7})
    assert places(one.path) == [(p, at) for p in range(2) for at in range(5)]
    assert one.step({0: 10, 1: 10}) is not None, "the first goes on undisturbed"
    assert len(places(one.path)) == 20


@pytest.mark.variants("spark")
def test_without_the_link_of_commits_rows_would_be_doubled(
    table_at: MakeTable,
    settings: Settings,
    make_topic: MakeTopic,
    lake: Path,
    log_of: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = two_landings(table_at, settings, make_topic(TEN), lake, log_of)
    one.step({0: 5, 1: 5})
    other._link = "forged"
    # The local engine has a second guard: it reads the table before it writes.
    monkeypatch.setattr(LocalTable, "_judge", lambda self, landed, link: self._table.update_incremental())
    other.step({0: 7, 1: 7})
    assert len(places(one.path)) == 24, "so the test above can fail"


@pytest.mark.variants("spark")
def test_landings_racing_in_time_never_double_or_skip(
    table_at: MakeTable, settings: Settings, make_topic: MakeTopic, lake: Path, log_of: Any
) -> None:
    topic = make_topic(TEN)
    one, other = two_landings(table_at, settings, topic, lake, log_of)
    outcomes: list[object] = []

    def run(landing: Landing) -> None:
        try:
            outcomes.append(landing.step({0: 10, 1: 10}))
        except LakeError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(type(each).__name__ for each in outcomes) == ["Landed", "LinkTakenError"]
    assert places(one.path) == [(p, at) for p in range(2) for at in range(10)]


def test_many_racing_landings_lose_and_double_nothing(
    settings: Settings, make_topic: MakeTopic, lake: Path
) -> None:
    topic = make_topic({0: [Record(at, 1_000 + at, b"k", b"add k 1") for at in range(600)]})
    options = LandOptions(engine="local", max_records=20)

    def until_all_is_landed(number: int) -> int:
        """Land small commits, and begin again where a race was lost; return how often it was."""
        for lost in range(1_000):
            try:
                land_topic(settings, topic, str(lake), options=options)
            except LakeError as error:
                if "another landing" not in str(error):
                    raise
            else:
                return lost
        raise AssertionError("never done")

    with ThreadPoolExecutor(4) as pool:
        lost = list(pool.map(until_all_is_landed, range(4)))
    assert places(bronze_path(str(lake), topic)) == [(0, at) for at in range(600)]
    assert fold_of(topic, settings, "bronze", lake) == fold_of(topic, settings, "topic", lake)
    assert sum(lost) > 10, "they raced"


@pytest.mark.variants("local-spark")
@pytest.mark.parametrize(("first", "second"), [("local", "spark"), ("spark", "local")])
def test_a_landing_of_one_engine_between_the_judging_and_the_commit_of_another_wins(
    spark: SparkSession,
    settings: Settings,
    make_topic: MakeTopic,
    lake: Path,
    log_of: Any,
    monkeypatch: pytest.MonkeyPatch,
    first: LandEngine,
    second: LandEngine,
) -> None:
    topic = make_topic(TEN)
    path = bronze_path(str(lake), topic)
    tables: dict[str, MakeTable] = {
        "local": partial(LocalTable, settings),
        "spark": partial(TaskTable, spark, settings),
    }
    one, other = (
        Landing(tables[each](path), settings, log_of(topic), LandOptions()) for each in (first, second)
    )
    where = LocalTable if first == "local" else TaskTable
    write = where._write_files

    def after_the_other(*args: Any) -> Any:
        monkeypatch.setattr(where, "_write_files", write)
        assert other.step({0: 5, 1: 5}) is not None
        return write(*args)

    monkeypatch.setattr(where, "_write_files", after_the_other)
    with pytest.raises(LakeError, match="another landing extended the table from the same offsets"):
        one.step({0: 7, 1: 7})
    assert places(path) == [(p, at) for p in range(2) for at in range(5)]


@pytest.mark.variants("spark")
def test_an_expiry_between_the_judging_and_the_commit_of_a_landing_loses_nothing(
    table_at: MakeTable,
    settings: Settings,
    make_topic: MakeTopic,
    lake: Path,
    log_of: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic(TEN)
    path = bronze_path(str(lake), topic)
    landing = Landing(table_at(path), settings, log_of(topic), LandOptions())
    landing.step({0: 5, 1: 5})
    commit, left = LocalTable._commit, [1_002, 1_004]  # the first changes the table's properties too

    def after_an_expiry(*args: Any) -> Any:
        if left:
            assert expire(topic, str(lake), before_ms=left.pop(0)).version is not None
        return commit(*args)

    monkeypatch.setattr(LocalTable, "_commit", after_an_expiry)
    for end in (7, 10):
        assert landing.step({0: end, 1: end}) is not None
    assert places(path) == [(p, at) for p in range(2) for at in range(4, 10)]
    verdict = check_table(settings, topic, str(lake), deep=True, against_topic=True)
    assert (verdict.faults, verdict.undigested) == ((), {})


@pytest.mark.variants("spark")
def test_a_lost_vector_is_refused_then_rebuilt_from_the_rows(
    land: Land, broker: SessionBroker, settings: Settings, make_topic: MakeTopic, lake: Path
) -> None:
    topic = make_topic(TEN)
    path = land(settings, topic, str(lake)).path
    send(broker, topic, [b"by hand", b"by landing"])
    last = rows(path)[9]
    by_hand = pa.Table.from_pylist(
        [last | {"offset": 10, "value": b"by hand"}], schema=DeltaTable(path).to_pyarrow_table().schema
    )
    write_deltalake(path, by_hand, mode="append")
    with pytest.raises(LakeError, match=r"version \d+ \(WRITE\) was not written by a landing.*--rebuild"):
        land(settings, topic, str(lake))
    rebuilt = land(settings, topic, str(lake), options=LandOptions(rebuild=True))
    assert rebuilt.vector == {0: 12, 1: 10}
    assert places(path) == [(0, at) for at in range(12)] + [(1, at) for at in range(10)]
    assert land(settings, topic, str(lake)).commits == 0, "the chain of commits goes on from the rebuilt one"
    write_deltalake(path, by_hand, mode="append")
    with pytest.raises(
        LakeError, match=r"1 rows of partition 0 are doubled|partition 0: offset 10 is there twice"
    ):
        land(settings, topic, str(lake), options=LandOptions(rebuild=True))


@pytest.mark.variants("spark")
def test_a_rebuild_keeps_the_losses_that_were_accepted_and_counts_missing_rows(
    land: Land,
    table_at: MakeTable,
    settings: Settings,
    make_topic: MakeTopic,
    lake: Path,
    log_of: Any,
) -> None:
    topic = make_topic(TEN)
    path = bronze_path(str(lake), topic)
    Landing(table_at(path), settings, log_of(topic), LandOptions()).step({0: 5, 1: 10})
    delete_before(settings, topic, 0, 8)
    assert land(settings, topic, str(lake), options=LandOptions(accept_loss=True)).lost == {0: [(5, 8)]}
    DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "false"})
    DeltaTable(path).delete("partition = 0 AND offset IN (2, 8, 9)")
    with pytest.raises(LakeError, match=r"\(DELETE\) was not written by a landing"):
        land(settings, topic, str(lake))
    report = land(settings, topic, str(lake), options=LandOptions(rebuild=True))
    assert (report.vector, report.lost, report.rows) == ({0: 10, 1: 10}, {}, 2)
    assert [at for p, at in places(path) if p == 0] == [0, 1, 3, 4, 8, 9], "8 and 9 were landed again"
    told = last_landed(path, history_of(DeltaTable(path)))
    assert told is not None
    assert (told.lost[0], told.removed, told.rows) == ([(5, 8)], {0: 1}, {0: 4, 1: 10})
    holes = r"partition 0 lacks offsets 5 to 7; .*partition 0 lacks 1 rows that were removed from it by hand"
    with pytest.raises(LostRecordsError, match=holes):
        fold_of(topic, settings, "bronze", lake)
    assert land(settings, topic, str(lake)).commits == 0


@pytest.mark.variants("spark")
def test_upkeep_of_the_table_does_not_lose_the_vector(
    land: Land, settings: Settings, make_topic: MakeTopic, lake: Path
) -> None:
    topic = make_topic(TEN)
    path = land(settings, topic, str(lake), options=LandOptions(max_records=11)).path
    before = rows(path)
    DeltaTable(path).optimize.compact()
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert land(settings, topic, str(lake)).commits == 0
    assert rows(path) == before


def test_a_history_cut_off_before_the_last_landing_is_refused() -> None:
    with pytest.raises(LakeError, match="reaches back to version 7 only"):
        last_landed(
            "t", [TableCommit(version=version, operation="OPTIMIZE", metadata=None) for version in (9, 8, 7)]
        )
    assert last_landed("t", [TableCommit(version=0, operation="CREATE TABLE", metadata=None)]) is None


# -- records that are gone


@pytest.mark.variants("spark")
def test_records_deleted_before_they_were_landed_stop_it_until_the_loss_is_accepted(
    land: Land, settings: Settings, make_topic: MakeTopic, lake: Path
) -> None:
    topic = make_topic(TEN)
    path = land(settings, topic, str(lake), options=LandOptions(max_records=11)).path
    delete_before(settings, topic, 0, 10)
    version = DeltaTable(path).version()
    DeltaTable(path).restore(version - 1)
    with pytest.raises(LakeError, match="RESTORE"):
        land(settings, topic, str(lake))
    with pytest.raises(
        LostRecordsError,
        match=r"partition 0: offsets \d+ to 9 were deleted before they were landed.*--accept-loss",
    ):
        land(settings, topic, str(lake), options=LandOptions(rebuild=True))
    report = land(settings, topic, str(lake), options=LandOptions(rebuild=True, accept_loss=True))
    (hole,) = report.lost[0]
    assert hole[1] == 10
    assert [at for p, at in places(path) if p == 0] == list(range(hole[0]))
    assert [at for p, at in places(path) if p == 1] == list(range(10))
    with pytest.raises(LostRecordsError, match=f"partition 0 lacks offsets {hole[0]} to 9"):
        replay(accounts(topic), settings, ReplayOptions(engine="local", source="bronze", lake=str(lake)))


def test_records_deleted_while_they_are_read_are_reported_from_deep_in_the_causes(
    land: Land,
    settings: Settings,
    make_topic: MakeTopic,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = make_topic(TEN)
    delete_before(settings, topic, 0, 5)
    monkeypatch.setattr(TopicLog, "firsts", lambda self, partitions: dict.fromkeys(partitions, 0))
    with pytest.raises(LostRecordsError, match="records were deleted while they were read"):
        land(settings, topic, str(lake))
    assert places(bronze_path(str(lake), topic)) == []


@pytest.mark.variants("spark")
def test_a_topic_that_is_new_to_the_lake_begins_with_what_it_has(
    land: Land, settings: Settings, make_topic: MakeTopic, lake: Path
) -> None:
    topic = make_topic(TEN)
    delete_before(settings, topic, 1, 4)
    report = land(settings, topic, str(lake))
    landed = last_landed(report.path, history_of(DeltaTable(report.path)))
    assert landed is not None
    assert (landed.begins, landed.end, landed.lost) == ({0: 0, 1: 4}, {0: 10, 1: 10}, {})
    with pytest.raises(LostRecordsError, match="partition 1 begins at offset 4"):
        replay(accounts(topic), settings, ReplayOptions(engine="local", source="bronze", lake=str(lake)))


@pytest.mark.variants("spark")
def test_a_topic_made_again_under_its_name_is_refused(
    land: Land, broker: SessionBroker, settings: Settings, lake: Path
) -> None:
    topic = broker.create_topic("again")
    send(broker, topic, [b"x"])
    land(settings, topic, str(lake))
    broker.delete_topics([topic])
    until_s = system_clock.monotonic_s() + DEADLINE_S
    with TopicLog(settings, topic) as log:
        while True:
            try:
                log.partitions()
            except TopicError:
                break
            assert system_clock.monotonic_s() < until_s
    broker.create_topic(topic, exact=True)
    send(broker, topic, [b"other", b"records"])
    try:
        with pytest.raises(LakeError, match="was deleted and made again"):
            land(settings, topic, str(lake))
    finally:
        broker.delete_topics([topic])


def test_a_declared_topic_is_landed_by_its_name(
    settings: Settings, make_topic: MakeTopic, lake: Path
) -> None:
    topic = make_topic(TEN)
    step = Map(name="copied", source=Stream(topic, Bytes()), each=bytes, serde=Bytes())
    assert type(step.source) is not str, "a toy"
    [report] = land_processor(settings, step, str(lake), options=LandOptions(engine="local"))
    assert (report.topic, report.rows) == (topic, 20)
    assert land_topic(settings, step.source, str(lake), options=LandOptions(engine="local")).commits == 0


def test_no_such_topic_is_reported_before_a_jvm_starts(land: Land, settings: Settings, lake: Path) -> None:
    with pytest.raises(TopicError, match="no-such-topic"):
        land(settings, "no-such-topic", str(lake))


# -- SIGKILL


MUCH, SOME = 12_000, 6_000


def write(broker: SessionBroker, topic: str, count: int) -> None:
    """Write *count* records to three partitions in turn."""
    producer = Producer(broker.client_config(**{"linger.ms": 20}))
    for at in range(count):
        producer.produce(topic, b"value %d" % at, partition=at % 3)
        if at % 5_000 == 0:
            producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0


def following(broker: SessionBroker, topic: str, lake: Path, *options: str) -> list[str]:
    """Return the command that lands *topic* in many commits, until it is stopped."""
    command = [sys.executable, "-P", "-m", "holdfast.cli", "pipeline", "land"]
    command += ["--topic", topic, "--lake", str(lake), "--follow", "--every", "0", *options]
    for name, value in broker.config.items():
        command += ["--set", f"kafka.{name}={value}"]
    return command


@pytest.mark.variant
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(["--engine", "local"], id="local"),
        pytest.param(ON_SPARK, id="spark", marks=[pytest.mark.spark, pytest.mark.slow]),
    ],
)
def test_killed_landings_leave_every_record_once(
    engine: list[str], broker: SessionBroker, fresh_topic: FreshTopic, lake: Path
) -> None:
    topic = fresh_topic("killed", partitions=3)
    write(broker, topic, MUCH)
    command = following(broker, topic, lake, "--max-records", f"{MUCH // 20}", *engine)
    with landing(command) as killed:
        first = killed.landed_after(commit=2)
        killed.end_group_soon(delay_s=0.2)
    write(
        broker, topic, MUCH
    )  # after a long stall before the kill, all records of the first write are landed
    with landing(command) as killed:
        second = killed.landed_after(commit=4)
        killed.end_group_soon(delay_s=0.05)
    assert first < second < 2 * MUCH, "both died in the middle, and the second went on where the first was"
    write(broker, topic, MUCH)
    count = 3 * MUCH
    with landing([*command, "--output", "json", "--max-records", f"{MUCH}"]) as last:
        while last.landed_after(commit=1) < count:
            pass
        last.process.send_signal(signal.SIGTERM)
        assert last.process.stdout is not None
        told = json.loads(last.process.stdout.read())
        assert last.process.wait(DEADLINE_S) == 0, (
            "a following landing that is told to stop has done its work"
        )
    assert [(row["partition"], row["end_offset"]) for row in told] == [(p, count // 3) for p in range(3)]
    check_landed(lake, topic, count)


@pytest.mark.variant
def test_a_landing_of_spark_that_is_killed_is_ended_by_another_session(
    spark: SparkSession, broker: SessionBroker, settings: Settings, fresh_topic: FreshTopic, lake: Path
) -> None:
    """One kill, and one JVM more: the long run has two and three."""
    topic = fresh_topic("killed", partitions=3)
    write(broker, topic, SOME)
    with landing(following(broker, topic, lake, "--max-records", f"{SOME // 20}", *ON_SPARK)) as killed:
        first = killed.landed_after(commit=2)
        killed.end_group_soon(delay_s=0.2)
    assert first < SOME, "it died in the middle"
    write(
        broker, topic, SOME
    )  # after a long stall before the kill, all records of the first write are landed
    report = land_topic(settings, topic, str(lake), options=LandOptions(engine="spark"))
    assert 0 < report.rows <= 2 * SOME - first, "it went on where the first was"
    check_landed(lake, topic, 2 * SOME)


def check_landed(lake: Path, topic: str, count: int) -> None:
    """Each of *count* records is in the lake once."""
    assert places(bronze_path(str(lake), topic)) == [(p, at) for p in range(3) for at in range(count // 3)]


class Follower:
    """A landing in a process of its own, in a group with its JVM."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | QUICK_JAVA,
        )
        self._said: list[str] = []

    def landed_after(self, *, commit: int) -> int:
        """Read what it says up to its *commit*-th commit from now, and return how many offsets it has
        landed by then.
        """
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._said.append(line)
            if found := re.search(r"up to (\S+)", line):
                commit -= 1
                if commit == 0:
                    return sum(int(each.split(":")[1]) for each in found[1].split(","))
        raise AssertionError("".join(self._said))

    def end_group_soon(self, *, delay_s: float) -> None:
        """SIGKILL it and its JVM in the midst of the next commit; where exactly is chance."""
        threading.Event().wait(delay_s)
        self.end_group()

    def end_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE_S)


@contextlib.contextmanager
def landing(command: list[str]) -> Iterator[Follower]:
    """Run a landing; whatever becomes of it, it and its JVM are gone afterwards."""
    follower = Follower(command)
    watchdog = threading.Timer(600, follower.end_group)
    watchdog.start()
    try:
        yield follower
    finally:
        watchdog.cancel()
        follower.end_group()
        for stream in (follower.process.stdout, follower.process.stderr):
            if stream is not None:
                stream.close()
