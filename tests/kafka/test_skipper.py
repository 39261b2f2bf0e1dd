"""A librdkafka consumer meets batches that it cannot read: it passes those, reports them, and passes nothing
else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from holdfast.config import Settings
from holdfast.core.kafka.unreadable import Unreadable
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.kafka import clients
from holdfast.kafka.reading import batch_look
from holdfast.kafka.reading.batch_look import BatchLook
from holdfast.kafka.reading.skipper import Skipper
from tests.kafka.hung_reader import HungReader
from tests.support.hostile_batches import ROOM, corrupt_batch, misplaced_batch, send, send_bomb, send_raw
from tests.support.patience import DEADLINE_S

POLL_S = 0.1


class Reading:
    """One partition read through a skipper."""

    def __init__(self, consumer: Consumer, skipper: Skipper) -> None:
        self._consumer, self.skipper = consumer, skipper
        self.values: list[bytes | None] = []
        self.offsets: list[int] = []
        self.end = -1

    def turn(self) -> None:
        message = self._consumer.poll(POLL_S)
        for each in self.skipper.sift(self._consumer, [] if message is None else [message]):
            self._take(each)

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is None:
            self.values.append(message.value())
            self.offsets.append(message.offset() or 0)
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            self.end = message.offset() or 0

    def hold(self) -> None:
        """Have the consumer fetch nothing, as that of a frozen process."""
        self._consumer.pause(self._consumer.assignment())

    def go_on(self) -> None:
        self._consumer.resume(self._consumer.assignment())

    def until(self, reached: Callable[[], bool]) -> None:
        until_s = time.monotonic() + DEADLINE_S
        while not reached():
            assert time.monotonic() < until_s, f"{self.values} at {self.end}, {self.skipper.skipped} passed"
            self.turn()


@contextmanager
def reading(
    broker: SessionBroker, topic: str, begin: int = 0, *, stands: Callable[[Unreadable], None] | None = None
) -> Iterator[Reading]:
    settings = Settings(kafka={name: str(value) for name, value in broker.config.items()})
    config = settings.consumer(
        **{"group.id": "reader", "auto.offset.reset": "earliest"},
        **{"enable.auto.commit": False, "enable.partition.eof": True},
    )
    consumer, skipper = Consumer(config), Skipper(settings, config, stands=stands)
    try:
        consumer.assign([TopicPartition(topic, 0, begin)])
        skipper.begin(topic, 0, begin)
        yield Reading(consumer, skipper)
    finally:
        skipper.close()
        consumer.close()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_bomb_is_passed_and_reported_once(
    broker: SessionBroker, fresh_topic: FreshTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = fresh_topic("own", config=ROOM)
    send(broker, topic, [b"before"])
    send_bomb(broker, topic)
    send(broker, topic, [b"after"])
    with reading(broker, topic) as found:
        found.until(lambda: found.end == 3)
        assert (found.values, found.offsets, found.skipper.skipped) == ([b"before", b"after"], [0, 2], 1)
    (told,) = warnings(caplog)
    for part in (
        topic,
        "partition 0",
        "offset 1",
        "unpack to more than",
        "zstd",
        "holdfast topics create --alter",
    ):
        assert part in told


def test_a_corrupt_record_of_which_librdkafka_says_nothing_is_passed(
    broker: SessionBroker, fresh_topic: FreshTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """Brokers take it whatever the topic's compression.type is; at `end` a reader got stuck for ever
    before.
    """
    topic = fresh_topic("own", config={"compression.type": "uncompressed"})
    send(broker, topic, [b"before"])
    send_raw(broker, topic, corrupt_batch())
    send(broker, topic, [b"after"])
    with reading(broker, topic) as found:
        found.until(lambda: found.end == 3)
        assert (found.offsets, found.skipper.skipped) == ([0, 2], 1)
    (told,) = warnings(caplog)
    assert all(part in told for part in (topic, "partition 0", "offset 1"))


def test_a_second_consumer_that_never_closes_holds_up_no_look(
    broker: SessionBroker, fresh_topic: FreshTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = list[HungReader]()

    def make(config: dict[str, Any], **_: object) -> HungReader:
        hung.append(HungReader(config))
        return hung[-1]

    monkeypatch.setattr(clients, "CLOSE_S", 0.1)
    monkeypatch.setattr(batch_look, "make_reader", make)
    topic = fresh_topic("own")
    send_raw(broker, topic, corrupt_batch())
    send(broker, topic, [b"after"])
    try:
        with reading(broker, topic) as found:
            found.until(lambda: found.end == 2)
            assert (found.offsets, found.skipper.skipped) == ([1], 1)
        assert hung, "the batch was tried"
    finally:
        for each in hung:
            each.let_end()


def test_what_can_be_read_of_a_batch_is_read_and_the_rest_is_passed(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    topic = fresh_topic("own", config=ROOM)
    send_raw(broker, topic, corrupt_batch(5, wrong=2))
    send(broker, topic, [b"after"])
    with reading(broker, topic) as found:
        found.until(lambda: found.end == 6)
        assert (found.offsets, found.values[-1]) == ([*range(found.offsets[-2] + 1), 5], b"after")
        assert found.offsets[-2] < 2, "the corrupt record itself is never given"


def test_a_row_of_them_and_one_at_the_end_of_the_log_are_passed(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    topic = fresh_topic("own", config=ROOM)
    for turn in range(3):
        send_bomb(broker, topic)
        send_raw(broker, topic, corrupt_batch(2))
        if turn < 2:
            send(broker, topic, [b"between"])
    with reading(broker, topic) as found:
        found.until(lambda: found.end == 11)
        assert (found.offsets, found.skipper.skipped) == ([3, 7], 6)
        send(broker, topic, [b"later"])
        found.until(lambda: found.offsets[-1] == 11)


def test_all_readers_pass_the_same_wherever_they_begin(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    topic = fresh_topic("own", config=ROOM)
    send(broker, topic, [b"a"])
    send_raw(broker, topic, corrupt_batch(4, wrong=3))
    send_bomb(broker, topic)
    send(broker, topic, [b"b", b"c"])
    seen = []
    for begin in (0, 2, 5):
        with reading(broker, topic, begin) as found:
            found.until(lambda found=found: found.end == 8)  # type: ignore[misc]
            seen.append(
                {
                    offset: value
                    for offset, value in zip(found.offsets, found.values, strict=True)
                    if offset >= 5
                }
            )
    assert seen == [{6: b"b", 7: b"c"}] * 3


def test_a_record_with_an_offset_beyond_the_end_is_ignored(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    """Brokers do not check the offsets within an uncompressed batch. librdkafka continued after it, and
    returned the whole log again for ever.
    """
    topic = fresh_topic("own")
    send(broker, topic, [b"before"])
    send_raw(broker, topic, misplaced_batch(b"forged"))
    with reading(broker, topic) as found:
        found.until(lambda: found.end == 2)
        send(broker, topic, [b"after"])
        found.until(lambda: found.end == 3)
        assert (found.values, found.offsets, found.skipper.skipped) == ([b"before", b"after"], [0, 2], 1)


def test_in_a_topic_of_users_nothing_is_passed_and_each_batch_is_reported_once(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    topic, told = fresh_topic("orders"), list[Unreadable]()
    send(broker, topic, [b"before"])
    send_bomb(broker, topic)
    send(broker, topic, [b"after"])
    with reading(broker, topic, stands=told.append) as found:
        found.until(lambda: bool(told))
        until_s = time.monotonic() + 3.0
        found.until(lambda: time.monotonic() > until_s)
        assert (found.offsets, found.end, found.skipper.skipped) == ([0], -1, 0)
    assert [(each.topic, each.partition, each.first, each.last) for each in told] == [(topic, 0, 1, 1)]


@pytest.mark.variant
def test_nothing_is_passed_that_is_only_slow(broker: SessionBroker, fresh_topic: FreshTopic) -> None:
    """A reader that is not polled, and one whose broker is away, are stalled as well."""
    topic = fresh_topic("own", config=ROOM)
    with reading(broker, topic) as found:
        found.until(lambda: found.end == 0)
        time.sleep(3.0)
        send(broker, topic, [b"%d" % number for number in range(20)])
        time.sleep(3.0)
        found.until(lambda: found.end == 20)
        assert (found.offsets, found.skipper.skipped) == (list(range(20)), 0)


def test_a_record_that_claims_to_lie_further_on_hides_nothing(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    """Its offset is within the log by the time it is read; librdkafka may continue after it.

    Holes of compaction are true.
    """
    topic = fresh_topic("own")
    send(broker, topic, [b"before"])
    send_raw(broker, topic, misplaced_batch(b"forged", 10))
    send(broker, topic, [b"%d" % number for number in range(2, 20)])
    with reading(broker, topic) as found:
        found.until(lambda: found.end == 20)
        assert (found.offsets, found.values[0]) == ([0, *range(2, 20)], b"before")


def test_holes_are_passed_as_what_they_are(broker: SessionBroker, fresh_topic: FreshTopic) -> None:
    """Markers of transactions leave holes, in between and at the end."""
    topic = fresh_topic("own")
    producer = Producer(broker.client_config(**{"transactional.id": topic}))
    producer.init_transactions(DEADLINE_S)
    for value in (b"a", b"b", b"c"):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.commit_transaction(DEADLINE_S)
    with reading(broker, topic) as found:
        found.until(lambda: found.end == 6)
        assert (found.offsets, found.skipper.skipped) == ([0, 2, 4], 0)
        send(broker, topic, [b"d"])
        found.until(lambda: found.end == 7)
        assert (found.values, found.skipper.skipped) == ([b"a", b"b", b"c", b"d"], 0)


def test_a_log_that_has_lost_its_beginning_is_read_from_where_it_begins(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    topic = fresh_topic("own")
    send(broker, topic, [b"%d" % number for number in range(10)])
    admin = AdminClient(broker.client_config())
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 5)]).values()
    deleted.result(DEADLINE_S)
    with reading(broker, topic) as found:
        found.until(lambda: found.end == 10)
        assert (found.offsets, found.skipper.skipped) == ([5, 6, 7, 8, 9], 0)


def test_a_log_whose_beginning_is_deleted_again_after_each_look_loses_no_sound_batch(
    broker: SessionBroker, fresh_topic: FreshTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where other members of a group delete unneeded records: the hole before the rest is not that of an
    unreadable batch.
    """
    topic, looks = fresh_topic("own"), 6
    admin, rows = AdminClient(broker.client_config()), [b"%d" % number for number in range(10)]

    def delete(before: int) -> None:
        (deleted,) = admin.delete_records([TopicPartition(topic, 0, before)]).values()
        deleted.result(DEADLINE_S)

    send(broker, topic, rows)
    with reading(broker, topic) as found:
        found.until(lambda: found.end == 10)
        judge, seen = found.skipper._judge, list[int]()

        def shorten(consumer: Consumer, look: BatchLook) -> None:
            """Have the offsets looked at deleted before the consumer is sent there."""
            if look.over and len(seen) < looks:
                seen.append(look.at)
                send(broker, topic, rows)
                delete(10 + 10 * len(seen) + 5)
            judge(consumer, look)

        monkeypatch.setattr(found.skipper, "_judge", shorten)
        found.hold()
        send(broker, topic, rows)
        delete(15)
        found.go_on()
        found.until(lambda: len(seen) >= looks and found.end == 10 * (looks + 2))
        left = list(range(10 * looks + 15, 10 * (looks + 2)))
        assert found.offsets[-len(left) :] == left, "the log as it is left is read whole"
        assert found.skipper.skipped == 0
