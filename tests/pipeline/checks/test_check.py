"""`pipeline check`: each planted fault is reported with its offsets, or shown to be harmless; a clean lake
has none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from pyarrow import parquet

from holdfast.cli.__main__ import main
from holdfast.config import Settings
from holdfast.errors import LakeError, LinkTakenError
from holdfast.pipeline.bronze.digests import digest_of, hashes_in, hashes_of
from holdfast.pipeline.bronze.faults import LakeFault
from holdfast.pipeline.checks import against_topic as against
from holdfast.pipeline.checks.check import LakeVerdict, check_table
from holdfast.pipeline.landing.columns import columns_of
from holdfast.pipeline.logs.lake_log import open_bronze
from holdfast.pipeline.topic import Span
from tests.pipeline.lakes import write_bronze
from tests.pipeline.topics_in_memory import TopicInMemory, land, landing_of, some_commits, topic

__all__ = ["topic"]


def check(lake: Path, *, deep: bool = False) -> LakeVerdict:
    return check_table(Settings(), "t", str(lake), deep=deep)


def only(verdict: LakeVerdict) -> LakeFault:
    (fault,) = verdict.faults
    return fault


@pytest.fixture
def path(topic: TopicInMemory, tmp_path: Path) -> str:
    """Give a table of three commits: offsets 0 to 9, 12 to 21 and 24 to 33 of two partitions, with gaps
    between.
    """
    for _ in range(3):
        for partition in (0, 1):
            topic.append(partition, [b"v%d" % at for at in range(10)], gap=2)
        made = land(topic, tmp_path)
    return made


def file_of(path: str, partition: int, first: int) -> Path:
    actions = pa.table(DeltaTable(path).get_add_actions(flatten=True)).to_pylist()
    found = [
        each["path"]
        for each in actions
        if (each["partition.partition"], each["min.offset"]) == (partition, first)
    ]
    return Path(path) / str(found[0])


def rewritten(path: str, change: Callable[[pa.Table], pa.Table]) -> Path:
    """Change the file of offsets 12 to 21 of partition 1, and its size in the log, as one would who covers
    traces.
    """
    file = file_of(path, 1, 12)
    before = file.stat().st_size
    parquet.write_table(change(parquet.ParquetFile(file).read()), file)
    for log in Path(path).glob("_delta_log/*.json"):
        lines = log.read_text().split("\n")
        sizes = f'"size":{before}', f'"size":{file.stat().st_size}'
        log.write_text("\n".join(line.replace(*sizes) if file.name in line else line for line in lines))
    return file


def value_at(table: pa.Table, at: int, value: bytes) -> pa.Table:
    values = table.column("value").to_pylist()
    values[at] = value
    return table.set_column(table.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))


def renumbered(row: pa.Table, offset: int) -> pa.Table:
    """Return one row under another offset."""
    return row.set_column(0, "offset", pa.array([offset], pa.int64()))


def test_a_clean_lake_is_sound(topic: TopicInMemory, path: str, tmp_path: Path) -> None:
    verdict = check(tmp_path, deep=True)
    assert (verdict.sound, verdict.rows, verdict.commits, verdict.undigested) == (True, 60, 3, {})


@pytest.mark.long
@pytest.mark.parametrize("commits", [60, pytest.param(1_000, marks=pytest.mark.slow)])
def test_no_alarm_for_clean_commits(topic: TopicInMemory, tmp_path: Path, commits: int) -> None:
    path = some_commits(topic, tmp_path, commits)
    verdict = check(tmp_path, deep=True)
    assert verdict.faults == ()
    assert verdict.commits == commits
    DeltaTable(path).optimize.compact()
    assert check(tmp_path, deep=True).faults == ()
    assert some_commits(topic, tmp_path, 3, seed=2) == path
    assert check(tmp_path, deep=True).faults == ()


def test_rows_deleted_before_a_landing_are_reported_with_the_commit_and_the_offsets(
    topic: TopicInMemory, path: str, tmp_path: Path
) -> None:
    made = landing_of(topic, tmp_path)
    table = DeltaTable(path)
    table.alter.set_table_properties({"delta.appendOnly": "false"})
    table.delete("partition = 1 AND offset = 14")
    topic.append(0, [b"more"])
    with pytest.raises(LakeError, match=r"\(DELETE\)"):
        made.step(made.ends())
    stranger, missing = check(tmp_path).faults
    assert (stranger.kind, stranger.version) == ("stranger", 5)
    assert (missing.kind, missing.partition, missing.first, missing.last) == ("missing", 1, 12, 23)
    deep = check(tmp_path, deep=True).faults[-1]
    assert "there is none at 14, 22 to 23; of these, 2 had none before" in deep.told


def test_a_row_removed_from_a_file_is_reported(path: str, tmp_path: Path) -> None:
    file = file_of(path, 1, 12)
    table = parquet.ParquetFile(file).read()
    parquet.write_table(pa.concat_tables([table.slice(0, 3), table.slice(4)]), file)
    fault = only(check(tmp_path))
    assert (fault.kind, fault.partition, fault.first, fault.last) == ("file", 1, 12, 21)
    assert fault.file is not None
    assert fault.file.endswith(file.name)
    unreadable = check(tmp_path, deep=True).faults[-1]
    assert (unreadable.kind, unreadable.partition) == ("unreadable", 1)
    assert "has 9 rows, where the table's log says 10" in unreadable.told


def test_a_row_added_to_a_file_is_reported(path: str, tmp_path: Path) -> None:
    file = rewritten(path, lambda table: pa.concat_tables([table, renumbered(table.slice(9), 22)]))
    fault = only(check(tmp_path, deep=True))
    assert (fault.kind, fault.partition) == ("unreadable", 1)
    assert "has 11 rows, where the table's log says 10" in fault.told
    for log in Path(path).glob("_delta_log/*.json"):  # and if the editor covers that trace as well
        lines = log.read_text().split("\n")
        counts = r"\"numRecords\": 10", r"\"numRecords\": 11"
        log.write_text("\n".join(line.replace(*counts) if file.name in line else line for line in lines))
    fault = only(check(tmp_path))
    assert (fault.kind, fault.partition) == ("extra", 1)
    with pytest.raises(LakeError, match=r"partition 1 has 31 rows, where 30 were landed"):
        open_bronze(path)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda table: value_at(table, 4, b"w4"), id="a value"),
        pytest.param(
            lambda table: value_at(value_at(table, 4, b"v5"), 5, b"v4"), id="two values changed places"
        ),
        pytest.param(lambda table: value_at(table, 4, b""), id="an empty value"),
    ],
)
def test_a_changed_row_is_reported_though_counts_and_sizes_agree(
    path: str, tmp_path: Path, change: Callable[[pa.Table], pa.Table]
) -> None:
    file = rewritten(path, change)
    assert check(tmp_path).sound, "what a log can tell is as it should be"
    bytes_, fault = check(tmp_path, deep=True).faults
    assert (bytes_.kind, "other bytes than were written" in bytes_.told) == ("file", True)
    assert (fault.kind, fault.partition, fault.first, fault.last) == ("changed", 1, 12, 23)
    assert fault.file is not None
    assert fault.file.endswith(file.name)


def test_a_row_moved_to_another_offset_is_reported(path: str, tmp_path: Path) -> None:
    rewritten(path, lambda table: pa.concat_tables([table.slice(0, 9), renumbered(table.slice(9), 22)]))
    _, *statistics, fault = check(tmp_path, deep=True).faults
    assert (fault.kind, fault.partition, fault.first, fault.last) == ("changed", 1, 12, 23)
    assert ["greatest offset is 21" in each.told for each in statistics if each.kind == "statistics"] == [
        True
    ]


def test_a_row_that_replaces_another_is_reported(path: str, tmp_path: Path) -> None:
    rewritten(path, lambda table: pa.concat_tables([table.slice(0, 9), table.slice(3, 1)]))
    _, *statistics, fault = check(tmp_path, deep=True).faults
    assert (fault.kind, fault.partition) == ("twice", 1)
    assert {each.kind for each in statistics} == {"statistics"}, "of the last row's times"
    assert "offset 15 is there twice" in fault.told


def test_a_file_that_is_gone_is_reported(path: str, tmp_path: Path) -> None:
    file = file_of(path, 0, 24)
    file.unlink()
    fault = only(check(tmp_path))
    assert (fault.kind, fault.partition, fault.first, fault.last) == ("file", 0, 24, 33)
    assert f"{file.name} is gone" in fault.told


def strangers_row(path: str, **more: Any) -> pa.Table:
    table = DeltaTable(path).to_pyarrow_table()
    return pa.Table.from_pylist([table.to_pylist()[0] | more], schema=table.schema)


@pytest.mark.long
def test_a_strangers_append_is_reported_with_its_version_and_offsets(path: str, tmp_path: Path) -> None:
    write_deltalake(path, strangers_row(path, partition=1, offset=11), mode="append")
    stranger, extra = check(tmp_path).faults
    assert (stranger.kind, stranger.version) == ("stranger", 4)
    assert (extra.kind, extra.partition, extra.first, extra.last) == ("extra", 1, 0, 11)
    write_deltalake(path, strangers_row(path, partition=0, offset=99), mode="append")
    outside = [fault for fault in check(tmp_path).faults if fault.first == 99]
    assert [(each.kind, each.partition) for each in outside] == [("extra", 0)]


def test_a_restore_is_reported(path: str, tmp_path: Path) -> None:
    DeltaTable(path).restore(2)
    stranger, *missing = check(tmp_path).faults
    assert (stranger.kind, stranger.version, "RESTORE" in stranger.told) == ("stranger", 4, True)
    assert [(each.kind, each.partition, each.first, each.last) for each in missing] == [
        ("missing", 0, 24, 35),
        ("missing", 1, 24, 35),
    ]


def test_added_columns_and_partitions_are_harmless(topic: TopicInMemory, path: str, tmp_path: Path) -> None:
    DeltaTable(path).alter.add_columns([Field("mine", "integer", nullable=True)])  # type: ignore[arg-type]
    topic.add_partition()
    topic.append(2, [b"new"] * 3)
    land(topic, tmp_path)
    verdict = check(tmp_path, deep=True)
    assert (verdict.faults, verdict.rows) == ((), 63)


def test_a_replay_refuses_a_file_too_few_with_its_offsets(path: str, tmp_path: Path) -> None:
    """The log was edited: no commit mentions it."""
    (log,) = (each for each in Path(path).glob("_delta_log/*3.json"))
    lines = [
        line for line in log.read_text().splitlines() if not ('"add"' in line and '"partition":"1"' in line)
    ]
    log.write_text("\n".join(lines))
    with pytest.raises(LakeError, match=r"partition 1 has 20 rows, where 30 were landed"):
        open_bronze(path)
    fault = only(check(tmp_path))
    assert (fault.kind, fault.partition, fault.first, fault.last) == ("missing", 1, 24, 35)


def test_commits_of_before_digests_are_readable_and_said_to_have_none(
    topic: TopicInMemory, tmp_path: Path
) -> None:
    topic.append(0, [b"a", b"b", b"c"])
    write_bronze(tmp_path, "t", topic.logs)
    verdict = check(tmp_path, deep=True)
    assert (verdict.sound, verdict.undigested) == (True, {0: 3, 1: 0})
    topic.append(0, [b"d"])
    path = land(topic, tmp_path)
    verdict = check(tmp_path, deep=True)
    assert (verdict.faults, verdict.undigested) == ((), {0: 3})
    file = file_of(path, 0, 3)
    table = parquet.ParquetFile(file).read()
    parquet.write_table(value_at(table, 0, b"x"), file)
    kinds = [each.kind for each in check(tmp_path, deep=True).faults]
    assert "changed" in kinds, "what was landed since has a digest"


def test_the_digest_of_fetched_records_is_that_of_their_rows(topic: TopicInMemory) -> None:
    topic.append(0, [b"a", None, b"", b"\xff" * 100, b"z"] * 3, gap=1)
    ((records, _),) = topic.records(0, Span(first=0, end=99))
    hashes = hashes_of(records)
    assert hashes.tolist() == hashes_in(columns_of(records, 7)).tolist()
    assert len(set(hashes.tolist())) == 15
    assert digest_of(hashes) == digest_of(hashes[::-1])


def against_topic(topic: TopicInMemory, lake: Path, monkeypatch: pytest.MonkeyPatch) -> LakeVerdict:
    monkeypatch.setattr(against, "TopicLog", lambda settings, name: topic)
    monkeypatch.setattr(against, "TopicReader", lambda settings, name, skips: topic)
    return check_table(Settings(), "t", str(lake), against_topic=True)


@pytest.mark.long
def test_a_topic_names_the_very_offset(
    topic: TopicInMemory, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert against_topic(topic, tmp_path, monkeypatch).sound
    rewritten(path, lambda table: value_at(table, 4, b"w4"))
    fault = only(against_topic(topic, tmp_path, monkeypatch))
    assert (fault.kind, fault.partition, fault.first, fault.last) == ("changed", 1, 16, 16)
    del topic.logs[0][3]
    topic.logs[1].insert(10, topic.logs[1][9].__class__(10, 1, None, b"unlanded"))
    faults = against_topic(topic, tmp_path, monkeypatch).faults
    assert sorted((each.kind, each.partition, each.first) for each in faults) == [
        ("changed", 1, 16),
        ("extra", 0, 3),
        ("missing", 1, 10),
    ]


def test_a_topic_made_again_is_reported(
    topic: TopicInMemory, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic._identity = "another"
    fault = only(against_topic(topic, tmp_path, monkeypatch))
    assert (fault.kind, "was deleted and made again" in fault.told) == ("topic", True)
    topic._identity, topic.end[1] = "id", 30
    fault = only(against_topic(topic, tmp_path, monkeypatch))
    assert (fault.kind, fault.partition, fault.first, fault.last) == ("topic", 1, 30, 35)


@pytest.mark.long
@pytest.mark.parametrize("races", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_of_two_landings_that_race_one_wins_and_the_lake_stays_sound(
    topic: TopicInMemory, tmp_path: Path, races: int
) -> None:
    lost = 0
    with ThreadPoolExecutor(2) as pool:
        for _ in range(races):
            topic.append(0, [b"v"] * 3, gap=1)
            topic.append(1, [b"v"])
            made = [landing_of(topic, tmp_path) for _ in range(2)]
            told = [pool.submit(each.step, each.ends()) for each in made]
            errors = [error for each in told if (error := each.exception(60)) is not None]
            assert [type(error) for error in errors] == [LinkTakenError]
            lost += len(errors)
    verdict = check(tmp_path, deep=True)
    assert (verdict.faults, verdict.commits, verdict.rows, lost) == ((), races, 4 * races, races)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", "check", *arguments])
    told = capsys.readouterr()
    return ended.value.code, told.out, told.err


@pytest.mark.long
def test_the_command_prints_faults_as_a_table_and_as_json(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = run(capsys, "--lake", str(tmp_path), "--deep")
    assert (code, "t: sound; 60 rows in 6 files of 3 landings" in said) == (0, True)
    file_of(path, 0, 24).unlink()
    code, table, said = run(capsys, "--lake", str(tmp_path))
    assert (code, "is gone" in table, "t: 1 FAULTS" in said) == (1, True, True)
    code, out, _ = run(capsys, "--lake", str(tmp_path), "--topics", "t", "-o", "json")
    (verdict,) = json.loads(out)
    (fault,) = verdict["faults"]
    assert (code, verdict["sound"], fault["kind"], fault["first"]) == (1, False, "file", 24)
    code, _, said = run(capsys, "--lake", str(tmp_path / "none"))
    assert (code, "there is no table in" in said) == (2, True)
