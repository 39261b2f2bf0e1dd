"""The input and output of assignors: members with their subscriptions, partitions, assignments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache

import msgspec

from holdfast.core.kafka.topic_partition import TopicPartition

NO_GENERATION = -1


class AssignorName(StrEnum):
    """The assignors, by the names of `partition.assignment.strategy`."""

    RANGE = "range"
    ROUND_ROBIN = "roundrobin"
    STICKY = "sticky"
    COOPERATIVE_STICKY = "cooperative-sticky"


class Subscriber(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A member as an assignor sees it.

    *instance_id* is the static id, which range and round-robin order by. *owned* is what the member held in
    *generation*; -1 is a member that has been in none.
    """

    member_id: str
    topics: tuple[str, ...]
    instance_id: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION


Assignment = dict[str, list[TopicPartition]]


def all_partitions(counts: Mapping[str, int], topics: Iterable[str] | None = None) -> list[TopicPartition]:
    """Return every partition, topic by topic: in the order of *topics* when given, else by name."""
    return [
        each
        for topic in (sorted(counts) if topics is None else topics)
        for each in _partitions(topic, counts[topic])
    ]


@lru_cache(maxsize=16)  # of one group they are asked for with each join
def _partitions(topic: str, count: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic, partition) for partition in range(count))
