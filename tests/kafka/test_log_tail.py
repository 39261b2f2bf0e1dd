"""A log that is followed has an end, even while others write to it all the time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import cast

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from holdfast.clients.claims.logs.balanced_log import GroupLog
from holdfast.clients.claims.logs.claim_log import CoordinationLog
from holdfast.config import Settings
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.kafka.reading.log_reader import LogReader
from holdfast.kafka.reading.log_tail import EndOfLog
from tests.clients.claims.claiming import LOG_APPEND
from tests.support.patience import DEADLINE_S

GAP_S = 0.005
QUIET = {"group.id": "tail", "enable.auto.commit": False}


@contextmanager
def chatter(broker: SessionBroker, topic: str) -> Iterator[list[int]]:
    """Write to partition 0 of *topic* every few milliseconds; yields the offsets acknowledged."""
    stop, written = threading.Event(), list[int]()

    def write() -> None:
        producer = Producer({**broker.config, "linger.ms": 0})
        while not stop.wait(GAP_S):
            producer.produce(
                topic, b"x", partition=0, on_delivery=lambda _, message: written.append(message.offset() or 0)
            )
            producer.poll(0)
        producer.flush(DEADLINE_S)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        stop.set()
        thread.join(DEADLINE_S)


def settings(broker: SessionBroker, coordination: str) -> Settings:
    return Settings(
        kafka={name: str(value) for name, value in broker.config.items()}, coordination_topic=coordination
    )


def test_a_coordination_log_that_never_falls_silent_is_caught_up_with(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    """The broker keeps answers back for 200 ms here, so each has a record, and librdkafka never reports an
    end.
    """
    topic = fresh_topic("marshal", partitions=1, config=LOG_APPEND)
    log = CoordinationLog(settings(broker, topic), follow_wait_ms=200)
    with chatter(broker, topic) as written, closing(log):
        while len(written) < 50:
            time.sleep(GAP_S)
        before = written[-1]
        log.open(["orders"], DEADLINE_S)
        read, until_s = -1, time.monotonic() + DEADLINE_S
        while not log.caught_up:
            assert time.monotonic() < until_s, f"read to {read} of {written[-1]} and not caught up"
            for record in log.poll(0.1):
                assert record.offset == read + 1
                read = record.offset
        assert read >= before, "what was there when reading began has been read"


def test_a_groups_log_that_never_falls_silent_is_caught_up_with(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    topic = fresh_topic("groups", partitions=1, config=LOG_APPEND)
    log = GroupLog(settings(broker, "marshal"), topic, "billing", timeout_s=DEADLINE_S, unsent_s=DEADLINE_S)
    with chatter(broker, topic) as written:
        while len(written) < 50:
            time.sleep(GAP_S)
        before = written[-1]
        try:
            log.open(0)
            read, until_s = -1, time.monotonic() + DEADLINE_S
            while not log.caught_up:
                assert time.monotonic() < until_s, f"read to {read} of {written[-1]} and not caught up"
                for heard in log.poll(0.1):
                    read = heard.offset
            assert read >= before
        finally:
            log.close(DEADLINE_S)


def test_an_end_is_not_reached_before_the_last_record_that_was_there_is_read(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    topic = fresh_topic("log", partitions=1)
    producer = Producer({**broker.config})
    for _ in range(10):
        producer.produce(topic, b"x", partition=0)
    assert producer.flush(DEADLINE_S) == 0
    with closing(LogReader(Consumer({**broker.config, **QUIET}))) as reader:
        reader.assign({(topic, 0): 0})
        tail = EndOfLog(reader, (topic, 0))
        assert not tail.is_reached(), "nobody has told an end"
        until_s, seen = time.monotonic() + DEADLINE_S, list[tuple[int, bool]]()
        while len(seen) < 10:
            assert time.monotonic() < until_s, seen
            seen += [(message.offset() or 0, tail.is_reached()) for message in reader.read(0.1)]
        assert seen == [(offset, offset == 9) for offset in range(10)]


def test_an_end_that_the_reader_reports_counts_whatever_was_read(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    """A control record closes the log, and no reader receives its offset."""
    topic = fresh_topic("log", partitions=1)
    producer = Producer({**broker.config, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    producer.commit_transaction()
    reads = {**broker.config, **QUIET, "enable.partition.eof": True}
    with closing(LogReader(Consumer(reads))) as reader:
        reader.assign({(topic, 0): 0})
        tail, until_s, seen = EndOfLog(reader, (topic, 0)), time.monotonic() + DEADLINE_S, list[int]()
        while not tail.is_reached():
            assert time.monotonic() < until_s, seen
            seen += [message.offset() or 0 for message in reader.read(0.1)]
        assert (seen, reader.next[topic, 0]) == ([0], 2)


class NoNews:
    """A consumer that does not know yet where any partition ends; it gives the scripted end."""

    def __init__(self, message: ToldEnd) -> None:
        self._message: ToldEnd | None = message

    def get_watermark_offsets(self, place: TopicPartition, **_: bool) -> None: ...

    def assign(self, places: list[TopicPartition]) -> None: ...

    def poll(self, timeout_s: float) -> ToldEnd | None:
        message, self._message = self._message, None
        return message


class ToldEnd:
    """The message by which librdkafka reports an end."""

    def topic(self) -> str:
        return "log"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 0

    def error(self) -> KafkaError:
        return KafkaError(KafkaError._PARTITION_EOF)


def test_a_reported_end_needs_no_watermark() -> None:
    reader = LogReader(cast(Consumer, NoNews(ToldEnd())))
    reader.assign({("log", 0): 0})
    tail = EndOfLog(reader, ("log", 0))
    assert not tail.is_reached()
    reader.read(0)
    assert tail.is_reached()
