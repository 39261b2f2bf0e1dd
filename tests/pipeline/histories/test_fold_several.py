"""Tables of states and histories of processors of several sources: after any number of folds they equal one
replay by the order that workers recorded.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace as with_fields
from functools import cache
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from deltalake import DeltaTable

from holdfast.config import Settings
from holdfast.core.engine.choices import decode_choice
from holdfast.core.engine.positions import Position, decode_position
from holdfast.core.engine.state.codec import APPLIED
from holdfast.errors import ConfigError, LakeError
from holdfast.pipeline.bronze.lake import Cut, TablePosition, bronze_path
from holdfast.pipeline.folds import replay_logs
from holdfast.pipeline.folds.results import Replayed
from holdfast.pipeline.histories.fold import FoldOptions, FoldReport, FoldStep, fold
from holdfast.pipeline.histories.landed_history import HistoryParts
from holdfast.pipeline.logs.lake_log import open_bronze
from holdfast.pipeline.replay import ReplayOptions, replay
from tests.choices.world import TOPICS, logs_of, processor_of
from tests.choices.world import Log as SourceLog
from tests.pipeline.accounts import Log, Record
from tests.pipeline.folds.test_merged import WIDTH, Diary, lived
from tests.pipeline.lakes import ends, write_bronze

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_KAFKA = Settings()
PROCESSOR = processor_of(WIDTH)
CHOICES = PROCESSOR.choices(NO_KAFKA.app)
PARTITIONS = 2
World = tuple[Diary, list[SourceLog]]


@cache
def worlds(seed: int = 0) -> list[World]:
    """Return the journals of workers of some partitions, with their intermediate states, and the logs up to
    their positions. Callers must not change them.
    """
    found: list[World] = []
    for each in range(seed, seed + 40):
        live = Diary()
        _, logs = lived(each, live)
        if len(live.choices) > 2 and len(live.states) > 4:
            found.append((live, logs_of(live, logs)))
    found.sort(key=lambda each: -len(each[0].choices))
    return found[:PARTITIONS]


def marker(state: dict[bytes, bytes]) -> Position:
    return decode_position(state[APPLIED])


def records(log: SourceLog, end: int) -> list[Record]:
    told = zip(log.offsets, log.times_ms, log.values, strict=True)
    return [Record(offset, at_ms, None, value) for offset, at_ms, value in told if offset < end]


def land(lake: Path, made: list[World], share: float, ahead: int = 3) -> list[Position]:
    """Write the lake as landings leave it when tables have folded a *share* of their logs: with *ahead* more
    offsets of the sources, and any choices that came with them. Return the tables' positions.
    """
    at = [marker(live.states[round((len(live.states) - 1) * share)]) for live, _ in made]
    sources: dict[str, Log] = {}
    for number, topic in enumerate(TOPICS[:WIDTH]):
        sources[topic] = {
            partition: records(logs[number], at[partition].applied[number] + 1 + ahead)
            for partition, (_, logs) in enumerate(made)
        }
    chosen: dict[int, list[Record]] = {}
    for partition, (live, _) in enumerate(made):
        fits = [
            value
            for value in live.choices
            if all(
                last < 1 + done + ahead
                for last, done in zip(decode_choice(value).applied, at[partition].applied, strict=True)
            )
        ]
        values = live.choices[: max(len(fits), at[partition].choices)]
        chosen[partition] = [Record(2 * number, 1_000, None, value) for number, value in enumerate(values)]
    rmtree(lake / "bronze", ignore_errors=True)
    for topic, log in sources.items():
        write_bronze(lake, topic, log)
    positions = {
        partition: TablePosition(dict(zip(PROCESSOR.topics, each.applied, strict=True)), each.choices)
        for partition, each in enumerate(at)
    }
    cut = Cut(
        sources={topic: ends(log) for topic, log in sources.items()},
        numbers={partition: len(each) for partition, each in chosen.items()},
        positions=positions,
    )
    write_bronze(lake, CHOICES, chosen, commits=1, cut=cut)
    return at


def run(lake: Path, **more: Any) -> FoldReport:
    options = FoldOptions(**{"lake": str(lake), "engine": "local", **more})
    return fold(PROCESSOR, NO_KAFKA, options)


def whole(lake: Path, at: list[Position], **more: Any) -> Replayed:
    options = ReplayOptions(
        engine="local", source="bronze", lake=str(lake), positions=dict(enumerate(at)), **more
    )
    return replay(PROCESSOR, NO_KAFKA, options)


def rows_of(lake: Path, name: str, into: str = "folds/seen") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(str(lake / into / name)).to_pyarrow_table().to_pylist()
    return found


def history_model(found: Replayed) -> list[str]:
    """Return the expected history, by the transitions of one replay."""
    made: dict[tuple[int, str], list[list[Any]]] = defaultdict(list)
    for each in found.table("transitions", PROCESSOR).to_pylist():
        changes = made[each["partition"], each["key"]]
        if changes and changes[-1][3] is not None:
            changes[-1][-2:] = each["offset"], each["topic"]
        end = [each["offset"], each["topic"]] if each["after"] is None else [None, None]
        changes.append([each["topic"], each["offset"], each["before"], each["after"], each["at_ms"], *end])
    return sorted(repr((*key, *each)) for key, changes in made.items() for each in changes)


def as_json(row: Any) -> str | None:
    return None if row is None else msgspec.json.encode(row).decode()


def history_rows(lake: Path, into: str = "folds/seen") -> list[str]:
    return sorted(
        repr(
            (
                each["partition"],
                each["key"],
                each["topic"],
                each["offset"],
                as_json(each["before"]),
                as_json(each["after"]),
                each["valid_from_ms"],
                each["until_offset"],
                each["until_topic"],
            )
        )
        for each in rows_of(lake, "history", into)
    )


def check(lake: Path, at: list[Position], report: FoldReport, into: str = "folds/seen") -> Replayed:
    """Compare both tables with one replay from the beginning, and return that."""
    found = whole(lake, at, transitions=True)
    assert report.digest == found.digest
    assert report.applied == found.applied
    stored = defaultdict(list)
    for each in rows_of(lake, "state", into):
        stored[each["partition"]].append((each["stored_key"], each["stored"]))
    for partition in report.partitions:
        assert sorted(stored[partition]) == found.state(partition)
    assert history_rows(lake, into) == history_model(found)
    return found


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 40, 80])
@pytest.mark.parametrize("ahead", [0, 4])
def test_after_any_number_of_folds_the_tables_are_those_of_the_workers(
    lake: Path, seed: int, ahead: int
) -> None:
    made = worlds(seed)
    for share in (0.2, 0.5, 0.8, 1.0):
        at = land(lake, made, share, ahead)
        report = run(lake)
        found = check(lake, at, report)
        states = [live.states[round((len(live.states) - 1) * share)] for live, _ in made]
        live = [sorted((key, value) for key, value in each.items() if key[:1] != b"\x00") for each in states]
        assert [found.state(partition) for partition in range(PARTITIONS)] == live
    again = run(lake)
    assert (again.commits, again.records, again.digest) == (0, 0, report.digest)


@pytest.mark.long
def test_records_whose_order_is_not_settled_are_left(lake: Path) -> None:
    """The planted fault: a fold to the end of the sources would guess, and differ from the workers' later
    results.
    """
    made, guessed = worlds(), 0
    for share in (0.3, 0.5, 0.7):
        at = land(lake, made, share, ahead=6)
        settled, guess = (
            run(lake, rebuild=True),
            replay(PROCESSOR, NO_KAFKA, ReplayOptions(engine="local", source="bronze", lake=str(lake))),
        )
        guessed += guess.digest != settled.digest
        check(lake, at, settled)
    assert guessed


@pytest.mark.long
@pytest.mark.parametrize("most", [3, 11])
def test_many_commits_in_one_run_and_one_are_the_same(lake: Path, most: int) -> None:
    at = land(lake, worlds(), 1.0)
    report = run(lake, max_records=most)
    assert report.commits > 3
    check(lake, at, report)
    once = run(lake, into=str(lake / "once"))
    assert (once.commits, once.digest) == (1, report.digest)
    check(lake, at, once, "once")
    assert history_rows(lake, "once") == history_rows(lake)


@pytest.mark.long
def test_each_landed_table_is_opened_once_however_many_commits_are_made(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(lake, worlds(), 1.0)
    opened = list[str]()

    def noted(path: str) -> Any:
        opened.append(path)
        return open_bronze(path)

    monkeypatch.setattr(replay_logs, "open_bronze", noted)
    assert run(lake, max_records=20).commits > 2
    assert sorted(opened) == sorted(bronze_path(str(lake), topic) for topic in (CHOICES, *TOPICS[:WIDTH]))


@pytest.mark.long
def test_choices_are_read_on_where_they_were_left(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = worlds()
    land(lake, made, 0.6)
    first = run(lake)
    began: dict[int, int] = {}
    part = HistoryParts.part

    def noted(self: HistoryParts, plan: Any, partition: int, choices_from: int) -> Any:
        began[partition] = choices_from
        return part(self, plan, partition, choices_from)

    monkeypatch.setattr(HistoryParts, "part", noted)
    at = land(lake, made, 1.0)
    check(lake, at, run(lake))
    obeyed = {
        p: each.choices
        for p, each in enumerate(marker(live.states[round((len(live.states) - 1) * 0.6)]) for live, _ in made)
    }
    assert began == {p: 2 * obeyed[p] - 1 if obeyed[p] else 0 for p in began}
    assert {p: each.choices_from for p, each in first.partitions.items()} == began


@pytest.mark.variant
def test_spark_makes_the_same_tables(spark: SparkSession, lake: Path) -> None:
    made = worlds()
    for share, engine in ((0.4, "spark"), (0.7, "local"), (1.0, "spark")):
        at = land(lake, made, share)
        report = run(lake, engine=engine, memory_bytes=2_000)
        assert (report.engine, report.spilled > 0) == (engine, True)
        check(lake, at, report)


@pytest.mark.long
def test_a_fold_that_stops_between_its_commits_is_finished_by_the_next(lake: Path) -> None:
    made = worlds()
    at = land(lake, made, 0.5)

    def dies(step: FoldStep) -> None:
        if step is FoldStep.OUTPUT:
            raise ConnectionAbortedError

    for share in (0.5, 0.8):
        at = land(lake, made, share)
        with pytest.raises(ConnectionAbortedError):
            fold(PROCESSOR, NO_KAFKA, FoldOptions(lake=str(lake), engine="local"), told=dies)
    at = land(lake, made, 1.0)
    check(lake, at, run(lake))


def test_a_choices_table_without_the_position_is_refused(lake: Path) -> None:
    from tests.pipeline.folds.test_merged_bronze import write

    write(lake)
    with pytest.raises(LakeError, match=r"has no position of the table of seen: .*--processor seen"):
        run(lake)


@pytest.mark.long
def test_a_lake_that_was_put_back_is_refused(lake: Path) -> None:
    made = worlds()
    land(lake, made, 0.8)
    run(lake)
    land(lake, made, 0.4)
    with pytest.raises(LakeError, match=r"partition 0 ends at .* choices, and was folded up to .* put back"):
        run(lake)


@pytest.mark.long
def test_a_function_of_a_fold_with_more_inputs_counts_for_its_identity(lake: Path) -> None:
    from holdfast.core.engine.declared.sources import FoldWith

    land(lake, worlds(), 1.0)
    run(lake)
    [(source, told), *rest] = (PROCESSOR.on or {}).items()
    assert isinstance(told, FoldWith)

    def otherwise(rows: Any, event: Any, at_ms: int, topic: str, offset: int, timestamp: int) -> Any:
        return ()

    otherwise.__qualname__, otherwise.__module__ = told.fold.__qualname__, told.fold.__module__
    changed = with_fields(PROCESSOR, on={source: with_fields(told, fold=otherwise), **dict(rest)})
    with pytest.raises(ConfigError, match="its functions, or settings"):
        fold(changed, NO_KAFKA, FoldOptions(lake=str(lake), engine="local"))
