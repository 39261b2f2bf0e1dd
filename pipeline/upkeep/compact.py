"""Compaction: many small files of a bronze table into a few large ones, in the order of offsets, without changing a row.

The commit says that no data changed, so that readers of changes see none, and is no link of the chain of landings: these
go on beside it. It is made at the very version that it was judged at; otherwise it is judged anew, and refused where its files
are there no more.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties
from deltalake.exceptions import DeltaError
from deltalake.transaction import RemoveAction

from holdfast.clock import system_clock
from holdfast.errors import LakeError
from holdfast.pipeline.bronze.commits import UPKEEP_MARK, history_of, listed_files, sound_chain
from holdfast.pipeline.bronze.files import File, FileReader, filesystem_of
from holdfast.pipeline.bronze.lake import bronze_path, open_table
from holdfast.pipeline.bronze.layout import layout_faults
from holdfast.pipeline.bronze.ordered import in_order
from holdfast.pipeline.landing.bronze_file import BronzeFile
from holdfast.pipeline.landing.columns import FILE_SCHEMA, PARTITIONED_BY

TARGET_BYTES = 128 << 20
ATTEMPTS = 10
"""Landings may commit meanwhile so often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport:
    """What a compaction did of one table: *version* of its commit, None where there was nothing to join."""

    topic: str
    table: str
    files_before: int
    files_after: int
    rows: int = 0
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _WholeRows(FileReader):
    """Reads rows as they are, with all columns that the table has now: *schema*."""

    schema: pa.Schema

    def rows(self, file: File, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if list(columns) == ["offset"]:
            yield from FileReader.rows(self, file, columns)
            return
        with self._opened(file) as opened:
            for batch in opened.iter_batches(file.read_rows):
                yield _as(self.schema, batch)


def compact(topic: str, lake: str, *, target_bytes: int = TARGET_BYTES) -> CompactReport:
    """Join the files of each partition of *topic*'s table that lie behind one another, up to about *target_bytes* each.

    Raises LakeError for a table that is not sound, since joined files would hide where it is not, and where another
    compaction came first: nothing was changed then.
    """
    path = bronze_path(lake, topic)
    table = open_table(path)
    if features := set(table.protocol().reader_features or ()) & {"deletionVectors", "columnMapping"}:
        raise LakeError(
            f"{path} uses {', '.join(sorted(features))}, which only Spark reads: use its OPTIMIZE"
        )
    listed = listed_files(table)
    for fault in layout_faults(path, sound_chain(path, history_of(table)), listed):
        raise LakeError(f"{fault.told}: see `holdfast pipeline check`")
    lots = {p: [*lots_of(files, target_bytes)] for p, files in listed.items()}
    before = sum(map(len, listed.values()))
    if not any(lots.values()):
        return CompactReport(topic=topic, table=path, files_before=before, files_after=before)
    return _joined(topic, path, table, before, lots)


def lots_of(files: Sequence[File], target_bytes: int) -> Iterator[list[File]]:
    """Yield files, which are sorted by their first offset, that are to be joined: neighbours that are small together, and those
    that lie across each other.
    """
    lot, size, reach = list[File](), 0, -1
    for file in files:
        apart = file.first is not None and file.first > reach
        bytes_ = file.size_bytes or 0
        if lot and apart and size + bytes_ > target_bytes:
            if len(lot) > 1:
                yield lot
            lot, size = [], 0
        lot.append(file)
        size, reach = size + bytes_, max(reach, file.first or 0 if file.last is None else file.last)
    if len(lot) > 1:
        yield lot


def _joined(
    topic: str, path: str, table: Any, before: int, lots: Mapping[int, Sequence[list[File]]]
) -> CompactReport:
    filesystem, schema, written = filesystem_of(str(table.table_uri)), _schema_of(table), list[BronzeFile]()
    taken = [(p, file) for p, each in lots.items() for lot in each for file in lot]
    try:
        for partition, each in sorted(lots.items()):
            where = f"{path} partition {partition}"
            reader = _WholeRows(where=where, filesystem=filesystem, schema=schema)
            for lot in each:
                written.append(BronzeFile.new(topic, partition))
                _write(written[-1], reader, lot, schema)
        version = _commit(table, topic, path, written, taken)
    except BaseException:
        for made in written:
            with contextlib.suppress(OSError):
                filesystem.delete_file(made.path)
        raise
    return CompactReport(
        topic=topic,
        table=path,
        files_before=before,
        files_after=before - len(taken) + len(written),
        rows=sum(each.rows for each in written),
        version=version,
    )


def _write(to: BronzeFile, reader: _WholeRows, lot: Sequence[File], schema: pa.Schema) -> None:
    to.write(reader.filesystem, in_order(reader, lot, schema.names), schema)
    want = sum(file.rows or 0 for file in lot)
    if to.rows != want and all(file.rows is not None for file in lot):
        raise LakeError(f"{reader.where}: {to.rows} rows were read, where the table's log says {want}")


def _commit(
    table: Any, topic: str, path: str, written: Sequence[BronzeFile], taken: Sequence[tuple[int, File]]
) -> int:
    now_ms, commit = system_clock.now_ms(), uuid.uuid4().hex
    removed = [
        RemoveAction(file.path, False, now_ms, file.size_bytes, {"topic": topic, "partition": str(partition)})
        for partition, file in taken
    ]
    told = {UPKEEP_MARK: 1, "what": "compact", "commit": commit, "files": len(taken), "into": len(written)}
    properties = CommitProperties(
        custom_metadata={"userMetadata": json.dumps(told, separators=(",", ":"))},
        # delta-rs would go past other commits, and does not look whether they removed the same files.
        max_commit_retries=0,
    )
    actions = [*(each.action(topic, new_rows=False) for each in written), *removed]
    failure: DeltaError | None = None
    for _ in range(ATTEMPTS):
        read = int(table.version())
        try:
            table.create_write_transaction(
                actions, "append", table.schema(), PARTITIONED_BY, commit_properties=properties
            )
        except DeltaError as error:
            failure = error
        table.update_incremental()
        if (version := _version_of(commit, table, read)) is not None:
            return version
        _check_there(path, table, taken)
    raise LakeError(f"{path}: nothing was joined: {failure}") from failure


def _version_of(commit: str, table: Any, read: int) -> int | None:
    """Return the version of a commit that was made after version *read*, None when there is none."""
    newer = history_of(table, int(table.version()) - read) if int(table.version()) > read else ()
    return next((each.version for each in newer if f'"{commit}"' in (each.metadata or "")), None)


def _check_there(path: str, table: Any, taken: Sequence[tuple[int, File]]) -> None:
    """Refuse to go on where something else has removed files that were joined: their rows would be there twice."""
    there = {file.path for files in listed_files(table).values() for file in files}
    if gone := [file.path for _, file in taken if file.path not in there]:
        raise LakeError(
            f"{path}: nothing was joined, since another commit removed {gone[0]} meanwhile (another compaction, or OPTIMIZE); run one at a time"
        )


def _schema_of(table: Any) -> pa.Schema:
    """Return the columns of a file with all that somebody added to the table."""
    there = pa.schema(table.schema().to_arrow())
    known = {*FILE_SCHEMA.names, *PARTITIONED_BY}
    return pa.schema([*FILE_SCHEMA, *(field for field in there if field.name not in known)])


def _as(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    arrays = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
