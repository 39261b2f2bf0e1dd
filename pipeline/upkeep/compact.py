"""Compaction of bronze tables: many small files into a few large ones, in the order of offsets, without
changing a row.

The commit says that no data changed, so that readers of changes see none, and is no link of the chain of
landings: these continue at the same time. It is made at the very version that it was judged at; otherwise it
is judged again, and refused where its files no longer exist.
"""

from __future__ import annotations

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
from holdfast.pipeline.bronze.columns import PARTITIONED_BY
from holdfast.pipeline.bronze.commits import UPKEEP_MARK
from holdfast.pipeline.bronze.files import File, FileReader, filesystem_of, remove
from holdfast.pipeline.bronze.lake import bronze_path
from holdfast.pipeline.bronze.ordered import in_order
from holdfast.pipeline.landing.bronze_file import BronzeFile
from holdfast.pipeline.upkeep.sound import (
    SoundTable,
    check_there,
    open_sound,
    removed_unless_named,
    version_after,
)
from holdfast.pipeline.upkeep.whole_rows import WholeRows, schema_of

TARGET_BYTES = 128 << 20
ATTEMPTS = 10
"""The number of landings that may commit in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport:
    """The result of a compaction of one table: *version* of its commit, None where there was nothing to
    join.
    """

    topic: str
    table: str
    files_before: int
    files_after: int
    rows: int = 0
    version: int | None = None


def compact(topic: str, lake: str, *, target_bytes: int = TARGET_BYTES) -> CompactReport:
    """Join adjacent files of each partition of *topic*'s table, up to about *target_bytes* each.

    Raises LakeError for a table that is not sound, since joined files would hide where it is not, and where
    another compaction came first: nothing was changed then.
    """
    path = bronze_path(lake, topic)
    sound = open_sound(path)
    listed = sound.files
    lots = {p: [*lots_of(files, target_bytes)] for p, files in listed.items()}
    before = sum(map(len, listed.values()))
    if not any(lots.values()):
        return CompactReport(topic=topic, table=path, files_before=before, files_after=before)
    return _joined(topic, sound, before, lots)


def lots_of(files: Sequence[File], target_bytes: int) -> Iterator[list[File]]:
    """Yield files, which are sorted by their first offset, that are to be joined: neighbours that are small
    together, and those that lie across each other.
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
    topic: str, sound: SoundTable, before: int, lots: Mapping[int, Sequence[list[File]]]
) -> CompactReport:
    path, table = sound.path, sound.table
    filesystem, schema, written = filesystem_of(str(table.table_uri)), schema_of(table), list[BronzeFile]()
    taken = [(p, file) for p, each in lots.items() for lot in each for file in lot]
    try:
        for partition, each in sorted(lots.items()):
            where = f"{path} partition {partition}"
            reader = sound.guarded(partition, WholeRows(where=where, filesystem=filesystem, schema=schema))
            for lot in each:
                written.append(BronzeFile.new(topic, partition))
                _write(written[-1], reader, lot, schema)
    except BaseException:
        remove(filesystem, [each.path for each in written])
        raise
    with removed_unless_named(filesystem, [each.path for each in written]):
        version = _commit(table, topic, path, written, taken)
    return CompactReport(
        topic=topic,
        table=path,
        files_before=before,
        files_after=before - len(taken) + len(written),
        rows=sum(each.rows for each in written),
        version=version,
    )


def _write(to: BronzeFile, reader: FileReader, lot: Sequence[File], schema: pa.Schema) -> None:
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
    failure: Exception | None = None
    for _ in range(ATTEMPTS):
        read = int(table.version())
        try:
            table.create_write_transaction(
                actions, "append", table.schema(), PARTITIONED_BY, commit_properties=properties
            )
        except (DeltaError, OSError) as error:
            failure = error
        if (version := version_after(commit, path, table, read, failure)) is not None:
            return version
        check_there(path, table, [file for _, file in taken], "joined")
    raise LakeError(f"{path}: nothing was joined: {failure}") from failure
