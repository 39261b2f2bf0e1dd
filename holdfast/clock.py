"""The only module that reads the clock, and how long to wait between attempts. Everything else takes time as
an argument or takes a `Clock`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Protocol


class Clock(Protocol):
    """The time as the shells use it; tests pass a `ManualClock`."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since the epoch."""
        ...

    def monotonic_s(self) -> float:
        """Return a clock for durations and deadlines, in seconds; never goes back, and advances while the
        machine is asleep.
        """
        ...


def sleepless(system: Any) -> Callable[[], float]:
    """Return the monotonic clock of *system*, the module `time`, that advances while the machine is asleep.

    `time.monotonic` does not advance then on Linux and macOS: a laptop that was closed for an hour would take
    its leases and claims for held.
    """
    if hasattr(system, "CLOCK_BOOTTIME"):  # Linux
        return partial(system.clock_gettime, system.CLOCK_BOOTTIME)
    if sys.platform == "darwin":  # there, unlike on Linux, it counts sleep
        return partial(system.clock_gettime, system.CLOCK_MONOTONIC)
    found: Callable[[], float] = system.monotonic
    return found


class SystemClock:
    """The machine's own clocks. *monotonic_s* advances while the machine is asleep, *processor_s* is the
    processor time of the process, in seconds, *thread_s* that of this thread.
    """

    monotonic_s = staticmethod(sleepless(time))
    processor_s = staticmethod(time.process_time)
    thread_s = staticmethod(time.thread_time)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that moves only by `advance_ms` and `jump_ms`.

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


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits between attempts: *first_s*, then twice as long each time, at most *longest_s*.

    >>> [Backoff(0.1, 1.0).wait_s(failures) for failures in (0, 1, 2, 3, 4, 5_000)]
    [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    """

    first_s: float
    longest_s: float

    def wait_s(self, failures: int) -> float:
        """Return the wait after an attempt that failed, when *failures* in turn had failed before it."""
        return min(self.first_s * 2.0 ** min(failures, 30), self.longest_s)

    def waits_s(self) -> Iterator[float]:
        """Yield the wait after the first attempt, the second and so on, without end."""
        return map(self.wait_s, count())


system_clock = SystemClock()
