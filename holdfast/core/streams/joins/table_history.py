"""The history of a table's rows: a row for each version of a key, found by its time.

    ada                              the last version of "ada"
    00 was/3/ada@0001700000000000    an older one, by the time from which it was the row
    00 stream/3                      table time of partition 3, and how many of its records were late
    00 due/0001700003600000/d/ada    when the oldest version of "ada" may be dropped
    00 origin/3/0/5                  for steps, the watermark of an origin of the table (0) or stream (1)

00 is the character U+0000; the number is the length of the key, so that no key's versions lie among
another's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.core.engine.emits import Headers
from holdfast.core.engine.event_times import check_ahead, limit_of
from holdfast.core.engine.origins import NAMELESS, UNHEARD, Mark, RecordOrigin, told_of
from holdfast.core.engine.state.rows import NEVER, Rows
from holdfast.core.streams.windowing.due import DROP, add_due, take_due
from holdfast.core.streams.windowing.origins import RowsOfOrigins, origins_of
from holdfast.core.streams.windowing.rows import (
    DIGITS,
    DUE,
    ORIGINS,
    RESERVED,
    STREAM,
    DueRow,
    OriginRow,
    StreamRow,
    checked_time,
    stream_key,
)

V = TypeVar("V")

WAS = f"{RESERVED}was/"
MOST_TIMES = 1_000_000
"""The most older versions whose times are kept in memory."""
_START = StreamRow()


class Version(msgspec.Struct, Generic[V], frozen=True, array_like=True, tag="v"):
    """A row of a table from *from_ms* on, until the next; *value* None for removed.

    Under its key is the last version; its *older* is true while the key has older ones.
    """

    from_ms: int
    value: V | None
    older: bool = False


TABLE, STREAM_SIDE = 0, 1
"""The numbers of the two sources."""


class TableHistory:
    """The versions of a table's rows, kept for *history_ms* before table time.

    *by_origin* says of table and stream whether a step that knows event time writes them. Then a record is
    late by the watermark of its own origin, and table time is the least watermark of the origins of both, so
    that a version is kept for every record of the stream that may still ask for it.
    """

    __slots__ = ("_ahead_ms", "_by_origin", "_history_ms", "_holds", "_time")

    def __init__(
        self,
        time: Callable[[Any], int] | None,
        history_ms: int,
        by_origin: tuple[bool, bool] = (False, False),
    ) -> None:
        self._ahead_ms, self._holds = limit_of(time)
        self._time, self._history_ms = getattr(time, "read", time), history_ms
        self._by_origin = by_origin

    def _origins(self, rows: Rows[Any], partition: int) -> tuple[RowsOfOrigins, RowsOfOrigins] | None:
        """Return the origins of table and stream; None unless a step writes one of them."""
        if True not in self._by_origin:
            return None
        return origins_of(rows, partition, TABLE), origins_of(rows, partition, STREAM_SIDE)

    def mark(self, rows: Rows[Any], side: int, mark: Mark, partition: int) -> None:
        """Apply a mark of table or stream, and drop the versions that no record can ask for any more."""
        both = self._origins(rows, partition)
        assert both is not None, "who is given marks is behind a step"
        stream: StreamRow = rows.get(stream_key(partition), _START)
        _begin(rows, both, stream)
        both[side].mark(rows, mark)
        self._pass(rows, partition, stream, self._table_ms(both, stream))

    def asked(
        self, rows: Rows[Any], key: str, at_ms: int, partition: int, headers: Headers, *, moves: bool = True
    ) -> Any:
        """Apply a record of the stream, and return the value of *key* at its time; None if it had none, or if
        that is too long before the watermark that the record's origin had.
        """
        both = self._origins(rows, partition) if self._by_origin[STREAM_SIDE] else None
        told = None if both is None else told_of(headers)
        if both is None or (told is None and not _is_named(both)):
            return self.as_of(rows, key, at_ms, partition)
        stream: StreamRow = rows.get(stream_key(partition), _START)
        _begin(rows, both, stream)
        origin, own_ms, after_ms = _told(both[STREAM_SIDE], told, at_ms if moves else UNHEARD)
        is_late = at_ms < own_ms - self._history_ms
        found = None if is_late else self.as_of(rows, key, at_ms, partition)
        _hear(rows, both[STREAM_SIDE], origin, max(own_ms, after_ms))
        self._pass(rows, partition, stream, self._table_ms(both, stream))
        return found

    def _table_ms(self, both: tuple[RowsOfOrigins, RowsOfOrigins], stream: StreamRow) -> int:
        """Return table time: the least watermark of the origins of table and stream that will say more."""
        table_ms, asks = both[TABLE].watermarks.least_ms, both[STREAM_SIDE]
        if self._by_origin[STREAM_SIDE] and not asks.watermarks.has_ended:
            table_ms = min(table_ms, asks.watermarks.least_ms)
        return max(table_ms, stream.stream_ms)

    def as_of(self, rows: Rows[Any], key: str, at_ms: int, partition: int) -> Any:
        """Return the value of *key* at *at_ms*; None if it had none, or if that is too long ago."""
        if at_ms < rows.get(stream_key(partition), _START).stream_ms - self._history_ms:
            return None
        last: Version[Any] | None = rows.get(key)
        if last is None or last.from_ms <= at_ms:
            return None if last is None else last.value
        if not last.older:
            return None
        times = _older_times(rows, key)
        at = bisect_right(times, at_ms)
        return rows[_older_name(key, times[at - 1])].value if at else None

    def keep(
        self,
        rows: Rows[Any],
        key: str,
        value: Any,
        timestamp: int,
        partition: int,
        headers: Headers = (),
    ) -> bool:
        """Apply a record of the table; return False for a late one, of which only the count is kept."""
        name = stream_key(partition)
        stream: StreamRow = rows.get(name, _START)
        both, own_ms, told = self._origins(rows, partition), stream.stream_ms, None
        if both is not None:
            told = told_of(headers) if self._by_origin[TABLE] else None
            if told is not None:
                _begin(rows, both, stream)
            if not _is_named(both):
                both = None
            else:
                _, own_ms, _ = _told(both[TABLE], told, UNHEARD)
        if value is None and self._time is not None:
            # A tombstone has no event time, and its append time may be far ahead of the event times being
            # read.
            from_ms, moves = own_ms, True
            if from_ms < 0:
                return True
        else:
            from_ms, moves = checked_time(timestamp if self._time is None else self._time(value)), True
            if from_ms > timestamp:
                moves = check_ahead("", from_ms, timestamp, self._ahead_ms, holds=self._holds)
        is_late = from_ms < own_ms - self._history_ms
        is_kept = not is_late and from_ms >= stream.stream_ms - self._history_ms
        table_ms = max(stream.stream_ms, from_ms if moves and is_kept else -1)
        if both is not None:
            origin, own_ms, after_ms = _told(both[TABLE], told, from_ms if moves else UNHEARD)
            _hear(rows, both[TABLE], origin, max(own_ms, after_ms))
            if not is_kept:
                both[TABLE].count(rows, origin, after_idle=not is_late)
            table_ms = self._table_ms(both, stream)
        if not is_kept:
            stream = msgspec.structs.replace(stream, late=stream.late + 1)
            rows[name] = stream
            if both is None:
                return False
        self._pass(rows, partition, stream, table_ms, (key, Version(from_ms, value)) if is_kept else None)
        return is_kept

    def _pass(
        self,
        rows: Rows[Any],
        partition: int,
        stream: StreamRow,
        stream_ms: int,
        put: tuple[str, Version[Any]] | None = None,
    ) -> None:
        """Advance table time to *stream_ms*: drop the versions that are due, and set one."""
        next_ms = stream.next_ms
        if next_ms <= stream_ms:
            # The rest is dropped at later records: no record is joined with a version that is too old.
            due, following = take_due(rows, next_ms, stream_ms)
            next_ms = NEVER if following is None else following[0]
            for _, _, pruned in due:
                next_ms = min(next_ms, self._prune(rows, pruned, stream_ms))
        if put is not None:
            next_ms = min(next_ms, self._put(rows, *put, stream_ms))
        after = StreamRow(stream_ms, next_ms, stream.late)
        if after != stream:
            rows[stream_key(partition)] = after

    def _put(self, rows: Rows[Any], key: str, new: Version[Any], stream_ms: int) -> int:
        """Set a version; return when one may be dropped first, NEVER where that is in the index already."""
        last: Version[Any] | None = rows.get(key)
        if last is not None and new.from_ms < last.from_ms:
            _put_older(rows, key, new)
            if not last.older:
                rows[key] = msgspec.structs.replace(last, older=True)
            return self._prune(rows, key, stream_ms)
        if last is None or last.from_ms == new.from_ms:  # of one time, the last counts
            older, droppable_ms = last is not None and last.older, NEVER
        else:
            _put_older(rows, key, Version(last.from_ms, last.value))
            older, droppable_ms = True, NEVER if last.older or last.value is None else new.from_ms
        rows[key] = Version(new.from_ms, new.value, older)
        if not older and new.value is None:
            droppable_ms = new.from_ms
        if droppable_ms == NEVER:
            return NEVER
        due_ms = droppable_ms + self._history_ms
        if due_ms <= stream_ms:
            return self._prune(rows, key, stream_ms)
        add_due(rows, (due_ms, DROP, key))
        return due_ms

    def _prune(self, rows: Rows[Any], key: str, stream_ms: int) -> int:
        """Drop the versions of a key that no record can ask for any more; return when the next may be
        dropped.
        """
        last: Version[Any] | None = rows.get(key)
        if last is None:
            return NEVER
        oldest_ms = stream_ms - self._history_ms
        versions = chain(_older(rows, key) if last.older else (), (last,))
        dropped: list[int] = []
        first, second = next(versions), next(versions, None)
        while True:
            replaced = second is not None and second.from_ms <= oldest_ms
            # A removed row before all others is as good as none: no older version can come any more.
            absent = first.value is None and first.from_ms <= oldest_ms
            if not replaced and not absent:
                break
            if second is None:
                del rows[key]
                _drop_older(rows, key, dropped)
                return NEVER
            dropped.append(first.from_ms)
            first, second = second, next(versions, None)
        _drop_older(rows, key, dropped)
        if second is None and last.older:
            rows[key] = msgspec.structs.replace(last, older=False)
        if first.value is None:
            due_ms = first.from_ms
        elif second is not None:
            due_ms = second.from_ms
        else:
            return NEVER
        due_ms += self._history_ms
        add_due(rows, (due_ms, DROP, key))
        return due_ms


# -- origins


def _begin(rows: Rows[Any], both: tuple[RowsOfOrigins, RowsOfOrigins], stream: StreamRow) -> None:
    """Handle the first header or mark: from here on the table's own watermark is in a row of its origins."""
    if not _is_named(both):
        both[TABLE].begin(rows, stream.stream_ms)


def _is_named(both: tuple[RowsOfOrigins, RowsOfOrigins]) -> bool:
    """Return whether a record or mark with a header was met."""
    return both[TABLE].is_named or both[STREAM_SIDE].is_named


def _hear(rows: Rows[Any], origins: RowsOfOrigins, origin: int, watermark_ms: int) -> None:
    if watermark_ms >= 0:
        origins.hear(rows, origin, watermark_ms)


def _told(origins: RowsOfOrigins, told: RecordOrigin | None, time_ms: int) -> RecordOrigin:
    """Return the origin of a record with the watermarks before and after it; without a header, its time moves
    that of NAMELESS.
    """
    return RecordOrigin(NAMELESS, origins.watermarks.of(NAMELESS), time_ms) if told is None else told


# -- older versions


def _older_name(key: str, from_ms: int) -> str:
    return f"{WAS}{len(key)}/{key}@{from_ms:016d}"


def _older(rows: Rows[Any], key: str) -> Iterator[Version[Any]]:
    """Yield the older versions of a key in order of time."""
    return (row for _, row in rows.scan(f"{WAS}{len(key)}/{key}@"))


class _Remembered:
    """The times of the older versions of some keys, in memory with the rows."""

    __slots__ = ("count", "times")

    def __init__(self) -> None:
        self.times: dict[str, list[int]] = {}
        self.count = 0


def _older_times(rows: Rows[Any], key: str) -> list[int]:
    """Return the times of a key's older versions, ascending: looked up once, then remembered."""
    remembered: _Remembered = rows.derived.setdefault(WAS, _Remembered())
    times = remembered.times.get(key)
    if times is None:
        if remembered.count > MOST_TIMES:
            remembered = rows.derived[WAS] = _Remembered()
        times = remembered.times[key] = [row.from_ms for row in _older(rows, key)]
        remembered.count += 1 + len(times)
    return times


def _known_times(rows: Rows[Any], key: str) -> list[int] | None:
    remembered: _Remembered | None = rows.derived.get(WAS)
    return None if remembered is None else remembered.times.get(key)


def _put_older(rows: Rows[Any], key: str, version: Version[Any]) -> None:
    rows[_older_name(key, version.from_ms)] = version
    times = _known_times(rows, key)
    if times is not None:
        at = bisect_left(times, version.from_ms)
        if at == len(times) or times[at] != version.from_ms:
            times.insert(at, version.from_ms)
            rows.derived[WAS].count += 1


def _drop_older(rows: Rows[Any], key: str, dropped: list[int]) -> None:
    """Remove the first of a key's older versions: those of the times *dropped*."""
    for from_ms in dropped:
        rows[_older_name(key, from_ms)] = None
    times = _known_times(rows, key)
    if times is not None and dropped:
        del times[: len(dropped)]
        rows.derived[WAS].count -= len(dropped)


# -- as a table


def history_type(held: Any, by_origin: tuple[bool, bool] = (False, False)) -> Any:
    """Return the type of the rows of a table with history whose values are of type *held*."""
    rows = Version[held] | StreamRow | DueRow
    return rows | OriginRow if True in by_origin else rows


def history_routed(route: Callable[[str, int], int | None] | None) -> Callable[[str, int], int | None]:
    """Return the route of a table with history, given that of the keys."""

    def of(name: str, partitions: int) -> int | None:
        if name.startswith((STREAM, ORIGINS)):
            return int(name.removeprefix(STREAM).removeprefix(ORIGINS).partition("/")[0])
        if route is None:
            return None
        if name.startswith(WAS):
            return route(name.removeprefix(WAS).partition("/")[2][: -DIGITS - 1], partitions)
        return route(name[len(DUE) + DIGITS + 3 :] if name.startswith(DUE) else name, partitions)

    return of
