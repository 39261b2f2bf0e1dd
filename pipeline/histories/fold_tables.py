"""The two tables of a fold: their columns, their files and their commits."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from holdfast.clock import system_clock
from holdfast.core.engine.declared.processor import Processor
from holdfast.errors import LakeError, UnknownCommitError
from holdfast.pipeline.bronze.commits import files_in, history_of, newest_first
from holdfast.pipeline.bronze.files import File, FileReader, filesystem_of, remove
from holdfast.pipeline.bronze.lake import LAST_TIME_MS, LEAST_TIME_MS, open_table, table_uri
from holdfast.pipeline.histories.fold_commit import FoldCommit, fold_in, last_fold
from holdfast.pipeline.histories.row_columns import RowColumn, row_column
from holdfast.pipeline.landing.bronze_file import BronzeFile

UTC = pa.timestamp("us", "UTC")
STATE_BY, HISTORY_BY = ["partition"], ["partition", "is_current"]
_KEYS = [("table", pa.string()), ("key", pa.string())]
_CHANGE = [("offset", pa.int64()), ("topic", pa.string()), ("valid_from", UTC), ("valid_from_ms", pa.int64())]
_END = [
    ("valid_to", UTC),
    ("valid_to_ms", pa.int64()),
    ("until_offset", pa.int64()),
    ("until_topic", pa.string()),
]
STATE = [
    ("kind", pa.string()),
    *_KEYS,
    ("due_ms", pa.int64()),
    *_CHANGE,
    ("stored_key", pa.binary()),
    ("stored", pa.binary()),
    ("previous", pa.binary()),
]
"""Columns of the state besides its partition and the rows: of rows and of timers, by *kind* ("row",
"wake", "tick", "event").
"""
HISTORY = [*_KEYS, *_CHANGE, *_END]
"""Columns of the history besides what it is partitioned by and the rows before and after."""


def folds_path(lake: str, name: str) -> str:
    """Return the path of the tables of a processor's fold.

    >>> folds_path("/lake/", "totals")
    '/lake/folds/totals'
    """
    return f"{lake.rstrip('/')}/folds/{name}"


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Raise LakeError if the table at *path* cannot be read in the block."""
    try:
        yield
    except (DeltaError, OSError) as error:
        raise LakeError(
            f"{path}: the table cannot be read: {error}. Mend that, then run this one again: it goes on from"
            " what is there"
        ) from error


def is_table(path: str) -> bool:
    """Return whether there is a Delta table at *path*; LakeError if that cannot be found out."""
    with reading(path):
        return bool(DeltaTable.is_deltatable(table_uri(path)))


def last_told(path: str, handle: DeltaTable) -> FoldCommit | None:
    """Return the metadata of the newest fold of a table."""
    with reading(path):
        return last_fold(path, newest_first(handle))


def named(column: str, table: str) -> str:
    """Return the column of the rows of a named table; "" is the processor's own.

    >>> named("row", ""), named("before", "sessions")
    ('row', 'before_sessions')
    """
    return f"{column}_{table}" if table else column


def moment(at_ms: int | None) -> int | None:
    """Return a time as its column has it: in microseconds, held between the years 1 and 9999."""
    return None if at_ms is None else min(max(at_ms, LEAST_TIME_MS), LAST_TIME_MS) * 1000


@dataclass(frozen=True, slots=True)
class FoldTableColumns:
    """The columns of both tables of a processor, by its row types."""

    rows: Mapping[str, RowColumn]

    @classmethod
    def of(cls, processor: Processor[Any, Any]) -> FoldTableColumns:
        return cls({name: row_column(processor.row_of(name)) for name in ("", *processor.tables)})

    @property
    def state(self) -> pa.Schema:
        return pa.schema([*STATE, *((named("row", name), each.type) for name, each in self.rows.items())])

    @property
    def history(self) -> pa.Schema:
        """Return the columns of a file of the history."""
        both = (
            (named(at, name), each.type) for name, each in self.rows.items() for at in ("before", "after")
        )
        return pa.schema([*HISTORY, *both])

    def history_batch(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        """Return changes as rows of the history; each has its *table*, and the rows *before* and *after*."""
        return self._batch(self.history, rows, ("before", "after"))

    def state_batch(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        """Return stored entries as rows of the state; each has its *table*, and the *row*, None for a
        timer.
        """
        return self._batch(self.state, rows, ("row",))

    def _batch(
        self, schema: pa.Schema, rows: Sequence[Mapping[str, Any]], typed: Sequence[str]
    ) -> pa.RecordBatch:
        found: dict[str, pa.Array] = {}
        for name, column in self.rows.items():
            for at in typed:
                of = (each[at] if each["table"] == name else None for each in rows)
                found[named(at, name)] = column.array(of)
        for moment_of in ("valid_from", "valid_to"):
            found[moment_of] = pa.array([moment(each.get(f"{moment_of}_ms")) for each in rows], UTC)
        found["table"] = pa.array([each["table"] or None for each in rows], pa.string())
        arrays = [
            (
                found[field.name]
                if field.name in found
                else pa.array([each.get(field.name) for each in rows], field.type)
            )
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


class AddedFile(msgspec.Struct, frozen=True):
    """A file that was written for a table, as its commit names it. It can be sent across processes."""

    path: str
    size_bytes: int
    values: dict[str, str]
    stats: str
    rows: int

    def action(self, *, new_rows: bool = True) -> AddAction:
        """Return the action that adds it to its table; without *new_rows* its rows were there before."""
        values: dict[str, str | None] = {**self.values}
        return AddAction(self.path, self.size_bytes, values, system_clock.now_ms(), new_rows, self.stats)


class PartFile(BronzeFile):
    """A file of a fold's table."""

    @classmethod
    def write_new(
        cls,
        filesystem: Any,
        partition: int,
        values: dict[str, str],
        batches: Iterator[pa.RecordBatch],
        schema: pa.Schema,
    ) -> AddedFile | None:
        """Write *batches* as a file; None where there is no row. A file that could not be written is
        removed.
        """
        first = next(batches, None)
        if first is None:
            return None
        folder = "/".join(f"{name}={value}" for name, value in values.items())
        made = cls(
            partition=partition,
            path=f"{folder}/part-{uuid.uuid4().hex}.snappy.parquet",
            counted=[field.name for field in schema if _is_searched(field)],
        )

        def every() -> Iterator[pa.RecordBatch]:
            yield first
            yield from batches

        try:
            made.write(filesystem, every(), schema)
        except BaseException as error:
            remove(filesystem, [made.path])
            if isinstance(error, OSError):
                raise LakeError(f"file {made.path} of the fold cannot be written: {error}") from error
            raise
        action = made.add({**values})
        return AddedFile(made.path, made.size_bytes, values, action.stats or "{}", made.rows)


def _is_searched(field: pa.Field) -> bool:
    """Return whether files are searched by a column: by their times, and by the offset of a change."""
    return pa.types.is_timestamp(field.type) or field.name in ("offset", "valid_from_ms")


@dataclass(slots=True)
class FoldTable:
    """One table, read and extended through one handle: its commits follow the version that was read, or are
    refused.
    """

    path: str
    partition_by: list[str]
    handle: DeltaTable

    @classmethod
    def open(cls, path: str, schema: pa.Schema, partition_by: list[str]) -> FoldTable:
        """Return the table at *path*, made where it is not there."""
        return cls(path, partition_by, cls._made(path, _whole(schema, partition_by), partition_by))

    @staticmethod
    def _made(path: str, schema: pa.Schema, partition_by: list[str]) -> DeltaTable:
        if not is_table(path):
            try:
                DeltaTable.create(
                    table_uri(path), Schema.from_arrow(schema), mode="ignore", partition_by=partition_by
                )
            except (DeltaError, OSError) as error:
                if not _is_there(path, error):  # only the answer was lost, or another fold made it first
                    raise LakeError(
                        f"cannot make a Delta table at {path}: {error}. Mend that, then run this one again"
                    ) from error
        table: DeltaTable = open_table(path)
        return table

    def widen(self, schema: pa.Schema, *, rebuild: bool) -> None:
        """Give the table the columns that its row types have got since.

        LakeError where columns are of other types than declared; with *rebuild* they are created again,
        without any row. UnknownCommitError where the table cannot be read after a failure.
        """
        whole = _whole(schema, self.partition_by)
        if self._takes(whole):
            return
        try:
            if rebuild:
                DeltaTable.create(
                    table_uri(self.path),
                    Schema.from_arrow(whole),
                    mode="overwrite",
                    partition_by=self.partition_by,
                )
            else:
                self.handle.alter.add_columns([Field.from_arrow(field) for field in schema])
        except DeltaError as error:
            raise LakeError(
                f"{self.path}: the row type has other columns than its rows were written with: {error}. Fold"
                " anew (--rebuild), or into tables of its own (--into FOLDER)"
            ) from error
        except OSError as error:
            self._look_for(whole, error)
            return
        self.handle = open_table(self.path)

    def _takes(self, whole: pa.Schema) -> bool:
        """Return whether rows with these columns fit into the table, as it was read last."""
        there = pa.schema(self.handle.schema().to_arrow())
        return all(f.name in there.names and _holds(there.field(f.name).type, f.type) for f in whole)

    def _look_for(self, whole: pa.Schema, failure: OSError) -> None:
        """Look whether the table has these columns although giving it them ended with *failure*; LakeError
        where it has not.
        """
        try:
            self.handle = open_table(self.path)
        except LakeError as unread:
            raise UnknownCommitError(
                f"{self.path}: whether its columns were changed is not known ({failure}): {unread}. Mend"
                " that, then run this one again: it goes on from what is there"
            ) from failure
        if not self._takes(whole):
            raise LakeError(
                f"{self.path}: its columns could not be changed: {failure}. Mend that, then run this one"
                " again"
            ) from failure

    def refresh(self) -> None:
        """Read the table as it is now; LakeError where it cannot be read."""
        with reading(self.path):
            self.handle.update_incremental()

    def last(self) -> FoldCommit | None:
        """Return the metadata of the newest fold; LakeError where it cannot be read."""
        return last_told(self.path, self.handle)

    def files(self) -> list[tuple[int, File, dict[str, str]]]:
        """Return the partition of each file, the file, and the values that it is partitioned by."""
        out = []
        for each in files_in(self.handle).to_pylist():
            values = {name: _text(each[f"partition.{name}"]) for name in self.partition_by}
            file = File(
                path=each["path"],
                first=None,
                last=None,
                latest_ms=None,
                row_bytes=each["size_bytes"] // max(1, each.get("num_records") or 1),
                rows=each.get("num_records"),
                size_bytes=each["size_bytes"],
            )
            out.append((int(values["partition"]), file, values))
        return out

    @property
    def filesystem(self) -> Any:
        return filesystem_of(str(self.handle.table_uri))

    def reader(self) -> FileReader:
        return FileReader(where=self.path, filesystem=self.filesystem)

    def commit(
        self, told: FoldCommit, added: Sequence[AddedFile], removed: Sequence[tuple[File, dict[str, str]]]
    ) -> None:
        """Make the next version of the table.

        UnknownCommitError where the table cannot be read after a failure: it may name *added*. After any
        other LakeError it does not.
        """
        now_ms = system_clock.now_ms()
        actions = [each.action() for each in added]
        gone = [
            RemoveAction(file.path, True, now_ms, file.size_bytes, {**values}) for file, values in removed
        ]
        properties = CommitProperties(
            custom_metadata={"userMetadata": told.encode()},
            max_commit_retries=0,  # after another commit, the folded data might not be the continuation
        )
        read = int(self.handle.version())
        try:
            self.handle.create_write_transaction(
                [*actions, *gone],
                "append",
                self.handle.schema(),
                self.partition_by,
                commit_properties=properties,
            )
            self.handle.update_incremental()
        except (DeltaError, OSError) as error:
            if self._has(told, read, error):
                # It is there, and only the answer was lost; or another fold has finished this one, with files
                # of its own.
                there = {file.path for _, file, _ in self.files()}
                remove(self.filesystem, [each.path for each in added if each.path not in there])
                return
            if int(self.handle.version()) > read:
                raise LakeError(
                    f"{self.path}: another run, or something else, has changed the table meanwhile; nothing"
                    " was written to it by this one. Run this one again, and one at a time"
                ) from error
            raise LakeError(
                f"{self.path}: the commit failed, nothing was written by it: {error}. Mend that, then run"
                " this one again"
            ) from error

    def _has(self, told: FoldCommit, read: int, failure: Exception) -> bool:
        """Return whether a commit of which *failure* is known was made after version *read*."""
        try:
            self.handle.update_incremental()
            newer = int(self.handle.version()) - read
            made = [fold_in(each) for each in (history_of(self.handle, newer) if newer else ())]
        except (DeltaError, OSError, LakeError) as unread:
            raise UnknownCommitError(
                f"{self.path}: whether the commit was made is not known ({failure}), since the table cannot"
                f" be read: {unread}. Run this one again: it goes on from what is there. If the commit was"
                " not made, a vacuum takes the files that were written for it"
            ) from failure
        return any(each is not None and each.batch == told.batch for each in made)


def _is_there(path: str, failure: Exception) -> bool:
    """Return whether there is a table at *path*, although making it ended with *failure*."""
    try:
        return is_table(path)
    except LakeError as unread:
        raise UnknownCommitError(
            f"{path}: whether a Delta table was made there is not known ({failure}): {unread}"
        ) from failure


def _whole(schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
    """Return the columns of a table: those that it is partitioned by, then those in its files."""
    kinds = {"partition": pa.int32(), "is_current": pa.bool_()}
    return pa.schema([*((name, kinds[name]) for name in partition_by), *schema])


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _holds(there: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a column of type *there* takes *wanted* values: a struct may have more fields."""
    if pa.types.is_struct(there) and pa.types.is_struct(wanted):
        names = {there.field(at).name: there.field(at).type for at in range(there.num_fields)}
        return all(
            wanted.field(at).name in names and _holds(names[wanted.field(at).name], wanted.field(at).type)
            for at in range(wanted.num_fields)
        )
    return _plain(there) == _plain(wanted)


def _plain(kind: pa.DataType) -> str:
    """Return a type as text, whatever Arrow calls its large and viewed kin, and the elements of lists and
    maps.
    """
    return str(Schema.from_arrow(pa.schema([pa.field("x", kind)])).fields[0].type)
