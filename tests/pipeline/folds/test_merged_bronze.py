"""The replay of several sources from the lake, here and on Spark: the workers' results, or an error that
names the missing part of the lake.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from msgspec.structs import replace

from holdfast.cli.__main__ import main
from holdfast.config import Settings
from holdfast.core.engine.positions import Position, decode_position
from holdfast.core.engine.state.codec import APPLIED
from holdfast.errors import ChoicesError, ConfigError, LakeError, LostRecordsError, PipelineError
from holdfast.pipeline.bronze.extent import Until
from holdfast.pipeline.bronze.lake import Cut
from holdfast.pipeline.folds.extent import ReadLimit
from holdfast.pipeline.folds.plan import FoldPlan
from holdfast.pipeline.folds.replay_logs import open_logs
from holdfast.pipeline.folds.result_rows import RESULT
from holdfast.pipeline.folds.results import Replayed
from holdfast.pipeline.histories.as_of import AsOfOptions, row_as_of
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.run import fold_each
from holdfast.pipeline.upkeep.expire import expire
from tests.choices.world import TOPICS, Journal, logs_of, processor_of
from tests.choices.world import Log as SourceLog
from tests.pipeline.accounts import Log, Record
from tests.pipeline.folds.test_merged import WIDTH, lived
from tests.pipeline.lakes import ends, write_bronze
from tests.support.scale import scaled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_KAFKA = Settings()
PROCESSOR = processor_of(WIDTH)
CHOICES = PROCESSOR.choices(NO_KAFKA.app)
PARTITIONS, MANY = 3, 200


Worlds = list[tuple[Journal, list[SourceLog]]]
"""A worker's journal for each partition, and the logs up to its position."""


@cache
def worlds() -> Worlds:
    """Return three partitions in which much was chosen."""
    found = sorted((lived(seed) for seed in range(60)), key=lambda each: -len(each[0].choices))
    wanted = found[:PARTITIONS]
    assert all(len(live.choices) > 2 for live, _ in wanted)
    return [(live, logs_of(live, logs)) for live, logs in wanted]


@cache
def many_worlds() -> Worlds:
    """Return as many partitions as schedules, whatever was chosen in them."""
    return [(live, logs_of(live, logs)) for live, logs in map(lived, range(1_000, 1_000 + scaled(MANY)))]


def sources(found: Worlds) -> dict[str, Log]:
    return {
        TOPICS[source]: {
            partition: [
                Record(each[0], each[1], None, each[2])
                for each in zip(logs[source].offsets, logs[source].times_ms, logs[source].values, strict=True)
            ]
            for partition, (_, logs) in enumerate(found)
        }
        for source in range(WIDTH)
    }


def choices(drop: int | None = None, last: int = 0, found: Worlds | None = None) -> Log:
    """Return the choices, each in a transaction of its own; without number *drop*, or the *last* ones."""
    return {
        partition: [
            Record(2 * number, 1_000, None, value)
            for number, value in enumerate(live.choices[: len(live.choices) - last])
            if number != drop
        ]
        for partition, (live, _) in enumerate(found or worlds())
    }


def numbers(found: Worlds) -> dict[int, int]:
    return {partition: len(live.choices) for partition, (live, _) in enumerate(found)}


def write(lake: Path, told: Log | None = None, found: Worlds | None = None, **cut: Any) -> None:
    """Write the lake as a landing of the processor would."""
    found = worlds() if found is None else found
    landed, chosen = sources(found), choices(found=found)
    for topic, log in landed.items():
        write_bronze(lake, topic, log)
    told_of = {topic: ends(log) for topic, log in landed.items()}
    note = replace(Cut(sources=told_of, numbers=numbers(found)), **cut)
    write_bronze(lake, CHOICES, told or chosen, commits=1, cut=note, end=ends(chosen))


def replayed(lake: Path, engine: Literal["local", "spark"] = "local", **more: Any) -> Replayed:
    return replay(PROCESSOR, NO_KAFKA, ReplayOptions(engine=engine, source="bronze", lake=str(lake), **more))


def lives(found: Worlds | None = None) -> list[str]:
    return [live.store.digest() for live, _ in found or worlds()]


def marker(live: Journal) -> Position:
    stored = live.store.get(APPLIED)
    assert stored is not None
    return decode_position(stored)


def test_both_engines_give_the_results_of_workers(spark: SparkSession, lake: Path) -> None:
    write(lake)
    local, on_cluster = replayed(lake, transitions=True), replayed(lake, "spark", transitions=True)
    assert [each.digest for each in local.partitions] == lives()
    assert [list((each.sources or {}).values()) for each in local.partitions] == [
        list(marker(live).applied) for live, _ in worlds()
    ]
    assert (local.engine, on_cluster.engine) == ("local", "spark")
    assert local.partitions == on_cluster.partitions
    for name in ("rows", "timers", "transitions", "refused"):
        assert local.table(name, PROCESSOR).to_pylist() == on_cluster.table(name, PROCESSOR).to_pylist(), name


@pytest.mark.slow
def test_both_engines_give_the_results_of_workers_in_every_schedule(spark: SparkSession, lake: Path) -> None:
    """Each schedule is a partition, so that one job of Spark folds all of them."""
    found = many_worlds()
    assert sum(map(len, (live.choices for live, _ in found))) > len(found), (
        "what records nothing proves nothing"
    )
    write(lake, found=found)
    local, on_cluster = replayed(lake), replayed(lake, "spark")
    assert [each.digest for each in local.partitions] == lives(found)
    assert local.partitions == on_cluster.partitions


def test_spark_moves_no_record_between_tasks(spark: SparkSession, lake: Path) -> None:
    write(lake)
    plan = FoldPlan(processor=PROCESSOR)
    logs = open_logs(plan, NO_KAFKA, "bronze", str(lake), ReadLimit())
    folded = fold_each(spark, logs.extent.partitions, partial(logs.fold, plan), RESULT)
    assert folded.rdd.getNumPartitions() == PARTITIONS
    executed = folded._jdf.queryExecution().executedPlan().toString()
    assert "MapInArrow" in executed
    assert "Exchange" not in executed
    # A plan that does move them shows it.
    moved = folded.repartition(2, "partition")._jdf.queryExecution().executedPlan().toString()
    assert "Exchange" in moved


@pytest.mark.parametrize(
    "more",
    [
        {"until": Until(at_ms=15)},
        {"until": Until(sources={1: {TOPICS[0]: 5}})},
        {"partitions": (2, 0)},
        {"positions": "half"},
    ],
    ids=str,
)
def test_a_part_is_the_same_part_everywhere(spark: SparkSession, lake: Path, more: dict[str, Any]) -> None:
    write(lake)
    if more.get("positions"):
        more = {"positions": {at: marker(live) for at, (live, _) in enumerate(worlds())}}
    local, on_cluster = replayed(lake, **more), replayed(lake, "spark", **more)
    assert local.partitions == on_cluster.partitions
    assert local.records
    if "positions" in more:
        assert [each.digest for each in local.partitions] == lives()


@pytest.mark.long
def test_files_that_optimize_has_mixed_are_sorted_first(lake: Path, tmp_path: Path) -> None:
    write(lake)
    found = sources(worlds())
    mixed = tmp_path / "mixed"
    for topic, log in found.items():
        write_bronze(mixed, topic, log, shuffled=True)
    cut = Cut(sources={topic: ends(log) for topic, log in found.items()}, numbers=numbers(worlds()))
    write_bronze(mixed, CHOICES, choices(), shuffled=True, cut=cut)
    assert replayed(mixed).partitions == replayed(lake).partitions


# -- missing records are found


def test_choices_whose_tail_is_missing_are_found(spark: SparkSession, lake: Path) -> None:
    write(lake, choices(last=1))
    with pytest.raises(LakeError, match=f"though {numbers(worlds())[0]} were landed"):
        replayed(lake)
    with pytest.raises(LakeError, match=r"though \d+ were landed"):
        replayed(lake, "spark")


@pytest.mark.long
def test_without_the_check_a_missing_tail_gives_another_state(lake: Path) -> None:
    """The planted fault: a landing that does not count."""
    write(lake, choices(last=2), numbers={})
    assert [each.digest for each in replayed(lake).partitions] != lives()


def test_a_choice_that_is_missing_is_found(lake: Path) -> None:
    write(lake, choices(drop=1))
    with pytest.raises(ChoicesError, match="choice 1 is missing, 2 comes next"):
        replayed(lake)


def test_positions_that_the_lake_does_not_reach_are_refused(lake: Path) -> None:
    write(lake)
    further: Mapping[int, Position] = {0: _beyond(marker(worlds()[0][0]))}
    with pytest.raises(PipelineError, match="in the lake partition 0 ends at offset"):
        replayed(lake, positions=further)


def _beyond(position: Position) -> Position:
    return replace(position, applied=tuple(each + 100 for each in position.applied))


def test_tables_landed_one_by_one_are_not_enough(lake: Path) -> None:
    for topic, log in sources(worlds()).items():
        write_bronze(lake, topic, log)
    write_bronze(lake, CHOICES, choices())
    with pytest.raises(LakeError, match="pipeline land --processor seen"):
        replayed(lake)


def test_a_source_that_was_put_back_is_found(lake: Path) -> None:
    found = sources(worlds())
    write(
        lake, sources={topic: {at: end + 5 for at, end in ends(log).items()} for topic, log in found.items()}
    )
    with pytest.raises(LakeError, match="was put back to an older state"):
        replayed(lake)


def test_choices_of_other_sources_are_found(lake: Path) -> None:
    write(lake, sources={"elsewhere": {0: 1}})
    with pytest.raises(LakeError, match="landed with the sources elsewhere, not with north"):
        replayed(lake)


def test_choices_that_were_lost_before_they_were_landed_are_missed(lake: Path) -> None:
    write(lake)
    found = sources(worlds())
    cut = Cut(sources={topic: ends(log) for topic, log in found.items()}, numbers=numbers(worlds()))
    reached = ends(choices())
    write_bronze(lake, CHOICES, {0: []}, commits=1, cut=cut, start=reached, end=reached, lost={0: [(0, 2)]})
    with pytest.raises(LostRecordsError, match="in which order the sources were folded"):
        replayed(lake)


def test_records_behind_the_cut_are_left_for_the_next_landing(lake: Path) -> None:
    found = sources(worlds())
    behind = {topic: {at: end - 3 for at, end in ends(log).items()} for topic, log in found.items()}
    write(lake, sources=behind)
    for each, (live, _) in zip(replayed(lake).partitions, worlds(), strict=True):
        for topic, applied in (each.sources or {}).items():
            assert applied < behind[topic][each.partition]
        assert (each.choices or 0) <= marker(live).choices


@pytest.mark.long
def test_a_row_as_of_the_end_is_the_replays_with_records_of_every_source(lake: Path) -> None:
    write(lake)
    bronze = ReplayOptions(engine="local", source="bronze", lake=str(lake))
    rows = replay(PROCESSOR, NO_KAFKA, bronze).table("rows", PROCESSOR).to_pylist()
    end = Until(at_ms=(1 << 62) // 1000)
    topics: set[str | None] = set()
    for row in rows[:5]:
        told = row_as_of(PROCESSOR, NO_KAFKA, row["key"], end, AsOfOptions(replay=bronze))
        [found] = [each for each in told.rows if each.partition == row["partition"]]
        assert found.row == row["row"]
        assert all((each.topic is None) == (each.record is None) for each in found.changes)
        topics |= {each.topic for each in found.changes}
    assert topics > {None} or len(topics) > 1, "a toy"


@pytest.mark.long
def test_choices_do_not_expire(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(lake)
    with pytest.raises(
        ConfigError, match="holds the choices of a processor of several sources, and none expire"
    ):
        expire(CHOICES, str(lake), before_ms=2_000)
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", "expire", "--lake", str(lake), "--all-topics", "--before", "1000000000000"])
    assert (ended.value.code or 0) == 0
    assert CHOICES not in capsys.readouterr().out
    # A log in which no record has an append time has no old records.
    timeless = sum(len(log.offsets) for _, logs in worlds() for log in logs if max(log.times_ms) < 0)
    assert replayed(lake, allow_holes=True).records == timeless
