"""Compaction and vacuum: no row changes, landings continue, and damaged tables are not touched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake

from holdfast.cli.__main__ import main
from holdfast.config import Settings
from holdfast.errors import ConfigError, LakeError
from holdfast.pipeline.bronze import ordered
from holdfast.pipeline.bronze.files import File
from holdfast.pipeline.bronze.lake import bronze_path
from holdfast.pipeline.checks.check import check_table
from holdfast.pipeline.landing.bronze_file import BronzeFile
from holdfast.pipeline.upkeep import compact as compacting
from holdfast.pipeline.upkeep.compact import compact, lots_of
from holdfast.pipeline.upkeep.vacuum import vacuum
from tests.pipeline.lakes import write_bronze
from tests.pipeline.topics_in_memory import TopicInMemory, land, landing_of, some_commits, topic

__all__ = ["topic"]


def rows(path: str) -> list[dict[str, Any]]:
    found = DeltaTable(path).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def sound(lake: Path) -> bool:
    return check_table(Settings(), "t", str(lake), deep=True).faults == ()


@pytest.mark.long
def test_small_files_are_joined_and_no_row_changes(topic: TopicInMemory, tmp_path: Path) -> None:
    path = some_commits(topic, tmp_path, 30)
    before, following = rows(path), landing_of(topic, tmp_path)
    report = compact("t", str(tmp_path))
    assert (report.files_before, report.files_after, report.rows) == (60, 2, len(before))
    assert rows(path) == before
    assert sound(tmp_path)
    topic.append(0, [b"more"])
    assert following.step(following.ends()) is not None, "a landing goes on beside it"
    assert (len(rows(path)), sound(tmp_path)) == (len(before) + 1, True)
    assert compact("t", str(tmp_path)).files_after == 2
    assert compact("t", str(tmp_path)).version is None, "there is nothing to join"


def test_the_commit_says_that_no_data_changed(topic: TopicInMemory, tmp_path: Path) -> None:
    path = some_commits(topic, tmp_path, 3)
    version = compact("t", str(tmp_path)).version
    assert version is not None
    lines = (Path(path) / f"_delta_log/{version:020d}.json").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    changes = [each[kind]["dataChange"] for each in told for kind in ("add", "remove") if kind in each]
    assert changes == [False] * 8
    assert DeltaTable(path).metadata().configuration["delta.appendOnly"] == "true"


@pytest.mark.long
def test_a_landing_in_the_midst_of_a_compaction_is_kept(
    topic: TopicInMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = some_commits(topic, tmp_path, 5)
    commit = compacting._commit

    def after_a_landing(*args: Any) -> int:
        topic.append(1, [b"meanwhile"])
        land(topic, tmp_path)
        return commit(*args)

    monkeypatch.setattr(compacting, "_commit", after_a_landing)
    count = len(rows(path))
    assert compact("t", str(tmp_path)).files_after == 2
    assert (len(rows(path)), sound(tmp_path)) == (count + 1, True)


@pytest.mark.long
def test_of_two_compactions_one_is_refused_and_leaves_no_file(
    topic: TopicInMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = some_commits(topic, tmp_path, 5)
    commit, before = compacting._commit, rows(path)

    def after_another(*args: Any) -> int:
        monkeypatch.setattr(compacting, "_commit", commit)
        compact("t", str(tmp_path))
        return commit(*args)

    monkeypatch.setattr(compacting, "_commit", after_another)
    with pytest.raises(LakeError, match="nothing was joined, since another commit removed topic="):
        compact("t", str(tmp_path))
    assert (rows(path), sound(tmp_path)) == (before, True)
    assert len([*Path(path).glob("topic=t/*/*.parquet")]) == 10 + 2


def test_a_table_that_is_not_sound_is_not_touched(topic: TopicInMemory, tmp_path: Path) -> None:
    path = some_commits(topic, tmp_path, 3)
    DeltaTable(path).restore(2)
    with pytest.raises(LakeError, match="RESTORE"):
        compact("t", str(tmp_path))


def test_old_tables_and_foreign_columns_are_joined_as_they_are(topic: TopicInMemory, tmp_path: Path) -> None:
    topic.append(0, [b"a", b"b", b"c"])
    path = write_bronze(tmp_path, "t", topic.logs)
    topic.append(0, [b"d"])
    land(topic, tmp_path)
    DeltaTable(path).alter.add_columns([Field("mine", "integer", nullable=True)])  # type: ignore[arg-type]
    before = rows(path)
    assert compact("t", str(tmp_path)).files_after == 1
    assert rows(path) == before, "what an old row lacks it lacks still"
    assert sound(tmp_path)


@pytest.mark.long
def test_files_that_lie_across_each_other_are_put_in_order(
    topic: TopicInMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = some_commits(topic, tmp_path, 8)
    before = rows(path)
    DeltaTable(path).optimize.compact()
    some_commits(topic, tmp_path, 2)
    assert compact("t", str(tmp_path)).files_after == 2
    assert rows(path)[: len(before) // 4] == before[: len(before) // 4]
    monkeypatch.setattr(ordered, "_put_in_order", None)  # nothing is out of order any more
    assert sound(tmp_path)


def file(first: int, last: int, size: int) -> File:
    return File(path=f"{first}", first=first, last=last, latest_ms=None, row_bytes=1, size_bytes=size)


def test_lots_are_neighbours_up_to_the_target() -> None:
    files = [
        file(0, 9, 40),
        file(10, 19, 40),
        file(20, 29, 40),
        file(30, 39, 500),
        file(40, 49, 30),
        file(50, 59, 30),
    ]
    assert [[each.first for each in lot] for lot in lots_of(files, 100)] == [[0, 10], [40, 50]]
    assert [[each.first for each in lot] for lot in lots_of([file(0, 9, 500), file(5, 12, 500)], 100)] == [
        [0, 5]
    ]


@pytest.mark.long
def test_a_vacuum_removes_files_of_killed_landings_and_compactions(
    topic: TopicInMemory, tmp_path: Path
) -> None:
    path = some_commits(topic, tmp_path, 4)
    left = BronzeFile.new("t", 0)
    (Path(path) / left.path).write_bytes(b"half a file")
    compact("t", str(tmp_path))
    before = rows(path)
    with pytest.raises(ConfigError, match="at least 1 h"):
        vacuum("t", str(tmp_path), hours=0)
    assert vacuum("t", str(tmp_path), hours=1).files == (), "all is younger than an hour"
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert len([*Path(path).glob("topic=t/*/*.parquet")]) == 2
    assert (rows(path), sound(tmp_path)) == (before, True)
    topic.append(0, [b"more"])
    land(topic, tmp_path)
    assert sound(tmp_path), "a vacuum is no stranger"


@pytest.mark.long
def test_the_commands(topic: TopicInMemory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_commits(topic, tmp_path, 4)
    for command in (["compact"], ["vacuum", "--dry-run"]):
        with pytest.raises(SystemExit) as ended:
            main(["pipeline", *command, "--lake", str(tmp_path), "-o", "json"])
        assert ended.value.code == 0
        told = json.loads(capsys.readouterr().out)
        assert [(each["files_before"], each["files_after"]) for each in told] == (
            [(8, 2)] if command == ["compact"] else []
        )


def test_a_strangers_write_that_is_no_upkeep_is_reported(topic: TopicInMemory, tmp_path: Path) -> None:
    path = some_commits(topic, tmp_path, 2)
    table = DeltaTable(path).to_pyarrow_table()
    write_deltalake(
        bronze_path(str(tmp_path), "t"),
        pa.Table.from_pylist(table.to_pylist()[:1], schema=table.schema),
        mode="append",
    )
    assert not sound(tmp_path)
    with pytest.raises(LakeError, match="was not written by a landing"):
        compact("t", str(tmp_path))
