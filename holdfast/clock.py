"""The only module that reads the clock. Everything else takes time as an argument or takes a `Clock`."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the shells ask for the time; tests pass a `ManualClock`."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since the epoch."""
        ...

    def monotonic_s(self) -> float:
        """Return a clock for durations and deadlines, in seconds; never goes back."""
        ...


class SystemClock:
    """The machine's own clocks. *processor_s* is what this process has used of its processors, in seconds."""

    monotonic_s = staticmethod(time.monotonic)
    processor_s = staticmethod(time.process_time)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that moves only when told to.

    >>> clock = ManualClock(now_ms=1_000)
    >>> clock.advance_ms(500); clock.now_ms(), clock.monotonic_s()
    (1500, 0.5)
    """

    def __init__(self, *, now_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._elapsed_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return self._elapsed_ms / 1000

    def advance_ms(self, by_ms: int) -> None:
        """Let *by_ms* pass on both clocks."""
        self._now_ms += by_ms
        self._elapsed_ms += by_ms

    def jump_ms(self, by_ms: int) -> None:
        """Move the wall clock alone, as an NTP step does; *by_ms* may be negative."""
        self._now_ms += by_ms


system_clock = SystemClock()
