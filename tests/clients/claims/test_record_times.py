"""A record whose sender's clock is far ahead does not move the time of claims, sessions or blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast import ClaimConsumer, RangeConsumer
from holdfast.config import Settings
from holdfast.core.claims.frames import Heartbeat, coordination_partition, encode
from holdfast.core.groups.announcements import Beat
from holdfast.core.groups.announcements import encode as encode_announcement
from holdfast.embedded.kafka import EmbeddedKafka
from tests.clients.claims.claiming import scenario, until
from tests.support.patience import DEADLINE_S

FAR_MS = 4_102_444_800_000
"""The year 2100."""
AS_SENT = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str((1 << 63) - 1)}
"""As Kafka's own defaults were up to 3.9."""


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as kafka:
        kafka.create_topic("orders", partitions=2)
        for topic in ("__marshal", "holdfast.groups", "holdfast.ranges", "orders.dead"):
            kafka.create_topic(topic, partitions=1, config=AS_SENT)
        yield kafka


def produce(kafka: EmbeddedKafka, topic: str, value: bytes, *, at_ms: int = 0, **where: Any) -> None:
    producer = Producer(kafka.client_config())
    refused: list[object] = []
    producer.produce(
        topic, value, timestamp=at_ms, on_delivery=lambda error, _: refused.append(error), **where
    )
    assert producer.flush(DEADLINE_S) == 0
    assert refused == [None]


def consumer(kafka: EmbeddedKafka, client: str, **named: Any) -> ClaimConsumer:
    settings = Settings(kafka={"bootstrap.servers": kafka.bootstrap})
    return ClaimConsumer(
        settings,
        topics=["orders"],
        group="billing",
        client=client,
        heartbeat_interval_s=1.0,
        greedy=True,
        **named,
    )


@pytest.mark.long
@pytest.mark.parametrize("balanced", [False, pytest.param(True, marks=pytest.mark.variant)])
@scenario
async def test_one_record_from_the_future_keeps_no_member_from_claiming_partitions_of_the_dead(
    kafka: EmbeddedKafka, balanced: bool
) -> None:
    async with consumer(kafka, "a", balanced=balanced) as first:
        await until("all is claimed", lambda: first.load == 2)
        where = coordination_partition("orders", 1)
        stray = Heartbeat(1_700_000_000, "x", "stranger", "billing", "orders", 9, 5)
        produce(kafka, "__marshal", encode(stray), at_ms=FAR_MS, partition=where)
        beat = encode_announcement(Beat(group_id="billing", member_id="nobody", generation=1))
        produce(kafka, "holdfast.groups", beat, at_ms=FAR_MS, key=b"billing", partition=0)
        await asyncio.sleep(0)
        await first.terminate(release=False)  # its claims lapse
    async with consumer(kafka, "b", balanced=balanced, fast_reclaim=False) as second:
        await until("what lapsed is claimed", lambda: second.load == 2)
        produce(kafka, "orders", b"one", partition=0)
        message = await second.get(DEADLINE_S)
        assert message is not None
        message.commit()


@pytest.mark.long
@scenario
async def test_blocks_of_the_dead_are_free_and_those_of_living_members_are_not(kafka: EmbeddedKafka) -> None:
    settings = Settings(kafka={"bootstrap.servers": kafka.bootstrap})

    def ranges(client: str) -> RangeConsumer:
        return RangeConsumer(
            settings, topic="orders", group="resize", client=client, block_messages=5, lease_s=1.0,
            dead_letters="orders.dead",
        )  # fmt: skip

    for number in range(20):
        produce(kafka, "orders", str(number).encode(), partition=0)
    taken: list[int] = []
    async with ranges("a") as one, ranges("b") as other:
        held = await anext(other)
        produce(kafka, "holdfast.ranges", b"{}", at_ms=FAR_MS, key=b"resize/orders/0", partition=0)
        while len(taken) < 15:
            block = await anext(one)
            taken += [record.offset() or 0 for record in block.records]
            await block.done()
        assert not set(taken) & {record.offset() for record in held.records}
        assert one._log.now_ms() < FAR_MS
        assert all(home.horizon.begin(home.next, one._log.now_ms()) == 0 for home in one._log._homes.values())
