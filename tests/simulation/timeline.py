"""Simulated time: events in one order that a seed determines."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

BEGAN_S = 1_700_000_000.0
"""Time on a correct clock when simulated time is 0."""


class Timeline:
    """Events in the order of their times; of equal times, in the order in which they were planned.

    *step* counts them.
    """

    __slots__ = ("_heap", "_order", "now_s", "step")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = self.step = 0
        self.now_s = 0.0

    def at(self, at_s: float, act: Callable[..., object], *args: Any) -> None:
        """Call *act* at *at_s*, or now if that is past."""
        self._order += 1
        heappush(self._heap, (max(self.now_s, at_s), self._order, act, args))

    def after(self, wait_s: float, act: Callable[..., object], *args: Any) -> None:
        """Call *act* in *wait_s*."""
        self._order += 1
        heappush(self._heap, (self.now_s + wait_s, self._order, act, args))

    def run(self, until_s: float) -> None:
        """Let time pass."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now_s, _, act, args = heappop(heap)
            self.step += 1
            act(*args)
        self.now_s = until_s
