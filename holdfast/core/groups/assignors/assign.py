"""Assigns partitions to members: Kafka's four assignors with Kafka's exact results (PROTOCOL.md#assignors).

`assign` is pure. Members are given in the order in which the group lists them; topics without partitions
count as missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

from holdfast.core.groups.assignors import sticky
from holdfast.core.groups.assignors.types import Assignment, AssignorName, Subscriber, all_partitions
from holdfast.core.groups.java_order import string_order
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.errors import ConfigError


def assignor_named(name: str) -> AssignorName:
    """Return the assignor of that name; ConfigError lists those there are."""
    try:
        return AssignorName(name)
    except ValueError:
        raise ConfigError(f"no assignor {name!r:.100}; choose one of {', '.join(AssignorName)}") from None


def assign(name: AssignorName, partitions: Mapping[str, int], members: Sequence[Subscriber]) -> Assignment:
    """Return each member's partitions under assignor *name*, given the partition count of each topic.

    Every member has an entry; partitions of a topic without subscribers are in none. Cooperative-sticky gives
    one round: a partition that changes owner is in no entry until its owner has given it up and reports so in
    the next round.
    """
    if len({member.member_id for member in members}) != len(members):
        raise ConfigError("two members under one member id: an assignor cannot tell them apart")
    if not members:
        return {}
    wanted = {topic for member in members for topic in member.topics}
    counts = {topic: count for topic, count in partitions.items() if count > 0 and topic in wanted}
    match name:
        case AssignorName.RANGE:
            return range_assign(counts, members)
        case AssignorName.ROUND_ROBIN:
            return round_robin(counts, members)
        case AssignorName.STICKY:
            return sticky.sticky(counts, members)
        case AssignorName.COOPERATIVE_STICKY:
            return sticky.cooperative(counts, members)


def range_assign(counts: Mapping[str, int], members: Sequence[Subscriber]) -> Assignment:
    """Give each subscriber of a topic, in order, a block of its partitions; the first ones get one more when
    it does not divide.

    Topic by topic, so the extra ones of every topic fall to the same members.
    """
    parts: Assignment = {member.member_id: [] for member in members}
    ordered = sorted(members, key=_static_first)
    for topic in sorted(counts):
        subscribers = [member.member_id for member in ordered if topic in member.topics]
        quotient, extra = divmod(counts[topic], len(subscribers))
        start = 0
        for at, member_id in enumerate(subscribers):
            stop = start + quotient + (at < extra)
            parts[member_id].extend(TopicPartition(topic, partition) for partition in range(start, stop))
            start = stop
    return parts


def round_robin(counts: Mapping[str, int], members: Sequence[Subscriber]) -> Assignment:
    """Deal all partitions, by topic and number, to the members in order, passing over those that do not
    subscribe to the topic.
    """
    parts: Assignment = {member.member_id: [] for member in members}
    dealer = cycle(sorted(members, key=_static_first))
    for each in all_partitions(counts):
        member = next(member for member in dealer if each.topic in member.topics)
        parts[member.member_id].append(each)
    return parts


def spread(parts: Mapping[str, Sequence[TopicPartition]]) -> int:
    """Return by how many partitions the largest part exceeds the smallest.

    >>> spread({"a": [TopicPartition("t", 0)], "b": []})
    1
    """
    sizes = [len(part) for part in parts.values()]
    return max(sizes, default=0) - min(sizes, default=0)


def _static_first(member: Subscriber) -> tuple[int, bytes]:
    return (
        (1, string_order(member.member_id))
        if member.instance_id is None
        else (0, string_order(member.instance_id))
    )
