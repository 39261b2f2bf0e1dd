"""A limit of the bytes that requests leave in the coordinators and the controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.clock import system_clock

OVERHEAD_BYTES: Final = 2_000
"""The bytes that anything with a name takes in addition to the bytes from clients."""
_REST: Final = 20
"""The next count is this many times as far away as the last took: counting takes a twentieth of the time."""


class KeptRoom:
    """At most *limit* bytes of requests are kept. All bytes of a request are counted as kept until the limit
    is reached: then *count* returns the real number.
    """

    def __init__(
        self, limit: int, count: Callable[[], int], now_s: Callable[[], float] = system_clock.monotonic_s
    ) -> None:
        self._limit, self._count, self._now_s = limit, count, now_s
        self._most = 0
        """More than this is not kept."""
        self._count_again_s = float("-inf")

    def take(self, size: int) -> bool:
        """Return whether a request of *size* bytes may be kept."""
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
