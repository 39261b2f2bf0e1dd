"""The messages that a `RangeConsumer` hands out, its dead letters, and its group's offsets in Kafka's own
book. Used from one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from holdfast.clients.ranges.broker import CORRECT_NAME, POLL_S, RangeBroker
from holdfast.clients.topics.identities import is_of_another, metadata_of
from holdfast.core.kafka.unreadable import Unreadable
from holdfast.errors import BrokerError, TopicError
from holdfast.kafka.clients import make_reader, reader_options
from holdfast.kafka.codes import COORDINATOR_MOVES, NO_TOPIC, code_of, is_end
from holdfast.kafka.committed_text import committed_text
from holdfast.kafka.librdkafka_log import Quiet, impatient
from holdfast.kafka.reading.skipper import Skipper

logger = logging.getLogger(__name__)
quiet: Any = Quiet(logger)

FETCH_S = 0.5

_Dead = tuple[bytes | None, bytes | None, list[tuple[str, str | bytes | None]]]
"""Value, key and headers of a dead letter."""


class RangeMessages:
    """Reads *topic* as *group*, and writes *dead_letters* with the producer that `open` is given."""

    def __init__(self, broker: RangeBroker, *, topic: str, group: str, dead_letters: str) -> None:
        self._broker, self.topic, self._group, self._dead_letters = broker, topic, group, dead_letters
        self._consumer: Consumer | None = None
        self._watcher: Skipper | None = None
        self._producer: Producer | None = None
        self._unreadable: dict[int, Unreadable] = {}
        """Of each partition the batch that was last met and cannot be read."""
        self.noted = 0
        """The number of such batches that the dead letters have a note of."""
        self._short: set[int] = set()
        """Partitions that end before the finished offset, and were reported."""

    def open(self, producer: Producer) -> None:
        """Connect; TopicError when there is no topic for dead letters."""
        settings = self._broker.settings
        reading = impatient(settings.consumer(**reader_options(self._group, committed=True, wait_ms=20)))
        self._consumer, self._producer = make_reader(reading, logger=quiet), producer
        self._watcher = Skipper(settings, reading, stands=self._stands, clock=self._broker.clock)
        self._broker.partitions(
            self._consumer, self._dead_letters, "create it, or name another one by dead_letters"
        )

    def close(self) -> None:
        """Let go of the broker."""
        for each in (self._watcher, self._consumer):
            if each is not None:
                each.close()

    def partitions(self) -> int:
        """Return how many partitions the topic has."""
        assert self._consumer is not None
        return self._broker.partitions(self._consumer, self.topic, CORRECT_NAME)

    # -- where it begins, ends, and is done

    def mark(self) -> int | None:
        """Return which topic there is, by its mark."""
        return self._broker.mark(self.topic)

    def begin_again(self, partition: int) -> int:
        """Return where a partition begins whose topic was made again: at its first message."""
        assert self._consumer is not None
        self._unreadable.pop(partition, None)
        self._short.discard(partition)
        try:
            return self._bounds(partition)[0]
        except KafkaException as error:
            raise self._broker.error(f"the beginning of {self.topic}/{partition}", error) from None

    def begin(self, partition: int, mark: int | None) -> int:
        """Return where a partition without a row begins in the topic with this mark: at the group's offset
        committed to Kafka, else at its first message.
        """
        assert self._consumer is not None
        broker, place = self._broker, TopicPartition(self.topic, partition)
        until_s = broker.clock.monotonic_s() + broker.timeout_s
        while True:
            try:
                earliest, _ = self._bounds(partition)
                kept = self._consumer.committed([place], broker.timeout_s)[0]
                return earliest if is_of_another(committed_text(kept), mark) else max(earliest, kept.offset)
            except KafkaException as error:
                # A broker that has just started makes its topic of committed offsets when first asked for it.
                if code_of(error) not in COORDINATOR_MOVES or broker.clock.monotonic_s() > until_s:
                    raise broker.error(f"offsets of {self.topic}/{partition}", error) from None
            self._consumer.poll(POLL_S)

    def latest(self, partition: int, low: int) -> int:
        """Return the end of a partition, of which all before *low* is done."""
        assert self._consumer is not None
        try:
            _, end = self._bounds(partition)
        except KafkaException as error:
            raise self._broker.error(f"the end of {self.topic}/{partition}", error) from None
        self._compare(partition, low, end)
        return end

    def _bounds(self, partition: int) -> tuple[int, int]:
        """Return where a partition begins and ends; raises KafkaException.

        A client that was asked before the topic was made again does not know its partitions at first.
        """
        assert self._consumer is not None
        broker, until_s = self._broker, self._broker.clock.monotonic_s() + self._broker.timeout_s
        while True:
            try:
                return broker.bounds(self._consumer, (self.topic, partition))
            except KafkaException as error:
                if code_of(error) not in NO_TOPIC or broker.clock.monotonic_s() > until_s:
                    raise
                try:
                    if self.partitions() <= partition:
                        raise
                except TopicError:
                    raise error from None  # the topic is gone, which the error's caller reports
            self._consumer.poll(POLL_S)

    def _compare(self, partition: int, low: int, end: int) -> None:
        """Report once that a log ends before the finished offset: it is not the log that the row is about."""
        if low <= end:
            self._short.discard(partition)
        elif partition not in self._short:
            self._short.add(partition)
            logger.warning(
                "%(topic)s/%(partition)d ends at offset %(end)d, and group %(group)s has done all before"
                " %(low)d, so it hands out nothing before that: if the topic was made again by a broker"
                " that knows no ids of topics, give the group a new name",
                {
                    "topic": self.topic,
                    "partition": partition,
                    "end": end,
                    "group": self._group,
                    "low": low,
                },
            )

    def commit(self, partition: int, low: int, mark: int) -> None:
        """Commit the low-water offset, of the topic with this mark (0: not known), to Kafka too, best
        effort.
        """
        assert self._consumer is not None
        try:
            self._consumer.commit(
                offsets=[TopicPartition(self.topic, partition, low, metadata_of(mark or None))],
                asynchronous=True,
            )
        except KafkaException as error:
            logger.warning(
                "offsets of %(topic)s were not committed to Kafka: %(error)s; the ranges' log has them",
                {"error": error.args[0].str(), "topic": self.topic},
            )

    # -- messages

    def fetch(self, partition: int, start: int, end: int, limit: int) -> tuple[list[Message], int]:
        """Return messages from *start* to before *end*, at most *limit*, and the offset that they reach to.

        An unreadable batch is passed once the dead letters have a note of it: it cannot be handed out.
        """
        consumer, watcher, clock = self._consumer, self._watcher, self._broker.clock
        assert consumer is not None
        assert watcher is not None
        place = (self.topic, partition)
        if (stands := self._unreadable.get(partition)) is not None and stands.first <= start <= stands.last:
            self._bury_unread(stands, start, min(end, stands.last + 1))
            return [], min(end, stands.last + 1)
        consumer.assign([TopicPartition(*place, start)])
        watcher.resume(*place, start)
        found: list[Message] = []
        reached, until_s = start, clock.monotonic_s() + FETCH_S
        while reached < end and len(found) < limit and clock.monotonic_s() < until_s:
            message = consumer.poll(POLL_S)
            came = watcher.sift(consumer, [] if message is None else [message])
            if message is None or not came:
                if partition in self._unreadable and self._unreadable[partition].first <= reached:
                    break
                continue
            error, offset = message.error(), message.offset() or 0
            if error is not None:
                if is_end(error):
                    reached = max(reached, min(end, offset))
                    break
                if error.fatal() or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise self._broker.error(f"reading {self.topic}/{partition}", KafkaException(error))
                continue
            if offset >= end:
                reached = end
                break
            found.append(message)
            reached = offset + 1
        consumer.unassign()
        return found, reached

    def _stands(self, found: Unreadable) -> None:
        self._unreadable[found.partition] = found
        logger.error(
            "%(found)s; it goes to %(dead_letters)s as a note of where it lies, other messages continue",
            {
                "found": found,
                "dead_letters": self._dead_letters,
                "topic": found.topic,
                "partition": found.partition,
                "offset": found.first,
            },
        )

    def _bury_unread(self, stands: Unreadable, first: int, end: int) -> None:
        """Write to the dead letters where lies what cannot be read, from *first* to before *end*, and why
        it cannot.
        """
        source = f"{self.topic}/{stands.partition}/{first}"
        headers = {
            "source": source,
            "last-offset": str(end - 1),
            "error": stands.error,
            "reason": stands.reason,
        }
        self._write_dead(
            [(None, None, [(f"holdfast-{name}", text.encode()) for name, text in headers.items()])]
        )
        self.noted += 1

    def bury(self, messages: Iterable[Message], deliveries: int) -> None:
        """Write *messages* to the dead letters, with where they come from in their headers."""
        dead: list[_Dead] = []
        for message in messages:
            source = f"{message.topic()}/{message.partition()}/{message.offset()}"
            had: Any = message.headers() or []
            headers = [
                *had,
                ("holdfast-source", source.encode()),
                ("holdfast-deliveries", str(deliveries).encode()),
            ]
            dead.append((message.value(), message.key(), headers))
        self._write_dead(dead)

    def _write_dead(self, dead: Iterable[_Dead]) -> None:
        assert self._producer is not None
        failed: list[str] = []

        def note_failure(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error.str())

        for value, key, headers in dead:
            self._producer.produce(self._dead_letters, value, key, headers=headers, on_delivery=note_failure)
        left = self._producer.flush(self._broker.timeout_s)
        if left or failed:
            raise BrokerError(
                f"{self._dead_letters} did not take all dead letters: {failed[0] if failed else 'no answer'};"
                " nothing is lost"
            )
