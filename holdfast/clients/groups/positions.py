"""How far a claim group is, partition by partition, as `holdfast groups describe` tells it: lanes under
the partition they are part of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from holdfast.clients.groups.records import Position
from holdfast.core.claims.claim_keys import ClaimKey
from holdfast.core.claims.guarded import Claim, status
from holdfast.core.claims.lanes import lane_named, lane_topics, lowest
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


def positions(
    group: str,
    claims: Mapping[ClaimKey, Claim],
    ends: Mapping[Place, int],
    *,
    now_s: int,
    stale_after_s: int,
    live: Callable[[Claim], bool],
) -> tuple[Position, ...]:
    """Return a line for each partition that has a claim, in order, and after the line of one worked on in
    lanes, one for each lane.

    A lane's offset counts all messages of its partition, so it is the partition that has a lag: behind its
    slowest lane, None while one of them is unknown. Where a group went over from whole partitions to lanes,
    or to another number of them, the claims of before have their lines and no lag.
    """
    by_way: dict[Place, dict[_Partitioning, dict[int, Claim]]] = {}
    for key, claim in claims.items():
        lane = lane_named(key.topic)
        way = _Partitioning(key.topic, 0) if lane is None else _Partitioning(lane.topic, lane.lanes)
        by_way.setdefault((way.topic, key.partition), {}).setdefault(way, {})[
            -1 if lane is None else lane.lane
        ] = claim

    def line(place: Place, claim: Claim, end: int | None, lag: int | None, lane: str | None) -> Position:
        owned = live(claim)
        return Position(
            group=group,
            topic=place[0],
            partition=place[1],
            lane=lane,
            current_offset=claim.current_offset,
            log_end_offset=end,
            lag=lag,
            consumer_id=f"{claim.client_id}-{claim.instance_id}" if owned else None,
            host=None,
            client_id=claim.client_id if owned else None,
            status=status(claim, now_s, stale_after_s),
            owner_epoch=claim.epoch,
            heartbeat_age_s=None if claim.heartbeat_at_s is None else max(0, now_s - claim.heartbeat_at_s),
        )

    def behind(current: int | None, end: int | None, way: _Partitioning, latest: _Partitioning) -> int | None:
        return None if current is None or end is None or way != latest else max(0, end - current)

    lines: list[Position] = []
    for place, ways in sorted(by_way.items()):
        end, latest = ends.get(place), max(ways, key=lambda way: _last_seen_s(ways[way]))
        for way, found in sorted(ways.items()):
            if not way.lanes:
                claim = found[-1]
                lines.append(line(place, claim, end, behind(claim.current_offset, end, way, latest), None))
                continue
            current = lowest(
                found[lane].current_offset if lane in found else None for lane in range(way.lanes)
            )
            lines.append(
                Position(
                    group=group,
                    topic=place[0],
                    partition=place[1],
                    lane=f"all-of-{way.lanes}",
                    current_offset=current,
                    log_end_offset=end,
                    lag=behind(current, end, way, latest),
                    consumer_id=None,
                    host=None,
                    client_id=None,
                )
            )
            lines += [
                line(place, claim, end, None, f"{lane}-of-{way.lanes}")
                for lane, claim in sorted(found.items())
            ]
    return tuple(lines)


def _last_seen_s(claims: Mapping[int, Claim]) -> int:
    return max(claim.heartbeat_at_s or claim.released_at_s or 0 for claim in claims.values())
