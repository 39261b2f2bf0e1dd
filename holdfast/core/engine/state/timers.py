"""Timers of one clock in memory, with two ways back: of one record, and of one transaction."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, nsmallest
from typing import Any, Protocol

from holdfast.core.engine.state.codec import decode_due, text_key

NEVER = 1 << 62
"""No time is as late, and none as early as minus this."""
MOST, FEW = 65_536, 16_384
"""The most stored timers that are held in memory, and the number kept when there are more, or read at
once.
"""

Timer = tuple[int, str]
"""When it is due, and its key: timers fire in this order."""
_FIRST: Timer = (-NEVER, "")


class TimerStore(Protocol):
    """Timers that are committed, in order of when they are due."""

    def first(self, after: Timer, limit: int) -> list[Timer]:
        """Return the first *limit* timers after *after*."""
        ...

    def find(self, key: str) -> int | None:
        """Return the time in ms at which the timer of *key* is due, None without one."""
        ...


class _Absent:
    """The mark of a key that is not in memory: its timer is the stored one, which is not among the first."""

    __slots__ = ()


_ABSENT: Any = _Absent()


class TimerTable:
    """Timers by key, one each; the earliest is known at once.

    The caller takes all that are `due`, then calls `fire` for each: one that was cancelled or moved
    since does not fire, and one that was set since waits for the next time the clock moves.

    Of those in a *store* it holds the first in order of time, up to *last*, and the changes of the
    transaction; the others are read when their time comes. Without one, or when all are held (*last* is
    None), it is all there is. The store must have the committed changes when the next change, or the next
    look, is made.
    """

    __slots__ = (
        "_before",
        "_heap",
        "_last",
        "_of",
        "_store",
        "_stored",
        "_undo",
        "changed",
        "journaled",
        "now_ms",
    )

    def __init__(self, timers: Iterable[tuple[str, int]] = (), store: TimerStore | None = None) -> None:
        self._of: dict[str, int | None] = dict(timers)
        self._heap = [(at_ms, key) for key, at_ms in self._of.items() if at_ms is not None]
        heapify(self._heap)
        self._store = store
        self._last: Timer | None = None if store is None else _FIRST
        self.now_ms = -NEVER  # what the clock says while those that are `due` fire
        self.journaled = True  # whether `undo` may be asked for
        self.changed: dict[str, int | None] = {}  # by this transaction; None for a timer that is gone
        self._stored: dict[str, int | None] = {}  # by the one before
        self._undo: dict[str, Any] = {}  # what each was before this transaction
        self._before: dict[str, tuple[Any, bool, int | None]] = {}  # and before this record

    @property
    def next_ms(self) -> int:
        """Return the time in ms of the earliest timer, NEVER without any."""
        if self._stored:
            self._begin()
        heap, of = self._heap, self._of
        while True:
            while heap and of.get(heap[0][1]) != heap[0][0]:
                heappop(heap)  # replaced or cancelled
            if heap:
                return heap[0][0]
            if self._last is None:
                return NEVER
            self._read_on()

    @property
    def held(self) -> dict[str, int]:
        """Return the timers that are in memory: due times in ms by key."""
        return {key: at_ms for key, at_ms in self._of.items() if at_ms is not None}

    def set(self, key: str, at_ms: int | None) -> None:
        """Set, replace or, by None, cancel the timer of *key*."""
        if self._stored:
            self._begin()
        was = self._of.get(key, _ABSENT)
        if self.journaled and key not in self._before:
            self._before[key] = (was, key in self.changed, self.changed.get(key))
        if key not in self._undo:
            self._undo[key] = was
        self._set(key, at_ms)
        self.changed[key] = at_ms

    def _set(self, key: str, at_ms: Any) -> None:
        if at_ms is _ABSENT:
            self._of.pop(key, None)
        elif at_ms is None:
            if self._store is None:
                self._of.pop(key, None)
            else:
                self._of[key] = None  # the store may have one
        else:
            self._of[key] = at_ms
            if self._last is None or (at_ms, key) <= self._last:
                heappush(self._heap, (at_ms, key))
                if len(self._heap) > 2 * len(self._of) + 64:  # mostly timers since replaced
                    self._heap[:] = [
                        each for each in self._timers() if self._last is None or each <= self._last
                    ]
                    heapify(self._heap)

    def _timers(self) -> Iterable[Timer]:
        return ((at_ms, key) for key, at_ms in self._of.items() if at_ms is not None)

    def due(self, now_ms: int) -> list[tuple[str, int]]:
        """Take the timers due at *now_ms* as (key, due time), the earliest first, ties by key."""
        ready: list[tuple[str, int]] = []
        self.now_ms = now_ms
        while self.next_ms <= now_ms and self._heap:
            at_ms, key = heappop(self._heap)
            if not ready or ready[-1] != (key, at_ms):  # an undone change leaves its entry twice
                ready.append((key, at_ms))
                self._undo.setdefault(key, at_ms)  # no longer in the heap: a rollback must put it back
        return ready

    def fire(self, key: str, due_ms: int) -> bool:
        """Remove a timer taken by `due`; False when it was cancelled or replaced since."""
        if self._of.get(key) != due_ms:
            return False
        self.set(key, None)
        return True

    def keep(self) -> None:
        """Accept what this record changed."""
        self._before.clear()

    def undo(self) -> None:
        """Take back what this record changed."""
        for key, (at_ms, was_changed, change) in self._before.items():
            self._set(key, at_ms)
            if at_ms is _ABSENT and self._store is not None:
                # It may have become one of the first since then.
                found = self._store.find(key)
                if found is not None and (self._last is None or (found, key) <= self._last):
                    self._set(key, found)
            if was_changed:
                self.changed[key] = change
            else:
                del self.changed[key]
        self._before.clear()

    def commit(self) -> None:
        """Take the changes as stored."""
        if self._store is None:
            self.changed.clear()
        elif self.changed:  # nothing is left of `_stored` then
            self._stored, self.changed = self.changed, {}
        self._undo.clear()
        self._before.clear()

    def rollback(self) -> None:
        """Forget the changes since the last commit."""
        self._before.clear()
        if self._store is None:
            for key, at_ms in self._undo.items():
                self._set(key, at_ms)
        elif self._undo:
            self._of.clear()
            self._heap.clear()
            self._last = _FIRST
        self.changed.clear()
        self._undo.clear()

    # -- of many, the first

    def _begin(self) -> None:
        """Drop timers that the store has by now and that are not among the first; of many, hold fewer."""
        last = self._last
        for key, at_ms in self._stored.items():
            if at_ms is None or (last is not None and (at_ms, key) > last):
                self._of.pop(key, None)
        self._stored = {}
        if len(self._of) > MOST and not self._undo:
            self._heap = nsmallest(FEW, self._timers())
            self._last = self._heap[-1]
            self._of = {key: at_ms for at_ms, key in self._heap}

    def _read_on(self) -> None:
        """Hold the next of those that are stored, and what the transaction has set among them."""
        assert self._store is not None
        assert self._last is not None
        after, found = self._last, self._store.first(self._last, FEW)
        last = self._last = found[-1] if len(found) == FEW else None
        for at_ms, key in found:
            if key not in self._of:
                self._of[key] = at_ms
                self._heap.append((at_ms, key))
        for key, change in self.changed.items():
            if change is not None and (change, key) > after and (last is None or (change, key) <= last):
                self._heap.append((change, key))
        heapify(self._heap)


class _Ordered:
    """The timers of one kind in a store that has them in order."""

    def __init__(self, store: Any, kind: bytes) -> None:
        self._store, self._kind = store, kind

    def first(self, after: Timer, limit: int) -> list[Timer]:
        found: list[Timer] = self._store.timers(self._kind, after, limit)
        return found

    def find(self, key: str) -> int | None:
        value = self._store.get(self._kind + key.encode())
        return None if value is None else decode_due(value)


def timers_in(store: Any, kind: bytes) -> TimerTable:
    """Return the timers of a *kind* in *store*: read in order of time if it has `timers`, else all at
    once.
    """
    if hasattr(store, "timers"):
        return TimerTable(store=_Ordered(store, kind))
    return TimerTable((text_key(key), decode_due(value)) for key, value in store.scan(kind))
