"""A worker that starts while brokers list no broker waits until they do, as Java's clients do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer

from holdfast.agents.faust.transport.first_brokers import FIRST, await_brokers
from holdfast.embedded.apis import handlers
from holdfast.embedded.apis.call import Call, Fields
from holdfast.embedded.apis.describing import metadata
from holdfast.embedded.kafka import EmbeddedKafka
from tests.support.patience import DEADLINE_S

ASKED_IN_VAIN = 3


class Fenced:
    """A broker that its controller takes for dead: it answers, and lists no broker."""

    def __init__(self) -> None:
        self.asked, self.over = 0, threading.Event()

    def metadata(self, call: Call) -> Fields:
        """Answer Metadata."""
        self.asked += 1
        if self.over.is_set():
            return metadata(call)
        return {**metadata(call), "brokers": []}


@pytest.fixture
def fenced(monkeypatch: pytest.MonkeyPatch) -> Fenced:
    made = Fenced()
    monkeypatch.setitem(handlers.HANDLERS, "Metadata", made.metadata)
    return made


@pytest.fixture
def kafka(fenced: Fenced) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as kafka:
        yield kafka


async def _asked_in_vain(consumer: AIOKafkaConsumer, fenced: Fenced) -> None:
    """Return when brokers were asked a few times more, while the coordinator keeps running."""
    enough = fenced.asked + ASKED_IN_VAIN
    while fenced.asked < enough:
        _check_on(consumer)
        await asyncio.sleep(0.01)


def _check_on(consumer: AIOKafkaConsumer) -> None:
    routine = consumer._coordinator._coordination_task
    assert not routine.done(), routine


@pytest.mark.long
@pytest.mark.parametrize("cut", [False, True], ids=["connected", "cut-off"])
def test_the_group_is_joined_once_there_is_a_broker(kafka: EmbeddedKafka, fenced: Fenced, cut: bool) -> None:
    async def joined() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id="app")
        await consumer.start()
        try:
            await_brokers(consumer._coordinator)
            consumer.subscribe(["orders"])
            await _asked_in_vain(consumer, fenced)
            if cut:
                consumer._client._conns[FIRST].close()
                await _asked_in_vain(consumer, fenced)
            fenced.over.set()
            kafka.create_topic("orders", partitions=1)
            while not consumer.assignment():
                _check_on(consumer)
                await asyncio.sleep(0.01)
        finally:
            await consumer.stop()

    asyncio.run(asyncio.wait_for(joined(), DEADLINE_S))


@pytest.mark.long
def test_a_worker_that_ends_waits_for_no_broker(kafka: EmbeddedKafka, fenced: Fenced) -> None:
    async def ended() -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id="app")
        await consumer.start()
        await_brokers(consumer._coordinator)
        consumer.subscribe(["orders"])
        await _asked_in_vain(consumer, fenced)
        await consumer.stop()

    asyncio.run(asyncio.wait_for(ended(), DEADLINE_S))
