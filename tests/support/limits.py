"""Upper limits of time in tests that hold on a loaded machine too.

`with at_most(3.0, "the release"):` fails when its block takes longer than 3 s of a machine that has a core to
spare. The share of a core that this process got is measured during the block, by bursts of work: where
other programs take 19 of 20 parts of it, the limit is 60 s. Time in which the machine runs no program at all
does not count.

`AwakeClock` is for limits of the product itself: a claim whose owner stalls for longer than its lease is
lost, and rightly. A member without a rival gets this clock in tests about something else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from holdfast.clock import SystemClock

_BURST_S = 0.02
"""Longer than a scheduler lets one program run while others wait, so that each burst competes with them."""
_REST_S = 0.2
_TICK_S = 0.05
_LONGEST_S = 0.25
"""Longest gap between two ticks on a machine that is only busy."""


class Slowness:
    """Measures how much longer work takes than the processor time it needs, from `start` to `stop`, and in
    `stalled_s` how long rests lasted beyond their end.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._measure, name="slowness", daemon=True)
        self._wall_s = self._worked_s = 0.0
        self._began_s = self._used_s = 0.0
        self.stalled_s = 0.0

    def start(self) -> None:
        """Begin to measure: a stall before the thread runs counts too."""
        self._began_s, self._used_s = time.monotonic(), time.process_time()
        self._thread.start()

    def stop(self) -> float:
        """Return the factor, at least 1."""
        self._ended.set()
        self._thread.join()
        return max(1.0, self._wall_s / self._worked_s) if self._worked_s else 1.0

    def _measure(self) -> None:
        # Each part begins where the one before it ended: this thread may stall at any line.
        began_s, used_s = self._began_s, self._used_s
        while True:
            ended = self._ended.wait(_REST_S)
            # Time in which this process itself held the interpreter is no stall of the machine.
            now_s, used_s = time.monotonic(), time.process_time() - used_s
            self.stalled_s += max(0.0, now_s - began_s - _REST_S - used_s)
            if ended:
                return
            began_s, worked_s = now_s, time.thread_time()
            while time.thread_time() - worked_s < _BURST_S:
                pass
            now_s, used_s = time.monotonic(), time.process_time()
            self._wall_s += now_s - began_s
            self._worked_s += time.thread_time() - worked_s
            began_s = now_s


@contextmanager
def measured() -> Iterator[Slowness]:
    """Measure the machine during the block: its `stalled_s` counts once the block has ended."""
    slowness = Slowness()
    slowness.start()
    try:
        yield slowness
    finally:
        slowness.stop()


@contextmanager
def at_most(limit_s: float, what: str = "it") -> Iterator[None]:
    """Fail when the block takes longer than *limit_s*, times how much slower than an idle one the machine
    was.
    """
    slowness = Slowness()
    slowness.start()
    began_s = time.monotonic()
    try:
        yield
    except BaseException:
        slowness.stop()
        raise
    took_s = time.monotonic() - began_s
    slower = slowness.stop()
    check(took_s - slowness.stalled_s, limit_s, slower, what)


def check(took_s: float, limit_s: float, slower: float, what: str) -> None:
    """Fail when *took_s* exceeds *limit_s* on a machine that was *slower* times as slow."""
    assert took_s < limit_s * slower, (
        f"{what} took {took_s:.2f} s: {limit_s:g} s is the limit, and the machine gave 1/{slower:.1f} of a"
        " core"
    )


class AwakeClock(SystemClock):
    """The machine's clock, without the time in which the machine did not run this process.

    Use it as a context manager: a thread looks at the time between those that ask.
    """

    def __init__(self) -> None:
        self._looking = threading.Lock()
        self._seen_s = super().monotonic_s()
        self._asleep_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="awake-clock", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _tick(self) -> None:
        while not self._ended.wait(_TICK_S):
            self.monotonic_s()

    def monotonic_s(self) -> float:
        with self._looking:
            now_s = super().monotonic_s()
            self._asleep_s += max(0.0, now_s - self._seen_s - _LONGEST_S)
            self._seen_s = now_s
            return now_s - self._asleep_s
