"""Bronze tables whose rows another program than a landing has changed: reported with their offsets, or shown
to be harmless.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, write_deltalake
from pyarrow import parquet

from holdfast.config import Settings
from holdfast.errors import LakeError, LostRecordsError
from holdfast.pipeline.bronze import ordered
from holdfast.pipeline.bronze.files import File, FileReader, filesystem_of
from holdfast.pipeline.bronze.lake import bronze_path
from holdfast.pipeline.logs.lake_log import open_bronze
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.topic import Span
from tests.pipeline.accounts import Log, Record, accounts
from tests.pipeline.lakes import ends, landed, record_batch, write_bronze

LOG: Log = {p: [Record(at, 1_000 + at, b"k", b"add k %d" % at) for at in range(60)] for p in range(2)}
ROWS = {p: len(records) for p, records in LOG.items()}


def fold(lake: Path, **more: Any) -> str:
    options = ReplayOptions(engine="local", source="bronze", lake=str(lake), **more)
    return replay(accounts("t"), Settings(), options).digest


def land_on_top(path: str, log: Log, **more: Any) -> None:
    """Append rows as by a landing that never looked at the earlier ones."""
    told = landed(log, **{"batch": "top", "start": ends(LOG), "end": {0: 61, 1: 60}} | more).encode()
    write_deltalake(
        Path(path).as_uri(),
        pa.Table.from_batches([record_batch(p, records) for p, records in log.items()]),
        mode="append",
        commit_properties=CommitProperties(custom_metadata={"userMetadata": told}),
    )


def files_of(path: str, partition: int = 0) -> list[Path]:
    actions = pa.table(DeltaTable(path).get_add_actions(flatten=True)).to_pylist()
    return [Path(path) / each["path"] for each in actions if each["partition.partition"] == partition]


def removed_rows(path: str) -> None:
    """A DELETE, as Delta makes it."""
    DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "false"})
    DeltaTable(path).delete("partition = 0 AND offset = 7")


MORE: Log = {0: [Record(60, 2_000, b"k", b"add k 1")], 1: []}


def test_rows_deleted_before_a_landing_on_top_are_reported(tmp_path: Path) -> None:
    path = write_bronze(tmp_path, "t", LOG)
    removed_rows(path)
    with pytest.raises(LakeError, match=r"version 3 \(DELETE\).*vector of offsets is lost.*--rebuild"):
        fold(tmp_path)
    land_on_top(path, MORE)
    with pytest.raises(LakeError, match=r"version 3 \(DELETE\).*up to version 4 may lack rows.*--rebuild"):
        fold(tmp_path)


@pytest.mark.parametrize(
    ("added", "told"), [({0: 1}, "partition 0 has 61 rows, where 62"), (None, "has 121 rows, where 122")]
)
def test_a_row_too_few_is_reported_when_no_commit_mentions_it(tmp_path: Path, added: Any, told: str) -> None:
    path = write_bronze(tmp_path, "t", LOG)
    land_on_top(path, MORE, rows={0: 61, 1: 60}, added=added)
    with pytest.raises(LakeError, match=f"{told} were landed"):
        fold(tmp_path)


@pytest.mark.parametrize(("rows", "added"), [({0: 60, 1: 60}, {0: 1}), ({0: 60, 1: 60}, None), (None, None)])
def test_a_table_with_all_its_rows_is_folded(tmp_path: Path, rows: Any, added: Any) -> None:
    path = write_bronze(tmp_path, "t", LOG)
    land_on_top(path, MORE, rows=rows, added=added)
    assert fold(tmp_path)


def test_a_landing_that_begins_elsewhere_than_the_last_one_ended_is_reported(tmp_path: Path) -> None:
    path = write_bronze(tmp_path, "t", LOG)
    land_on_top(path, MORE, start={0: 59, 1: 60})
    with pytest.raises(LakeError, match=r"version 2 lands from 0:59,1:60 on, but version 1 .* 0:60,1:60"):
        fold(tmp_path)


def test_rows_that_a_rebuild_found_missing_are_a_hole(tmp_path: Path) -> None:
    path = write_bronze(tmp_path, "t", LOG)
    removed_rows(path)
    land_on_top(path, MORE, rebuilt=True, removed={0: 1})
    with pytest.raises(LostRecordsError, match="partition 0 lacks 1 rows that were removed from it by hand"):
        fold(tmp_path)
    assert fold(tmp_path, allow_holes=True)


def rewritten(file: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    table = parquet.ParquetFile(file).read()
    parquet.write_table(change(table), file)


def test_a_row_removed_inside_a_file_is_reported_with_the_file(tmp_path: Path) -> None:
    file = files_of(write_bronze(tmp_path, "t", LOG))[0]
    rewritten(file, lambda table: table.slice(1))
    with pytest.raises(LakeError, match=rf"{file.name} .*has 29 rows, where the table's log says 30"):
        fold(tmp_path)


def test_a_lake_that_a_machine_does_not_see_is_reported_as_that(tmp_path: Path) -> None:
    path = write_bronze(tmp_path / "lake", "t", {0: [Record(0, 5, None, b"add a 1")]})
    files, _ = open_bronze(path)
    (tmp_path / "lake").rename(tmp_path / "elsewhere")
    with pytest.raises(
        LakeError, match="does not see this table: executors of a cluster need a lake at the same path"
    ):
        [*files.batches(("value",), 0, Span(first=0, end=1))]


def test_a_file_that_is_gone_or_damaged_is_reported(tmp_path: Path) -> None:
    file = files_of(write_bronze(tmp_path, "t", LOG))[0]
    content = file.read_bytes()
    file.write_bytes(content[:-40])
    with pytest.raises(LakeError, match=rf"partition 0: file .*{file.name} .*cannot be read"):
        fold(tmp_path)
    file.unlink()
    with pytest.raises(LakeError, match=rf"partition 0: file .*{file.name} .*is gone"):
        fold(tmp_path)


def test_an_offset_that_exists_twice_is_reported_with_both_files(tmp_path: Path) -> None:
    path = write_bronze(tmp_path, "t", LOG)
    again: Log = {0: [LOG[0][41]], 1: []}
    land_on_top(path, again, end=ends(LOG))
    with pytest.raises(LakeError, match=r"partition 0: offset 41 is there twice, in \S+ and \S+; remove"):
        fold(tmp_path)


def test_a_column_that_was_added_stops_no_reader(tmp_path: Path) -> None:
    path = write_bronze(tmp_path, "t", LOG)
    want = fold(tmp_path)
    DeltaTable(path).alter.add_columns([Field("mine", "integer", nullable=True)])  # type: ignore[arg-type]
    assert fold(tmp_path) == want


# -- order


def shuffled_files(folder: Path, rows: int, files: int, seed: int) -> tuple[FileReader, list[File]]:
    """Write *rows* offsets, in random order, to a few files."""
    offsets = list(range(rows))
    random.Random(seed).shuffle(offsets)
    listed = []
    for number in range(files):
        part = offsets[number::files]
        table = pa.table({"offset": pa.array(part, pa.int64()), "value": [b"v%d" % at for at in part]})
        parquet.write_table(table, folder / f"{number}.parquet", row_group_size=100)
        one = File(path=f"{number}.parquet", first=min(part), last=max(part), latest_ms=None, row_bytes=9_000)
        listed.append(one)
    reader = FileReader(where="t", filesystem=filesystem_of(folder.absolute().as_uri()))
    return reader, sorted(listed, key=lambda file: file.first or 0)


@pytest.mark.parametrize("seed", range(3))
def test_rows_in_any_order_come_in_order_and_few_at_a_time(tmp_path: Path, seed: int) -> None:
    reader, files = shuffled_files(tmp_path, 5_000, 4, seed)
    batches = list(ordered.in_order(reader, files, ["offset", "value"]))
    assert [at for each in batches for at in each.column("offset").to_pylist()] == list(range(5_000))
    assert [v for each in batches for v in each.column("value").to_pylist()] == [
        b"v%d" % at for at in range(5_000)
    ]
    assert max(each.num_rows for each in batches) <= files[0].read_rows < 1_000


@pytest.mark.long
def test_files_after_optimize_are_not_taken_into_memory_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(7)
    log: Log = {0: [Record(at, at, b"k", chance.randbytes(10_000)) for at in range(5_000)]}
    write_bronze(tmp_path, "t", log, commits=1, shuffled=True)
    largest = 0
    put = ordered._put_in_order

    def watched(*args: Any) -> Iterator[pa.RecordBatch]:
        nonlocal largest
        for rows in put(*args):
            largest = max(largest, pa.total_allocated_bytes())
            yield rows

    monkeypatch.setattr(ordered, "_put_in_order", watched)
    before = pa.total_allocated_bytes()
    files, _ = open_bronze(bronze_path(str(tmp_path), "t"))
    offsets = [
        at for batch, _ in files.batches(("value",), 0, Span(first=0, end=5_000)) for at in batch.offsets
    ]
    assert offsets == list(range(5_000))
    assert 0 < largest - before < 40 << 20, "of 50 MB"
