"""Trims internal topics up to the state of all their readers, where the setting `trim_internal` says so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.agents.partitions.gate import FoldGate
from holdfast.agents.partitions.held.holdings import Holdings
from holdfast.agents.partitions.types import RunInThread
from holdfast.clients.topics.admin import Admin
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import HoldfastError

logger = logging.getLogger(__name__)

TRIM_EVERY_S = 5.0
"""One request to each broker that leads some of them."""


class Trimming:
    """Deletes the records of internal topics that are in the state of every processor that reads them.

    A state is in a changelog, in the transaction of its position: so no processor needs those records again,
    except one that is raised without their writer, and that one is refused.
    """

    def __init__(
        self,
        settings: Settings,
        processors: Mapping[str, Processor[Any, Any]],
        thread: RunInThread,
        *,
        gate: FoldGate,
        holdings: Holdings,
    ) -> None:
        self._settings, self._processors, self._thread = settings, processors, thread
        self._gate, self._holdings = gate, holdings
        self._trimmed: dict[Place, int] = {}
        self._admin: Admin | None = None

    async def run(self) -> None:
        """Run until cancelled; returns at once where nothing is to be trimmed."""
        if not self._settings.trim_internal or not any(each.internal for each in self._processors.values()):
            return
        while True:
            await asyncio.sleep(TRIM_EVERY_S)
            if self._gate.open and (due := self.due()):
                try:
                    await self._thread(self._trim, due)
                except HoldfastError as error:
                    logger.warning("internal topics are not trimmed, they grow: %(error)s", {"error": error})
                else:
                    self._trimmed |= due

    def due(self) -> dict[Place, int]:
        """Return the offsets before which internal topics are in the state of all their readers, where these
        have moved.
        """
        readers = readers_of(self._processors.values())
        out: dict[Place, int] = {}
        for place, next_offset in self._holdings.positions().items():
            behind = readers.get(place[0])
            if behind is None or next_offset <= self._trimmed.get(place, 0):
                continue
            here = {
                each.part.processor.name for each in self._holdings.owners(place) if each.part.owner.fenced_in
            }
            if behind <= here:  # else another worker has the position of one of them
                out[place] = next_offset
        return out

    def _trim(self, before: Mapping[Place, int]) -> None:
        if self._admin is None:
            self._admin = Admin(self._settings)
        self._admin.delete_before(before)


def readers_of(processors: Iterable[Processor[Any, Any]]) -> dict[str, set[str]]:
    """Return which processors read each internal topic, by name."""
    out: dict[str, set[str]] = {}
    for processor in processors:
        for topic in processor.internal:
            out.setdefault(str(topic), set()).add(processor.name)
    return out
