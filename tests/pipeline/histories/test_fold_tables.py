"""Tables of states and histories: after any number of folds they equal one replay of the lake from the
beginning.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.table import TableAlterer

from holdfast.cli.__main__ import main
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import ConfigError, LakeError, LostRecordsError, UnknownCommitError
from holdfast.pipeline.bronze import commits
from holdfast.pipeline.histories.fold import FoldOptions, FoldReport, FoldStep, fold
from holdfast.pipeline.histories.fold_tables import STATE_BY, FoldTable, FoldTableColumns
from holdfast.pipeline.histories.partition_fold import FoldWork
from holdfast.pipeline.landing.bronze_file import BronzeFile
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.upkeep.expire import expire
from tests.pipeline.accounts import accounts
from tests.pipeline.topics_in_memory import TopicInMemory, land, topic
from tests.support.patience import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["topic"]
NO_KAFKA = Settings(app="folds")
VERBS = ("add", "add", "wake", "boom", "sum", "add", "remove", "what")


def some(topic: TopicInMemory, count: int, seed: int) -> None:
    """Append records of every kind: sums, timers, removals, and records that are refused."""
    chance = random.Random(seed)
    for partition in topic.partitions():
        for _ in range(count):
            verb, key, amount = chance.choice(VERBS), chance.choice("abcde"), chance.randrange(99)
            value = None if chance.random() < 0.1 else f"{verb} {key} {amount}".encode()
            topic.append(partition, [value], gap=chance.choice([0, 0, 2]))


def run(lake: Path, processor: Processor[Any, Any] | None = None, **more: Any) -> FoldReport:
    return fold(
        processor or accounts("t"), NO_KAFKA, FoldOptions(**{"lake": str(lake), "engine": "local", **more})
    )


def replayed(lake: Path, **more: Any) -> Any:
    options = ReplayOptions(**{"engine": "local", "source": "bronze", "lake": str(lake), **more})
    return replay(accounts("t"), NO_KAFKA, options)


def rows_of(lake: Path, name: str, into: str = "folds/accounts") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(str(lake / into / name)).to_pyarrow_table().to_pylist()
    return found


def as_json(row: Any) -> str | None:
    return None if row is None else msgspec.json.encode(row).decode()


def in_order(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=str)


def history_model(lake: Path) -> list[tuple[Any, ...]]:
    """Return the expected history, by the transitions of one replay."""
    made: dict[tuple[int, str], list[list[Any]]] = defaultdict(list)
    for each in replayed(lake, transitions=True).table("transitions", accounts("t")).to_pylist():
        changes = made[each["partition"], each["key"]]
        if changes and changes[-1][5] is None:
            changes[-1][5:7] = each["at_ms"], each["offset"]
        end = (each["at_ms"], each["offset"]) if each["after"] is None else (None, None)
        changes.append([each["offset"], each["before"], each["after"], each["at_ms"], None, *end])
    return in_order(
        (partition, key, at, before, after, from_ms, to_ms, until, until is None)
        for (partition, key), changes in made.items()
        for at, before, after, from_ms, _, to_ms, until in changes
    )


def history_rows(lake: Path, into: str = "folds/accounts") -> list[tuple[Any, ...]]:
    return in_order(
        (
            each["partition"],
            each["key"],
            each["offset"],
            as_json(each["before"]),
            as_json(each["after"]),
            each["valid_from_ms"],
            each["valid_to_ms"],
            each["until_offset"],
            each["is_current"],
        )
        for each in rows_of(lake, "history", into)
    )


def check(lake: Path, report: FoldReport, into: str = "folds/accounts") -> None:
    """Compare both tables with one replay from the beginning."""
    whole = replayed(lake)
    assert report.digest == whole.digest
    assert report.applied == whole.applied
    assert sum(each.records for each in report.partitions.values()) == whole.records
    stored = defaultdict(list)
    for each in rows_of(lake, "state", into):
        stored[each["partition"]].append((each["stored_key"], each["stored"]))
    for partition in report.partitions:
        assert sorted(stored[partition]) == whole.state(partition)
    assert history_rows(lake, into) == history_model(lake)


@pytest.mark.long
def test_after_any_number_of_folds_the_tables_are_those_of_one_replay(
    topic: TopicInMemory, lake: Path
) -> None:
    for number in range(5):
        some(topic, 40, seed=number)
        land(topic, lake)
        report = run(lake)
        assert (report.commits, report.records) == (1, 80)
        check(lake, report)
    version = DeltaTable(str(lake / "folds/accounts/state")).version()
    again = run(lake)
    assert (again.commits, again.records, again.digest) == (0, 0, report.digest)
    assert DeltaTable(str(lake / "folds/accounts/state")).version() == version


@pytest.mark.long
def test_many_commits_in_one_run_and_one_are_the_same(topic: TopicInMemory, lake: Path) -> None:
    some(topic, 200, seed=1)
    land(topic, lake)
    report = run(lake, max_records=60)
    assert report.commits > 5
    check(lake, report)
    once = run(lake, into=str(lake / "once"))
    assert once.commits == 1
    assert once.digest == report.digest
    check(lake, once, "once")
    assert history_rows(lake, "once") == history_rows(lake)


@pytest.mark.long
def test_a_gap_wider_than_a_commit_is_passed(topic: TopicInMemory, lake: Path) -> None:
    topic.append(0, [b"add a 1"] * 5, gap=500)
    topic.append(0, [b"add a 1"] * 30)
    land(topic, lake)
    report = run(lake, max_records=10)
    assert report.commits == 4
    check(lake, report)


@pytest.mark.long
def test_only_new_records_are_read(topic: TopicInMemory, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some(topic, 100, seed=1)
    land(topic, lake)
    run(lake)
    topic.append(1, [b"add a 1"] * 3)
    land(topic, lake)
    report = run(lake)
    assert report.records == 3
    check(lake, report)
    table = DeltaTable(str(lake / "folds/accounts/state"))
    assert {each["partition"] for each in table.to_pyarrow_table().to_pylist()} == {0, 1}
    [written] = [each for each in table.history(1)]
    assert "partition=0" not in str(written)


@pytest.mark.long
def test_a_lake_whose_beginning_expired_is_folded_on(
    topic: TopicInMemory, lake: Path, tmp_path: Path
) -> None:
    some(topic, 40, seed=1)
    land(topic, lake)
    run(lake)
    some(topic, 40, seed=2)
    land(topic, lake)
    whole = replayed(lake)
    report = expire("t", str(lake), before_ms=1_030)
    assert report.expired
    assert run(lake).digest == whole.digest
    with pytest.raises(LostRecordsError, match="begins at offset"):
        run(lake, rebuild=True)


@pytest.mark.long
def test_a_partition_that_is_added_later_begins_at_its_beginning(topic: TopicInMemory, lake: Path) -> None:
    some(topic, 30, seed=1)
    land(topic, lake)
    run(lake)
    topic.add_partition()
    some(topic, 30, seed=2)
    land(topic, lake)
    report = run(lake)
    assert len(report.partitions) == 3
    check(lake, report)


@pytest.mark.variant
def test_both_engines_take_turns(spark: SparkSession, topic: TopicInMemory, lake: Path) -> None:
    for number, engine in enumerate(("local", "spark", "local", "spark")):
        some(topic, 40, seed=number)
        land(topic, lake)
        report = run(lake, engine=engine)
        assert report.engine == engine
        check(lake, report)
    assert spark.read.format("delta").load(str(lake / "folds/accounts/history")).where("is_current").count()


@pytest.mark.long
def test_a_state_larger_than_memory_spills(topic: TopicInMemory, lake: Path) -> None:
    for partition in topic.partitions():
        topic.append(partition, [f"add k{at % 300} {at % 99}".encode() for at in range(2_000)])
    land(topic, lake)
    report = run(lake, memory_bytes=20_000, max_records=1_500)
    assert report.spilled == 2 * report.commits
    check(lake, report)


# -- types


class Wide(msgspec.Struct, frozen=True):
    """A row that has got a field."""

    total: int = 0
    seen_ms: int = 0
    fired: int = 0
    tags: frozenset[str] = frozenset()
    note: str = "-"


class Other(msgspec.Struct, frozen=True):
    """A row whose total is text."""

    total: str = ""


def counting(rows: Rows[Any], value: bytes | None, at_ms: int) -> None:
    rows["n"] = Wide(rows.get("n", Wide()).total + 1, note="new")


def simple(row: Any = Wide, version: int = 1, fold_of: Any = counting) -> Processor[Any, Any]:
    return Processor(
        name="accounts", source="t", decode=lambda value: value, fold=fold_of, row=row, version=version
    )


def test_rows_have_typed_columns_and_bytes(topic: TopicInMemory, lake: Path) -> None:
    topic.append(0, [b"add a 7", b"wake a 99"])
    land(topic, lake)
    run(lake)
    row, timer = sorted(rows_of(lake, "state"), key=lambda each: str(each["kind"]))
    assert row["row"] == {"total": 7, "seen_ms": 1_000, "fired": 0, "tags": ["t0"]}
    assert (row["key"], row["offset"], row["valid_from_ms"]) == ("a", 0, 1_000)
    assert (timer["kind"], timer["key"], timer["due_ms"], timer["row"]) == ("wake", "a", 1_001 + 99, None)


@pytest.mark.long
def test_a_row_type_may_get_fields(topic: TopicInMemory, lake: Path) -> None:
    from tests.pipeline.accounts import Account

    def before(rows: Rows[Any], value: bytes | None, at_ms: int) -> None:
        rows["n"] = Account(1)

    topic.append(0, [b"x"])
    land(topic, lake)
    run(lake, simple(Account))
    topic.append(0, [b"x"])
    land(topic, lake)
    with pytest.raises(ConfigError, match="row type"):
        run(lake, simple(Other))
    run(lake, simple(Wide))
    [row] = rows_of(lake, "state")
    assert row["row"]["note"] == "new"
    assert [each["before"] and each["before"].get("note") for each in rows_of(lake, "history")] in (
        [None, "-"],
        ["-", None],
    )


@pytest.mark.long
def test_named_tables_and_event_time_continue_too(topic: TopicInMemory, lake: Path) -> None:
    def counting(rows: Rows[int], value: int, at_ms: int) -> None:
        rows[f"k{value % 3}"] = rows.get(f"k{value % 3}", 0) + value
        seen = rows.table("seen")
        if value % 5 == 0:
            del seen["last"]
        else:
            seen["last"] = (str(value),)
        rows.wake_at(f"k{value % 3}", value + 10, clock="event")

    def on_event(rows: Rows[int], key: str, at_ms: int) -> None:
        rows[f"fired/{key}"] = at_ms

    processor: Processor[Any, Any] = Processor(
        name="accounts",
        source="t",
        decode=lambda value: int(value or b"0"),
        fold=counting,
        on_event=on_event,
        time=lambda value: value,
        row=int,
        tables={"seen": tuple[str, ...]},
    )
    for number in range(4):
        chance = random.Random(number)
        topic.append(0, [b"%d" % (30 * number + chance.randrange(40)) for _ in range(25)])
        land(topic, lake)
        report = run(lake, processor)
        options = ReplayOptions(engine="local", source="bronze", lake=str(lake))
        whole = replay(processor, NO_KAFKA, options)
        assert (report.digest, report.applied) == (whole.digest, whole.applied)
    rows = rows_of(lake, "state")
    assert {each["kind"] for each in rows} == {"row", "event"}
    [last] = [each["row_seen"] for each in rows if each["table"] == "seen"] or [None]
    changes = [each for each in rows_of(lake, "history") if each["table"] == "seen"]
    assert len(changes) > 50
    assert [each["after_seen"] for each in changes if each["is_current"]] == ([last] if last else [])
    assert all(each["row"] > 0 for each in rows if each["kind"] == "row" and each["table"] is None)


# -- refused


@pytest.mark.long
def test_another_version_fold_or_application_is_refused_with_the_cure(
    topic: TopicInMemory, lake: Path
) -> None:
    some(topic, 20, seed=1)
    land(topic, lake)
    run(lake, simple())
    some(topic, 20, seed=2)
    land(topic, lake)
    with pytest.raises(ConfigError, match=r"version 1, and this is version 2\. .*--into FOLDER.*--rebuild"):
        run(lake, simple(version=2))

    def counting(rows: Rows[Any], value: bytes | None, at_ms: int) -> None:
        rows["n"] = Wide(rows.get("n", Wide()).total + 2)

    counting.__qualname__, counting.__module__ = "counting", __name__
    with pytest.raises(ConfigError, match="another fold: its functions, or settings"):
        run(lake, simple(fold_of=counting))
    with pytest.raises(ConfigError, match="app folds, and this is app other"):
        fold(simple(), Settings(app="other"), FoldOptions(lake=str(lake), engine="local"))
    assert run(lake, simple()).records == 40
    assert run(lake, simple(version=2), into=str(lake / "second")).records == 80
    assert run(lake, simple(version=2), rebuild=True).records == 80
    assert run(lake, simple(version=2)).records == 0


@pytest.mark.long
def test_a_rebuild_may_change_the_columns(topic: TopicInMemory, lake: Path) -> None:
    some(topic, 20, seed=1)
    land(topic, lake)
    run(lake, simple())

    def texts(rows: Rows[Any], value: bytes | None, at_ms: int) -> None:
        rows["n"] = Other("x")

    with pytest.raises(ConfigError):
        run(lake, simple(Other, fold_of=texts))
    report = run(lake, simple(Other, fold_of=texts), rebuild=True)
    assert [each["row"] for each in rows_of(lake, "state")] == [{"total": "x"}] * 2
    assert len(history_rows(lake)) == report.records == 40


@pytest.mark.long
def test_a_topic_that_was_made_again_is_refused(topic: TopicInMemory, lake: Path, tmp_path: Path) -> None:
    some(topic, 20, seed=1)
    land(topic, lake)
    run(lake, into=str(tmp_path / "tables"))
    other = tmp_path / "other"
    again = TopicInMemory(identity="again")
    some(again, 20, seed=1)
    topic.logs, topic.end, topic._identity = again.logs, again.end, "again"
    land(topic, other)
    with pytest.raises(LakeError, match="deleted and made again"):
        run(other, into=str(tmp_path / "tables"))


@pytest.mark.long
def test_a_lake_that_was_put_back_is_refused(topic: TopicInMemory, lake: Path, tmp_path: Path) -> None:
    some(topic, 20, seed=1)
    short = tmp_path / "short"
    land(topic, short)
    some(topic, 20, seed=2)
    land(topic, lake)
    run(lake, into=str(tmp_path / "tables"))
    with pytest.raises(LakeError, match=r"was folded up to .* put back to an older state"):
        run(short, into=str(tmp_path / "tables"))


@pytest.mark.long
def test_tables_that_something_else_has_changed_are_refused(topic: TopicInMemory, lake: Path) -> None:
    some(topic, 20, seed=1)
    land(topic, lake)
    run(lake)
    some(topic, 20, seed=2)
    land(topic, lake)
    state = DeltaTable(str(lake / "folds/accounts/state"))
    state.optimize.compact()
    state.delete("key = 'a'")
    with pytest.raises(LakeError, match=r"\(DELETE\) was not written by a fold"):
        run(lake)
    check(lake, run(lake, rebuild=True))


@pytest.mark.long
def test_a_row_that_was_changed_in_a_file_is_found(topic: TopicInMemory, lake: Path) -> None:
    import pyarrow.parquet as pq

    some(topic, 20, seed=1)
    land(topic, lake)
    run(lake)
    [file, *_] = (lake / "folds/accounts/state").rglob("*.parquet")
    table = pq.read_table(file, partitioning=None)
    at = table.schema.get_field_index("stored")
    column = table.column(at).to_pylist()
    pq.write_table(table.set_column(at, table.schema.field(at), [column[1:] + column[:1]]), file)
    some(topic, 20, seed=2)
    land(topic, lake)
    with pytest.raises(LakeError, match="its rows are not those that were folded"):
        run(lake)


def test_holes_are_refused_unless_allowed_and_noted(topic: TopicInMemory, lake: Path) -> None:
    from tests.pipeline.accounts import Record
    from tests.pipeline.lakes import write_bronze

    log = {0: [Record(at, 1_000 + at, None, b"add a 1") for at in range(50)]}
    write_bronze(lake, "t", log, commits=1, lost={0: [(20, 30)]})
    with pytest.raises(LostRecordsError, match="lacks offsets 20 to 29"):
        run(lake)
    report = run(lake, allow_holes=True)
    assert report.records == 50
    told = DeltaTable(str(lake / "folds/accounts/state")).history(1)[0]["userMetadata"]
    assert "lacks offsets 20 to 29" in told
    assert run(lake).records == 0, "what lies before the position is not needed any more"


# -- killed and raced


KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
from holdfast.pipeline.histories import fold_tables
from holdfast.pipeline.bronze import commits
from holdfast.pipeline.histories.fold import FoldOptions, FoldStep, fold
from holdfast.config import Settings
from tests.pipeline.accounts import accounts

lake, at = sys.argv[1:]
def told(step):
    if step.value == at:
        os.kill(os.getpid(), signal.SIGKILL)
if at == "writing":
    fold_tables.PartFile.note = lambda self, group: os.kill(os.getpid(), signal.SIGKILL)
fold(accounts("t"), Settings(app="folds"), FoldOptions(lake=lake, engine="local"), told=told)
"""


def killed(lake: Path, at: str) -> None:
    """Fold in another process, which is killed at a step."""
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-P", "-c", KILLED.format(root=root), str(lake), at],
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.process
@pytest.mark.parametrize("at", ["writing", FoldStep.FOLDED, FoldStep.OUTPUT, FoldStep.STATE])
def test_a_fold_that_is_killed_is_finished_by_the_next(topic: TopicInMemory, lake: Path, at: str) -> None:
    some(topic, 40, seed=1)
    land(topic, lake)
    killed(lake, at)
    some(topic, 40, seed=2)
    land(topic, lake)
    if at == FoldStep.OUTPUT:
        killed(lake, FoldStep.STATE)  # of the rest that the first one left
        killed(lake, at)
    report = run(lake)
    check(lake, report)
    assert sum(each.records for each in report.partitions.values()) == 160


@pytest.mark.long
def test_of_two_folds_of_one_state_one_wins(topic: TopicInMemory, lake: Path) -> None:
    some(topic, 40, seed=1)
    land(topic, lake)
    run(lake)
    some(topic, 40, seed=2)
    land(topic, lake)
    raced: list[FoldReport] = []

    def other(step: FoldStep) -> None:
        if step is FoldStep.FOLDED:
            raced.append(run(lake))

    before = {each for each in lake.rglob("folds/**/*.parquet")}
    with pytest.raises(LakeError, match="another run, or something else, has changed the table meanwhile"):
        fold(accounts("t"), NO_KAFKA, FoldOptions(lake=str(lake), engine="local"), told=other)
    check(lake, raced[0])
    check(lake, run(lake))
    added = {each for each in lake.rglob("folds/**/*.parquet")} - before
    assert len(added) == len(raced[0].partitions) * 3, "files of the one that lost are gone"


@pytest.mark.long
def test_a_fold_that_stops_between_its_commits_may_be_finished_by_another(
    topic: TopicInMemory, lake: Path
) -> None:
    some(topic, 40, seed=1)
    land(topic, lake)

    def other(step: FoldStep) -> None:
        if step is FoldStep.OUTPUT:
            some(topic, 20, seed=2)
            land(topic, lake)
            check(lake, run(lake))

    check(lake, fold(accounts("t"), NO_KAFKA, FoldOptions(lake=str(lake), engine="local"), told=other))
    check(lake, run(lake))
    there = sum(1 for _ in (lake / "folds/accounts/state").rglob("*.parquet"))
    assert there == 2 * 2, "of the other's two commits, and none that no commit names"


@pytest.mark.long
def test_a_history_that_its_fold_does_not_make_is_found(
    topic: TopicInMemory, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(topic, 40, seed=1)
    land(topic, lake)

    def dies(step: FoldStep) -> None:
        if step is FoldStep.OUTPUT:
            raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        fold(accounts("t"), NO_KAFKA, FoldOptions(lake=str(lake), engine="local"), told=dies)
    work = FoldWork.fold

    def otherwise(self: Any, partition: int) -> Any:
        part = work(self, partition)
        return msgspec.structs.replace(part, commit=msgspec.structs.replace(part.commit, digest="0"))

    with monkeypatch.context() as patch:
        patch.setattr(FoldWork, "fold", otherwise)
        with pytest.raises(LakeError, match="tells of another state of partition 0"):
            run(lake)
    check(lake, run(lake))


@pytest.mark.long
def test_tables_that_do_not_belong_together_are_refused(topic: TopicInMemory, lake: Path) -> None:
    some(topic, 40, seed=1)
    land(topic, lake)
    run(lake)
    some(topic, 40, seed=2)
    land(topic, lake)
    run(lake)
    import shutil

    shutil.rmtree(lake / "folds/accounts/history")
    with pytest.raises(LakeError, match="do not belong together"):
        run(lake)
    check(lake, run(lake, rebuild=True))


@pytest.mark.long
def test_a_failed_write_leaves_nothing(
    topic: TopicInMemory, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(topic, 40, seed=1)
    land(topic, lake)
    note = BronzeFile.note

    def full(self: BronzeFile, group: Any) -> None:
        if self.partition == 1:
            raise OSError("no space left on device")
        note(self, group)

    with monkeypatch.context() as patch:
        patch.setattr(BronzeFile, "note", full)
        with pytest.raises(LakeError, match="cannot be written: no space left"):
            run(lake)
    assert not list(lake.rglob("folds/**/*.parquet"))
    check(lake, run(lake))


@pytest.mark.long
@pytest.mark.parametrize("failure", [CommitFailedError("lost"), OSError("lost")])
@pytest.mark.parametrize("number", [1, 2], ids=["output", "state"])
def test_of_a_commit_that_was_surely_not_made_no_file_is_left(
    topic: TopicInMemory, lake: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception, number: int
) -> None:
    some(topic, 40, seed=1)
    land(topic, lake)
    commits = Commits(monkeypatch, number, failure, made=False)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", commits)
        with pytest.raises(
            LakeError, match=r"folds/accounts/\w+: the commit failed, .*: lost\. Mend"
        ) as raised:
            run(lake)
    assert not isinstance(raised.value, UnknownCommitError)
    named = set[str]()
    for name in ("state", "history"):
        named |= {Path(each).name for each in DeltaTable(str(lake / "folds/accounts" / name)).file_uris()}
    assert {each.name for each in lake.rglob("folds/**/*.parquet")} == named
    check(lake, run(lake))


@pytest.mark.long
@pytest.mark.parametrize("failure", [CommitFailedError("lost"), OSError("lost")])
@pytest.mark.parametrize("made", [True, False], ids=["made", "not made"])
@pytest.mark.parametrize("number", [1, 2], ids=["output", "state"])
def test_files_of_a_commit_with_an_unknown_outcome_are_kept(
    topic: TopicInMemory,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    made: bool,
    number: int,
) -> None:
    """The store goes away with the commit's answer: the next fold continues from the stored state."""
    some(topic, 40, seed=1)
    land(topic, lake)
    commits = Commits(monkeypatch, number, failure, made=made, away=True)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", commits)
        with pytest.raises(
            UnknownCommitError, match=r"is not known \(lost\).*store does not answer.* a vacuum"
        ):
            run(lake)
    monkeypatch.undo()
    check(lake, run(lake))


@pytest.mark.long
def test_a_commit_of_which_only_the_answer_was_lost_is_made(
    topic: TopicInMemory, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(topic, 40, seed=1)
    land(topic, lake)
    commits = Commits(monkeypatch, 1, OSError("lost"), made=True)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", commits)
        report = run(lake)
    assert (report.commits, commits.left) == (1, -1)
    check(lake, report)


class Commits:
    """Commits of which the one that is *number* fails, *made* or not; the store is *away* from then on."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        number: int,
        failure: Exception,
        *,
        made: bool,
        away: bool = False,
    ) -> None:
        self._monkeypatch, self.left, self._failure = monkeypatch, number, failure
        self._made, self._away, self._commit = made, away, DeltaTable.create_write_transaction

    def __get__(self, table: DeltaTable, _: object) -> Any:
        return lambda *words, **more: self._next(table, *words, **more)

    def _next(self, table: DeltaTable, *words: Any, **more: Any) -> None:
        self.left -= 1
        if self.left != 0:
            return self._commit(table, *words, **more)
        if self._made:
            self._commit(table, *words, **more)
        if self._away:
            self._monkeypatch.setattr(DeltaTable, "update_incremental", away)
        raise self._failure


def away(_: DeltaTable) -> None:
    raise OSError("the store does not answer")


class FailingCall:
    """A store in which one call of delta-rs fails, after its work was *done* or not; *away* is the first
    other call that fails from then on.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, of: Any, name: str, *, done: bool, away: str | None = None
    ) -> None:
        call = getattr(of, name)

        def failing(*words: Any, **more: Any) -> Any:
            if done:
                call(*words, **more)
            if away is not None:
                monkeypatch.setattr(DeltaTable, away, gone)
            raise OSError("lost")

        monkeypatch.setattr(of, name, failing)


def gone(*_: Any, **__: Any) -> Any:
    raise OSError("the store does not answer")


def state_at(path: Path) -> FoldTable:
    return FoldTable.open(str(path), FoldTableColumns.of(accounts("t")).state, STATE_BY)


MORE = pa.schema([*FoldTableColumns.of(accounts("t")).state, pa.field("row_more", pa.string())])


def test_a_table_that_cannot_be_read_again_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = state_at(tmp_path / "state")
    monkeypatch.setattr(DeltaTable, "update_incremental", gone)
    with pytest.raises(
        LakeError, match=r"/state: the table cannot be read: the store does not answer\. Mend that, then run"
    ):
        table.refresh()


def test_a_table_whose_log_cannot_be_read_is_named(tmp_path: Path) -> None:
    table = state_at(tmp_path / "state")
    log = tmp_path / "state/_delta_log/00000000000000000000.json"
    log.unlink()
    log.mkdir()
    with pytest.raises(LakeError, match=r"/state: the table cannot be read: .*directory.*Mend that"):
        table.last()


def test_a_store_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeltaTable, "is_deltatable", gone)
    with pytest.raises(LakeError, match="/state: the table cannot be read: the store does not answer"):
        state_at(tmp_path / "state")


@pytest.mark.parametrize("failure", [OSError("lost"), CommitFailedError("lost")])
def test_a_table_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create", fails)
        with pytest.raises(LakeError, match=r"cannot make a Delta table at .*/state: lost\. Mend") as raised:
            state_at(tmp_path / "state")
    assert not isinstance(raised.value, UnknownCommitError)
    assert state_at(tmp_path / "state").last() is None


def test_a_table_is_made_although_the_answer_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FailingCall(monkeypatch, DeltaTable, "create", done=True)
    assert state_at(tmp_path / "state").last() is None


@pytest.mark.parametrize("done", [True, False], ids=["made", "not made"])
def test_the_creation_of_a_table_in_a_store_that_went_away_has_an_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    with monkeypatch.context() as patch:
        FailingCall(patch, DeltaTable, "create", done=done, away="is_deltatable")
        with pytest.raises(
            UnknownCommitError,
            match=r"/state: whether .* is not known \(lost\): .*not answer.*run this one again",
        ):
            state_at(tmp_path / "state")
    assert state_at(tmp_path / "state").last() is None


@pytest.mark.parametrize("rebuild", [False, True])
def test_columns_that_could_not_be_changed_are_said_to_be_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rebuild: bool
) -> None:
    table, (of, name) = state_at(tmp_path / "state"), CHANGES[rebuild]
    with monkeypatch.context() as patch:
        FailingCall(patch, of, name, done=False)
        with pytest.raises(
            LakeError, match=r"/state: its columns could not be changed: lost\. Mend that, then run"
        ) as raised:
            table.widen(MORE, rebuild=rebuild)
    assert not isinstance(raised.value, UnknownCommitError)
    table.widen(MORE, rebuild=rebuild)
    assert "row_more" in table.handle.schema().to_arrow().names


@pytest.mark.parametrize("rebuild", [False, True])
def test_columns_are_changed_although_the_answer_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rebuild: bool
) -> None:
    table, (of, name) = state_at(tmp_path / "state"), CHANGES[rebuild]
    FailingCall(monkeypatch, of, name, done=True)
    table.widen(MORE, rebuild=rebuild)
    assert "row_more" in table.handle.schema().to_arrow().names


@pytest.mark.parametrize("done", [True, False], ids=["changed", "not changed"])
@pytest.mark.parametrize("rebuild", [False, True])
def test_a_change_of_columns_in_a_store_that_went_away_has_an_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rebuild: bool, done: bool
) -> None:
    table, (of, name) = state_at(tmp_path / "state"), CHANGES[rebuild]
    with monkeypatch.context() as patch:
        FailingCall(patch, of, name, done=done, away="__init__")
        with pytest.raises(
            UnknownCommitError,
            match=r"/state: whether its columns .* is not known \(lost\): .*not answer.*run this",
        ):
            table.widen(MORE, rebuild=rebuild)
    again = state_at(tmp_path / "state")
    again.widen(MORE, rebuild=rebuild)
    assert "row_more" in again.handle.schema().to_arrow().names


CHANGES: tuple[tuple[Any, str], ...] = ((TableAlterer, "add_columns"), (DeltaTable, "create"))
"""Calls that add columns: of a fold, and of a rebuild, which makes the table again."""


# -- from the command line


@pytest.mark.long
def test_the_command_folds_reports_and_vacuums(
    topic: TopicInMemory, lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["--set", "app=folds", "-A", "tests.pipeline.histories.folded_app", *words])
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    some(topic, 40, seed=1)
    land(topic, lake)
    words = ("pipeline", "fold", "accounts", "--lake", str(lake))
    code, out, err = command(*words, "--output", "json")
    assert (code, json.loads(out)["digest"]) == (0, replayed(lake).digest), err
    assert "nothing was landed since the last fold" in command(*words)[2]
    some(topic, 40, seed=2)
    land(topic, lake)
    code, out, err = command(*words, "--engine", "local", "--state-memory-mb", "1")
    assert (code, "80 records and" in err, replayed(lake).digest in err) == (0, True, True)
    before = sorted(DeltaTable(str(lake / "folds/accounts/history")).to_pyarrow_table().to_pylist(), key=repr)
    code, out, err = command("pipeline", "compact", "--lake", str(lake), "--fold", "accounts", "-o", "json")
    [joined] = json.loads(out)
    assert joined["topic"] == "accounts history"
    assert joined["files_before"] > joined["files_after"]
    after = DeltaTable(str(lake / "folds/accounts/history")).to_pyarrow_table().to_pylist()
    assert sorted(after, key=repr) == before
    some(topic, 40, seed=3)
    land(topic, lake)
    code, out, err = command(*words)
    assert (code, replayed(lake).digest in err) == (0, True), err
    code, out, err = command("pipeline", "vacuum", "--lake", str(lake), "--fold", "accounts", "--dry-run")
    assert (code, "0 files would be removed" in err) == (0, True), err
    code, out, err = command(*words, "--into", str(lake / "bronze" / "t"))
    assert (code, "this is a table itself" in err) == (2, True)
    assert command("pipeline", "fold", "nothing", "--lake", str(lake))[0] == 2


@pytest.mark.slow
@pytest.mark.process
def test_kills_anywhere_change_nothing(topic: TopicInMemory, lake: Path) -> None:
    """Twenty folds, each killed after a random time: the last one leaves the table that one replay makes."""
    chance = random.Random(5)
    root = str(Path(__file__).parents[3])
    for number in range(20):
        some(topic, 400, seed=number)
        land(topic, lake)
        with subprocess.Popen(
            [sys.executable, "-P", "-c", KILLED.format(root=root), str(lake), "never"],
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                process.wait(1 + chance.random())
            except subprocess.TimeoutExpired:
                process.kill()
    check(lake, run(lake))


@pytest.mark.slow
@pytest.mark.process
def test_folds_that_race_change_nothing(topic: TopicInMemory, lake: Path) -> None:
    """Three processes at a time fold the landed records: each round at least one of them succeeds, and none
    reverts another's work.
    """
    root = str(Path(__file__).parents[3])
    for number in range(5):
        some(topic, 300, seed=number)
        land(topic, lake)
        folds = [
            subprocess.Popen(
                [sys.executable, "-P", "-c", KILLED.format(root=root), str(lake), "never"],
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(3)
        ]
        told = [process.communicate(timeout=DEADLINE_S)[1] for process in folds]
        assert any(process.returncode == 0 for process in folds), told
        for process, said in zip(folds, told, strict=True):
            assert process.returncode == 0 or "another run, or something else" in said, said
        check(lake, run(lake))


@pytest.mark.long
def test_the_newest_commit_alone_is_read_for_a_folds_position(
    topic: TopicInMemory, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that was folded each minute for a month has 43,000 commits."""
    for at in range(3):
        some(topic, 2, at)
        land(topic, lake)
        run(lake)
    read, made = list[int](), commits._commit_in

    def noted(version: int, content: bytes) -> Any:
        read.append(version)
        return made(version, content)

    monkeypatch.setattr(commits, "_commit_in", noted)
    columns = FoldTableColumns.of(accounts("t"))
    table = FoldTable.open(str(lake / "folds/accounts/state"), columns.state, STATE_BY)
    assert table.last() is not None
    assert read == [3]
