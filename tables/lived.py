"""Deadlines in time that this process lived.

While it was frozen it could not read an answer that was there all along.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import TypeVar

from holdfast.clock import Clock, system_clock

T = TypeVar("T")

TICK_S = 0.5
MOST_S = 2 * TICK_S
"""The most that one tick counts: an event that held it up for longer also kept answers from being read."""


class Within:
    """`asyncio.timeout` in lived time: `async with Within(15): ...` raises TimeoutError after 15 s, not
    counting a freeze.

    A process that was frozen for longer than its deadlines finds them all over when it is thawed, and the
    answers it waits for in its sockets. With this it reads them first.
    """

    __slots__ = ("_left_s", "_loop", "_ticked_s", "_ticking", "_timeout")

    def __init__(self, timeout_s: float) -> None:
        self._left_s, self._timeout = timeout_s, asyncio.timeout(None)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._loop = asyncio.get_running_loop()
        self._ticked_s = self._loop.time()
        self._ticking = self._loop.call_later(min(TICK_S, self._left_s), self._tick)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ticking.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def _tick(self) -> None:
        now_s = self._loop.time()
        self._left_s -= min(now_s - self._ticked_s, MOST_S)
        self._ticked_s = now_s
        if self._left_s > 0:
            self._ticking = self._loop.call_later(min(TICK_S, self._left_s), self._tick)
        else:
            self._timeout.reschedule(now_s)


async def wait_for(work: Awaitable[T], timeout_s: float) -> T:
    """Return the result of *work*; cancel it and raise TimeoutError once this process has lived for
    *timeout_s* in that time.
    """
    async with Within(timeout_s):
        return await work


async def sleep(seconds: float) -> None:
    """Wait until this process has lived for *seconds* more."""
    try:
        async with Within(seconds):
            await asyncio.get_running_loop().create_future()
    except TimeoutError:
        return


class Stopwatch:
    """The time, as lived by this process, since progress was last seen. Its owner asks it again and again.

    >>> from holdfast.clock import ManualClock
    >>> clock = ManualClock(); idle = Stopwatch(clock)
    >>> for _ in range(4): clock.advance_ms(500); idle.tick()
    >>> idle.s
    2.0
    >>> clock.advance_ms(3_600_000); idle.tick(); idle.s
    3.0
    >>> idle.reset(); idle.s
    0.0
    """

    __slots__ = ("_clock", "_ticked_s", "s")

    def __init__(self, clock: Clock = system_clock) -> None:
        self._clock, self._ticked_s, self.s = clock, clock.monotonic_s(), 0.0

    def tick(self) -> None:
        """Count the time since the last call."""
        now_s = self._clock.monotonic_s()
        self.s += min(now_s - self._ticked_s, MOST_S)
        self._ticked_s = now_s

    def reset(self) -> None:
        """Restart at 0: progress was seen."""
        self.tick()
        self.s = 0.0
