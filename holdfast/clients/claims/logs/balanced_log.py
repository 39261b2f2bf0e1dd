"""The partition of `holdfast.groups` where one balanced group lives, as a member reads and writes it."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.groups.java_order import coordinator_partition
from holdfast.errors import BrokerError, TopicError
from holdfast.kafka.clients import make_reader, make_writer
from holdfast.kafka.codes import CLOSED_TOPIC, NO_LEADER, code_of
from holdfast.kafka.frame_sender import Ack, FrameSender
from holdfast.kafka.reading.log_reader import LogReader
from holdfast.kafka.reading.log_tail import EndOfLog, following
from holdfast.kafka.reading.record_times import credible_ms
from holdfast.kafka.reading.skipper import Skipper

logger = logging.getLogger(__name__)

READ_RECORDS = 1_000
POLL_S = 0.02
LINGER_MS = 2
NO_LEADERS_YET = KafkaError._NOENT
ANY = 0
"""Send id of all announcements: reading the log back shows the result of each, so they share one."""


@dataclass(frozen=True, slots=True)
class ReceivedAnnouncement:
    """One record of the group's partition; *at_ms* is -1 where it carries no time."""

    offset: int
    at_ms: int
    value: bytes | None


class GroupLog:
    """The partition of `holdfast.groups` where one group lives, read from some time before its end.

    Used from one thread.
    """

    def __init__(
        self,
        settings: Settings,
        topic: str,
        group_id: str,
        *,
        timeout_s: float,
        unsent_s: float,
        follow_wait_ms: int = 20,
        clock: Clock = system_clock,
    ) -> None:
        self._settings, self._topic, self._group_id, self._clock = settings, topic, group_id, clock
        self._timeout_s, self._unsent_s, self._follow_wait_ms = timeout_s, unsent_s, follow_wait_ms
        self._reader: LogReader | None = None
        self._writer: Producer | None = None
        self._sender: FrameSender | None = None
        self._partition, self._at_ms = 0, -1
        self._tail: EndOfLog | None = None
        self.last_error: str | None = None

    def open(self, since_ms: int) -> None:
        """Connect and begin with the records of *since_ms*; TopicError without the topic, BrokerError when no
        broker answers.
        """
        reads = following(self._settings, "groups-reader", self._follow_wait_ms)
        self._reader = LogReader(
            make_reader(reads, logger=logger, on_error=self._on_error),
            Skipper(self._settings, reads, clock=self._clock),
            limit=READ_RECORDS,
            refuse=self._refuse,
            clock=self._clock,
        )
        count = len(self._listed(self._topic, self._timeout_s))
        if not count:
            raise TopicError(
                f"the topic of balanced groups, {self._topic}, does not exist at"
                f" {self._settings.bootstrap_servers}: create it with `holdfast --set groups=true topics"
                " create --partitions N`, or name another one by groups_topic"
            )
        self._partition = coordinator_partition(self._group_id, count)
        found, place = self._since(self._reader.consumer, since_ms), (self._topic, self._partition)
        self._reader.assign({place: found.offset})  # the log's end, if no record is as late
        self._tail = EndOfLog(self._reader, place)
        writing: dict[str, str | int | bool] = {
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": LINGER_MS,
            # A sign of life that arrives after the session is worse than none.
            "message.timeout.ms": max(1_000, int(self._unsent_s * 1_000)),
        }
        writes = self._settings.producer(**writing)
        self._writer = make_writer(writes, logger=logger, on_error=self._on_error)
        self._sender = FrameSender(
            self._writer,
            self._topic,
            self._acknowledged,
            key=self._group_id.encode(),
            unsent_s=self._unsent_s,
        )

    def _since(self, reader: Consumer, since_ms: int) -> TopicPartition:
        """Return the offset of the first record of *since_ms* or later; waits for a partition that is only
        just being made, or whose leader changes.
        """
        until_s = self._clock.monotonic_s() + self._timeout_s
        while True:
            try:
                (found,) = reader.offsets_for_times(
                    [TopicPartition(self._topic, self._partition, since_ms)], self._timeout_s
                )
                if found.error is not None:
                    raise KafkaException(found.error)
                return found
            except KafkaException as error:
                if code_of(error) not in NO_LEADER | {NO_LEADERS_YET} or self._clock.monotonic_s() > until_s:
                    raise self._unreachable(error.args[0], self._timeout_s) from None
            self._listed(
                self._topic, self._timeout_s
            )  # has librdkafka look who leads: what it found once it keeps
            reader.poll(POLL_S)

    def _listed(self, topic: str | None, timeout_s: float) -> dict[str, int]:
        """Return the partition counts of *topic*, or of all topics; one that does not exist is left out."""
        assert self._reader is not None
        try:
            listed = (
                self._reader.consumer.list_topics(topic, timeout=timeout_s)
                if topic
                else self._reader.consumer.list_topics(timeout=timeout_s)
            )
        except KafkaException as error:
            raise self._unreachable(error.args[0], timeout_s) from None
        return {
            name: len(each.partitions)
            for name, each in listed.topics.items()
            if each.error is None and each.partitions
        }

    def counts(self, topics: tuple[str, ...], pattern: str | None, timeout_s: float) -> dict[str, int]:
        """Return the partition counts of *topics*, or of all topics whose whole name matches *pattern*;
        internal topics never do.

        This is the only method that another thread may use at the same time.
        """
        if pattern is None:
            found: dict[str, int] = {}
            for topic in topics:
                found.update(self._listed(topic, timeout_s))
            return found
        matches = re.compile(pattern).fullmatch
        return {
            name: count
            for name, count in self._listed(None, timeout_s).items()
            if not name.startswith("__") and matches(name)
        }

    @property
    def caught_up(self) -> bool:
        """Return whether the partition has been read to where it ended at some moment after `open`."""
        return self._tail is not None and self._tail.is_reached()

    def poll(self, timeout_s: float) -> list[ReceivedAnnouncement]:
        """Return the announcements since the last call; wait up to *timeout_s* for the first."""
        assert self._reader is not None
        assert self._sender is not None
        self._sender.go_on()
        out = []
        for message in self._reader.read(timeout_s):
            self._at_ms = credible_ms(message, self._at_ms, self._clock)
            out.append(ReceivedAnnouncement(message.offset() or 0, self._at_ms, message.value()))
        return out

    def _refuse(self, error: KafkaError) -> None:
        if error.code() in CLOSED_TOPIC:
            raise TopicError(f"topic of balanced groups {self._topic}: {error.str()}")
        if error.fatal():
            raise BrokerError(f"topic of balanced groups {self._topic}: {error.str()}")

    def send(self, value: bytes) -> None:
        """Append an announcement. Whether it arrived is seen by reading it back."""
        assert self._sender is not None
        self._sender.send(ANY, value, self._partition)

    def _acknowledged(self, ack: Ack) -> None:
        if ack.error is not None:
            self._warn(ack.error)

    def close(self, timeout_s: float) -> None:
        """Wait up to *timeout_s* for the frames that were sent, and close the connections."""
        if self._writer is not None and self._sender is not None:
            self._sender.close(timeout_s)
            self._writer.purge()
            self._writer.flush(0)
        if self._reader is not None:
            self._reader.close()
        self._writer = self._reader = self._sender = self._tail = None

    def _unreachable(self, error: KafkaError, timeout_s: float) -> BrokerError:
        why = self.last_error or error.str()
        return BrokerError(
            f"cannot read {self._topic} at {self._settings.bootstrap_servers} within {timeout_s:g} s: {why};"
            " check the broker"
        )

    def _on_error(self, error: KafkaError) -> None:
        self._warn(error.str())

    def _warn(self, text: str) -> None:
        if text != self.last_error:
            logger.warning("topic of balanced groups: %(problem)s", {"problem": text})
        self.last_error = text
