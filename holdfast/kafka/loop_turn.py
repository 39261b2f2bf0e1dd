"""The time for which one partition keeps the event loop before others have their turn."""

from __future__ import annotations

import asyncio

from holdfast.clock import system_clock

TURN_S = 0.003
"""The limit for one partition's use of the event loop; then others run: partitions with less to do,
heartbeats, queries.
"""


class LoopTurn:
    """Lets others of the event loop have theirs when this one's has been long enough: keys and batches may
    be large.
    """

    __slots__ = ("_began_s",)

    def __init__(self) -> None:
        self._began_s = system_clock.monotonic_s()

    async def let_others(self) -> None:
        if system_clock.monotonic_s() - self._began_s > TURN_S:
            await asyncio.sleep(0)
            self._began_s = system_clock.monotonic_s()
