"""The definition of a derived table: a pure fold of one topic that emits rows which are over, and the
provisional rows from its state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.fold.folding import Refused
from holdfast.core.engine.state.codec import RowCodec, key_in_table, place_of_row, table_prefix
from holdfast.pipeline.bronze.lake import LAST_TIME_MS, LEAST_TIME_MS
from holdfast.pipeline.folds.result_rows import OUT_ROWS, Results
from holdfast.pipeline.folds.spilling import FoldStore
from holdfast.pipeline.histories.row_columns import row_column

ROWS = "rows"
"""The topic that a derived table's fold emits to, and the folder of the table."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_encode = msgspec.msgpack.Encoder().encode


def row_over(row: msgspec.Struct) -> Emit:
    """Return the emit of a final row."""
    return Emit(ROWS, None, _encode(row))


def time_at(at_ms: int) -> datetime:
    """Return a time in ms as a row has it, held between the years 1 and 9999.

    >>> time_at(1_714_564_800_123).isoformat(), time_at(1 << 62).year
    ('2024-05-01T12:00:00.123000+00:00', 9999)
    """
    return _EPOCH + timedelta(milliseconds=min(max(at_ms, LEAST_TIME_MS), LAST_TIME_MS))


class StoredRows:
    """The state of one partition: rows by named table ("" for the processor's own) and key."""

    def __init__(self, processor: Processor[Any, Any], store: FoldStore) -> None:
        self._store = store
        self._codecs = {name: RowCodec[Any](processor.row_of(name)) for name in ("", *processor.tables)}

    def items(self, table: str) -> Iterator[tuple[str, Any]]:
        """Yield key and row of all rows of a table, in the order of keys."""
        decode = self._codecs[table].decode
        for stored_key, value in self._store.scan(table_prefix(table)):
            yield place_of_row(stored_key)[1], decode(value)

    def get(self, table: str, key: str) -> Any:
        """Return a row, None where there is none."""
        found = self._store.get(key_in_table(table, key))
        return None if found is None else self._codecs[table].decode(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedTable:
    """A table of rows of type *row*, which are its columns, made of what *processor* folds of one topic.

    The fold emits each row that is over, by `row_over`. *current* yields the provisional rows of a stored
    state: each run replaces them. *is_of_topic*: there is a table of that name for each topic. It can be
    pickled.
    """

    name: str
    row: type[msgspec.Struct]
    processor: Processor[Any, Any]
    current: Callable[[StoredRows], Iterable[msgspec.Struct]]
    is_of_topic: bool = False

    @property
    def topic(self) -> str:
        """Return the topic that it is derived from."""
        return str(self.processor.topics[0])

    @property
    def path(self) -> str:
        """Return its folder among those of the derived tables of a lake."""
        return f"{self.name}/{self.topic}" if self.is_of_topic else self.name

    @property
    def schema(self) -> pa.Schema:
        """Return its columns, without those of every derived table, `partition` and `is_current`."""
        return pa.schema([*row_column(self.row).type])

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the topics that must have been landed."""
        return (self.topic,)

    def batches(self, rows: Iterable[msgspec.Struct]) -> Iterator[pa.RecordBatch]:
        """Yield *rows* as Arrow has them."""
        return row_batches(self.row, rows)


def row_batches(kind: type[msgspec.Struct], rows: Iterable[msgspec.Struct]) -> Iterator[pa.RecordBatch]:
    """Yield rows of type *kind* as Arrow has them, at most OUT_ROWS at once."""
    column, left = row_column(kind), iter(rows)
    while some := [*islice(left, OUT_ROWS)]:
        yield pa.RecordBatch.from_struct_array(column.array(some))


@dataclass(frozen=True, slots=True)
class DerivedOutput:
    """The rows of *table*, as a fold writes them along with its state."""

    table: DerivedTable
    name: str = ROWS
    takes_emits: bool = True

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    def told(self, store: FoldStore) -> DerivedRows:
        return DerivedRows(self.table, store)


class DerivedRows(Results):
    """Takes what the fold of one partition emits, and gives it out as rows."""

    def __init__(self, table: DerivedTable, store: FoldStore) -> None:
        super().__init__()
        self._table, self._stored = table, StoredRows(table.processor, store)
        self._decode = msgspec.msgpack.Decoder(table.row).decode
        self._over: list[Any] = []

    @property
    def results(self) -> Results:
        return self

    def refused(self, partition: int, each: Refused) -> None:
        """Take a record that was refused: it makes no row, and is counted by the fold."""

    def emitted(self, partition: int, emits: Iterable[Emit], *, is_due: bool) -> None:
        self._over += [self._decode(each.value or b"") for each in emits]

    def take(self, at_least: int = OUT_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are over, once there are *at_least* so many."""
        if len(self._over) >= at_least:
            rows, self._over = self._over, []
            yield from self._table.batches(rows)

    def current(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are as of now."""
        yield from self._table.batches(self._table.current(self._stored))
