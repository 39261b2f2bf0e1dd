"""Topics that are deleted and made again under their name, while their consumers are stopped and while they
run (PROTOCOL.md#topics-that-are-made-again).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from holdfast import ClaimConsumer, RangeConsumer
from holdfast.clients.groups.admin import GroupAdmin
from holdfast.config import Settings
from holdfast.core.claims.resets import Aim, Where
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import ClaimLostError, TopicError
from tests.clients.claims.claiming import LOG_APPEND, scenario, until
from tests.support.patience import DEADLINE_S

OLD, NEW = 21, 37
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "at most once": {"delivery": "at-most-once"},
    "lanes": {"lanes": 2},
    "balanced": {"balanced": True},
    "whole topics": {"whole_topic": True},
}


class Shop:
    """An embedded broker with a topic of two partitions, and a group that reads it."""

    def __init__(self, kafka: EmbeddedKafka) -> None:
        self.kafka = kafka
        self.settings = Settings(kafka={"bootstrap.servers": kafka.bootstrap})
        self.taken: list[int] = []
        kafka.create_topic("orders", partitions=2)
        kafka.create_topic("__marshal", partitions=4, config=LOG_APPEND)
        kafka.create_topic("holdfast.groups", partitions=1, config=LOG_APPEND)
        kafka.create_topic("holdfast.ranges", partitions=1, config=LOG_APPEND)
        kafka.create_topic("orders.dead", partitions=1)

    def produce(self, first: int, count: int) -> None:
        producer = Producer(self.kafka.client_config())
        for number in range(first, first + count):
            producer.produce("orders", str(number).encode(), str(number).encode(), partition=number % 2)
        assert producer.flush(DEADLINE_S) == 0

    def make_again(self) -> None:
        admin = AdminClient(self.kafka.client_config())
        admin.delete_topics(["orders"])["orders"].result(DEADLINE_S)
        self.kafka.create_topic("orders", partitions=2)

    def consumer(self, client: str, **named: Any) -> ClaimConsumer:
        return ClaimConsumer(
            self.settings, topics=["orders"], group="billing", client=client,
            heartbeat_interval_s=1.0, greedy=True, health_lookup_intervals=0.1, **named,
        )  # fmt: skip

    @asynccontextmanager
    async def reading(self, client: str, **named: Any) -> AsyncIterator[ClaimConsumer]:
        """Take messages, and commit them, until the block is left."""
        async with self.consumer(client, **named) as consumer:

            async def read() -> None:
                async for message in consumer:
                    self.taken.append(int(message.value or b""))
                    message.commit()

            task = asyncio.create_task(read())
            try:
                yield consumer
            finally:
                task.cancel()

    async def has(self, first: int, count: int) -> None:
        wanted = set(range(first, first + count))
        await until(f"{count} messages from {first} on", lambda: wanted <= set(self.taken))


@pytest.fixture
def shop() -> Iterator[Shop]:
    with EmbeddedKafka() as kafka:
        yield Shop(kafka)


@pytest.mark.long
@pytest.mark.parametrize(
    "form", [pytest.param(name, marks=[] if name == "plain" else pytest.mark.variant) for name in FORMS]
)
@scenario
async def test_a_group_that_was_stopped_begins_the_new_topic_at_its_beginning(
    shop: Shop, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop.produce(0, OLD)
    async with shop.reading("a", **FORMS[form]):
        await shop.has(0, OLD)
    shop.make_again()
    shop.produce(100, NEW)
    with caplog.at_level(logging.WARNING):
        async with shop.reading("b", **FORMS[form]):
            await shop.has(100, NEW)
    assert "topic-made-again" in caplog.text
    if form == "at most once":
        assert sorted(shop.taken) == [*range(OLD), *range(100, 100 + NEW)], "none twice"
    shop.produce(200, 4)
    async with shop.reading("c", **FORMS[form]):
        await shop.has(200, 4)
    assert len(shop.taken) == OLD + NEW + 4, "its offsets count from then on"


@pytest.mark.long
@pytest.mark.parametrize(
    "form",
    [pytest.param(name, marks=[] if name == "at most once" else pytest.mark.variant) for name in FORMS],
)
@pytest.mark.parametrize("more", [pytest.param(True), pytest.param(False, marks=pytest.mark.variant)])
@scenario
async def test_a_group_that_runs_notices_and_begins_the_new_topic_at_its_beginning(
    shop: Shop, form: str, more: bool
) -> None:
    """With more records than the old offset at once, nothing is out of range."""
    shop.produce(0, OLD)
    count = NEW if more else 6
    async with shop.reading("a", **FORMS[form]):
        await shop.has(0, OLD)
        shop.make_again()
        shop.produce(100, count)
        await shop.has(100, count)
        shop.produce(200, 5)
        await shop.has(200, 5)
    if form == "at most once":
        assert len(shop.taken) == OLD + count + 5, "none twice"


@pytest.mark.long
@pytest.mark.variant
@scenario
async def test_where_the_new_topic_begins_is_what_auto_offset_reset_says(shop: Shop) -> None:
    shop.produce(0, OLD)
    async with shop.reading("a"):
        await shop.has(0, OLD)
    shop.make_again()
    shop.produce(100, 8)
    with pytest.raises(
        TopicError, match=r"no offset of orders/[01] as it is now, and auto_offset_reset is none"
    ):
        async with shop.consumer("b", auto_offset_reset="none") as consumer:
            await anext(consumer)
    async with shop.reading("c", auto_offset_reset="latest") as consumer:
        await until("both are held", lambda: consumer.load == 2)
        shop.produce(200, 8)
        await shop.has(200, 8)
    assert not set(shop.taken) & set(range(100, 108))


@pytest.mark.long
@pytest.mark.variant
@scenario
async def test_a_group_is_shown_and_reset_by_the_topic_that_is_there(shop: Shop) -> None:
    shop.produce(0, OLD)
    async with shop.reading("a"):
        await shop.has(0, OLD)
    shop.make_again()
    shop.produce(100, 4)
    with GroupAdmin(shop.settings) as admin:
        lines = admin.describe("billing")
        assert [(each.current_offset, each.lag) for each in lines] == [(None, 2), (None, 2)]
        moves = admin.reset_offsets(admin.plan_reset("billing", Aim(Where.SHIFT, 1)))
        assert [move.new_offset for move in moves] == [1, 1], "from its beginning, not from the old offset"
        assert [(each.current_offset, each.lag) for each in admin.describe("billing")] == [(1, 1), (1, 1)]
    async with shop.reading("b"):
        await shop.has(102, 2)
    assert not set(shop.taken) & {100, 101}
    shop.make_again()  # what a reset decided is of the topic that was there, too
    shop.produce(300, 4)
    async with shop.reading("c"):
        await shop.has(300, 4)


@pytest.mark.long
@pytest.mark.variant
@scenario
async def test_what_kafka_has_of_the_old_topic_is_no_offset_of_the_new_one(shop: Shop) -> None:
    """A coordination topic without rows, as a new one is, defers to `__consumer_offsets`. Offsets committed
    for the old topic may arrive there late.
    """
    group = {"group.id": "billing", "enable.auto.commit": False}
    shop.produce(0, OLD)
    async with shop.reading("a"):
        await shop.has(0, OLD)
    asking = Consumer({**shop.kafka.client_config(), **group})
    kept = asking.committed([TopicPartition("orders", 0)], DEADLINE_S)
    assert kept[0].offset == 11
    shop.make_again()
    asking.commit(offsets=kept, asynchronous=False)
    assert asking.committed([TopicPartition("orders", 0)], DEADLINE_S)[0].offset == 11
    asking.close()
    admin = AdminClient(shop.kafka.client_config())
    admin.delete_topics(["__marshal"])["__marshal"].result(DEADLINE_S)
    shop.kafka.create_topic("__marshal", partitions=4, config=LOG_APPEND)
    shop.produce(100, NEW)
    async with shop.reading("b"):
        await shop.has(100, NEW)


def ranges(shop: Shop, client: str) -> RangeConsumer:
    return RangeConsumer(
        shop.settings,
        topic="orders",
        group="resize",
        client=client,
        block_messages=5,
        dead_letters="orders.dead",
    )


async def work(shop: Shop, consumer: RangeConsumer, first: int, count: int) -> None:
    """Take blocks until these messages have come."""
    wanted = set(range(first, first + count))
    async for block in consumer:
        shop.taken += [int(record.value() or b"") for record in block.records]
        await block.done()
        if wanted <= set(shop.taken):
            return


@pytest.mark.long
@scenario
async def test_ranges_begin_the_new_topic_at_its_beginning(shop: Shop) -> None:
    shop.produce(0, OLD)
    async with ranges(shop, "a") as consumer:
        await work(shop, consumer, 0, OLD)
    shop.make_again()
    shop.produce(100, NEW)
    async with ranges(shop, "b") as consumer:
        await work(shop, consumer, 100, NEW)
    shop.produce(200, 6)
    async with ranges(shop, "c") as consumer:
        await work(shop, consumer, 200, 6)
    assert len(shop.taken) == OLD + NEW + 6, "each once, and the offsets of the new topic count"


@pytest.mark.long
@scenario
async def test_members_that_work_on_ranges_notice_the_new_topic(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """A block of the old topic that is done late is none of the new one."""
    shop.produce(0, OLD)
    async with ranges(shop, "a") as one, ranges(shop, "b") as other:
        held = await anext(other)
        task = asyncio.create_task(work(shop, one, 0, OLD))
        await until("the rest is done", lambda: len(set(shop.taken)) >= OLD - len(held.records))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        shop.make_again()
        shop.produce(100, NEW)
        for consumer in (one, other):
            consumer._log._identified_s = -inf
            await consumer._do(consumer._log.catch_up)
        with pytest.raises(ClaimLostError):
            await held.done()
        await work(shop, one, 100, NEW)
    assert "was deleted and made again" in caplog.text


@pytest.mark.long
@scenario
async def test_a_coordination_topic_that_is_another_is_reported(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.produce(0, OLD)
    with caplog.at_level(logging.WARNING):
        async with shop.reading("a"):
            await shop.has(0, OLD)
            assert "coordination-topic-made-again" not in caplog.text
            admin = AdminClient(shop.kafka.client_config())
            admin.delete_topics(["__marshal"])["__marshal"].result(DEADLINE_S)
            shop.kafka.create_topic("__marshal", partitions=4, config=LOG_APPEND)
            shop.produce(100, NEW)
            await shop.has(100, NEW)
            await until("a line about it", lambda: "coordination-topic-made-again" in caplog.text)
    assert caplog.text.count("coordination-topic-made-again") == 1
