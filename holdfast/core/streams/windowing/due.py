"""An index of what windows have due at which stream time, kept in rows and read without scanning later
entries.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from heapq import heappop, heappush
from typing import Any, Literal

from holdfast.core.engine.emits import Emit
from holdfast.core.engine.state.rows import NEVER, Rows
from holdfast.core.streams.windowing.rows import DIGITS, DUE, DueRow

Kind = Literal["c", "d", "t"]
CLOSE: Kind = "c"
DROP: Kind = "d"
TELL: Kind = "t"

Entry = tuple[int, Kind, str]
"""(stream time in ms at which it is due, kind, row key of the window)."""

_DUE = DueRow()
_AT, _KIND = len(DUE), len(DUE) + DIGITS
AT_ONCE, LIMIT_DUE = 500, 100_000
"""The number of due entries after which work pauses, and the most that one record processes."""
MOST, FEW = 65_536, 4_096
"""The most entries kept in memory, and the number kept when there are more, or read by one look-up."""


class _Queue:
    """The first entries of the index, in memory with the rows: all up to *last*, or all there are if that is
    None.

    *names* is a heap; it may hold names that are no longer in *live*.
    """

    __slots__ = ("last", "live", "names")

    def __init__(self, names: list[str]) -> None:
        self.names, self.live = names, set(names)
        self.last = names[-1] if len(names) == FEW else None

    def add(self, name: str) -> None:
        if (self.last is None or name < self.last) and name not in self.live:
            self.live.add(name)
            heappush(self.names, name)
            if len(self.names) > MOST:
                self.__init__(sorted(self.live)[:FEW])  # type: ignore[misc]

    def take(self, beyond: str, taken: list[str], limit: int) -> str | None:
        """Move the names before *beyond* to *taken*, at most *limit* in all; return the first name that
        remains, None if the queue is empty.
        """
        names, live = self.names, self.live
        while names:
            name = names[0]
            if name not in live:
                heappop(names)
            elif name < beyond and len(taken) < limit:
                live.discard(heappop(names))
                taken.append(name)
            else:
                return name
        return None


def add_due(rows: Rows[Any], entry: Entry) -> None:
    """Add an entry; adding it twice is the same as adding it once."""
    due_ms, kind, window = entry
    name = f"{DUE}{due_ms:016d}/{kind}/{window}"
    rows.note(name, _DUE)
    queue: _Queue | None = rows.derived.get(DUE)
    if queue is not None:
        queue.add(name)


def cancel_due(rows: Rows[Any], entry: Entry) -> None:
    """Remove an entry."""
    due_ms, kind, window = entry
    name = f"{DUE}{due_ms:016d}/{kind}/{window}"
    rows.note(name, None)
    queue: _Queue | None = rows.derived.get(DUE)
    if queue is not None:
        queue.live.discard(name)


def has_due(rows: Rows[Any], kind: Kind) -> bool:
    """Return whether there is an entry of a kind. It reads all entries that are due before that one."""
    return any(name[_KIND + 1] == kind for name, _ in rows.scan(DUE))


def take_due(
    rows: Rows[Any], from_ms: int, until_ms: int, limit: int = AT_ONCE
) -> tuple[list[Entry], Entry | None]:
    """Remove and return the entries due in [from_ms, until_ms], in order and at most *limit*; and the first
    entry that remains, which may be due as well, None without one.

    No entry may be due before *from_ms*. The first entries stay in memory between calls (`Rows.derived`).
    """
    queue: _Queue | None = rows.derived.get(DUE)
    if queue is None:
        queue = rows.derived[DUE] = _Queue(_look_up(rows, from_ms, ""))
    taken: list[str] = []
    beyond = f"{DUE}{until_ms + 1:016d}"
    while (following := queue.take(beyond, taken, limit)) is None and queue.last is not None:
        queue = rows.derived[DUE] = _Queue(_look_up(rows, int(queue.last[_AT:_KIND]), queue.last))
    for name in taken:
        rows.note(name, None)
    return [*map(_entry, taken)], None if following is None else _entry(following)


Folding = Generator[list[Emit], None, tuple[Entry | None, int]]
"""Long work: it yields emits where it can pause, and returns the next due entry and how much was done."""
Act = Callable[[Entry], Entry | Folding | None]
"""Processes a due entry; returns the window's next entry, None without one, or long work that does so."""


def settle(
    rows: Rows[Any], next_ms: int, stream_ms: int, act: Act, emits: list[Emit]
) -> Generator[list[Emit], None, int]:
    """Have *act* process the entries due at *stream_ms*, in order; return a time before which no other is
    due.

    It pauses after every AT_ONCE entries and yields *emits* so far. It processes LIMIT_DUE at most: the rest
    is left to the next record, since a transaction cannot end within a record and is held in memory.
    """
    heap: list[Entry] = []
    done, later_ms = 0, NEVER
    while True:
        found, following = take_due(rows, next_ms, stream_ms)
        if heap:
            for entry in found:
                heappush(heap, entry)
        else:
            heap = found
        left = following is not None and following[0] <= stream_ms
        while heap and done < LIMIT_DUE and (not left or heap[0] < following):  # type: ignore[operator]
            if done and done % AT_ONCE == 0:
                part = emits[:]
                emits.clear()
                yield part
            done += 1
            after = act(heappop(heap))
            if after is not None and not isinstance(after, tuple):
                after, more = yield from after
                done += more
            if after is None:
                continue
            if after[0] <= stream_ms:
                heappush(heap, after)
            else:
                add_due(rows, after)
                later_ms = min(later_ms, after[0])
        next_ms = NEVER if following is None else following[0]
        if done >= LIMIT_DUE or not left:
            for entry in heap:  # beyond the limit
                add_due(rows, entry)
            return min([next_ms, later_ms, *(entry[0] for entry in heap)])


def _look_up(rows: Rows[Any], from_ms: int, after: str) -> list[str]:
    """Return the first FEW entries after *after*, which are not due before *from_ms*, in order.

    Keys hold the time in 16 digits, so their first digits name a stretch of time. Stretches are scanned from
    there on, each a thousand times as long as the last. That passes over entries removed before it, which a
    store may not have purged yet.
    """
    names: list[str] = []
    for exponent in (4, 7, 10, 13, DIGITS):
        width = 10**exponent
        stretch = from_ms // width
        prefix = f"{DUE}{stretch:0{DIGITS - exponent}d}" if exponent < DIGITS else DUE
        for name, _ in rows.scan(prefix, start=after):
            if name > after:
                names.append(name)
                if len(names) == FEW:
                    return names
        from_ms = (stretch + 1) * width
        after = f"{DUE}{from_ms:016d}"
    return names


def _entry(name: str) -> Entry:
    return int(name[_AT:_KIND]), name[_KIND + 1], name[_KIND + 3 :]  # type: ignore[return-value]


def within(rows: Rows[Any], prefix: str, first_ms: int, last_ms: int) -> Iterator[tuple[int, Any]]:
    """Yield (start, row) of the windows whose keys are *prefix* and a start in [first_ms, last_ms], in
    ascending order.

    Keys of another length that begin alike are skipped.
    """
    if first_ms < 0:  # only when event times are shorter than the windows: their order is not that of keys
        stretches = [prefix]
    else:
        exponent = min(len(str(last_ms - first_ms)), DIGITS - 1)
        width = 10**exponent
        numbers = range(first_ms // width, last_ms // width + 1)
        stretches = [f"{prefix}{number:0{DIGITS - exponent}d}" for number in numbers]
    length = len(prefix) + DIGITS
    found = [
        (int(name[-DIGITS:]), row)
        for stretch in stretches
        for name, row in rows.scan(stretch)
        if len(name) == length and name.startswith(prefix)
    ]
    return (each for each in sorted(found, key=_start) if first_ms <= each[0] <= last_ms)


def _start(found: tuple[int, Any]) -> int:
    return found[0]
