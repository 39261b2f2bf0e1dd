"""Looks up the ends of sources that hold others back, and checks whether ticks are due, for all partitions of
tables with several sources at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaException

from holdfast.agents.partitions.gate import FoldGate
from holdfast.agents.partitions.held.holdings import Holdings
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.kafka.topic_partition import Place
from holdfast.tables.ends import ASK_TIMEOUT_S, EndsClient

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.05
"""The time within which a due tick, or a log that was read on without records, is noticed."""
ASK_EVERY_S = 0.005
REST_S = 0.2
"""The time within which this worker notices that it has begun to fold several sources."""


class SourceEnds:
    """Gives intakes the ends of the sources that they wait for."""

    def __init__(
        self,
        settings: Settings,
        processors: Mapping[str, Processor[Any, Any]],
        *,
        gate: FoldGate,
        holdings: Holdings,
    ) -> None:
        self._settings, self._processors, self._gate, self._holdings = settings, processors, gate, holdings
        self.wanted = asyncio.Event()
        """Set by an intake that waits for ends."""

    async def run(self) -> None:
        """Run until cancelled; returns at once where no processor has several sources."""
        gate, settings = self._gate, self._settings
        if not any(processor.choices_topics(settings.app) for processor in self._processors.values()):
            return
        client = EndsClient(settings.consumer(), committed=True)
        wait_s = settings.source_wait_ms / 1000
        while True:
            owned = self._holdings.ordered() if gate.open else []
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S if owned else REST_S):
                    await self.wanted.wait()
            await asyncio.sleep(ASK_EVERY_S)  # for all that wait by then
            self.wanted.clear()
            asking = [(each.runner.intake, *each.runner.intake.asks()) for each in owned]
            ends = await self._ask(client, {place for _, _, places in asking for place in places})
            for intake, asked, _ in asking:
                intake.answer(asked, ends, wait_s)
            for each in owned:
                if gate.open and each.part.owner.fenced_in:
                    each.runner.intake.look()
                    each.runner.go_on()

    async def _ask(self, client: EndsClient, places: Iterable[Place]) -> dict[Place, int]:
        """Return the ends of *places*, as far as brokers answer in time."""
        try:
            begun = client.begin(places)
        except KafkaException as error:  # intakes wait for an unknown end, up to a deadline
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
