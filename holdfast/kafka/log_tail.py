"""How a topic is followed in which members speak to each other, and when it has been read to its end
though others go on writing to it.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, TopicPartition

from holdfast.config import Settings
from holdfast.kafka.clients import reader_options

FOLLOW_BYTES = 4_096
"""Records worth an answer at once."""


def following(settings: Settings, name: str, wait_ms: int) -> dict[str, Any]:
    """Return what a consumer needs to follow such a topic; *name* is a group that is never joined and never
    committed to.

    Every record wakes every reader of its partition, so with many members the answers, not the records, are
    the load: the broker collects for *wait_ms*. It is also what a start on a silent topic takes at least.
    """
    # An open transaction of a stranger must not hide what members say: nobody writes transactionally here
    # by rule.
    common = reader_options(f"{settings.app}-{name}", committed=False, wait_ms=wait_ms)
    return settings.consumer(**common, **{"fetch.min.bytes": FOLLOW_BYTES})


class EndOfLog:
    """Where one partition ended at some moment after *reader* began to read it, and how far it has been read.

    librdkafka tells an end by an answer without records (PARTITION_EOF), since an offset cannot: control
    records and holes may close a log. But in a log that is written to all the time no answer is ever without.
    There the first end that the reader hears is reached by a record. So both count: call `read` with each
    record, `at_end` with each PARTITION_EOF, and `look` now and then.
    """

    __slots__ = ("_end", "_next", "_place", "reached")

    def __init__(self, topic: str, partition: int, begin: int = -1) -> None:
        """*begin* is the offset where reading begins, -1 where that is not known."""
        self._place = TopicPartition(topic, partition)
        self._next, self._end = begin, -1
        self.reached = False

    def read(self, offset: int) -> None:
        """Note that the record at *offset* was read."""
        self._next = offset + 1

    def at_end(self) -> None:
        """Note that the reader has told the end."""
        self.reached = True

    def look(self, reader: Consumer) -> bool:
        """Return whether the end has been reached. Asks nobody."""
        if not self.reached:
            if self._end < 0:
                _, self._end = reader.get_watermark_offsets(self._place, cached=True) or (-1, -1)
            self.reached = 0 <= self._end <= self._next
        return self.reached
