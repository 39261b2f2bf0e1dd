"""Stalls a partition that its owner cannot fold on, and gives readiness the reason."""

from __future__ import annotations

import asyncio
import logging

from holdfast.agents.partitions.batches.intake import Intake
from holdfast.agents.partitions.types import RunnerHost
from holdfast.clock import Clock
from holdfast.core.engine.fold.patience import Patience
from holdfast.errors import Later
from holdfast.tables.lived import Stopwatch
from holdfast.tables.partition import Partition

logger = logging.getLogger(__name__)

RETRY_S, LOOK_S = 5.0, 0.1
"""The time after which a stalled partition retries its transaction, and within which it notices a revocation.
"""


class Stall:
    """Keeps one partition from being folded for a cause that a restart would not cure.

    A stalled partition fetches nothing, since its records would take the room of other partitions, and makes
    the worker unready. Its committed rows are still served.
    """

    def __init__(
        self, host: RunnerHost, part: Partition, intake: Intake, later_timeout_s: float, clock: Clock
    ) -> None:
        self._host, self._part, self._intake, self._clock = host, part, intake, clock
        self._patience, self._waited = Patience(later_timeout_s), Stopwatch(clock)
        self._waits = self.is_on = False
        self._logged = ""

    async def wait(self, why: str, epoch: int, seconds: float = RETRY_S) -> bool:
        """Stay stalled for *seconds*; return whether the partition is still this worker's."""
        self._begin(why)
        host, until_s = self._host, self._clock.monotonic_s() + seconds
        while host.owns(self._part, epoch) and self._clock.monotonic_s() < until_s:
            host.progressed()  # the worker is neither stuck nor to leave its group
            self._waited.tick()
            await asyncio.sleep(LOOK_S)
        if not host.owns(self._part, epoch):
            self.end()
            return False
        return True

    async def wait_for(self, later: Later, topic: str, offset: int, epoch: int) -> None:
        """Wait before a fold is retried that lacks data, each time for longer.

        Raises StillWaitingError after `later_timeout_s`: another worker may reach what this one cannot.
        """
        part = self._part
        if not self._waits:
            self._waits = True
            self._waited.reset()
        self._waited.tick()
        where = f"{part.processor.name}: offset {offset} of {topic} partition {part.partition}"
        pause_s = self._patience.pause_s(later, where, self._waited.s)
        await self.wait(f"waits for {later.needs}, at offset {offset} of {topic}: {later}", epoch, pause_s)

    def end(self) -> None:
        """Resume the partition: it can be folded again, or is another worker's."""
        if not self.is_on:
            return
        part = self._part
        logger.warning(
            "partition %(partition)d of %(table)s resumed",
            {"partition": part.partition, "table": part.processor.table},
        )
        self._host.stalled.pop((part.processor.name, part.partition), None)
        part.stalled, self.is_on, self._logged, self._waits = None, False, "", False
        self._patience.over()
        self._pause(False)

    def _begin(self, why: str) -> None:
        part = self._part
        if self._logged != why:
            logger.error(
                "%(processor)s partition %(partition)d %(why)s",
                {"processor": part.processor.name, "partition": part.partition, "why": why},
            )
            self._logged = why
        part.stalled = f"{part.processor.name} partition {part.partition} {why}"
        self._host.stalled[part.processor.name, part.partition] = part.stalled
        self.is_on = True
        self._pause(True)

    def _pause(self, paused: bool) -> None:
        kept, part = () if paused else self._intake.held, self._part
        for topic in part.processor.topics:
            place = topic, part.partition
            self._host.feed.hold(place, paused or place in kept)
