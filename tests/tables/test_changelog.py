"""The transactional writer on a real broker: what is on the changelog afterwards, in which order, and what a client refuses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from holdfast.core.codec import APPLIED, Marker, encode_marker
from holdfast.core.folding import Changes
from holdfast.core.pace import MOST_S
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import BrokerError
from holdfast.tables.changelog import HANDED_ROWS, ChangelogWriter

pytestmark = pytest.mark.broker

DEADLINE_S = 30.0


@pytest.fixture
def topic(fresh_topic: FreshTopic) -> str:
    return fresh_topic("log", partitions=2)


@contextmanager
def owning(broker: SessionBroker, topic: str) -> Iterator[ChangelogWriter]:
    """Give the writer of a new owner of the partition, which ends what the one before has left open."""
    writer = ChangelogWriter(broker.client_config(), transactional_id=topic, changelog=topic, partition=1, transaction_timeout_s=10)
    try:
        writer.fence(DEADLINE_S)
        yield writer
    finally:
        writer.close()


@pytest.fixture
def writer(broker: SessionBroker, topic: str) -> Iterator[ChangelogWriter]:
    with owning(broker, topic) as writer:
        yield writer


def changes(puts: list[tuple[bytes, bytes | None]], applied: int) -> Changes:
    return Changes(marker=Marker(applied, 1_000, 1), records=len(puts), puts=puts)


def committed(broker: SessionBroker, topic: str) -> list[Message]:
    """Return what a reader of committed records finds on the changelog's partition."""
    config = {"group.id": "reader", "enable.partition.eof": True, "isolation.level": "read_committed"}
    consumer = Consumer(broker.client_config(**config))
    consumer.assign([TopicPartition(topic, 1, 0)])
    found: list[Message] = []
    until_s = time.monotonic() + DEADLINE_S
    while True:
        message = consumer.poll(DEADLINE_S)
        assert message is not None, "the changelog's end was not reached"
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            # Markers come after the answer to a commit; until then an open transaction's beginning is told as the end.
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, 1), cached=True)
            assert time.monotonic() < until_s, f"a transaction stays open at {message.offset()}"
            if message.offset() == end:
                consumer.close()
                return found
            continue
        found.append(message)


def test_rows_arrive_whole_in_order_and_the_marker_last(broker: SessionBroker, topic: str, writer: ChangelogWriter) -> None:
    """More rows than are handed over at a time, with removed and empty ones among them."""
    puts: list[tuple[bytes, bytes | None]] = [(b"\x02%d" % number, b"v%d" % number) for number in range(2 * HANDED_ROWS + 7)]
    puts[3], puts[HANDED_ROWS] = (b"\x02gone", None), (b"\x02empty", b"")
    first = changes(puts, applied=99)
    changelog_next = writer.write(first, (), DEADLINE_S)
    found = committed(broker, topic)
    assert [(message.key(), message.value()) for message in found] == [*puts, (APPLIED, encode_marker(first.marker))]
    assert changelog_next == (found[-1].offset() or 0) + 1
    writer.write(changes([], applied=100), (), DEADLINE_S)
    assert [message.key() for message in committed(broker, topic)[len(found) :]] == [APPLIED]


def test_a_row_that_the_client_refuses_fails_the_transaction_by_name(broker: SessionBroker, topic: str, writer: ChangelogWriter) -> None:
    puts: list[tuple[bytes, bytes | None]] = [(b"\x02a", b"1"), (b"\x02b", b"x" * (9 << 20)), (b"\x02c", b"3")]
    with pytest.raises(BrokerError, match="MSG_SIZE_TOO_LARGE"):
        writer.write(changes(puts, applied=1), (), DEADLINE_S)
    with owning(broker, topic):
        assert committed(broker, topic) == []


def test_after_a_small_transaction_the_broker_is_given_time_for_its_markers(writer: ChangelogWriter) -> None:
    assert writer.rest_s(1) == 0.0
    rests_s: list[float] = []
    for applied in range(20):
        writer.write(changes([(b"\x02a", b"1")], applied), (), DEADLINE_S)
        rests_s.append(writer.rest_s(1))
    assert 0.0 < max(rests_s) <= MOST_S, "a process that sleeps on may find some of them over"
