"""Taking fetched messages apart by partition, in C but for one step a run: this is on the path of every record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby, repeat
from operator import is_not

from confluent_kafka import KafkaError, Message

Place = tuple[str, int]


def by_place(
    messages: list[Message], only_topic: str | None, on_error: Callable[[Message, KafkaError], None]
) -> dict[Place, list[Message]]:
    """Return the messages of each (topic, partition), in order; messages that are errors go to *on_error* instead.

    *only_topic* saves asking each message for its topic when there can be but one.
    """
    errors = list(map(Message.error, messages))
    if any(map(is_not, errors, repeat(None))):  # not errors.count(None): a KafkaError cannot be compared with None
        for message, error in zip(messages, errors, strict=True):
            if error is not None:
                on_error(message, error)
        messages = [message for message, error in zip(messages, errors, strict=True) if error is None]
    topics: Iterable[str | None] = map(Message.topic, messages) if only_topic is None else repeat(only_topic, len(messages))
    out: dict[Place, list[Message]] = {}
    at = 0
    # Messages come in runs of one partition.
    for place, run in groupby(zip(topics, map(Message.partition, messages), strict=True)):
        end = at + sum(1 for _ in run)
        out.setdefault(place, []).extend(messages[at:end])  # type: ignore[arg-type]
        at = end
    return out


def only(places: Iterable[Place]) -> str | None:
    """Return the topic of *places* when they share one."""
    topics = {topic for topic, _ in places}
    return topics.pop() if len(topics) == 1 else None
