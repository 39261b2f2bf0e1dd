"""The changes of rows from a fold, each written to the history once the change that follows it is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.folding import Refused, Transition
from holdfast.core.engine.state.codec import META, RowCodec, key_in_table, place_of_row
from holdfast.pipeline.folds.result_rows import OUT_ROWS, Results
from holdfast.pipeline.folds.spilling import FoldStore
from holdfast.pipeline.histories.fold_tables import FoldTableColumns


class Change(msgspec.Struct, frozen=True, array_like=True):
    """The last change of a row that is there: at which *offset* (of *topic*, where there are several
    sources), when, and the stored row before it.
    """

    offset: int
    at_ms: int
    topic: str
    before: bytes | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Change).decode


def change_of(store: FoldStore, stored_key: bytes) -> Change | None:
    """Return the last change of a row, which is stored with it."""
    found = store.get(META + stored_key)
    return None if found is None else _decode(found)


def noted_change(stored_key: bytes, change: Change | None) -> tuple[bytes, bytes | None]:
    """Return the stored entry that notes a row's last change."""
    return META + stored_key, None if change is None else _encode(change)


class RowChanges(Results):
    """Takes the transitions of one partition, and gives out those that are over as rows of the history.

    A row that was deleted is over at once: from then on there is none.
    """

    def __init__(self, processor: Processor[Any, Any], store: FoldStore, columns: FoldTableColumns) -> None:
        super().__init__()
        self._store, self._columns = store, columns
        self._codecs = {name: RowCodec[Any](processor.row_of(name)) for name in ("", *processor.tables)}
        self._noted: dict[bytes, Change | None] = {}
        self._over: list[tuple[Transition[Any], Change]] = []
        self._closed: list[dict[str, Any]] = []

    @property
    def results(self) -> Results:
        return self

    def refused(self, partition: int, each: Refused) -> None:
        """Take a record that was refused: it changes nothing, and is counted by the fold."""

    def transition(self, partition: int, each: Transition[Any]) -> None:
        stored_key = key_in_table(each.table, each.key)
        last = self._noted[stored_key] if stored_key in self._noted else change_of(self._store, stored_key)
        if last is not None:
            self._close(each, last, after=each.before)
        before = None if each.before is None else self._codecs[each.table].encode(each.before)
        change = Change(each.offset, each.at_ms, each.topic, before)
        if each.after is None:
            self._close(each, change, after=None)
        self._noted[stored_key] = None if each.after is None else change

    def _close(self, until: Transition[Any], change: Change, *, after: Any) -> None:
        self._closed.append(
            {
                "table": until.table,
                "key": until.key,
                "offset": change.offset,
                "topic": change.topic or None,
                "valid_from_ms": change.at_ms,
                "valid_to_ms": until.at_ms,
                "until_offset": until.offset,
                "until_topic": until.topic or None,
                "before": self._row(until.table, change.before),
                "after": after,
            }
        )

    def _row(self, table: str, stored: bytes | None) -> Any:
        return None if stored is None else self._codecs[table].decode(stored)

    def _settle(self) -> None:
        """Note the last changes of the rows."""
        noted, self._noted = self._noted, {}
        self._store.apply([noted_change(key, change) for key, change in noted.items()])

    def take(self, at_least: int = OUT_ROWS) -> Iterator[pa.RecordBatch]:
        """Yield the changes that are over as rows of the history, once there are *at_least* so many."""
        if len(self._noted) >= at_least:
            self._settle()
        if len(self._closed) >= at_least:
            rows, self._closed = self._closed, []
            for start in range(0, len(rows), OUT_ROWS):
                yield self._columns.history_batch(rows[start : start + OUT_ROWS])

    def current(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes that made the rows that are there."""
        rows: list[dict[str, Any]] = []
        for stored_key, value in self._store.everything():
            change = change_of(self._store, stored_key)
            if change is None:  # a timer
                continue
            table, key = place_of_row(stored_key)
            rows.append(
                {
                    "table": table,
                    "key": key,
                    "offset": change.offset,
                    "topic": change.topic or None,
                    "valid_from_ms": change.at_ms,
                    "before": self._row(table, change.before),
                    "after": self._row(table, value),
                }
            )
            if len(rows) == OUT_ROWS:
                yield self._columns.history_batch(rows)
                rows = []
        if rows:
            yield self._columns.history_batch(rows)
