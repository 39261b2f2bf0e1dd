"""The table lag.by_minute: after runs at any time, with either log landed ahead of the other, by a count over
both for each minute.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from holdfast.cli.__main__ import main
from holdfast.config import Settings
from holdfast.core.broker_logs.folds import OFFSETS_TOPIC
from holdfast.errors import ConfigError, LakeError
from holdfast.pipeline.derived import lag_join
from holdfast.pipeline.derived.derive import derive, derived_path, tables_named, tables_to_derive
from holdfast.pipeline.derived.lag_by_minute import BY_MINUTE
from holdfast.pipeline.derived.lag_tables import COMMITS, ENDS
from holdfast.pipeline.histories.fold import FoldOptions, FoldReport
from holdfast.pipeline.histories.fold_tables import FoldTable
from holdfast.pipeline.upkeep import optimize
from holdfast.pipeline.upkeep.optimize import optimize_table
from tests.pipeline.derived.test_lag_tables import BEGIN_MS, GROUPS, MINUTE_MS, PARTITIONS, commit, put
from tests.pipeline.topics_in_memory import TopicInMemory, land, landed_from
from tests.support.scale import scaled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_KAFKA = Settings(app="derived")
Row = tuple[str, int, int, int | None, int | None, int | None, int | None]
"""Group, partition, minute, until, committed, end, lag; minutes count from the beginning."""


class TwoLogs:
    """A topic and its groups' commits, that are landed and derived at times of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lake: Path, seed: int) -> None:
        self.orders, self.offsets = TopicInMemory("orders"), TopicInMemory(OFFSETS_TOPIC)
        self.chance, self.lake, self._patch = random.Random(seed), lake, monkeypatch
        self.commits = list[tuple[str, int, int | None, int]]()
        self.seen_commits, self.seen = 0, dict.fromkeys(PARTITIONS, 0)

    def write(
        self, minutes: Iterator[int], quiet: tuple[int, ...] = (), silent: tuple[str, ...] = ()
    ) -> None:
        """Have records and commits come; none in *quiet* partitions, and none of *silent* groups."""
        for minute in minutes:
            for second in sorted(self.chance.sample(range(60), 3)):
                at_ms = BEGIN_MS + minute * MINUTE_MS + second * 1_000
                partition, group = self.chance.choice(PARTITIONS), self.chance.choice(GROUPS)
                if self.chance.random() < 0.5:
                    for _ in range(0 if partition in quiet else self.chance.randrange(4)):
                        put(self.orders, partition, at_ms, None, b"v")
                elif group not in silent:
                    end = self.orders.end[partition]
                    offset = self.chance.choice([None, end, max(0, end - 2), end + 1, end])
                    commit(self.offsets, group, partition, offset, at_ms)
                    self.commits.append((group, partition, offset, at_ms))

    def derive(self, *names: str, engine: str = "local", **more: Any) -> FoldReport:
        for name in names:
            topic = {COMMITS: self.offsets, ENDS: self.orders}.get(name)
            if topic is not None:
                landed_from(self._patch, topic)
                land(topic, self.lake)
                if name == COMMITS:
                    self.seen_commits = len(self.commits)
                else:
                    self.seen = dict(self.orders.end)
            [table] = tables_named(name, NO_KAFKA, ["orders"])
            report = derive(table, NO_KAFKA, FoldOptions(lake=str(self.lake), engine=engine, **more))  # type: ignore[arg-type]
        return report

    def expected(self) -> tuple[set[Row], set[Row]]:
        """Return the rows that are over, and those that are not, by looking at every record that was landed
        for each minute.
        """
        commits = self.commits[: self.seen_commits]
        over, current = set[Row](), set[Row]()
        for group in GROUPS:
            of_group = [each for each in commits if each[0] == group]
            for partition in PARTITIONS:
                records = self.orders.logs[partition][: self.seen[partition]]
                times = [each.at_ms for each in records], [each[3] for each in of_group]
                known = min((max(some, default=-(1 << 40)) - BEGIN_MS) // MINUTE_MS for some in times)
                rows = self._rows(
                    group, partition, [each for each in of_group if each[1] == partition], times[0]
                )
                for at, row in enumerate(rows):
                    is_over = at + 1 < len(rows) and rows[at + 1][2] < known
                    (over if is_over else current).add(row)
        return over, current

    def _rows(self, group: str, partition: int, commits: list[Any], times: list[int]) -> list[Row]:
        found = list[Any]()
        last: tuple[int | None, int | None] = (None, None)
        for minute in range(-10, 200):
            until_ms = BEGIN_MS + (minute + 1) * MINUTE_MS
            made = [each[2] for each in commits if each[3] < until_ms]
            committed = made[-1] if made else None
            end = sum(at_ms < until_ms for at_ms in times) or None
            if (committed is None and last[0] is None) or (committed, end) == last:
                continue
            if found:
                found[-1][3] = minute
            lag = None if committed is None or end is None else max(0, end - committed)
            found.append([group, partition, minute, None, committed, end, lag])
            last = committed, end
        return [tuple(each) for each in found]

    def check(self, before: set[Row]) -> set[Row]:
        """Compare the table with the model; return the rows that are over. A partition without new records
        may have rows that are over by now, and still are current.
        """
        (over, current), (wanted_over, wanted_current) = self.told(), self.expected()
        assert (over | current) ^ (wanted_over | wanted_current) == set()
        assert over <= wanted_over
        assert before <= over, "what is over does not change"
        return over

    def told(self) -> tuple[set[Row], set[Row]]:
        found: tuple[set[Row], set[Row]] = set(), set()
        table = DeltaTable(derived_path(str(self.lake), f"{BY_MINUTE}/orders")).to_pyarrow_table()
        for row in table.to_pylist():
            minutes = (_minute(row["minute"]), _minute(row["until"]))
            names = ("committed", "end_offset", "lag")
            key = (row["group_id"], row["partition"], *minutes, *(row[name] for name in names))
            assert key not in found[row["is_current"]]
            assert row["offsets_partition"] == GROUPS.index(row["group_id"])
            found[row["is_current"]].add(key)
        return found


def _minute(at: datetime | None) -> Any:
    return None if at is None else (int(at.timestamp() * 1000) - BEGIN_MS) // MINUTE_MS


@pytest.mark.long
@pytest.mark.parametrize("seed", range(scaled(6)))
def test_rows_are_those_of_a_count_after_each_run(
    monkeypatch: pytest.MonkeyPatch, lake: Path, seed: int
) -> None:
    monkeypatch.setattr(lag_join, "PART_ROWS", 7)  # so that there are several lots
    logs, before = TwoLogs(monkeypatch, lake, seed), set[Row]()
    put(logs.orders, 0, BEGIN_MS, None, b"v")
    commit(logs.offsets, "billing", 1, 5, BEGIN_MS)
    logs.commits.append(("billing", 1, 5, BEGIN_MS))
    logs.derive(COMMITS, ENDS, BY_MINUTE)
    minute = 0
    for _ in range(8):
        upto = minute + logs.chance.choice([0, 1, 5, 20])
        quiet = logs.chance.choice([(), (), (0,), PARTITIONS])
        silent = logs.chance.choice([(), (), ("billing",), GROUPS])
        logs.write(iter(range(minute, upto)), quiet, silent)
        minute = upto - logs.chance.choice([0, 1]) if upto > minute else upto
        logs.derive(*logs.chance.choice([(COMMITS,), (ENDS,), (COMMITS, ENDS)]), BY_MINUTE)
        before = logs.check(before)
        if logs.chance.random() < 0.3:
            for name in (COMMITS, f"{ENDS}/orders", f"{BY_MINUTE}/orders"):
                optimize_table(derived_path(str(lake), name), name)
    logs.write(iter(range(minute, minute + 3)))  # whatever came so far, something is over now
    logs.derive(COMMITS, ENDS, BY_MINUTE)
    before = logs.check(before)
    assert before
    assert logs.derive(BY_MINUTE).commits == 0
    assert logs.derive(BY_MINUTE, rebuild=True).commits == 1
    assert logs.told() == logs.expected()


def test_both_engines_take_turns(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, lake: Path) -> None:
    logs = TwoLogs(monkeypatch, lake, 3)
    for turn, engine in enumerate(("local", "spark")):
        logs.write(iter(range(turn * 40, turn * 40 + 40)))
        logs.derive(COMMITS, ENDS, engine="local")
        report = logs.derive(BY_MINUTE, engine=engine)
        assert (report.engine, report.commits) == (engine, 1)
        logs.check(set())


@pytest.mark.long
def test_a_killed_or_beaten_run_leaves_the_table_as_it_was(
    monkeypatch: pytest.MonkeyPatch, lake: Path
) -> None:
    logs = TwoLogs(monkeypatch, lake, 4)
    logs.write(iter(range(30)))
    logs.derive(COMMITS, ENDS, BY_MINUTE)
    before = logs.told()
    logs.write(iter(range(30, 60)))
    logs.derive(COMMITS, ENDS)
    made = FoldTable.commit

    def beaten(table: FoldTable, *words: Any) -> None:
        monkeypatch.setattr(FoldTable, "commit", made)
        logs.derive(BY_MINUTE)
        made(table, *words)

    monkeypatch.setattr(FoldTable, "commit", beaten)
    with pytest.raises(LakeError, match="Run this one again"):
        logs.derive(BY_MINUTE)
    assert logs.told() != before
    logs.check(before[0])
    logs.write(iter(range(60, 70)))
    logs.derive(COMMITS, ENDS)

    def killed(table: FoldTable, *words: Any) -> None:
        raise KeyboardInterrupt

    after = logs.told()
    monkeypatch.setattr(FoldTable, "commit", killed)
    with pytest.raises(KeyboardInterrupt):
        logs.derive(BY_MINUTE)
    monkeypatch.setattr(FoldTable, "commit", made)
    assert logs.told() == after
    logs.derive(BY_MINUTE)
    logs.check(after[0])


@pytest.mark.long
def test_tables_that_were_put_back_or_not_derived_are_refused(
    monkeypatch: pytest.MonkeyPatch, lake: Path
) -> None:
    logs = TwoLogs(monkeypatch, lake, 5)
    logs.write(iter(range(20)))
    logs.derive(COMMITS)
    with pytest.raises(LakeError, match=r"lag\.ends was not derived yet"):
        logs.derive(BY_MINUTE)
    logs.derive(ENDS, BY_MINUTE)
    logs.write(iter(range(20, 40)))
    logs.derive(COMMITS, ENDS, BY_MINUTE)
    path = derived_path(str(lake), f"{ENDS}/orders")
    DeltaTable(path).restore(1)
    with pytest.raises(LakeError, match="was not written by a fold"):
        logs.derive(BY_MINUTE)
    logs.derive(ENDS, rebuild=True)
    logs.write(iter(range(40, 50)))
    logs.derive(ENDS, COMMITS, BY_MINUTE)
    logs.check(set())
    with pytest.raises(ConfigError, match="--topics orders,payments"):
        tables_named(BY_MINUTE, NO_KAFKA)


@pytest.mark.long
def test_tables_come_after_those_that_they_are_joined_of(monkeypatch: pytest.MonkeyPatch, lake: Path) -> None:
    logs = TwoLogs(monkeypatch, lake, 6)
    logs.write(iter(range(5)))
    logs.derive(COMMITS)
    wanted = tables_to_derive([], str(lake), NO_KAFKA, ["orders"])
    assert [each.path for each in wanted] == [COMMITS, "groups.moves"]
    logs.derive(ENDS)
    paths = [COMMITS, "lag.ends/orders", "lag.by_minute/orders"]
    for names, more in (((), ["groups.moves"]), ((BY_MINUTE,), []), ((BY_MINUTE, ENDS), [])):
        found = [each.path for each in tables_to_derive(names, str(lake), NO_KAFKA, ["orders"])]
        assert found == paths + more


@pytest.mark.long
def test_the_command_derives_and_keeps_it_up(
    monkeypatch: pytest.MonkeyPatch, lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = TwoLogs(monkeypatch, lake, 7)

    def command(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["--set", "app=derived", "pipeline", *words, "--lake", str(lake)])
        printed = capsys.readouterr()
        assert not ended.value.code, printed.err
        return printed.out

    def derived(minutes: range) -> list[str]:
        logs.write(iter(minutes))
        for topic in (logs.offsets, logs.orders):
            landed_from(monkeypatch, topic)
            land(topic, lake)
        logs.seen_commits, logs.seen = len(logs.commits), dict(logs.orders.end)
        return command("derive", BY_MINUTE, "--topics", "orders", "--engine", "local").splitlines()[1:]

    names = [COMMITS, "lag.ends/orders", "lag.by_minute/orders"]
    assert [line.split()[0] for line in derived(range(30))] == names
    table = DeltaTable(derived_path(str(lake), f"{BY_MINUTE}/orders"))
    assert table.to_pyarrow_table().num_rows > 20
    assert all(each["minute"].tzinfo is not None for each in table.to_pyarrow_table().to_pylist())
    assert datetime.fromtimestamp(BEGIN_MS / 1000, UTC).year == 2025
    for begin in (40, 50):
        derived(range(begin, begin + 3))
    before = logs.told()
    lines = [line.split() for line in command("compact", "--derived", ",".join(names)).splitlines()[1:]]
    assert [each[:2] for each in lines] == [[name, "rows"] for name in names]
    assert all(int(files_before) > int(files_after) for _, _, files_before, files_after, *_ in lines), lines
    assert logs.told() == before
    derived(range(60, 63))
    logs.check(set())
    command("vacuum", "--derived", "lag.by_minute/orders", "--dry-run")


@pytest.mark.long
def test_of_two_compactions_at_once_one_is_refused(monkeypatch: pytest.MonkeyPatch, lake: Path) -> None:
    logs = TwoLogs(monkeypatch, lake, 7)
    for minute in (0, 10, 20):
        logs.write(iter(range(minute, minute + 3)))
        logs.derive(COMMITS)
    path = derived_path(str(lake), COMMITS)
    stale = DeltaTable(path)
    rows = stale.to_pyarrow_table().num_rows
    made = optimize_table(path, COMMITS)
    assert (made.files_before > made.files_after, made.version) == (True, stale.version() + 1)
    assert optimize_table(path, COMMITS).version is None, "there is nothing to join"
    monkeypatch.setattr(optimize, "open_table", lambda path: stale)
    with pytest.raises(LakeError, match=r"nothing was joined, another commit came first"):
        optimize_table(path, COMMITS)
    stale.update_incremental()
    assert stale.version() == made.version
    assert stale.to_pyarrow_table().num_rows == rows, "no row came back"


@pytest.mark.long
@pytest.mark.parametrize("failure", [CommitFailedError("lost"), OSError("lost"), KeyboardInterrupt()])
def test_a_compaction_with_an_unknown_outcome_keeps_its_files(
    monkeypatch: pytest.MonkeyPatch, lake: Path, failure: BaseException
) -> None:
    """The commit is made, its answer lost, and the store away when it is asked: the rows are in the new files
    alone.
    """
    logs = TwoLogs(monkeypatch, lake, 7)
    for minute in (0, 10, 20):
        logs.write(iter(range(minute, minute + 3)))
        logs.derive(COMMITS)
    path = derived_path(str(lake), COMMITS)
    before = DeltaTable(path)
    rows, commit = before.to_pyarrow_table().num_rows, DeltaTable.create_write_transaction

    def lost(*words: Any, **more: Any) -> None:
        commit(*words, **more)
        raise failure

    def away(_: DeltaTable) -> None:
        raise OSError("the store does not answer")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lost)
    monkeypatch.setattr(DeltaTable, "update_incremental", away)
    with pytest.raises((LakeError, KeyboardInterrupt), match=r"is not known|^$"):
        optimize_table(path, COMMITS)
    after = DeltaTable(path)
    assert after.version() == before.version() + 1
    assert after.to_pyarrow_table().num_rows == rows


@pytest.mark.long
def test_a_partitions_end_is_found_in_files_that_overlap(monkeypatch: pytest.MonkeyPatch, lake: Path) -> None:
    """An OPTIMIZE by size may join the first file with the last, and leave alone one between them."""
    logs = TwoLogs(monkeypatch, lake, 8)
    for at in range(3):
        for minute in (at * 10, at * 10 + 5):
            put(logs.orders, 0, BEGIN_MS + minute * MINUTE_MS, None, b"v")
        logs.derive(ENDS)
    commit(logs.offsets, "billing", 0, 1, BEGIN_MS + 12 * MINUTE_MS)
    logs.commits.append(("billing", 0, 1, BEGIN_MS + 12 * MINUTE_MS))
    logs.derive(COMMITS, BY_MINUTE)
    wanted = logs.told()
    [table] = tables_named(BY_MINUTE, NO_KAFKA, ["orders"])
    made = lag_join._input

    def joined_by_size(name: str, path: str) -> Any:
        of = made(name, path)
        if name == ENDS:
            # The first file reaches as late as the last: it stands for both, joined.
            first, *others = sorted(of.files[0], key=lambda each: each.last or 0)
            return replace(of, files={0: [first._replace(last=others[-1].last), *others]})
        return of

    monkeypatch.setattr(lag_join, "_input", joined_by_size)
    derive(table, NO_KAFKA, FoldOptions(lake=str(lake), engine="local", rebuild=True))
    assert logs.told() == wanted
    logs.check(set())
