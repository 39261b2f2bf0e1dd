"""Finds source partitions that stay at the ends of their logs, for steps, windows and joins that feed others:
readers of these get marks, so that they do not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from holdfast.agents.partitions.gate import FoldGate
from holdfast.agents.partitions.held.holdings import Holdings
from holdfast.agents.partitions.types import Held
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.engine.declared.chains import spoken_topics
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.kafka.topic_partition import Place
from holdfast.kafka.fetching.source_fetcher import SourceFetcher

LOOK_EVERY_S = 0.1
FROZEN_S = 1.0
"""After a longer pause between two looks the process was frozen: it has yet to read the records since
then.
"""


class IdleOrigins:
    """Looks at all partitions of steps at once."""

    def __init__(
        self,
        settings: Settings,
        processors: Mapping[str, Processor[Any, Any]],
        *,
        gate: FoldGate,
        holdings: Holdings,
        feed: SourceFetcher,
        clock: Clock = system_clock,
    ) -> None:
        self._idle_s, self._clock = settings.origin_idle_ms / 1000, clock
        self._gate, self._holdings, self._feed = gate, holdings, feed
        self._idle_of = {
            name: [self._idle_s if idle_ms is None else idle_ms / 1000 for idle_ms in each.idle_ms]
            for name, each in processors.items()
            if each.told_topics
        }
        """For each processor whose records carry origins, how long each source is at its end before it lets
        go, in s.
        """
        self._spoken = spoken_topics(processors.values())
        self._since: dict[tuple[Held, int], tuple[int, float]] = {}
        """Of each source of a partition the next offset at which it is at its end, and since when."""
        self._looked_s = 0.0

    async def run(self) -> None:
        """Look now and then until cancelled; return at once where no records carry origins."""
        while self._idle_of:
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()

    def look(self) -> None:
        """Mark the origins that have been at their ends for long enough."""
        now_s, gate = self._clock.monotonic_s(), self._gate
        if now_s - self._looked_s > FROZEN_S or not gate.open or self._feed.broker_down:
            self._since.clear()
        self._looked_s = now_s
        if not gate.open:
            return
        ends, since = self._feed.ends(), dict[tuple[Held, int], tuple[int, float]]()
        for held, owned in self._holdings.owned.items():
            part = owned.part
            if held[0] not in self._idle_of or part.owner.marks is None or not part.owner.fenced_in:
                continue
            quiet: list[int] = []
            for number, (place, following) in enumerate(_following(part.places, part.offsets)):
                if following < ends.get(place, following + 1):
                    continue
                key = held, number
                was = self._since.get(key)
                since[key] = was if was is not None and was[0] == following else (following, now_s)
                if now_s - since[key][1] >= self._idle_of[held[0]][number]:
                    quiet.append(number)
            if quiet:  # a topic that a step writes waits for its marks: its worker may just be slow
                at_end = frozenset(each for each in quiet if part.places[each][0] not in self._spoken)
                owned.runner.mark_idle(at_end, gate.epoch)
        self._since = since


def _following(places: list[Place], offsets: Mapping[str, int]) -> list[tuple[Place, int]]:
    return [(place, offsets[place[0]] + 1) for place in places]
