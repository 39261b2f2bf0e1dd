"""Compaction of the tables that folds write: many small files into a few large ones, without changing a row.

The commit says that no data changed, so the next run continues after it. It is made at the very version that
was read, or not at all: delta-rs's own `optimize.compact` goes past other commits, and where a run removed
files that it joined, their rows come back.
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import CommitProperties
from deltalake.exceptions import DeltaError
from deltalake.transaction import RemoveAction

from holdfast.clock import system_clock
from holdfast.errors import LakeError
from holdfast.pipeline.bronze.commits import UPKEEP_MARK, files_in
from holdfast.pipeline.bronze.features import refuse_features
from holdfast.pipeline.bronze.files import File, remove
from holdfast.pipeline.bronze.lake import open_table
from holdfast.pipeline.histories.fold_tables import AddedFile, FoldTable, PartFile
from holdfast.pipeline.upkeep.compact import TARGET_BYTES, CompactReport
from holdfast.pipeline.upkeep.sound import removed_unless_named, version_after
from holdfast.pipeline.upkeep.whole_rows import WholeRows


class FileLot(NamedTuple):
    """Files that become one: of one Kafka partition, and with the same *values* of what the table is
    partitioned by.
    """

    partition: int
    values: dict[str, str]
    files: list[File]


def optimize_table(path: str, name: str, *, target_bytes: int = TARGET_BYTES) -> CompactReport:
    """Join small files of the table at *path*, which people call *name*, up to about *target_bytes* each.

    Raises LakeError where there is no table, and where a run, or another compaction, came first: nothing was
    changed then.
    """
    handle = open_table(path)
    refuse_features(path, handle)
    table = FoldTable(path, list(handle.metadata().partition_columns), handle)
    lots, before = list(_lots(table, target_bytes)), len(table.files())
    if not lots:
        return CompactReport(topic=name, table=path, files_before=before, files_after=before)
    written: list[AddedFile] = []
    try:
        for lot in lots:
            written += _joined(table, lot)
    except BaseException:
        remove(table.filesystem, [each.path for each in written])
        raise
    with removed_unless_named(table.filesystem, [each.path for each in written]):
        version = _commit(table, written, lots)
    return CompactReport(
        topic=name,
        table=path,
        files_before=before,
        files_after=before - sum(len(lot.files) for lot in lots) + len(written),
        rows=sum(each.rows for each in written),
        version=version,
    )


def _lots(table: FoldTable, target_bytes: int) -> Iterator[FileLot]:
    """Yield the files to join: neighbours in time that are small together, since a file is searched by its
    times.
    """
    written_at = {each["path"]: each["modification_time"] for each in files_in(table.handle).to_pylist()}
    alike = defaultdict[tuple[str, ...], list[FileLot]](list)
    for partition, file, values in sorted(
        table.files(), key=lambda each: (written_at[each[1].path], each[1].path)
    ):
        lots, size = alike[tuple(values.values())], file.size_bytes or 0
        if lots and sum(each.size_bytes or 0 for each in lots[-1].files) + size <= target_bytes:
            lots[-1].files.append(file)
        else:
            lots.append(FileLot(partition, values, [file]))
    yield from (lot for lots in alike.values() for lot in lots if len(lot.files) > 1)


def _joined(table: FoldTable, lot: FileLot) -> list[AddedFile]:
    there = pa.schema(table.handle.schema().to_arrow())
    schema = pa.schema([field for field in there if field.name not in table.partition_by])
    reader = WholeRows(where=table.path, filesystem=table.filesystem, schema=schema)
    rows = (batch for file in lot.files for batch in reader.rows(file, schema.names))
    made = PartFile.write_new(table.filesystem, lot.partition, lot.values, rows, schema)
    return [] if made is None else [made]


def _commit(table: FoldTable, written: Sequence[AddedFile], lots: Sequence[FileLot]) -> int:
    """Make the next version of the table, and return it."""
    now_ms, commit, handle = system_clock.now_ms(), uuid.uuid4().hex, table.handle
    removed = [
        RemoveAction(file.path, False, now_ms, file.size_bytes, {**lot.values})
        for lot in lots
        for file in lot.files
    ]
    told: dict[str, Any] = {UPKEEP_MARK: 1, "what": "compact", "commit": commit, "files": len(removed)}
    properties = CommitProperties(
        custom_metadata={"userMetadata": json.dumps(told, separators=(",", ":"))}, max_commit_retries=0
    )
    read, actions = int(handle.version()), [each.action(new_rows=False) for each in written]
    try:
        handle.create_write_transaction(
            [*actions, *removed], "append", handle.schema(), table.partition_by, commit_properties=properties
        )
    except (DeltaError, OSError) as error:
        if (version := version_after(commit, table.path, handle, read, error)) is not None:
            return version  # only the answer was lost
        came = "another commit came first (a run, or another compaction): run this one again"
        raise LakeError(
            f"{table.path}: nothing was joined, {came if int(handle.version()) > read else error}"
        ) from error
    return read + 1
