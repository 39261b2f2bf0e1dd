"""The positions of a claim group, partition by partition, as `holdfast groups describe` shows them: lanes
under the partition that they are part of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from holdfast.clients.groups.records import GroupPosition
from holdfast.core.claims.claim_keys import ClaimKey
from holdfast.core.claims.claim_rows import Claim, is_of_another
from holdfast.core.claims.lanes import lane_named, lane_topics, lowest
from holdfast.core.claims.staleness import status
from holdfast.core.kafka.topic_partition import Place


class _Partitioning(NamedTuple):
    """One way to work on a topic: whole (0), or in so many lanes."""

    topic: str
    lanes: int


def claimed_ways(topics: set[str]) -> set[str]:
    """Return the names under which a group claims *topics*: where one lane is among them, all lanes it has.

    >>> sorted(claimed_ways({"orders~lane-1-of-2", "clicks"}))
    ['clicks', 'orders~lane-0-of-2', 'orders~lane-1-of-2']
    """
    lanes = {(lane.topic, lane.lanes) for topic in topics if (lane := lane_named(topic)) is not None}
    return topics | {name for topic, count in lanes for name in lane_topics(topic, count)}


def _by_way(claims: Mapping[ClaimKey, Claim]) -> dict[Place, dict[_Partitioning, dict[int, Claim]]]:
    """Return the claims of each partition by how it was divided, and by lane: -1 for a whole partition."""
    found: dict[Place, dict[_Partitioning, dict[int, Claim]]] = {}
    for key, claim in claims.items():
        lane = lane_named(key.topic)
        way = _Partitioning(key.topic, 0) if lane is None else _Partitioning(lane.topic, lane.lanes)
        ways = found.setdefault((way.topic, key.partition), {})
        ways.setdefault(way, {})[-1 if lane is None else lane.lane] = claim
    return found


def _lag(current: int | None, end: int | None) -> int | None:
    return None if current is None or end is None else max(0, end - current)


def positions(
    group: str,
    claims: Mapping[ClaimKey, Claim],
    bounds: Mapping[Place, tuple[int, int]],
    marks: Mapping[str, int | None],
    *,
    now_s: int,
    stale_after_s: int,
    live: Callable[[Claim], bool],
) -> tuple[GroupPosition, ...]:
    """Return a line for each partition that has a claim, in order, and after the line of one worked on in
    lanes, one for each lane.

    A lane's offset counts all messages of its partition, so it is the partition that has a lag: that of its
    slowest lane, None while one of them is unknown. Where a group went over from whole partitions to lanes,
    or to another number of them, the claims of before have their lines and no lag.

    *bounds* is where each partition begins and ends, *marks* which topic it is of. A claim whose offset is of
    a topic that was deleted has none in the one of today, and lags behind by all of it.
    """

    teller = _Lines(group, now_s, stale_after_s, live)
    lines: list[GroupPosition] = []
    for place, ways in sorted(_by_way(claims).items()):
        begin, end = bounds.get(place, (None, None))
        latest, mark = max(ways, key=lambda way: _last_seen_s(ways[way])), marks.get(place[0])
        for way, found in sorted(ways.items()):
            counted = end if way == latest else None
            shown = {lane: _without_offset(claim, mark) for lane, claim in found.items()}
            is_behind = any(shown[lane] is not found[lane] for lane in found)
            if way.lanes:
                lag = _lag(begin, counted) if is_behind else None
                lines += teller.of_lanes(place, way.lanes, shown, end, counted, lag)
            else:
                at = begin if is_behind else found[-1].current_offset
                lines.append(teller.of_claim(place, shown[-1], end, _lag(at, counted), None))
    return tuple(lines)


def _without_offset(claim: Claim, mark: int | None) -> Claim:
    """Return *claim*, without its offset if that is known to be of another topic than the one with *mark*."""
    return msgspec.structs.replace(claim, current_offset=None) if is_of_another(claim, mark) else claim


class _Lines(NamedTuple):
    """Makes the lines of one group at one time."""

    group: str
    now_s: int
    stale_after_s: int
    live: Callable[[Claim], bool]

    def of_claim(
        self, place: Place, claim: Claim, end: int | None, lag: int | None, lane: str | None
    ) -> GroupPosition:
        owned = self.live(claim)
        at_s = claim.heartbeat_at_s
        return GroupPosition(
            group=self.group,
            topic=place[0],
            partition=place[1],
            lane=lane,
            current_offset=claim.current_offset,
            log_end_offset=end,
            lag=lag,
            consumer_id=f"{claim.client_id}-{claim.instance_id}" if owned else None,
            host=None,
            client_id=claim.client_id if owned else None,
            status=status(claim, self.now_s, self.stale_after_s),
            owner_epoch=claim.epoch,
            heartbeat_age_s=None if at_s is None else max(0, self.now_s - at_s),
        )

    def of_lanes(
        self,
        place: Place,
        lanes: int,
        found: Mapping[int, Claim],
        end: int | None,
        counted: int | None,
        lag: int | None,
    ) -> Iterator[GroupPosition]:
        """Yield the line of a partition in lanes, whose lag is *lag*, or else up to *counted*, and one for
        each lane with a claim.
        """
        current = lowest(found[lane].current_offset if lane in found else None for lane in range(lanes))
        yield GroupPosition(
            group=self.group,
            topic=place[0],
            partition=place[1],
            lane=f"all-of-{lanes}",
            current_offset=current,
            log_end_offset=end,
            lag=_lag(current, counted) if lag is None else lag,
            consumer_id=None,
            host=None,
            client_id=None,
        )
        for lane, claim in sorted(found.items()):
            yield self.of_claim(place, claim, end, None, f"{lane}-of-{lanes}")


def _last_seen_s(claims: Mapping[int, Claim]) -> int:
    return max(claim.heartbeat_at_s or claim.released_at_s or 0 for claim in claims.values())
