"""Expiry: the old beginning goes, the rest stays provable, and landings, compactions and kills at the same
time do no harm.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import parquet

from holdfast.cli.__main__ import main
from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.errors import ConfigError, LakeError, LinkTakenError, UnknownCommitError
from holdfast.pipeline.bronze.commits import history_of, last_landed
from holdfast.pipeline.bronze.extent import extent_of_bronze
from holdfast.pipeline.bronze.lake import open_table
from holdfast.pipeline.checks.check import check_table
from holdfast.pipeline.landing.local_table import LocalTable
from holdfast.pipeline.upkeep import expire as expiring
from holdfast.pipeline.upkeep.compact import compact
from holdfast.pipeline.upkeep.expire import expire
from tests.pipeline.lakes import write_bronze
from tests.pipeline.topics_in_memory import TopicInMemory, land, landing_of, some_commits, topic
from tests.support.patience import DEADLINE_S
from tests.support.scale import scaled

__all__ = ["topic"]

# A record of a topic in memory is from 1,000 ms and its offset.


def at(offset: int) -> int:
    return 1_000 + offset


def rows(path: str) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {0: [], 1: []}
    for row in DeltaTable(path).to_pyarrow_table(columns=["partition", "offset"]).to_pylist():
        found[row["partition"]].append(row["offset"])
    return {partition: sorted(offsets) for partition, offsets in found.items()}


def left(topic: TopicInMemory, begin: int) -> dict[int, list[int]]:
    return {p: [each.offset for each in log if each.offset >= begin] for p, log in topic.logs.items()}


def faults(lake: Path) -> list[str]:
    verdict = check_table(Settings(), "t", str(lake), deep=True)
    assert not verdict.undigested
    return [each.told for each in verdict.faults]


def files(path: str) -> int:
    return len([*Path(path).glob("topic=t/*/*.parquet")])


@pytest.mark.long
@pytest.mark.parametrize("joined", [False, True])
def test_the_beginning_goes_up_to_the_first_young_record(
    topic: TopicInMemory, tmp_path: Path, joined: bool
) -> None:
    path = some_commits(topic, tmp_path, 12)
    if joined:  # one file a partition, so that both are split
        compact("t", str(tmp_path))
    report = expire("t", str(tmp_path), before_ms=at(30))
    assert rows(path) == left(topic, 30)
    assert [each.rows for each in report.expired] == [
        sum(each.offset < 30 for each in log) for log in topic.logs.values()
    ]
    assert faults(tmp_path) == []
    assert expire("t", str(tmp_path), before_ms=at(30)).version is None, "once is enough"
    some_commits(topic, tmp_path, 3, seed=2)
    assert (rows(path), faults(tmp_path)) == (left(topic, 30), [])
    expire("t", str(tmp_path), before_ms=at(45))
    assert (rows(path), faults(tmp_path)) == (left(topic, 45), [])


@pytest.mark.long
@pytest.mark.parametrize("failure", [DeltaError("lost"), OSError("lost"), KeyboardInterrupt()])
@pytest.mark.parametrize(
    "verb",
    [
        lambda lake: expire("t", lake, before_ms=at(30)),
        lambda lake: compact("t", lake),
    ],
    ids=["expire", "compact"],
)
def test_files_of_a_commit_with_an_unknown_outcome_are_kept(
    topic: TopicInMemory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: Callable[[str], object],
    failure: BaseException,
) -> None:
    """The commit is made, its answer lost, and the store away when it is asked: the rows are in the new files
    alone.
    """
    path = some_commits(topic, tmp_path, 12)
    compact("t", str(tmp_path))  # so that files are split
    some_commits(topic, tmp_path, 3, seed=2)
    before, commit = DeltaTable(path).version(), DeltaTable.create_write_transaction

    def lost(*words: Any, **more: Any) -> None:
        commit(*words, **more)
        monkeypatch.setattr(DeltaTable, "update_incremental", away)
        raise failure

    def away(_: DeltaTable) -> None:
        raise OSError("the store does not answer")

    with monkeypatch.context() as during:
        during.setattr(DeltaTable, "create_write_transaction", lost)
        with pytest.raises((UnknownCommitError, KeyboardInterrupt)):
            verb(str(tmp_path))
    monkeypatch.undo()
    assert DeltaTable(path).version() > before
    assert sum(len(each) for each in rows(path).values()) > 0
    assert faults(tmp_path) == []


@pytest.mark.long
def test_of_a_commit_that_was_surely_not_made_no_file_is_left(
    topic: TopicInMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = some_commits(topic, tmp_path, 12)
    there = files(path)

    def refused(*words: Any, **more: Any) -> None:
        raise OSError("the store does not answer")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", refused)
    for verb in (lambda: compact("t", str(tmp_path)), lambda: expire("t", str(tmp_path), before_ms=at(30))):
        with pytest.raises(LakeError, match="the store does not answer"):
            verb()
        assert files(path) == there


def test_an_old_record_after_a_young_one_stays(topic: TopicInMemory, tmp_path: Path) -> None:
    topic.append(0, [b"a"] * 10)
    topic.logs[0][4] = replace(topic.logs[0][4], at_ms=10**9)
    path = land(topic, tmp_path)
    expire("t", str(tmp_path), before_ms=10**8)
    assert (rows(path)[0], faults(tmp_path)) == ([4, 5, 6, 7, 8, 9], [])


def test_records_without_a_time_go_by_when_they_were_landed(topic: TopicInMemory, tmp_path: Path) -> None:
    topic.append(0, [b"a"] * 4)
    topic.logs[0][:] = [replace(each, at_ms=-1) for each in topic.logs[0]]
    path = land(topic, tmp_path)
    assert expire("t", str(tmp_path), before_ms=at(10**6)).version is None
    assert rows(path)[0] == [0, 1, 2, 3]
    assert expire("t", str(tmp_path), before_ms=system_clock.now_ms()).expired[0].rows == 4


def test_a_clock_far_ahead_keeps_no_records_from_expiring(topic: TopicInMemory, tmp_path: Path) -> None:
    """No record is from after it was landed."""
    topic.append(0, [b"v"] * 9)
    for at_ms, offset in ((253_402_300_799_999, 1), (2**63 - 1, 5)):
        topic.logs[0][offset] = replace(topic.logs[0][offset], at_ms=at_ms)
    land(topic, tmp_path)
    now_ms = system_clock.now_ms() + 1
    while system_clock.now_ms() < now_ms:  # it was landed before
        continue
    [gone] = expire("t", str(tmp_path), before_ms=now_ms).expired
    assert (gone.rows, faults(tmp_path)) == (9, [])


@pytest.mark.long
def test_all_may_go_and_the_landing_continues(topic: TopicInMemory, tmp_path: Path) -> None:
    path, following = some_commits(topic, tmp_path, 3), landing_of(topic, tmp_path)
    expire("t", str(tmp_path), before_ms=at(10**6))
    assert (rows(path), faults(tmp_path)) == ({0: [], 1: []}, [])
    end = topic.end[0]
    topic.append(0, [b"more"])
    following.step(following.ends())
    assert (rows(path)[0], faults(tmp_path)) == ([end], [])
    again = landing_of(topic, tmp_path)
    topic.append(0, [b"more"])
    again.step(again.ends())
    assert (rows(path)[0], faults(tmp_path)) == ([end, end + 1], [])


@pytest.mark.long
def test_a_replay_reports_expired_records(topic: TopicInMemory, tmp_path: Path) -> None:
    path = some_commits(topic, tmp_path, 12)
    expire("t", str(tmp_path), before_ms=at(20))
    expire("t", str(tmp_path), before_ms=at(30))
    landed = last_landed(path, history_of(open_table(path)))
    extent = extent_of_bronze(landed, path, "app")
    gone = sum(each.offset < 30 for each in topic.logs[0])
    assert (
        f"partition 0 begins at offset {left(topic, 30)[0][0]} (its {gone} rows from before"
        " 1970-01-01T00:00:01+00:00 expired)" in extent.holes[0]
    )
    assert extent.spans[0].first == left(topic, 30)[0][0]


@pytest.mark.long
def test_a_row_that_goes_missing_afterwards_is_reported(topic: TopicInMemory, tmp_path: Path) -> None:
    path = some_commits(topic, tmp_path, 12)
    expire("t", str(tmp_path), before_ms=at(30))
    DeltaTable(path).delete("partition = 0 AND offset >= 40 AND offset < 42")
    assert any("WRITE" not in told and "DELETE" in told for told in faults(tmp_path))


@pytest.mark.long
@pytest.mark.parametrize("offset", [3, 50])
def test_rows_that_differ_from_the_landed_ones_do_not_expire(
    topic: TopicInMemory, tmp_path: Path, offset: int
) -> None:
    """A changed row before the cut would be unknown for ever; one after it is found later."""
    path = some_commits(topic, tmp_path, 20)
    before = DeltaTable(path).version()
    change_value(Path(path), next(each.offset for each in topic.logs[0] if each.offset >= offset))
    if offset < 30:
        with pytest.raises(LakeError, match=r"partition 0 offsets \d+ to \d+ are not as they were landed"):
            expire("t", str(tmp_path), before_ms=at(30))
        assert DeltaTable(path).version() == before, "nothing was done"
    else:
        expire("t", str(tmp_path), before_ms=at(30))
        assert [told for told in faults(tmp_path) if "not the same" in told]


def change_value(path: Path, offset: int) -> None:
    """Change a row of partition 0 by hand."""
    for file in path.glob("topic=t/partition=0/*.parquet"):
        table = parquet.ParquetFile(file).read()
        found = table.to_pylist()
        if any(row["offset"] == offset for row in found):
            changed = [row | {"value": b"other"} if row["offset"] == offset else row for row in found]
            parquet.write_table(pa.Table.from_pylist(changed, schema=table.schema), file)
            return
    raise AssertionError(f"no file has offset {offset}")


# -- at the same time as others


@pytest.mark.long
def test_a_landing_that_had_written_its_files_continues(
    topic: TopicInMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, following = some_commits(topic, tmp_path, 12), landing_of(topic, tmp_path)
    topic.append(0, [b"more"] * 3)
    write = LocalTable._write_files

    def after_an_expiry(self: LocalTable, *args: Any) -> Any:
        monkeypatch.setattr(LocalTable, "_write_files", write)
        expire("t", str(tmp_path), before_ms=at(30))
        return write(self, *args)

    monkeypatch.setattr(LocalTable, "_write_files", after_an_expiry)
    assert following.step(following.ends()) is not None
    assert (rows(path), faults(tmp_path)) == (left(topic, 30), [])


def test_a_second_landing_is_refused_as_ever(topic: TopicInMemory, tmp_path: Path) -> None:
    some_commits(topic, tmp_path, 3)
    one, other = landing_of(topic, tmp_path), landing_of(topic, tmp_path)
    topic.append(0, [b"more"])
    one.step(one.ends())
    expire("t", str(tmp_path), before_ms=at(5))
    with pytest.raises(LinkTakenError, match="another landing extended the table"):
        other.step(other.ends())
    assert faults(tmp_path) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(scaled(4)))
def test_an_expiry_in_the_midst_of_landings_and_compactions(
    topic: TopicInMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    path, chance = some_commits(topic, tmp_path, 8), random.Random(seed)
    following, removal = landing_of(topic, tmp_path), expiring._after
    begin = 0

    def after_a_landing(*args: Any) -> Any:
        told = removal(*args)
        if chance.random() < 0.6:
            topic.append(0, [b"meanwhile"])
            following.step(following.ends())
        return told

    monkeypatch.setattr(expiring, "_after", after_a_landing)
    for _ in range(6):
        some = chance.randrange(3)
        if some == 0:
            compact("t", str(tmp_path))
        begin += chance.randrange(8)
        expire("t", str(tmp_path), before_ms=at(begin))
        topic.append(1, [b"more"] * chance.randrange(4), gap=chance.randrange(2))
        following.step(following.ends())
        assert (rows(path), faults(tmp_path)) == (left(topic, begin), [])


@pytest.mark.long
def test_landings_and_expiries_race_and_lose_nothing(topic: TopicInMemory, tmp_path: Path) -> None:
    path, following, ended = some_commits(topic, tmp_path, 3), landing_of(topic, tmp_path), threading.Event()

    def follow() -> int:
        commits = 0
        while not ended.is_set():
            topic.append(commits % 2, [b"more"] * 3, gap=1)
            following.step(following.ends())
            commits += 1
        return commits

    with ThreadPoolExecutor(1) as pool:
        landed = pool.submit(follow)
        try:
            made = [expire("t", str(tmp_path), before_ms=at(begin)).version for begin in range(3, 63, 3)]
        finally:
            ended.set()
        assert landed.result(DEADLINE_S) > 5
    assert len({version for version in made if version is not None}) > 5
    assert (rows(path), faults(tmp_path)) == (left(topic, 60), [])


@pytest.mark.long
def test_of_two_expiries_one_is_refused_and_leaves_no_file(
    topic: TopicInMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = some_commits(topic, tmp_path, 12)
    compact("t", str(tmp_path))
    commit = expiring._commit

    def after_another(*args: Any) -> int:
        monkeypatch.setattr(expiring, "_commit", commit)
        expire("t", str(tmp_path), before_ms=at(30))
        args[2].update_incremental()
        return commit(*args)

    monkeypatch.setattr(expiring, "_commit", after_another)
    before = files(path)
    with pytest.raises(LakeError, match="nothing was removed, since another commit removed topic="):
        expire("t", str(tmp_path), before_ms=at(20))
    assert (rows(path), faults(tmp_path), files(path)) == (left(topic, 30), [], before + 2)


@pytest.mark.long
def test_a_compaction_at_the_last_moment_is_seen(
    topic: TopicInMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, removal = some_commits(topic, tmp_path, 12), expiring._after

    def after_a_compaction(*args: Any) -> Any:
        compact("t", str(tmp_path))
        return removal(*args)

    monkeypatch.setattr(expiring, "_after", after_a_compaction)
    with pytest.raises(LakeError, match="nothing was removed, since another commit removed topic="):
        expire("t", str(tmp_path), before_ms=at(30))
    assert (rows(path), faults(tmp_path)) == (left(topic, 0), [])


_DIES = """
import os, signal, sys
from holdfast.pipeline.upkeep import expire as expiring
lake, step, before_ms = sys.argv[1:]
real = getattr(expiring, step)
def and_dies(*args):
    real(*args)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(expiring, step, and_dies)
expiring.expire("t", lake, before_ms=int(before_ms))
"""


@pytest.mark.long
@pytest.mark.parametrize("step", ["_allow_removal", "_after", "version_after"])
def test_an_expiry_that_is_killed_halfway_is_whole_or_not_at_all(
    topic: TopicInMemory, tmp_path: Path, step: str
) -> None:
    path = some_commits(topic, tmp_path, 12)
    compact("t", str(tmp_path))
    ended = subprocess.run(
        [sys.executable, "-P", "-c", _DIES, str(tmp_path), step, str(at(30))], check=False, timeout=DEADLINE_S
    )
    assert ended.returncode == -signal.SIGKILL
    made = step == "version_after"
    assert (rows(path), faults(tmp_path)) == (left(topic, 30 if made else 0), [])
    some_commits(topic, tmp_path, 2, seed=3)
    expire("t", str(tmp_path), before_ms=at(30))
    assert (rows(path), faults(tmp_path)) == (left(topic, 30), [])


def test_a_property_set_in_the_midst_of_a_landing_is_no_harm(
    topic: TopicInMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, following = some_commits(topic, tmp_path, 2), landing_of(topic, tmp_path)
    topic.append(0, [b"more"])
    write = LocalTable._write_files

    def after_a_property(self: LocalTable, *args: Any) -> Any:
        DeltaTable(path).alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})
        return write(self, *args)

    monkeypatch.setattr(LocalTable, "_write_files", after_a_property)
    assert following.step(following.ends()) is not None
    assert (rows(path), faults(tmp_path)) == (left(topic, 0), [])


# -- refusals


def test_an_impossible_expiry_is_refused(topic: TopicInMemory, tmp_path: Path) -> None:
    some_commits(topic, tmp_path, 2)
    for before_ms in (-5, system_clock.now_ms() + 10**9):
        with pytest.raises(ConfigError, match="name a time in the past"):
            expire("t", str(tmp_path), before_ms=before_ms)
    with pytest.raises(LakeError, match="no Delta table at"):
        expire("other", str(tmp_path), before_ms=1)


def test_a_table_of_an_older_holdfast_expires_too(topic: TopicInMemory, tmp_path: Path) -> None:
    topic.append(0, [b"a"] * 40)
    path = write_bronze(tmp_path, "t", topic.logs, commits=4)
    expire("t", str(tmp_path), before_ms=at(15))
    assert rows(path)[0] == [*range(15, 40)]
    topic.append(0, [b"more"])
    land(topic, tmp_path)
    verdict = check_table(Settings(), "t", str(tmp_path), deep=True)
    assert (verdict.faults, verdict.rows) == ((), 26)


@pytest.mark.long
def test_the_command(topic: TopicInMemory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = some_commits(topic, tmp_path, 6)

    def run(*given: str) -> tuple[Any, Any]:
        with pytest.raises(SystemExit) as ended:
            main(["pipeline", "expire", "--lake", str(tmp_path), *given, "-o", "json"])
        told = capsys.readouterr()
        return ended.value.code, json.loads(told.out) if told.out else told.err

    assert run("--topics", "t")[1].startswith("holdfast: say what expires")
    assert "say whose records" in run("--older-than-days", "1")[1]
    assert "with its zone" in run("--topics", "t", "--before", "0:1500")[1]
    code, told = run("--topics", "t", "--before", "0000000001010", "--dry-run")
    assert (code, [each["begins"] for each in told]) == (0, [left(topic, 10)[p][0] for p in (0, 1)])
    assert rows(path) == left(topic, 0)
    assert run("--all-topics", "--older-than-days", "1", "--execute", "--dry-run")[0] == 0
    assert rows(path) == {0: [], 1: []}


def test_delta_itself_refuses_to_remove_rows_of_a_table_that_never_expired(
    topic: TopicInMemory, tmp_path: Path
) -> None:
    with pytest.raises(DeltaError, match="append-only"):
        DeltaTable(some_commits(topic, tmp_path, 2)).delete("offset = 3")
