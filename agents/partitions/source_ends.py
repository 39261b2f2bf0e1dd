"""Where sources end that hold others back, and when it is time for ticks: asked and looked at for all partitions of
tables with several sources at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Protocol

from confluent_kafka import KafkaException

from holdfast.agents.partitions.holdings import Holdings
from holdfast.config import Settings
from holdfast.core.engine.processor import Processor
from holdfast.core.kafka.topic_partition import Place
from holdfast.tables.ends import ASK_TIMEOUT_S, EndsClient

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.05
"""How soon is seen that a tick is due, or that a log was read on without records."""
ASK_EVERY_S = 0.005
REST_S = 0.2
"""How soon is seen that this worker folds several sources, while it does not."""


class MergingHost(Protocol):
    """What is asked of the manager."""

    settings: Settings
    processors: dict[str, Processor[Any, Any]]
    holdings: Holdings
    open: bool


class SourceEnds:
    """Tells intakes where the sources end that they wait for."""

    def __init__(self, host: MergingHost) -> None:
        self._host = host
        self.wanted = asyncio.Event()
        """Set by an intake that waits for ends."""

    async def run(self) -> None:
        """Go on until cancelled; returns at once where no processor has several sources."""
        host = self._host
        if all(processor.on is None for processor in host.processors.values()):
            return
        client, wait_s = (
            EndsClient(host.settings.consumer(), committed=True),
            host.settings.source_wait_ms / 1000,
        )
        while True:
            owned = host.holdings.merged() if host.open else []
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S if owned else REST_S):
                    await self.wanted.wait()
            await asyncio.sleep(ASK_EVERY_S)  # for all that wait by then
            self.wanted.clear()
            asking = [(each.runner.merging, *each.runner.merging.asks()) for each in owned]
            ends = await self._ask(client, {place for _, _, places in asking for place in places})
            for intake, asked, _ in asking:
                intake.answer(asked, ends, wait_s)
            for each in owned:
                if host.open and each.part.fenced_in:
                    each.runner.merging.look()
                    each.runner.go_on()

    async def _ask(self, client: EndsClient, places: Iterable[Place]) -> dict[Place, int]:
        """Return the ends of *places*, as far as brokers tell them in time."""
        try:
            begun = client.begin(places)
        except KafkaException as error:  # what is not told is waited for, up to a deadline
            logger.info("ends of sources cannot be asked for: %(error)s", {"error": error})
            return {}
        asked = {place: asyncio.wrap_future(future) for place, future in begun.items()}
        if not asked:
            return {}
        for future in asked.values():
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait(asked.values(), timeout=ASK_TIMEOUT_S)
        ends: dict[Place, int] = {}
        for place, future in asked.items():
            if future.done():
                with suppress(KafkaException):
                    ends[place] = int(future.result().offset)
        return ends
