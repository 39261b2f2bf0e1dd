"""The memory of earlier pictures: rates for the charts, and the partitions that have long not moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.console.watching.picture import PartitionId, Picture

KEPT_POINTS = 600
STALLED_S = 30.0

EdgeId = tuple[str, str, int, str]
"""The flow along an arrow of the topology: "folds", "reads" or "emits", a processor, its version, a topic.
Every reader of a global table has the same copy, so there the processor is "", its version 0.
"""
FlowId = tuple[EdgeId, int, str]
"""An arrow, a partition, and the worker that counts; "" where offsets of the log count."""
Positions = Mapping[PartitionId, tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """One moment of the charts: records folded a second since the point before, and records not folded
    yet.
    """

    at_s: float
    rate: float | None
    behind: int | None


class History:
    """Learns from one picture after another; times are the console's own, in seconds that never go back.

    >>> history = History()
    >>> history.learn({("t", 1, 0): (4, 2)}, now_s=0.0, at_s=100.0)
    >>> history.learn({("t", 1, 0): (14, 2)}, now_s=2.0, at_s=102.0)
    >>> history.points[-1].rate, history.stalled(31.0), history.stalled(32.0)
    (5.0, set(), {('t', 1, 0)})
    """

    def __init__(self) -> None:
        self.points: tuple[ChartPoint, ...] = ()
        """The last KEPT_POINTS; replaced and never changed, since pages read them in other threads."""
        self._before: Positions = {}
        self._before_s = 0.0
        self._moved_s: dict[PartitionId, float] = {}
        self._flows: Mapping[FlowId, int] = {}
        self._flows_s = 0.0
        self._rates: dict[EdgeId, float] = {}

    def learn(self, positions: Positions, *, now_s: float, at_s: float) -> None:
        """Take in where each partition is, as (offset, records behind): *now_s* counts, *at_s* is shown."""
        known = [behind for _, behind in positions.values() if behind is not None]
        point = ChartPoint(at_s, self._rate(positions, now_s), sum(known) if known else None)
        self.points = (*self.points[1 - KEPT_POINTS :], point)
        for place, (offset, behind) in positions.items():
            before = self._before.get(place)
            if before is None or before[0] != offset or not behind:
                self._moved_s[place] = now_s
        for place in self._moved_s.keys() - positions.keys():
            del self._moved_s[place]
        self._before, self._before_s = positions, now_s

    def _rate(self, positions: Positions, now_s: float) -> float | None:
        seconds = now_s - self._before_s
        if not self._before or seconds <= 0:
            return None
        moved = sum(
            max(0, offset - self._before[place][0])
            for place, (offset, _) in positions.items()
            if place in self._before
        )
        return round(moved / seconds, 1)

    def learn_flows(self, flows: Mapping[FlowId, int], *, now_s: float) -> None:
        """Take in how far what flows along each arrow has come. Copies of one global table each take in all
        of it: the fastest counts.
        """
        before, seconds = self._flows, now_s - self._flows_s
        rates: dict[EdgeId, float] = {}
        for place, passed in flows.items():
            if seconds > 0 and place in before:
                edge, rate = place[0], max(0, passed - before[place]) / seconds
                known = rates.get(edge, 0.0)
                rates[edge] = max(known, rate) if edge[0] == "reads" else known + rate
        self._rates, self._flows, self._flows_s = rates, flows, now_s

    def rate(self, edge: EdgeId) -> float | None:
        """Return how many records a second have flowed along an arrow since the last look but one."""
        found = self._rates.get(edge)
        return None if found is None else round(found, 1)

    def stalled(self, now_s: float) -> set[PartitionId]:
        """Return the partitions that have had records to fold for STALLED_S and have not moved."""
        return {place for place, moved_s in self._moved_s.items() if now_s - moved_s >= STALLED_S}


def positions_of(picture: Picture) -> Positions:
    """Return where the partitions of the versions in use are."""
    return {
        (each.table, each.version, each.partition): (each.offset, each.behind)
        for table in picture.tables
        for each in table.partitions
        if each.offset is not None
    }


def flows_of(picture: Picture) -> dict[FlowId, int]:
    """Return how far what flows along each arrow of the topology has come: offsets where they are folded or
    read, counts where they are emitted.
    """
    flows: dict[FlowId, int] = {
        (("reads", "", 0, each.topic), 0, each.url): each.passed for each in picture.copies
    }
    for table in picture.tables:
        for each in table.partitions:
            if each.offset is None:
                continue
            for topic, offset in (each.sources or {table.sources[0]: each.offset}).items():
                flows[("folds", each.table, each.version, topic), each.partition, ""] = offset
            for topic, emitted in each.emitted.items():
                flows[("emits", each.table, each.version, topic), each.partition, each.owner or ""] = emitted
    return flows
