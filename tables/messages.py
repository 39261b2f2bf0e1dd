"""Taking fetched messages apart by partition, in C but for one step a run: this is on the path of every
record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from confluent_kafka import KafkaError, Message

from holdfast.core.kafka.topic_partition import Place


def by_place(
    messages: list[Message], only_topic: str | None, on_error: Callable[[Message, KafkaError], None]
) -> dict[Place, list[Message]]:
    """Return the messages of each (topic, partition), in order; messages that are errors go to *on_error*
    instead.

    *only_topic* saves asking each message for its topic when there can be but one.
    """
    if any(map(Message.error, messages)):  # an error object is true, and most fetches have none
        good = []
        for message in messages:
            if (error := message.error()) is None:
                good.append(message)
            else:
                on_error(message, error)
        messages = good
    partitions = list(map(Message.partition, messages))
    if only_topic is not None and partitions and partitions.count(partitions[0]) == len(partitions):
        return {(only_topic, partitions[0] or 0): messages}  # most, in a backlog
    places: Iterable[Any] = (
        partitions if only_topic is not None else zip(map(Message.topic, messages), partitions, strict=True)
    )
    out: dict[Place, list[Message]] = {}
    at = 0
    # Messages come in runs of one partition.
    for where, run in groupby(places):
        end = at + len(list(run))
        place: Place = where if only_topic is None else (only_topic, where)
        out.setdefault(place, []).extend(messages[at:end])
        at = end
    return out


def only(places: Iterable[Place]) -> str | None:
    """Return the topic of *places* when they share one."""
    topics = {topic for topic, _ in places}
    return topics.pop() if len(topics) == 1 else None
