"""`JoinStreamTable`: records of a stream with the row that a table has for them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from heapq import heappop
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.core.engine.declaring import why_uncallable
from holdfast.core.engine.emits import Emits
from holdfast.core.engine.partitioners import by_key
from holdfast.core.engine.processor import Processor
from holdfast.core.engine.rows import NEVER, Rows
from holdfast.core.engine.sources import Asked, FoldWith, Source
from holdfast.core.engine.streams import Stream
from holdfast.core.streams.due import DROP, add_due, take_due
from holdfast.core.streams.durations import duration_ms
from holdfast.core.streams.joining import How, Route, check_join, held_type, key_of, time_of
from holdfast.core.streams.window_rows import DIGITS, DUE, STREAM, DueRow, StreamRow, stream_key
from holdfast.errors import ConfigError

S = TypeVar("S")
V = TypeVar("V")
J = TypeVar("J")


class Version(msgspec.Struct, Generic[V], frozen=True, array_like=True):
    """A row of a table from *from_ms* on, until the next; None for removed."""

    from_ms: int
    value: V | None


class Versions(msgspec.Struct, Generic[V], frozen=True, array_like=True, tag="v"):
    """What the row of a key was, in order of time."""

    all: tuple[Version[V], ...]


class JoinStreamTable(Processor[Any, Any], Generic[S, V, J]):
    """Each record of *stream* with the row that *table* has for it.

    A record of *table* sets the row of its key, one without value (a tombstone) removes it, and neither sends anything. For a record of *stream*,
    *join* gets it and the row, and returns what is sent to *to* under the record's key. *by* gives the key of the row that a record wants, if that
    is not the record's own; the record must lie in that row's partition all the same. *how* is "inner", which passes over records without
    a row, or "left", which joins them with None. Records of *stream* without a value are passed over. One without a key is refused, but joined with
    None if *how* is "left".

    The row is the one that is there when the record is folded: of records of one ms, those of the table are folded first.

    **Versioned.** With *history* (a duration such as "1d", or ms) the row is the one *as of the record's event time*, which
    the sources' `time` tells; that of a tombstone, and without `time=`, is the append time. What a row was is kept as long as table time, the highest
    event time of the table in this partition, is less than *history* past the end of it. A record of *stream* that asks for more than *history* before table
    time finds no row. A record of *table* that is older changes nothing, and is counted as late in the row `stream_key(partition)`, a `StreamRow`.
    A key's history is one row, `Versions`: if it gets larger than a row may be, records of the table are refused.

    Without history, rows are the values of *table*. ConfigError for what does not fit together, when it is declared.
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        name: str,
        stream: Source[S],
        table: Source[V],
        join: Callable[[Any, Any], J],
        to: Stream[J],
        how: How = "inner",
        by: Callable[[S], str] | None = None,
        history: str | int | None = None,
        version: int = 1,
        route: Route | None = by_key,
        in_place: bool = False,
    ) -> None:
        whose = f"processor {name}"
        check_join(whose, {"stream": stream, "table": table}, to, how, ("inner", "left"), join)
        if by is not None and (why := why_uncallable(by, ("event",))) is not None:
            raise ConfigError(f"{whose}: by {why}")
        held = held_type(whose, table)
        past = None if history is None else _History(table, duration_ms(history, f"{whose}: history"))

        def enrich(
            rows: Rows[Any], event: Any, at_ms: int, key: Any, partition: int, timestamp: int
        ) -> Emits:
            if event is None:
                return None
            wanted = key if by is None else by(event)
            row = None
            if wanted is not None or how == "inner":
                of = key_of(wanted)
                row = (
                    rows.get(of)
                    if past is None
                    else past.as_of(rows, of, time_of(stream, event, timestamp), partition)
                )
            return None if row is None and how == "inner" else (to.emit(key, join(event, row)),)

        asked: tuple[Asked, ...] = ("key", "partition", "timestamp")
        super().__init__(
            name=name,
            on={
                table: FoldWith(_keep, ("key",)) if past is None else FoldWith(past.keep, asked),
                stream: FoldWith(enrich, asked),
            },
            row=held if past is None else _versions_type(held),
            version=version,
            route=route if past is None else _versions_routed(route),
            emits=(to,),
            in_place=in_place,
        )


def _keep(rows: Rows[Any], value: Any, at_ms: int, key: Any) -> None:
    of = key_of(key)
    if value is not None:
        rows[of] = value
    elif of in rows:
        del rows[of]


_START = StreamRow()


class _History:
    """What rows were, for as long before table time as is wanted."""

    __slots__ = ("_history_ms", "_table")

    def __init__(self, table: Source[Any], history_ms: int) -> None:
        self._table, self._history_ms = table, history_ms

    def as_of(self, rows: Rows[Any], key: str, at_ms: int, partition: int) -> Any:
        """Return the value of *key* at *at_ms*; None where there was none, or it is too long ago to tell."""
        if at_ms < rows.get(stream_key(partition), _START).stream_ms - self._history_ms:
            return None
        versions: Versions[Any] | None = rows.get(key)
        if versions is None:
            return None
        at = bisect_right(versions.all, at_ms, key=_from)
        return versions.all[at - 1].value if at else None

    def keep(self, rows: Rows[Any], value: Any, at_ms: int, key: Any, partition: int, timestamp: int) -> None:
        """Take in a record of the table."""
        of, from_ms, name = key_of(key), time_of(self._table, value, timestamp), stream_key(partition)
        stream: StreamRow = rows.get(name, _START)
        if from_ms < stream.stream_ms - self._history_ms:
            rows[name] = msgspec.structs.replace(stream, late=stream.late + 1)
            return
        stream_ms, next_ms = max(stream.stream_ms, from_ms), stream.next_ms
        if next_ms <= stream_ms:
            due, next_ms = take_due(rows, next_ms, stream_ms)
            while due:
                next_ms = min(next_ms, self._pruned(rows, heappop(due)[2], stream_ms))
        before: Versions[Any] = rows.get(of, _NONE)
        at = bisect_right(before.all, from_ms, key=_from)
        first = at - 1 if at and before.all[at - 1].from_ms == from_ms else at  # of one time, the last counts
        rows[of] = Versions((*before.all[:first], Version(from_ms, value), *before.all[at:]))
        next_ms = min(next_ms, self._pruned(rows, of, stream_ms))
        after = StreamRow(stream_ms, next_ms, stream.late)
        if after != stream:
            rows[name] = after

    def _pruned(self, rows: Rows[Any], key: str, stream_ms: int) -> int:
        """Drop what nobody may ask for any more of a key's versions; return when there is more to drop."""
        versions: Versions[Any] | None = rows.get(key)
        if versions is None:
            return NEVER
        kept, oldest_ms = versions.all, stream_ms - self._history_ms
        first = max(0, bisect_right(kept, oldest_ms, key=_from) - 1)
        if kept[first].value is None and kept[first].from_ms <= oldest_ms:
            first += 1  # what was not there before either, and nothing older can come any more
        kept = kept[first:]
        if not kept:
            del rows[key]
            return NEVER
        if first:
            rows[key] = Versions(kept)
        if kept[0].value is None:
            due_ms = kept[0].from_ms
        elif len(kept) > 1:
            due_ms = kept[1].from_ms
        else:
            return NEVER
        due_ms += self._history_ms
        add_due(rows, (due_ms, DROP, key))
        return due_ms


_NONE: Versions[Any] = Versions(())


def _from(version: Version[Any]) -> int:
    return version.from_ms


def _versions_type(held: Any) -> Any:
    return Versions[held] | StreamRow | DueRow


def _versions_routed(route: Route | None) -> Route:
    def of(name: str, partitions: int) -> int | None:
        if name.startswith(STREAM):
            return int(name.removeprefix(STREAM))
        if route is None:
            return None
        return route(name[len(DUE) + DIGITS + 3 :] if name.startswith(DUE) else name, partitions)

    return of
