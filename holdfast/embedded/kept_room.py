"""What requests leave behind in the coordinators and the controller, in bytes, with a limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.clock import system_clock

OVERHEAD_BYTES: Final = 2_000
"""What anything that has a name costs, beside what clients said of it."""
_REST: Final = 20
"""The next count is this many times as far away as the last took: counting takes a twentieth of the time."""


class KeptRoom:
    """At most *limit* bytes are kept of what clients said. Requests are taken to leave all their bytes behind
    until that is too much: then *count* returns what there is.
    """

    def __init__(
        self, limit: int, count: Callable[[], int], now_s: Callable[[], float] = system_clock.monotonic_s
    ) -> None:
        self._limit, self._count, self._now_s = limit, count, now_s
        self._most = 0
        """More than this is not kept."""
        self._count_again_s = float("-inf")

    def take(self, size: int) -> bool:
        """Return whether a request of *size* bytes may leave them behind."""
        if self._most + size > self._limit:
            before_s = self._now_s()
            if before_s < self._count_again_s:
                return False
            self._most = self._count()
            after_s = self._now_s()
            self._count_again_s = after_s + _REST * (after_s - before_s)
            if self._most + size > self._limit:
                return False
        self._most += size
        return True
