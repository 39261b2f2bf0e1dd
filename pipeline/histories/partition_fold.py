"""The fold of one partition on from its state in the lake, into files of both tables. Spark's tasks run this
as it is.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.core.engine.positions import counted, stored_format
from holdfast.core.engine.state.codec import (
    EVENT,
    ROW_KINDS,
    TICK,
    WAKE,
    RowCodec,
    decode_due,
    digest,
    place_of_row,
)
from holdfast.errors import LakeError
from holdfast.pipeline.bronze.files import File, FileReader, filesystem_of, remove
from holdfast.pipeline.folds.partition_fold import FoldedState, beginning_of
from holdfast.pipeline.folds.plan import FoldPlan
from holdfast.pipeline.folds.positions import position_of
from holdfast.pipeline.folds.result_rows import OUT_ROWS, RESULT, SUMMARY, FoldSummary
from holdfast.pipeline.folds.results import decode_summary
from holdfast.pipeline.folds.spilling import SpillingStore
from holdfast.pipeline.histories.changes import Change, change_of, noted_change
from holdfast.pipeline.histories.fold_commit import PartitionCommit, told_position
from holdfast.pipeline.histories.fold_tables import AddedFile, FoldTableColumns, PartFile
from holdfast.pipeline.histories.landed_history import HistoryPart, HistoryParts
from holdfast.pipeline.histories.output_table import OutputTable, ToldRows

PART_SCHEMA = pa.schema([("part", pa.binary())])
_KINDS = {WAKE: "wake", TICK: "tick", EVENT: "event"}
_STORED = ["stored_key", "stored", "offset", "topic", "valid_from_ms", "previous"]


class FoldedPart(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a partition: its part of the commit, and the files that the commit is to name. *records*
    and *changes* are those of this fold.
    """

    partition: int
    commit: PartitionCommit
    records: int
    changes: int
    state: tuple[AddedFile, ...] = ()
    output: tuple[AddedFile, ...] = ()
    spilled: bool = False


_decode_part = msgspec.msgpack.Decoder(FoldedPart).decode


def part_batch(part: FoldedPart) -> pa.RecordBatch:
    """Return *part* as a result of PART_SCHEMA."""
    told = msgspec.msgpack.encode(part)
    return pa.RecordBatch.from_arrays([pa.array([told], pa.binary())], schema=PART_SCHEMA)


def parts_in(results: Iterable[pa.RecordBatch]) -> Iterator[FoldedPart]:
    """Yield the parts in results of PART_SCHEMA."""
    for batch in results:
        yield from map(_decode_part, batch.column(0).to_pylist())


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldWork:
    """The work for each partition: *parts*, continuing the states in the files *states* and in *before*. It
    can be pickled.

    *memory_bytes* of the state of a partition are in memory, about; all of it in a temporary file where there
    are more. Without *writes_output* only the state is written.
    """

    plan: FoldPlan
    output: OutputTable
    parts: HistoryParts
    state_uri: str
    output_uri: str
    states: Mapping[int, Sequence[File]]
    before: Mapping[int, PartitionCommit]
    memory_bytes: int
    writes_output: bool = True

    def __call__(self, partition: int) -> Iterator[pa.RecordBatch]:
        """Fold one partition and yield what came of it: the work of an engine."""
        yield part_batch(self.fold(partition))

    def fold(self, partition: int) -> FoldedPart:
        """Fold one partition and return what came of it; where that fails, no file of it is left."""
        written = list[tuple[Any, AddedFile]]()
        try:
            with closing(SpillingStore(self.memory_bytes)) as store:
                return self._fold(partition, store, written)
        except BaseException:
            for filesystem, file in written:
                remove(filesystem, [file.path])
            raise

    def _fold(self, partition: int, store: SpillingStore, written: list[tuple[Any, AddedFile]]) -> FoldedPart:
        processor = self.plan.processor
        state, columns = self._state(partition, store), FoldTableColumns.of(processor)
        rows = self.output.told(store)
        summaries: list[FoldSummary] = []

        def write(uri: str, values: dict[str, str], some: Iterator[pa.RecordBatch], schema: pa.Schema) -> int:
            filesystem = filesystem_of(uri)
            made = PartFile.write_new(
                filesystem, partition, {"partition": str(partition), **values}, some, schema
            )
            if made is not None:
                written.append((filesystem, made))
            return 0 if made is None else made.rows

        part = self.parts.part(self.plan, partition, self._choices_from(partition))
        over = _over(part, state, rows, summaries)
        told = 0
        if self.writes_output:
            schema = self.output.schema
            told = write(self.output_uri, {"is_current": "false"}, over, schema)
            write(self.output_uri, {"is_current": "true"}, rows.current(), schema)
        else:
            for _ in over:
                pass
        write(self.state_uri, {}, stored_rows(store, self.plan, columns), columns.state)
        [summary] = summaries
        return FoldedPart(
            partition=partition,
            commit=self._commit(partition, summary, part),
            records=summary.records,
            changes=told,
            state=tuple(file for _, file in written if "is_current" not in file.values),
            output=tuple(file for _, file in written if "is_current" in file.values),
            spilled=store.has_spilled,
        )

    def _choices_from(self, partition: int) -> int:
        before = self.before.get(partition)
        return 0 if before is None else before.choices_from

    def _commit(self, partition: int, summary: FoldSummary, part: HistoryPart) -> PartitionCommit:
        before, position = self.before.get(partition), position_of(self.plan.processor, summary)
        return PartitionCommit(
            position=told_position(self.plan.processor, position),
            choices_from=part.choices_from(position),
            records=summary.records + (0 if before is None else before.records),
            refused=summary.refused + (0 if before is None else before.refused),
            rows=summary.rows,
            timers=summary.timers,
            digest=summary.digest,
        )

    def _state(self, partition: int, store: SpillingStore) -> FoldedState:
        """Return the state that the partition continues from, read into *store*."""
        before = self.before.get(partition)
        if before is None:
            return self._beginning(partition, store)
        reader = FileReader(where=self.state_uri, filesystem=filesystem_of(self.state_uri))
        for file in self.states.get(partition, ()):
            for rows in reader.rows(file, _STORED):
                store.apply(_puts(rows))
        if digest(store.everything()) != before.digest:
            raise LakeError(
                f"{self.state_uri} partition {partition}: its rows are not those that were folded, since"
                " something else has changed its files: fold anew (--rebuild)"
            )
        return FoldedState(store, stored_format(self.plan.processor).decode(b64decode(before.position)))

    def _beginning(self, partition: int, store: SpillingStore) -> FoldedState:
        """Return the first state of a table: rows of an earlier version if it migrated, which were there
        before its first record.
        """
        begun = beginning_of(self.plan, partition)
        at = begun.position
        made = Change(counted(at.applied), at.stream_ms, "", None)
        with closing(begun.store):
            for key, value in begun.store.everything():
                change = made if key[:1] in ROW_KINDS else None
                store.apply([(key, value), noted_change(key, change)])
        return FoldedState(store, at)


def _over(
    part: HistoryPart, state: FoldedState, rows: ToldRows, summaries: list[FoldSummary]
) -> Iterator[pa.RecordBatch]:
    """Fold, and yield the rows that are over; the summary is put in *summaries*."""
    for batch in part.fold(state, rows.results):
        if batch.schema is RESULT or batch.schema.equals(RESULT):
            summaries += [decode_summary(row["after"]) for row in batch.to_pylist() if row["kind"] == SUMMARY]
        else:
            yield batch


def _puts(rows: pa.RecordBatch) -> Iterator[tuple[bytes, bytes | None]]:
    columns = (rows.column(name).to_pylist() for name in _STORED)
    for key, value, offset, topic, at_ms, before in zip(*columns, strict=True):
        yield key, value
        if offset is not None:
            yield noted_change(key, Change(offset, at_ms, topic or "", before))


def stored_rows(store: SpillingStore, plan: FoldPlan, columns: FoldTableColumns) -> Iterator[pa.RecordBatch]:
    """Yield the stored entries as rows of the state."""
    processor = plan.processor
    codecs = {name: RowCodec[Any](processor.row_of(name)) for name in ("", *processor.tables)}
    rows: list[dict[str, Any]] = []
    for key, value in store.everything():
        table, name = place_of_row(key)
        told: dict[str, Any] = {"table": table, "key": name, "stored_key": key, "stored": value}
        if key[:1] in ROW_KINDS:
            change = change_of(store, key)
            told |= {"kind": "row", "row": codecs[table].decode(value)}
            if change is not None:
                told |= {"offset": change.offset, "topic": change.topic or None, "previous": change.before}
                told["valid_from_ms"] = change.at_ms
        else:
            told |= {"kind": _KINDS[key[:1]], "row": None, "due_ms": decode_due(value)}
        rows.append(told)
        if len(rows) == OUT_ROWS:
            yield columns.state_batch(rows)
            rows = []
    if rows:
        yield columns.state_batch(rows)
