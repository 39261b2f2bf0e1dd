"""The recorded choices of a partition that its state does not include: read once, after the fence and before
anything is folded.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from holdfast.core.engine.choices import decode_choice
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import BrokerError, ChoicesError
from holdfast.kafka.codes import ends_reading, is_end
from holdfast.tables.lived import Stopwatch
from holdfast.tables.messages import by_place, only
from holdfast.tables.partition import Partition
from holdfast.tables.restore import READ_RECORDS, RestoreInterrupted, changelog_consumer, drain

_BOUNDS_TIMEOUT_S = 30.0


def read_choices(
    parts: Iterable[Partition],
    client: Mapping[str, Any],
    name: str,
    interrupted: threading.Event,
    stall_timeout_s: float,
) -> None:
    """Give each of *parts* that folds several sources the choices from its position on, those of any version.

    Call it when the parts are restored, and their older owners fenced: then no owner adds to them. Choice n
    lies at offset n or after it, since an offset holds one choice at most. Raises ChoicesError for a topic
    that ends before the position, BrokerError when nothing has come for *stall_timeout_s*.
    """
    todo: dict[Place, Partition] = {}
    for part in parts:
        part.owner.recorded = []
        todo |= {(topic, part.partition): part for topic in part.processor.choices_topics(name)}
    if not todo:
        return
    consumer = changelog_consumer(client, name, wait_ms=10)
    try:
        _ChoicesReader(consumer, todo).read(interrupted, stall_timeout_s)
    except KafkaException as error:
        raise BrokerError(f"reading choices {sorted(todo)}: {error.args[0].str()}") from error
    finally:
        consumer.close()


class _ChoicesReader:
    """Reads the choices of *parts* by topic partition, each to its end."""

    def __init__(self, consumer: Any, parts: Mapping[Place, Partition]) -> None:
        self._consumer, self._parts = consumer, parts
        self._ends: dict[Place, int] = {}

    def read(self, interrupted: threading.Event, stall_timeout_s: float) -> None:
        self._assign()
        idle, only_topic = Stopwatch(), only(self._parts)
        while self._ends:
            if interrupted.is_set():
                raise RestoreInterrupted
            left = len(self._ends)
            found = by_place(drain(self._consumer, READ_RECORDS, 0.1), only_topic, self._on_error)
            for place, messages in found.items():
                self._take(self._parts[place], messages)
            idle.tick()
            if found or len(self._ends) < left:
                idle.reset()
            elif idle.s > stall_timeout_s:
                raise BrokerError(
                    f"choices {sorted(self._ends)}: nothing read for {stall_timeout_s:.0f} s; check the"
                    " broker"
                )

    def _assign(self) -> None:
        """Read from each position on to the present end of the log: without writers, that is all."""
        positions = []
        for place, part in self._parts.items():
            low, end = self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=_BOUNDS_TIMEOUT_S)
            number = _number(part)
            if end < number:
                raise ChoicesError(
                    f"{place[0]} partition {place[1]} ends at {end}, and its table has obeyed {number}"
                    " choices: the topic was deleted and made again. Nobody can fold the sources again"
                    " without them; give the processor another name"
                )
            if end > low:
                self._ends[place] = end
            positions.append(TopicPartition(*place, max(low, number)))
        self._consumer.assign(positions)

    def _on_error(self, message: Message, error: KafkaError) -> None:
        place = (message.topic() or "", message.partition() or 0)
        if is_end(error):
            # The end that a reader of committed records comes to lies before the log's while a transaction is
            # open, and the broker reports it again when that has ended.
            _, high = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True) or (-1, -1)
            if (message.offset() or 0) >= max(self._ends.get(place, 0), high):
                self._ends.pop(place, None)
        elif ends_reading(error):
            raise BrokerError(f"choices {place[0]} partition {place[1]}: {error.str()}")

    @staticmethod
    def _take(part: Partition, messages: list[Message]) -> None:
        number = _number(part)
        for message in messages:
            value = message.value()
            choice = decode_choice(value)
            if choice.number >= number:
                assert value is not None
                part.owner.recorded.append(value)


def _number(part: Partition) -> int:
    return part.position.choices
