"""Units that members claim, and the messages of each: those of a partition, or those of a lane."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from holdfast.core.kafka.topic_partition import TopicPartition
from tests.simulation.broker import key_of


@cache
def _lane(topic: str) -> tuple[str, int, int]:
    name, mark, rest = topic.partition("~lane-")
    if not mark:
        return name, 0, 1
    lane, _, lanes = rest.partition("-of-")
    return name, int(lane), int(lanes)


def lane_topics(topic: str, lanes: int) -> tuple[str, ...]:
    """Return the derived topics that lanes are claimed by."""
    return tuple(f"{topic}~lane-{lane}-of-{lanes}" for lane in range(lanes))


@cache
def data_place(place: TopicPartition) -> TopicPartition:
    """Return where the messages of *place* lie."""
    return TopicPartition(_lane(place.topic)[0], place.partition)


def offsets_of(place: TopicPartition, begin: int, end: int) -> Sequence[int]:
    """Return the offsets from *begin* to below *end* that are of *place*: of a lane, those whose keys are
    its own.
    """
    _, lane, lanes = _lane(place.topic)
    if lanes == 1:
        return range(begin, end)
    data = data_place(place)
    return [offset for offset in range(begin, end) if key_of(data, offset) % lanes == lane]
