"""Internal topics are trimmed behind the state of all that read them, where the setting `trim_internal` says so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from holdfast.agents.partitions.holdings import Holdings
from holdfast.clients.topics.admin import Admin
from holdfast.config import Settings
from holdfast.core.engine.processor import Processor
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import HoldfastError

logger = logging.getLogger(__name__)

TRIM_EVERY_S = 5.0
"""One request to each broker that leads some of them."""


class TrimmingHost(Protocol):
    """What is asked of the manager."""

    settings: Settings
    processors: dict[str, Processor[Any, Any]]
    holdings: Holdings
    open: bool

    def thread(self, call: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Run a blocking call beside the event loop."""
        ...


class Trimming:
    """Deletes the records of internal topics that every processor behind them has in its state.

    What is in a state is in a changelog, in the transaction of its position: so nobody needs those records again, but a processor that is raised
    without their writer, which is refused then.
    """

    def __init__(self, host: TrimmingHost) -> None:
        self._host = host
        self._trimmed: dict[Place, int] = {}
        self._admin: Admin | None = None

    async def run(self) -> None:
        """Go on until cancelled; returns at once where nothing is to be trimmed."""
        host = self._host
        if not host.settings.trim_internal or not any(each.internal for each in host.processors.values()):
            return
        while True:
            await asyncio.sleep(TRIM_EVERY_S)
            if host.open and (due := self.due()):
                try:
                    await host.thread(self._trim, due)
                except HoldfastError as error:
                    logger.warning("internal topics are not trimmed, they grow: %(error)s", {"error": error})
                else:
                    self._trimmed |= due

    def due(self) -> dict[Place, int]:
        """Return the offsets before which internal topics are in the state of all behind them, where that has moved."""
        host, readers = self._host, readers_of(self._host.processors.values())
        out: dict[Place, int] = {}
        for place, next_offset in host.holdings.positions().items():
            behind = readers.get(place[0])
            if behind is None or next_offset <= self._trimmed.get(place, 0):
                continue
            here = {each.part.processor.name for each in host.holdings.owners(place) if each.part.fenced_in}
            if behind <= here:  # else another has the position of one of them
                out[place] = next_offset
        return out

    def _trim(self, before: Mapping[Place, int]) -> None:
        if self._admin is None:
            self._admin = Admin(self._host.settings)
        self._admin.delete_before(before)


def readers_of(processors: Iterable[Processor[Any, Any]]) -> dict[str, set[str]]:
    """Return which processors read each internal topic, by name."""
    out: dict[str, set[str]] = {}
    for processor in processors:
        for topic in processor.internal:
            out.setdefault(str(topic), set()).add(processor.name)
    return out
