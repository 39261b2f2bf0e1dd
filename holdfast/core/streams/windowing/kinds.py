"""The folds of the four kinds of windows, which assign records to windows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import lru_cache
from itertools import islice
from typing import Any

from holdfast.core.engine.declared.processor import Emit
from holdfast.core.engine.state.rows import NEVER, Rows
from holdfast.core.streams.windowing.due import within
from holdfast.core.streams.windowing.fold import LATE, PARTLY_LATE, TAKEN, WindowFold
from holdfast.core.streams.windowing.rows import DIGITS, OPEN, OpenRow, WindowRow, window_key
from holdfast.core.streams.windowing.windows import Hopping, Session, Sliding, Tumbling


class TumblingFold(WindowFold):
    """Tumbling windows: a record is in one."""

    __slots__ = ("_size_ms",)

    def __init__(self, window: Tumbling, **common: Any) -> None:
        super().__init__(grace_ms=window.grace_ms, **common)
        self._size_ms = window.size_ms

    @property
    def reach_ms(self) -> int:
        return self._size_ms

    def _place(
        self,
        rows: Rows[Any],
        key: str,
        event: Any,
        time_ms: int,
        judged_ms: int,
        stream_ms: int,
        emits: list[Emit],
    ) -> tuple[int, int]:
        start_ms = time_ms - time_ms % self._size_ms
        end_ms = start_ms + self._size_ms
        if end_ms + self._grace_ms <= judged_ms:
            return NEVER, LATE
        return self._add(rows, f"{key}@{start_ms:016d}", end_ms, event, stream_ms, emits), TAKEN

    def _placing(
        self, rows: Rows[Any], emits: list[Emit]
    ) -> Callable[[str, Any, int, int, int], tuple[int, int]]:
        size_ms, grace_ms, add = self._size_ms, self._grace_ms, self._add
        find, aggregate, adds_plainly = rows.get, self._aggregate, self._adds_plainly
        late, taken = (NEVER, LATE), (NEVER, TAKEN)

        def place(key: str, event: Any, time_ms: int, judged_ms: int, stream_ms: int) -> tuple[int, int]:
            start_ms = time_ms - time_ms % size_ms
            end_ms = start_ms + size_ms
            if end_ms + grace_ms <= judged_ms:
                return late
            window = key + _digits_of(start_ms)
            if adds_plainly and (before := find(window)) is not None:
                value = aggregate(before.value, event)
                if value is not None:
                    rows[window] = WindowRow(value, end_ms)
                    return taken
            return add(rows, window, end_ms, event, stream_ms, emits), TAKEN

        return place

    def _last_window(self, time_ms: int) -> tuple[int, int]:
        start_ms = time_ms - time_ms % self._size_ms
        return start_ms, start_ms + self._size_ms


@lru_cache(4_096)
def _digits_of(start_ms: int) -> str:
    return f"@{start_ms:016d}"


class HoppingFold(WindowFold):
    """Hopping windows: their starts are the multiples of one number."""

    partly = True

    __slots__ = ("_every_ms", "_size_ms")

    def __init__(self, window: Hopping, **common: Any) -> None:
        super().__init__(grace_ms=window.grace_ms, **common)
        self._size_ms, self._every_ms = window.size_ms, window.every_ms

    @property
    def reach_ms(self) -> int:
        return self._size_ms

    def _place(
        self,
        rows: Rows[Any],
        key: str,
        event: Any,
        time_ms: int,
        judged_ms: int,
        stream_ms: int,
        emits: list[Emit],
    ) -> tuple[int, int]:
        size_ms, every_ms, closed_ms = self._size_ms, self._every_ms, judged_ms - self._grace_ms
        first_due_ms, took, missed = NEVER, False, False
        first = max(0, (time_ms - size_ms) // every_ms + 1) * every_ms
        for start_ms in range(first, time_ms + 1, every_ms):
            end_ms = start_ms + size_ms
            if end_ms <= closed_ms:
                missed = True
                continue
            took = True
            due_ms = self._add(rows, f"{key}@{start_ms:016d}", end_ms, event, stream_ms, emits)
            first_due_ms = min(first_due_ms, due_ms)
        return first_due_ms, TAKEN if not missed else PARTLY_LATE if took else LATE

    def _last_window(self, time_ms: int) -> tuple[int, int]:
        start_ms = time_ms - time_ms % self._every_ms
        return start_ms, start_ms + self._size_ms


class SessionFold(WindowFold):
    """Sessions. A row for each key lists the starts of its open ones, so that no scan looks for them.

    A record reads at most three of them, whatever their number: the first, the one before it and the one
    after.
    """

    fixed = False

    __slots__ = ("_gap_ms", "_merge")

    def __init__(self, window: Session, *, merge: Callable[[Any, Any], Any] | None, **common: Any) -> None:
        super().__init__(grace_ms=window.grace_ms, **common)
        self._gap_ms, self._merge = window.gap_ms, merge

    @property
    def reach_ms(self) -> int:
        return self._gap_ms + 1

    def _place(
        self,
        rows: Rows[Any],
        key: str,
        event: Any,
        time_ms: int,
        judged_ms: int,
        stream_ms: int,
        emits: list[Emit],
    ) -> tuple[int, int]:
        gap_ms, closed_ms = self._gap_ms, stream_ms - self._held_ms
        if time_ms + gap_ms + 1 + self._grace_ms <= judged_ms:
            return NEVER, LATE
        name = OPEN + key
        held: OpenRow | None = rows.get(name)
        if held is None:  # the general case below, without its look-ups
            after = WindowRow(None if self._ordered else self._aggregate(None, event), time_ms + gap_ms + 1)
            due_ms = self._put(rows, f"{key}@{time_ms:016d}", None, after, stream_ms, emits)
            rows[name] = OpenRow((time_ms,))
            return due_ms, TAKEN
        starts = held.starts
        open_from = self._closed_of(rows, key, starts, closed_ms)
        first = last = bisect_right(starts, time_ms, open_from)
        joined: list[tuple[int, WindowRow[Any]]] = []
        if first > open_from:
            row = rows[window_key(key, starts[first - 1])]
            if time_ms < row.end_ms:
                first -= 1
                joined.append((starts[first], row))
        if last < len(starts) and starts[last] - gap_ms <= time_ms:
            joined.append((starts[last], rows[window_key(key, starts[last])]))
            last += 1
        start_ms = min([time_ms, *(each for each, _ in joined)])
        end_ms = max([time_ms + gap_ms + 1, *(row.end_ms for _, row in joined)])
        value, before = None, None
        for at, (each_ms, row) in enumerate(joined):
            if self._merge is not None:  # else no record is folded before the session closes
                value = self._merge(value, row.value) if at else row.value
                if value is None:
                    self._check_none("merge")
            if each_ms == start_ms:
                before = row
            else:
                self._remove(rows, window_key(key, each_ms), row, emits)
        after = WindowRow(None if self._ordered else self._aggregate(value, event), end_ms)
        due_ms = self._put(rows, window_key(key, start_ms), before, after, stream_ms, emits)
        now_open = (*starts[open_from:first], start_ms, *starts[last:])
        if now_open != starts:
            rows[name] = OpenRow(now_open)
        return due_ms, TAKEN

    def _last_window(self, time_ms: int) -> tuple[int, int]:
        return time_ms, time_ms + self._gap_ms + 1

    def _last_ms(self, end_ms: int) -> int:
        return end_ms - 1 - self._gap_ms

    @staticmethod
    def _closed_of(rows: Rows[Any], key: str, starts: tuple[int, ...], closed_ms: int) -> int:
        """Return how many of a key's sessions are closed but not yet removed: the first ones, since their
        ends ascend.

        Open sessions are more than the gap apart. One that began after another had closed ends after it.
        """
        count = 0
        while count < len(starts) and rows[window_key(key, starts[count])].end_ms <= closed_ms:
            count += 1
        return count

    def _closed(self, rows: Rows[Any], window: str) -> None:
        name, start_ms = OPEN + window[: -DIGITS - 1], int(window[-DIGITS:])
        held: OpenRow | None = rows.get(name)
        if held is None:
            return
        starts = held.starts
        at = bisect_left(starts, start_ms)
        if at < len(starts) and starts[at] == start_ms:
            rows[name] = OpenRow((*starts[:at], *starts[at + 1 :])) if len(starts) > 1 else None


_NEAR = "near"
MOST_KEYS, MOST_STARTS = 16_384, 64
"""The most keys whose windows' starts are kept in memory, and the number of starts of a key after which the
old ones are removed.
"""


class _Starts:
    """The starts of a key's windows, in memory with the rows: all from *first_ms* on, maybe some that are
    removed.
    """

    __slots__ = ("first_ms", "starts")

    def __init__(self, first_ms: int, starts: list[int]) -> None:
        self.first_ms, self.starts = first_ms, starts

    def add(self, start_ms: int) -> None:
        starts = self.starts
        at = bisect_left(starts, start_ms)
        if at == len(starts) or starts[at] != start_ms:
            starts.insert(at, start_ms)

    def forget(self, before_ms: int) -> None:
        self.first_ms = before_ms
        del self.starts[: bisect_left(self.starts, before_ms)]


class SlidingFold(WindowFold):
    """Sliding windows. A new window copies the aggregate of another that holds all its
    records but the current one.

    Let f and l be the earliest and latest of the times that a new window shall hold, and p the latest time
    before f. Its records are those of the window that ends with l, unless that reaches back to p: then the
    window that begins after p reaches as far as l, and both hold f to l. One of the two is always there,
    since no record that was not late has been left out of any window.
    """

    __slots__ = ("_by_origin", "_difference_ms")

    def __init__(self, window: Sliding, *, by_origin: bool, **common: Any) -> None:
        super().__init__(grace_ms=window.grace_ms, **common)
        self._difference_ms, self._by_origin = window.difference_ms, by_origin

    @property
    def reach_ms(self) -> int:
        return self._difference_ms + 1

    def _place(
        self,
        rows: Rows[Any],
        key: str,
        event: Any,
        time_ms: int,
        judged_ms: int,
        stream_ms: int,
        emits: list[Emit],
    ) -> tuple[int, int]:
        if time_ms + 1 + self._grace_ms <= judged_ms:
            return NEVER, LATE
        span = self._difference_ms
        first_ms = time_ms - 2 * span - 1
        if self._by_origin:  # windows of other origins may lie ahead of stream time
            found_at = within(rows, f"{key}@", first_ms, time_ms + 1)
            near = _Starts(first_ms, [start_ms for start_ms, _ in found_at])
        else:
            near = self._starts(rows, key, first_ms, stream_ms)
        starts = near.starts
        found: dict[int, WindowRow[Any]] = {}
        for start_ms in starts[bisect_left(starts, first_ms) : bisect_right(starts, time_ms + 1)]:
            if (held := rows.get(f"{key}@{start_ms:016d}")) is not None:
                found[start_ms] = held
        due_ms = NEVER
        for start_ms, row in sorted(self._changed(found, event, time_ms).items()):
            before = found.get(start_ms)
            if before is None:
                near.add(start_ms)
            due_ms = min(due_ms, self._put(rows, f"{key}@{start_ms:016d}", before, row, stream_ms, emits))
        return due_ms, TAKEN

    def _last_window(self, time_ms: int) -> tuple[int, int]:
        return time_ms - self._difference_ms, time_ms + 1

    def _done_ms(self, time_ms: int) -> int:
        return time_ms + self._difference_ms + 1 + self._grace_ms  # after all windows that hold it

    def _starts(self, rows: Rows[Any], key: str, first_ms: int, stream_ms: int) -> _Starts:
        """Return the starts of the windows of *key* from *first_ms* on, at most stream time + 1."""
        known: dict[str, _Starts] = rows.derived.setdefault(_NEAR, {})
        near = known.get(key)
        if near is None or first_ms < near.first_ms:
            if near is None and len(known) >= MOST_KEYS:
                for each in [*islice(known, MOST_KEYS // 2)]:
                    del known[each]
            found = within(rows, f"{key}@", first_ms, stream_ms + 1)
            near = known[key] = _Starts(first_ms, [start_ms for start_ms, _ in found])
        elif len(near.starts) > MOST_STARTS:
            kept_ms = stream_ms - self._grace_ms - 2 * self._difference_ms - 2
            near.forget(max(near.first_ms, min(first_ms, kept_ms)))
        return near

    def _changed(
        self, found: dict[int, WindowRow[Any]], event: Any, time_ms: int
    ) -> dict[int, WindowRow[Any]]:
        """Return the windows that a record changes or makes, by their starts, given those *found* near it."""
        span, fold = self._difference_ms, self._aggregate if self._ordered is None else _unfolded
        times = sorted({row.last_ms for row in found.values()})
        changed: dict[int, WindowRow[Any]] = {}

        def add(start_ms: int, like: WindowRow[Any] | None) -> None:
            """Put the record into the window at *start_ms*, which so far holds what *like* does."""
            first_ms, last_ms = (time_ms, time_ms) if like is None else (like.first_ms, like.last_ms)
            changed[start_ms] = WindowRow(
                fold(None if like is None else like.value, event),
                start_ms + span + 1,
                first_ms=min(first_ms, time_ms),
                last_ms=max(last_ms, time_ms),
            )

        for start_ms, row in found.items():
            if start_ms <= time_ms <= start_ms + span:
                add(start_ms, row)
        if time_ms - span not in found:  # that which ends with the record
            add(time_ms - span, _holding(found, times, time_ms - span, time_ms - 1))
        for earlier_ms in times[bisect_left(times, time_ms - 1 - span) : bisect_left(times, time_ms)]:
            if earlier_ms + 1 not in found and earlier_ms + 1 not in changed:
                add(earlier_ms + 1, None)  # begins after an earlier record, was empty
        like = _holding(found, times, time_ms + 1, time_ms + 1 + span)
        if time_ms + 1 not in found and like is not None:  # that which begins after the record
            changed[time_ms + 1] = WindowRow(
                like.value, time_ms + span + 2, first_ms=like.first_ms, last_ms=like.last_ms
            )
        return changed


def _unfolded(value: None, event: Any) -> None:
    """Return None: the records of ordered windows are kept, and folded when the windows close."""


def _holding(
    found: dict[int, WindowRow[Any]], times: list[int], first_ms: int, last_ms: int
) -> WindowRow[Any] | None:
    """Return a window that holds exactly the records in [first_ms, last_ms], None if there are none."""
    inside = times[bisect_left(times, first_ms) : bisect_right(times, last_ms)]
    if not inside:
        return None
    for row in found.values():
        if row.first_ms == inside[0] and row.last_ms == inside[-1]:
            return row
    raise AssertionError(f"no window holds exactly {inside}")
