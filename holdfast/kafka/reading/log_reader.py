"""Logs that are read to their ends by consumers that are members of no group."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import BrokerError
from holdfast.kafka.clients import make_reader
from holdfast.kafka.codes import ends_reading, is_end
from holdfast.kafka.reading.skipper import Skipper

POLL_S = 0.1


def raise_if_over(error: KafkaError) -> None:
    """Raise KafkaException where *error* ends the reading."""
    if ends_reading(error):
        raise KafkaException(error)


def raise_if_fatal(error: KafkaError) -> None:
    """Raise KafkaException where librdkafka itself gives up."""
    if error.fatal():
        raise KafkaException(error)


class LogReader:
    """Reads partitions from given offsets on, and knows how far it has read each of them.

    `next` holds the next offset of each partition. `ended` holds its last reported end. Control
    records and holes may close a log, and are never delivered: so a reported end (PARTITION_EOF) moves
    `next` as well. A log that is written to all the time reports no end; there a requested end is reached by
    a record.
    """

    def __init__(
        self,
        consumer: Consumer,
        skipper: Skipper | None = None,
        *,
        limit: int = 1,
        refuse: Callable[[KafkaError], None] = raise_if_over,
        clock: Clock = system_clock,
    ) -> None:
        """*skipper* gets the reader past unreadable batches. *limit* is the most records one call takes: 1 if
        reading continues after an error was raised, as the records before it in the call are lost. The reader
        calls *refuse* with each error but ends; an error that *refuse* raises ends the reading.
        """
        self.consumer, self._skipper, self._clock = consumer, skipper, clock
        self._limit, self._refuse = limit, refuse
        self.next: dict[Place, int] = {}
        self.ended: dict[Place, int] = {}
        self._moved = False

    def assign(self, starts: Mapping[Place, int]) -> None:
        """Read each partition from its offset on, from OFFSET_BEGINNING or from OFFSET_END.

        From OFFSET_END, `next` is 0 until the first record or the end is reported.
        """
        self.consumer.assign([TopicPartition(*place, offset) for place, offset in starts.items()])
        self._begin(starts)

    def follow(self, starts: Mapping[Place, int]) -> None:
        """Read these partitions too (see `assign`); the others continue."""
        self.consumer.incremental_assign([TopicPartition(*place, offset) for place, offset in starts.items()])
        self._begin(starts)

    def begin_anew(self, place: Place, log_start: int) -> None:
        """Read a partition again from *log_start* on, its first record, or from the first that is left by
        then; the others continue.
        """
        self.consumer.incremental_unassign([TopicPartition(*place)])
        self.consumer.incremental_assign([TopicPartition(*place, log_start)])
        self.next[place] = log_start
        self.ended.pop(place, None)
        if self._skipper is not None:
            self._skipper.begin(*place, 0)  # a hole before the first record is a lost beginning

    def _begin(self, starts: Mapping[Place, int]) -> None:
        for place, offset in starts.items():
            self.next[place] = max(0, offset)
            if self._skipper is not None:
                self._skipper.begin(*place, -1 if offset == OFFSET_END else self.next[place])

    def read(self, wait_s: float) -> list[Message]:
        """Return the records that have come, those of one partition in order; waits up to *wait_s* for the
        first.
        """
        first = self.consumer.poll(wait_s)
        came = [] if first is None else [first]
        if came and self._limit > 1:
            came += self.consumer.consume(self._limit - 1, 0)
        if self._skipper is None:
            self._moved = bool(came)
        else:
            skipped = self._skipper.skipped
            came = self._skipper.sift(self.consumer, came)
            self._moved = bool(came) or self._skipper.skipped > skipped
        return [message for message in came if self._take(message)]

    def _take(self, message: Message) -> bool:
        """Note how far *message* says the reading has come; return whether it is a record."""
        place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
        if (error := message.error()) is None:
            self.next[place] = offset + 1
            return True
        if is_end(error):
            self.ended[place] = offset
            self.next[place] = max(self.next.get(place, 0), offset)
        else:
            self._refuse(error)
        return False

    def has_read(self, ends: Mapping[Place, int]) -> bool:
        """Return whether each partition has been read to where it ends."""
        return all(self.next[place] >= end for place, end in ends.items())

    def until(
        self, done: Callable[[], bool], *, deadline_s: float = inf, idle_s: float = inf
    ) -> Iterator[Message]:
        """Yield records until *done*, which is asked between reads.

        TimeoutError when that is not before *deadline_s*, or when nothing has come for *idle_s*.
        """
        moved_s = self._clock.monotonic_s()
        while not done():
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                raise TimeoutError("it was not read to its end in time")
            records = self.read(min(POLL_S, left_s))
            if self._moved:
                moved_s = self._clock.monotonic_s()
            elif self._clock.monotonic_s() - moved_s > idle_s:
                raise TimeoutError(f"nothing came for {idle_s:g} s")
            yield from records

    def close(self) -> None:
        """Let go of the broker."""
        if self._skipper is not None:
            self._skipper.close()
        self.consumer.close()


@contextmanager
def reading(
    settings: Settings,
    topic: str,
    config: Mapping[str, Any],
    *,
    logger: logging.Logger,
    clock: Clock = system_clock,
    limit: int = 1,
) -> Iterator[LogReader]:
    """Open a reader of *topic* that passes unreadable batches; BrokerError for an error that keeps it from
    the end.
    """
    reader = LogReader(
        make_reader(config, logger=logger),
        Skipper(settings, config, clock=clock),
        limit=limit,
        clock=clock,
    )
    try:
        yield reader
    except KafkaException as error:
        raise BrokerError(
            f"cannot read {topic} at {settings.bootstrap_servers}: {error.args[0].str()}; check the broker"
        ) from error
    except TimeoutError as error:
        raise BrokerError(f"reading {topic}: {error}; check the broker") from error
    finally:
        reader.close()
