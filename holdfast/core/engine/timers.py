"""Timers of one clock in memory, with two ways back: of one record, and of one transaction."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

NEVER = 1 << 62
"""No time is as late, and none as early as minus this."""


class TimerTable:
    """Timers by key, one each; the earliest is known at once.

    Whoever fires them takes all that are `due`, then asks `fire` of each: one that was cancelled or moved
    meanwhile does not fire, and one that was set meanwhile waits for the next time the clock moves.
    """

    __slots__ = ("_before", "_heap", "_of", "_undo", "changed", "now_ms")

    def __init__(self, timers: Iterable[tuple[str, int]] = ()) -> None:
        self._of = dict(timers)
        self._heap = [(at_ms, key) for key, at_ms in self._of.items()]
        heapify(self._heap)
        self.now_ms = -NEVER  # what the clock says while those that are `due` fire
        self.changed: dict[str, int | None] = {}  # by this transaction; None for a timer that is gone
        self._undo: dict[str, int | None] = {}  # what each was before this transaction
        self._before: dict[str, tuple[int | None, bool, int | None]] = {}  # and before this record

    @property
    def next_ms(self) -> int:
        """Return when the earliest is due, NEVER without any."""
        while self._heap and self._of.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)  # replaced or cancelled
        return self._heap[0][0] if self._heap else NEVER

    def set(self, key: str, at_ms: int | None) -> None:
        """Set, replace or, by None, cancel the timer of *key*."""
        if key not in self._before:
            self._before[key] = (self._of.get(key), key in self.changed, self.changed.get(key))
        self._undo.setdefault(key, self._of.get(key))
        self._set(key, at_ms)
        self.changed[key] = at_ms

    def _set(self, key: str, at_ms: int | None) -> None:
        if at_ms is None:
            self._of.pop(key, None)
            return
        self._of[key] = at_ms
        heappush(self._heap, (at_ms, key))
        if len(self._heap) > 2 * len(self._of) + 64:  # mostly timers since replaced
            self._heap[:] = [(due_ms, each) for each, due_ms in self._of.items()]
            heapify(self._heap)

    def due(self, now_ms: int) -> list[tuple[str, int]]:
        """Take the timers due at *now_ms* as (key, due time), the earliest first, ties by key."""
        ready: list[tuple[str, int]] = []
        self.now_ms = now_ms
        while self.next_ms <= now_ms:
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
            if was_changed:
                self.changed[key] = change
            else:
                del self.changed[key]
        self._before.clear()

    def commit(self) -> None:
        """Take the changes as stored."""
        self.changed.clear()
        self._undo.clear()
        self._before.clear()

    def rollback(self) -> None:
        """Forget the changes since the last commit."""
        for key, at_ms in self._undo.items():
            self._set(key, at_ms)
        self.commit()
