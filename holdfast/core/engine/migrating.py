"""The first rows of a table that migrates: the rows of an earlier version, folded into those of the next one.

Each row is folded as a record would be, by the function that `migrate=` declares, in the order of keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from msgspec.structs import replace

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.migrations import Migration
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.fold.stepping import Written
from holdfast.core.engine.positions import (
    Position,
    counted,
    encode_position,
    offsets_by_topic,
    position_format,
    start_of,
)
from holdfast.core.engine.state.base import BASE_FORMAT, TableBase
from holdfast.core.engine.state.codec import (
    EVENT,
    ROW_KINDS,
    TICK,
    WAKE,
    RowCodec,
    decode_untyped,
    digest,
    place_of_row,
    text_key,
)
from holdfast.core.engine.state.lost_heads import LostHeads
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import ChainError, ChangelogError, MigrationError, StoppedError

AT_ONCE = 2_000
"""The number of rows that are folded in one transaction of the store in memory."""
_HANDLERS = {WAKE: "on_wake", TICK: "on_tick", EVENT: "on_event"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierState:
    """A partition of an earlier version: rows and timers in key order, and the contents of its notes."""

    version: int
    position: Position
    stored: Iterable[tuple[bytes, bytes]]
    lost: LostHeads
    base: TableBase | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The first state of a partition: rows and timers in key order, at a position. *lost* are the heads of
    sources that are missing in it.
    """

    base: TableBase
    position: Position
    stored: Sequence[tuple[bytes, bytes]]
    lost: LostHeads


def migrated(processor: Processor[Any, Any], earlier: EarlierState) -> Beginning:
    """Return the first state of a partition of *processor* that migrates from *earlier*.

    MigrationError names the row that cannot be migrated, or says why none can.
    """
    work = _Work(processor, processor.migrations[earlier.version])
    position = work.position(earlier.position)
    store = DictStore()
    stored = iter(earlier.stored)
    folder = work.folder(store, earlier.position.stream_ms)
    offset = 0
    while some := [*islice(stored, AT_ONCE)]:
        carried, rows = work.sort(some)
        store.apply(carried)
        if rows:
            store.apply(work.fold(folder, offset, rows).puts)
            offset += len(rows)
    found = [*store.everything()]
    base = TableBase(
        format=BASE_FORMAT,
        version=earlier.version,
        position=encode_position(position),
        applied=counted(position.applied),
        entries=len(found),
        digest=digest(found),
        before=earlier.base,
        sources=tuple(offsets_by_topic(processor, position).items()),
    )
    return Beginning(base=base, position=position, stored=found, lost=earlier.lost)


def taken_up(
    processor: Processor[Any, Any], base: TableBase, stored: Sequence[tuple[bytes, bytes]]
) -> Beginning:
    """Return a beginning that was kept; ChangelogError when its rows differ from those in its note."""
    if len(stored) != base.entries or digest(stored) != base.digest:
        raise ChangelogError(
            f"what table {processor.table} began with has changed: {len(stored)} rows and timers are there,"
            f" and the note tells {base.entries} others; its topic was written to or trimmed: raise the"
            " version"
        )
    position = position_format(processor).decode(base.position)
    return Beginning(base=base, position=position, stored=stored, lost={})


class _Work:
    """Folds rows of one earlier version: they are the records of a processor that differs in its fold
    alone.
    """

    def __init__(self, processor: Processor[Any, Any], migration: Migration) -> None:
        self._processor, self._migration = processor, migration
        self._codecs = {
            table: None if (kind := migration.type_of(table)) is None else RowCodec[Any](kind)
            for table in migration.functions
        }

    def position(self, earlier: Position) -> Position:
        """Return the position of an earlier version as the new one's."""
        form = position_format(self._processor)
        try:
            moved = form.decode(encode_position(replace(earlier, version=self._processor.version)))
        except ChainError as error:
            raise self._wrong(
                f"it has read another version of {', '.join(self._processor.topics)}, whose offsets mean"
                " nothing here: leave the version of its writer as it was, or leave out migrate="
            ) from error
        except (ChangelogError, AttributeError, TypeError) as error:
            raise self._wrong(
                f"where it stood is no position of this one ({error}): leave out migrate="
            ) from error
        if moved.sources != form.start.sources:
            raise self._wrong(
                "its sources, or the globals that it reads, were others or in another order: leave out"
                " migrate="
            )
        return moved

    def folder(self, store: DictStore, stream_ms: int) -> Folder[Any]:
        """Return a folder of rows into *store*. Its time does not pass, so no timer fires; a row that fails
        ends it.
        """
        declared: Processor[Any, Any] = Processor(
            name=self._processor.name,
            source="rows",
            decode=self._decoded,
            inputs=("key", "value"),
            fold=self._fold,
            row=self._processor.row,
            tables=self._processor.tables,
            on_error="stop",
        )
        folder: Folder[Any] = Folder(
            declared, store, marker=replace(start_of(declared), stream_ms=max(0, stream_ms))
        )
        folder.allowed = ()
        self._stream_ms = folder.stream_ms
        return folder

    def sort(
        self, stored: Sequence[tuple[bytes, bytes]]
    ) -> tuple[list[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]:
        """Return the rows and timers that stay as they are, and the rows that a function gets."""
        carried, rows = [], []
        for key, value in stored:
            is_row = key[:1] in ROW_KINDS
            if is_row and place_of_row(key)[0] in self._migration.functions:
                rows.append((key, value))
                continue
            if is_row:
                self._check_carried(key, value)
            elif getattr(self._processor, _HANDLERS[key[:1]]) is None:
                handler = _HANDLERS[key[:1]]
                raise self._wrong(
                    f"it has a timer of key {text_key(key)!r:.200}, and this one has no {handler}=: declare"
                    " it; it may do nothing"
                )
            carried.append((key, value))
        return carried, rows

    def _check_carried(self, key: bytes, value: bytes) -> None:
        table, name = place_of_row(key)
        if table and table not in self._processor.tables:
            raise self._wrong(
                f"its table {table} has rows, and this one has no such table: declare it, or write"
                f" migrate={{{self._migration.version}: "
                f'{{"{table}": function}}}} with a function that does nothing'
            )
        codec = RowCodec[Any](self._processor.row_of(table))
        try:
            same = codec.encode(codec.decode(value)) == value
        except ChangelogError as error:
            raise self._at(table, name, str(error)) from error
        if not same:
            raise self._at(table, name, "it would be written otherwise in its row type")

    def fold(self, folder: Folder[Any], offset: int, rows: Sequence[tuple[bytes, bytes]]) -> Written:
        keys, values = zip(*rows, strict=True)
        batch = Batch(
            range(offset, offset + len(rows)), [self._stream_ms] * len(rows), (list(keys), list(values))
        )
        try:
            changes = folder.fold([batch])
        except StoppedError as error:
            table, name = place_of_row(keys[error.offset - offset])
            raise self._at(table, name, f"{error.error}: {error.reason}") from error
        assert changes is not None, "rows are folded once"
        folder.commit()
        return changes

    def _decoded(self, key: bytes, value: bytes) -> tuple[str, str, Any]:
        table, name = place_of_row(key)
        codec = self._codecs[table]
        return table, name, decode_untyped(value) if codec is None else codec.decode(value)

    def _fold(self, rows: Rows[Any], event: tuple[str, str, Any], at_ms: int) -> Any:
        table, key, row = event
        return self._migration.functions[table](rows, key, row)

    def _at(self, table: str, key: str, why: str) -> MigrationError:
        where = f"of table {table} " if table else ""
        return self._wrong(
            f"its row {where}with key {key!r:.200} cannot be migrated: {why}. Mend the function; nothing was"
            " written"
        )

    def _wrong(self, text: str) -> MigrationError:
        return MigrationError(
            f"processor {self._processor.name} version {self._processor.version} migrates from version"
            f" {self._migration.version}: {text}"
        )
