"""Consumers at most once that stop in good order, however: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast import BlockingClaimConsumer, ClaimConsumer
from holdfast.config import Settings
from holdfast.embedded.kafka import EmbeddedKafka
from tests.clients.claims.claiming import LOG_APPEND, scenario, until
from tests.support.patience import DEADLINE_S

MESSAGES = 150
FORMS: dict[str, dict[str, Any]] = {"plain": {}, "lanes": {"lanes": 3}, "balanced": {"balanced": True}}


class HandlerError(Exception):
    """The error that a handler raises."""


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as kafka:
        kafka.create_topic("orders", partitions=2)
        for topic in ("__marshal", "holdfast.groups"):
            kafka.create_topic(topic, partitions=1, config=LOG_APPEND)
        producer = Producer(kafka.client_config())
        for number in range(MESSAGES):
            producer.produce("orders", str(number).encode(), str(number).encode(), partition=number % 2)
        assert producer.flush(DEADLINE_S) == 0
        yield kafka


def named(kafka: EmbeddedKafka, client: str, **more: Any) -> dict[str, Any]:
    settings = Settings(kafka={"bootstrap.servers": kafka.bootstrap})
    return {
        "kafka": settings, "topics": ["orders"], "group": "billing", "client": client, "greedy": True,
        "heartbeat_interval_s": 1.0, "delivery": "at-most-once", "drain_s": 0.2, **more,
    }  # fmt: skip


async def breaks(consumer: ClaimConsumer, taken: list[int]) -> None:
    async for message in consumer:
        taken.append(int(message.value or b""))
        if len(taken) % 37 == 0 or len(taken) == MESSAGES:
            break


async def fails(consumer: ClaimConsumer, taken: list[int]) -> None:
    await breaks(consumer, taken)
    raise HandlerError


async def is_cancelled(consumer: ClaimConsumer, taken: list[int]) -> None:
    async def take() -> None:
        async for message in consumer:
            taken.append(int(message.value or b""))
            await asyncio.sleep(0)
            if len(taken) % 37 == 0 or len(taken) == MESSAGES:
                enough.set()
                await asyncio.Event().wait()

    enough = asyncio.Event()
    task = asyncio.create_task(take())
    await enough.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def takes_batches(consumer: ClaimConsumer, taken: list[int]) -> None:
    count = 0
    async for batch in consumer.batches():
        taken += [int(message.value or b"") for message in batch]
        count += 1
        if count == 3 or len(taken) == MESSAGES:
            break


async def keeps_its_claims(consumer: ClaimConsumer, taken: list[int]) -> None:
    await breaks(consumer, taken)
    await consumer.terminate(release=False)


Way = Callable[[ClaimConsumer, list[int]], Awaitable[None]]
WAYS: list[Way] = [breaks, fails, is_cancelled, takes_batches, keeps_its_claims]


@pytest.mark.long
@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[] if way is breaks else pytest.mark.variant) for way in WAYS],
    ids=lambda way: way.__name__,
)  # fmt: skip
@pytest.mark.parametrize(
    "form", [pytest.param(name, marks=[] if name == "plain" else pytest.mark.variant) for name in FORMS]
)
@scenario
async def test_who_stops_loses_nothing(kafka: EmbeddedKafka, form: str, way: Way) -> None:
    taken: list[int] = []
    client = 0
    while len(taken) < MESSAGES:
        client += way is not keeps_its_claims
        try:
            async with ClaimConsumer(**named(kafka, f"c{client}", **FORMS[form])) as consumer:
                await way(consumer, taken)
        except HandlerError:
            pass
    assert sorted(taken) == list(range(MESSAGES))


@pytest.mark.long
@pytest.mark.variant
def test_a_blocking_consumer_that_stops_loses_nothing(kafka: EmbeddedKafka) -> None:
    taken: list[int] = []
    client = 0
    while len(taken) < MESSAGES:
        client += 1
        with BlockingClaimConsumer(**named(kafka, f"c{client}")) as consumer:
            for message in consumer:
                taken.append(int(message.value or b""))
                if len(taken) % 37 == 0 or len(taken) == MESSAGES:
                    break
    assert sorted(taken) == list(range(MESSAGES))


@pytest.mark.long
@pytest.mark.variant
@scenario
async def test_a_partition_handed_over_to_a_newcomer_is_taken_once(kafka: EmbeddedKafka) -> None:
    """A rebalance: the first has messages in hand that the log has committed, and gives partitions up."""
    taken: list[int] = []

    async def work(consumer: ClaimConsumer) -> None:
        async for message in consumer:
            taken.append(int(message.value or b""))
            await asyncio.sleep(0.005)

    async with ClaimConsumer(**named(kafka, "a", balanced=True)) as first:
        tasks = [asyncio.create_task(work(first))]
        await until("the first is at work", lambda: len(taken) >= 10)
        async with ClaimConsumer(**named(kafka, "b", balanced=True)) as second:
            tasks.append(asyncio.create_task(work(second)))
            await until("all was taken", lambda: len(taken) >= MESSAGES)
            assert second.load == 1
        for task in tasks:
            task.cancel()
    assert sorted(taken) == list(range(MESSAGES))
