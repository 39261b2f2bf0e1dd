"""The tables of a processor as its folder keeps them: rows, their codec, and where they lie in the store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.codec import ROW, RowCodec, table_prefix
from holdfast.core.engine.state.rows import CanonicalRows, Rows, Store
from holdfast.core.engine.state.timers import TimerTable


class TablePart(NamedTuple):
    """One table of a partition; *name* is "" for the processor's own."""

    name: str
    prefix: bytes
    codec: RowCodec[Any]
    rows: Rows[Any]


class NamedStore:
    """The committed rows of one named table, under the keys that they would have in a store of their own."""

    __slots__ = ("_prefix", "_store")

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._prefix = store, table_prefix(name)

    def get(self, key: bytes) -> bytes | None:
        return self._store.get(self._prefix + key[1:])

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        if prefix[:1] != ROW:
            return  # timers are the processor's
        cut = len(self._prefix)
        for key, value in self._store.scan(self._prefix + prefix[1:], self._prefix + start[1:]):
            yield ROW + key[cut:], value


def table_parts(
    processor: Processor[Any, Any],
    store: Store,
    cache_rows: int,
    ticks: TimerTable | None,
    events: TimerTable | None,
) -> tuple[TablePart, ...]:
    """Return the processor's own table and its named ones in the order of their declaration, all over
    *store*.

    Together they cache *cache_rows* rows, each table the same part of them.
    """
    each_rows = cache_rows // (1 + len(processor.tables))
    named: list[TablePart] = []
    for name in processor.tables:
        codec: RowCodec[Any] = RowCodec(processor.row_of(name))
        rows = _kind(codec)(NamedStore(store, name), codec, each_rows, name=name)
        named.append(TablePart(name, table_prefix(name), codec, rows))
    codec = RowCodec(processor.row)
    tables = {part.name: part.rows for part in named}
    own = _kind(codec)(
        store, codec, each_rows, ticks, events=events, tables=tables, passing=processor.passing
    )
    return (TablePart("", ROW, codec, own), *named)


def _kind(codec: RowCodec[Any]) -> type[Rows[Any]]:
    return Rows if codec.plain else CanonicalRows
