"""Both engines, from topic and from bronze: the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from pyarrow import dataset

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Json
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.fold.stepping import Transition
from holdfast.errors import ConfigError, LakeError, LostRecordsError, PipelineError
from holdfast.pipeline.bronze.extent import Until
from holdfast.pipeline.bronze.lake import bronze_path
from holdfast.pipeline.folds.plan import FoldPlan
from holdfast.pipeline.folds.results import Replayed
from holdfast.pipeline.logs.lake_log import open_bronze
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.topic import Span, TopicLog
from holdfast.streams import Tumbling, Windowed
from tests.pipeline.accounts import Log, Record, accounts, logs
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.lakes import ends, landed, write_bronze
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT
from tests.support.visits import visits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_KAFKA = Settings()


def told(got: Replayed, processor: Processor[Any, Any]) -> tuple[object, ...]:
    """Return all results of a replay, so that two can be compared."""
    names = ("rows", "timers", "transitions", "refused")
    return (got.partitions, *(got.table(name, processor).to_pylist() for name in names))


def dense(log: Log) -> dict[int, list[Record]]:
    """Return the log with the offsets that Kafka gives."""
    return {
        p: [Record(at, r.at_ms, r.key, r.value, r.headers) for at, r in enumerate(records)]
        for p, records in log.items()
    }


ROUNDS = hypothesis_settings(
    max_examples=2,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@ROUNDS
@given(log=logs(partitions=4, limit=150))
def test_both_engines_give_the_same_results_for_a_bronze_table(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, log: Log
) -> None:
    lake = tmp_path_factory.mktemp("lake")
    write_bronze(lake, "t", log, commits=3)
    processor = accounts("t")
    local, tasks = (
        replay(
            processor,
            NO_KAFKA,
            ReplayOptions(engine=engine, source="bronze", lake=str(lake), transitions=True),
        )
        for engine in ("local", "spark")
    )
    assert told(local, processor) == told(tasks, processor)
    assert (local.engine, tasks.engine) == ("local", "spark")


@pytest.mark.promise
@hypothesis_settings(parent=ROUNDS, max_examples=1)
@given(log=logs(partitions=3, limit=150))
def test_both_engines_give_the_same_results_for_a_topic(
    spark: SparkSession,
    settings: Settings,
    make_topic: MakeTopic,
    tmp_path_factory: pytest.TempPathFactory,
    log: Log,
) -> None:
    processor = accounts(make_topic(log))
    local = replay(processor, settings, ReplayOptions(engine="local", transitions=True))
    on_cluster = replay(processor, settings, ReplayOptions(engine="spark", transitions=True))
    assert told(local, processor) == told(on_cluster, processor)
    lake = tmp_path_factory.mktemp("lake")
    write_bronze(lake, processor.source, dense(log))
    assert told(
        replay(
            processor,
            NO_KAFKA,
            ReplayOptions(engine="local", source="bronze", lake=str(lake), transitions=True),
        ),
        processor,
    ) == told(local, processor)


def test_a_decoder_may_take_a_column_twice(tmp_path: Path) -> None:
    """As that of windows which send late records on: it takes the value to read it, and as it is."""
    values = [b"5", b"25", b"3", b"31"]  # the third is late
    write_bronze(tmp_path, "t", {0: [Record(at, 1_000 + at, b"k", each) for at, each in enumerate(values)]})
    windows: Windowed[int, int] = Windowed(
        name="windows",
        source=Source("t", Json(int), time=lambda at_ms: at_ms),
        by=lambda _: "all",
        window=Tumbling("10ms", grace="0ms"),
        fold=lambda so_far, _: (so_far or 0) + 1,
        row=int,
        late="late",
    )
    assert windows.columns.count("value") == 2
    options = ReplayOptions(engine="local", source="bronze", lake=str(tmp_path))
    got = replay(windows, NO_KAFKA, options)
    assert [each.refused for each in got.partitions] == [0]
    kept = {each["key"] for each in got.table("rows", windows).to_pylist()}
    assert {"all@0000000000000000", "all@0000000000000020", "all@0000000000000030"} <= kept


def test_both_engines_give_the_same_results_for_named_tables(spark: SparkSession, tmp_path: Path) -> None:
    log = {
        partition: [
            Record(at, 1_000 + 10 * at, None, f"{OPS[at % 5]} v{at % 7} p{at % (3 + partition)}".encode())
            for at in range(200)
        ]
        for partition in range(2)
    }
    write_bronze(tmp_path, "visits", log)
    processor = visits()
    local, tasks = (
        replay(
            processor,
            NO_KAFKA,
            ReplayOptions(engine=engine, source="bronze", lake=str(tmp_path), transitions=True),
        )
        for engine in ("local", "spark")
    )
    assert (local.engine, tasks.engine) == ("local", "spark")
    assert told(local, processor) == told(tasks, processor)
    rows = local.table("rows", processor).to_pylist()
    assert {row["table"] for row in rows} == {None, "open", "pages"}
    assert sum(each.rows for each in local.partitions) == len(rows)
    changed = local.table("transitions", processor).to_pylist()
    last = {(each["partition"], each["table"], each["key"]): each["after"] for each in changed}
    assert {key: row for key, row in last.items() if row is not None} == {
        (row["partition"], row["table"], row["key"]): row["row"] for row in rows
    }
    of_one = FoldPlan(processor=processor, transitions=True, of_key=("open", "v1"))
    assert len([each for each in changed if (each["table"], each["key"]) == ("open", "v1")]) > 1
    assert of_one.tells(Transition(offset=0, at_ms=0, key="v1", before=None, after=None, table="open"))
    assert not of_one.tells(Transition(offset=0, at_ms=0, key="v1", before=None, after=None))


OPS = ("enter", "enter", "leave", "break", "enter")
LOG: Log = {
    0: [
        Record(at, 1_000 + 10 * at, None, b"add k%d %d" % (at % 5, at % 97), (("tag", b"x"),))
        for at in range(300)
    ],
    1: [Record(at, 1_000 + 10 * at, b"k", b"wake k%d 55" % (at % 3)) for at in range(200)],
}


def test_files_that_optimize_has_mixed_are_sorted_first(lake: Path, tmp_path: Path) -> None:
    write_bronze(lake, "t", LOG)
    write_bronze(tmp_path / "mixed", "t", LOG, shuffled=True)
    in_order, mixed = (
        replay(accounts("t"), NO_KAFKA, ReplayOptions(engine="local", source="bronze", lake=str(each)))
        for each in (lake, tmp_path / "mixed")
    )
    assert in_order.digest == mixed.digest


# -- until


@pytest.mark.parametrize(
    "until",
    [
        Until(offsets={0: 123, 1: 0}),
        Until(offsets={1: -1}),
        Until(at_ms=2_005),
        Until(at_ms=999),
        Until(at_ms=9_999_999),
    ],
    ids=["offsets", "nothing of one", "time", "before all", "after all"],
)
def test_until_means_the_same_everywhere(
    spark: SparkSession, settings: Settings, make_topic: MakeTopic, lake: Path, until: Until
) -> None:
    processor = accounts(make_topic(LOG))
    write_bronze(lake, processor.source, LOG)
    wanted = {
        p: [
            r
            for r in records
            if (until.at_ms is None or r.at_ms <= until.at_ms) and r.offset <= until.offsets.get(p, 10_000)
        ]
        for p, records in LOG.items()
    }
    short = write_bronze(lake / "short", processor.source, wanted)
    want = replay(
        processor, NO_KAFKA, ReplayOptions(engine="local", source="bronze", lake=str(Path(short).parents[1]))
    )
    for engine in ("local", "spark"):
        for source in ("topic", "bronze"):
            got = replay(
                processor,
                settings,
                ReplayOptions(engine=engine, source=source, lake=str(lake), until=until),
            )
            assert got.partitions == want.partitions, (engine, source)


def test_asking_for_more_than_there_is_is_an_error(
    settings: Settings, make_topic: MakeTopic, lake: Path
) -> None:
    processor = accounts(make_topic({0: LOG[0]}))
    with pytest.raises(
        PipelineError, match="partition 0 ends at offset 300, so it cannot be replayed up to and with 300"
    ):
        replay(processor, settings, ReplayOptions(engine="local", until=Until(offsets={0: 300})))
    with pytest.raises(PipelineError, match="no partition 7"):
        replay(processor, settings, ReplayOptions(engine="local", until=Until(offsets={7: 1})))


# -- logs with holes


def test_a_topic_whose_beginning_is_gone_is_refused_unless_allowed(
    settings: Settings, make_topic: MakeTopic
) -> None:
    processor = accounts(make_topic({0: LOG[0]}))
    delete_before(settings, processor.source, 0, 100)
    with pytest.raises(
        LostRecordsError,
        match=r"partition 0 begins at offset 100: earlier records were deleted.*--allow-holes",
    ):
        replay(processor, settings, ReplayOptions(engine="local"))
    got = replay(processor, settings, ReplayOptions(engine="local", allow_holes=True))
    assert (got.records, got.applied) == (200, {0: 299})


def delete_before(settings: Settings, topic: str, partition: int, offset: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    client = AdminClient({**settings.client()})
    for deleted in client.delete_records([TopicPartition(topic, partition, offset)]).values():
        deleted.result(DEADLINE_S)
    with TopicLog(settings, topic) as log:
        assert log.firsts([partition]) == {partition: offset}


def test_a_bronze_table_with_noted_losses_is_refused_unless_allowed(lake: Path) -> None:
    from deltalake import CommitProperties, DeltaTable

    path = write_bronze(lake, "t", LOG, commits=1)
    hole = landed(LOG, batch="b9", start=ends(LOG), lost={1: [(20, 30)]}).encode()
    DeltaTable(path).alter.set_table_properties(
        {"delta.appendOnly": "true"},
        commit_properties=CommitProperties(custom_metadata={"userMetadata": hole}),
    )
    with pytest.raises(LostRecordsError, match="partition 1 lacks offsets 20 to 29"):
        replay(accounts("t"), NO_KAFKA, ReplayOptions(engine="local", source="bronze", lake=str(lake)))
    assert (
        replay(
            accounts("t"),
            NO_KAFKA,
            ReplayOptions(engine="local", source="bronze", lake=str(lake), allow_holes=True),
        ).records
        == 500
    )


@pytest.mark.parametrize("name", ["my lake", "a+b", "ключ"])
def test_the_name_of_a_lakes_folder_may_have_spaces_signs_and_other_letters(
    tmp_path: Path, name: str
) -> None:
    write_bronze(tmp_path / name, "t", LOG)
    assert (
        replay(
            accounts("t"), NO_KAFKA, ReplayOptions(engine="local", source="bronze", lake=str(tmp_path / name))
        ).records
        == 500
    )


@pytest.mark.long
def test_large_values_are_read_few_at_a_time(lake: Path) -> None:
    import random

    noise = random.Random(7)
    big = {0: [Record(at, 1_000 + at, b"k", noise.randbytes(400_000)) for at in range(40)]}
    write_bronze(lake, "t", big, commits=1)
    files, _ = open_bronze(bronze_path(str(lake), "t"))
    sizes = [
        len(batch.offsets) for batch, _ in files.batches(accounts("t").columns, 0, Span(first=0, end=40))
    ]
    assert sum(sizes) == 40
    assert max(sizes) <= 32


def test_no_table_is_an_error_that_says_what_to_do(lake: Path) -> None:
    with pytest.raises(LakeError, match="land the topic first"):
        replay(accounts("t"), NO_KAFKA, ReplayOptions(engine="local", source="bronze", lake=str(lake)))


# -- written out


@pytest.mark.variants("parquet", "ndjson")
@pytest.mark.parametrize("form", ["parquet", "ndjson", "delta"])
def test_both_engines_write_the_same_tables(
    spark: SparkSession, lake: Path, tmp_path: Path, form: Any
) -> None:
    log = {0: [*LOG[0][:40], Record(300, 9_000, None, b"\xff")], 1: LOG[1][:20]}
    write_bronze(lake, "t", log)
    read: dict[str, dict[str, list[Any]]] = {}
    for engine in ("local", "spark"):
        out = tmp_path / engine
        options = ReplayOptions(
            engine=engine, source="bronze", lake=str(lake), transitions=True, out=str(out), format=form
        )
        got = replay(accounts("t"), NO_KAFKA, options)
        assert got.results is None
        read[engine] = {each.name: rows_of(each, form) for each in sorted(out.iterdir())}
        assert [row["digest"] for row in read[engine]["summary"]] == [each.digest for each in got.partitions]
    assert read["local"] == read["spark"]
    assert list(read["local"]) == ["refused", "rows", "summary", "timers", "transitions"]
    with pytest.raises(ConfigError, match="exists already"):
        replay(
            accounts("t"),
            NO_KAFKA,
            ReplayOptions(engine="local", source="bronze", lake=str(lake), out=str(tmp_path / "local")),
        )


def rows_of(table: Path, form: str) -> list[Any]:
    import json

    from deltalake import DeltaTable

    if form == "ndjson":
        rows = [
            json.loads(line)
            for file in sorted(table.glob("part-*.json"))
            for line in file.read_text().splitlines()
        ]
    elif form == "delta":
        rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    else:
        rows = dataset.dataset(table).to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["partition"], row.get("offset", 0), row.get("key", "")))


def test_an_unfinished_write_leaves_nothing(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bronze(lake, "t", LOG)

    def fail(*_: object) -> None:
        raise RuntimeError("disk full")

    monkeypatch.setattr("holdfast.pipeline.output.present", fail)
    with pytest.raises(RuntimeError, match="disk full"):
        replay(
            accounts("t"),
            NO_KAFKA,
            ReplayOptions(engine="local", source="bronze", lake=str(lake), out=str(tmp_path / "out")),
        )
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]


# -- irrelevant differences


@pytest.mark.process
def test_the_hash_seed_does_not_matter(lake: Path) -> None:
    write_bronze(lake, "t", LOG)
    code = (
        "from holdfast.config import Settings; from holdfast.pipeline.replay import ReplayOptions, replay;"
        " from tests.pipeline.accounts import accounts; print(replay(accounts('t'), Settings(),"
        f" ReplayOptions(engine='local', source='bronze', lake={str(lake)!r})).digest)"
    )
    root = ROOT
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=True,
            timeout=DEADLINE_S,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_the_path_of_a_table_follows_from_lake_and_topic(lake: Path) -> None:
    path = write_bronze(lake, "t", LOG)
    files, told_last = open_bronze(bronze_path(str(lake), "t"))
    assert path == bronze_path(str(lake), "t")
    assert told_last is not None
    assert told_last.end == ends(LOG)
    assert {p: [(f.first, f.last) for f in each] for p, each in files.files.items()} == {
        0: [(0, 149), (150, 299)],
        1: [(0, 99), (100, 199)],
    }
