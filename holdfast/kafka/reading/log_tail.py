"""Follows a topic in which members exchange messages, and decides when it has been read to its end although
others keep writing to it.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import TopicPartition

from holdfast.config import Settings
from holdfast.core.kafka.topic_partition import Place
from holdfast.kafka.clients import reader_options
from holdfast.kafka.reading.log_reader import LogReader

FOLLOW_BYTES = 4_096
"""Records worth an answer at once."""


def following(settings: Settings, name: str, wait_ms: int) -> dict[str, Any]:
    """Return a consumer's configuration for following such a topic; *name* is a group that is never joined
    and never committed to.

    Every record wakes every reader of its partition, so with many members the answers, not the records, are
    the load: the broker collects for *wait_ms*. It is also what a start on a silent topic takes at least.
    """
    # A stranger's open transaction must not hide members' messages: by rule no member writes transactionally
    # here.
    common = reader_options(f"{settings.app}-{name}", committed=False, wait_ms=wait_ms)
    return settings.consumer(**common, **{"fetch.min.bytes": FOLLOW_BYTES})


class EndOfLog:
    """The end of one partition at some moment after *reader* began to read it, and whether it has been
    reached.

    librdkafka reports an end by an answer without records (PARTITION_EOF), since an offset cannot: control
    records and holes may close a log. But in a log that is written to all the time every answer has records.
    There, reading ends at the first end that any answer named, and a record reaches it. So both count.
    """

    __slots__ = ("_end", "_place", "_reader")

    def __init__(self, reader: LogReader, place: Place) -> None:
        """*reader* has *place* assigned already."""
        self._reader, self._place, self._end = reader, place, -1

    def is_reached(self) -> bool:
        """Return whether the end has been reached; once it has, it stays so. Sends no request."""
        if self._place in self._reader.ended:
            return True
        if self._end < 0:
            place = TopicPartition(*self._place)
            _, self._end = self._reader.consumer.get_watermark_offsets(place, cached=True) or (-1, -1)
        return 0 <= self._end <= self._reader.next[self._place]
