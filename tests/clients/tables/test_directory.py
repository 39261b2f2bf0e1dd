"""The workers topic on a real broker: who holds what, as announced up to now."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import msgspec
import pytest
from confluent_kafka import KafkaError, Producer

from holdfast.clients.tables import query_router
from holdfast.clients.tables.client import TableClient
from holdfast.clients.tables.directory import Workers, WorkersTopic
from holdfast.config import Settings
from holdfast.core.engine.query_wire import TableClaims, WorkerClaims
from holdfast.dev.fixtures import SessionBroker
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.dev.ports import free_ports
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import BrokerError, ConfigError
from tests.clients.tables.tabling import TOTALS, Total, scenario, settings
from tests.support.clocks import TickingClock
from tests.support.limits import at_most
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S
from tests.support.strangers import open_transaction


class Announcements:
    """The workers topic of an application of its own, written as workers write it."""

    def __init__(self, broker: SessionBroker) -> None:
        self.broker = broker
        self.settings = Settings(app=f"shop-{ending()}", kafka={"bootstrap.servers": broker.bootstrap})
        self._producer = Producer(broker.client_config())

    def create(self) -> None:
        self.broker.create_topic(
            self.settings.workers_topic, config={"cleanup.policy": "compact"}, exact=True
        )

    def tell(self, url: str, value: bytes | None) -> None:
        refused: list[KafkaError | None] = []
        self._producer.produce(
            self.settings.workers_topic,
            key=url,
            value=value,
            on_delivery=lambda error, _: refused.append(error),
        )
        assert self._producer.flush(DEADLINE_S) == 0
        assert refused == [None]

    def claim(self, url: str, generation: int, *active: int, at_ms: int = 0, version: int = 1) -> None:
        held = {"version": version, "partitions": 4, "active": list(active), "standby": []}
        worker = {
            "url": url,
            "generation": generation,
            "started_ms": 0,
            "at_ms": at_ms,
            "tables": {"totals": held},
        }
        self.tell(url, json.dumps(worker).encode())

    def leave(self, url: str) -> None:
        self.tell(url, None)


@pytest.fixture
def announcements(broker: SessionBroker) -> Iterator[Announcements]:
    told = Announcements(broker)
    yield told
    broker.delete_topics([told.settings.workers_topic])


@scenario
async def test_a_worker_announced_before_a_refresh_is_known_after_it(announcements: Announcements) -> None:
    announcements.create()
    topic = WorkersTopic(announcements.settings)
    try:
        await topic.refresh(DEADLINE_S)
        assert topic.workers.owner("totals", 1, 0) is None
        announcements.claim("http://a", 1, 0, 1, 2, 3)
        await topic.refresh(DEADLINE_S)
        assert [topic.workers.owner("totals", 1, partition) for partition in range(4)] == ["http://a"] * 4
        announcements.claim("http://b", 2, 2, 3)
        announcements.claim("http://a", 2, 0, 1)
        await topic.refresh(DEADLINE_S)
        assert [topic.workers.owner("totals", 1, partition) for partition in range(4)] == [
            "http://a",
            "http://a",
            "http://b",
            "http://b",
        ]
        announcements.leave("http://a")
        await topic.refresh(DEADLINE_S)
        assert [topic.workers.owner("totals", 1, partition) for partition in range(4)] == [
            None,
            None,
            "http://b",
            "http://b",
        ]
        known = topic.workers
        with at_most(5.0, "to know that nothing is new"):
            await topic.refresh(DEADLINE_S)
        assert topic.workers is known, "nothing is sorted anew"
    finally:
        await topic.close()


@scenario
async def test_a_stranger_s_open_transaction_hides_no_worker(announcements: Announcements) -> None:
    announcements.create()
    topic = WorkersTopic(announcements.settings)
    try:
        with open_transaction(announcements.settings.client(), announcements.settings.workers_topic, 1):
            announcements.claim("http://a", 1, 0)
            await topic.refresh(DEADLINE_S)
            assert topic.workers.owner("totals", 1, 0) == "http://a"
    finally:
        await topic.close()


@scenario
async def test_a_second_reader_learns_the_same_from_the_beginning(announcements: Announcements) -> None:
    announcements.create()
    for generation in range(30):
        announcements.claim(f"http://{generation % 3}", generation, generation % 4)
    announcements.tell("http://broken", b"not json")
    topic = WorkersTopic(announcements.settings)
    try:
        await topic.refresh(DEADLINE_S)
    finally:
        await topic.close()
    assert topic.workers.urls == {"http://0", "http://1", "http://2"}
    assert topic.workers.owner("totals", 1, 29 % 4) == "http://2"


@scenario
async def test_looks_that_are_cut_short_read_the_topic_together(announcements: Announcements) -> None:
    announcements.create()
    for generation in range(100):
        announcements.claim("http://a", generation, 0)
    announcements.claim("http://b", 1, 1)
    topic, cut_short = WorkersTopic(announcements.settings, TickingClock(0.1)), 0
    try:
        while topic.workers.urls != {"http://a", "http://b"}:
            try:
                await topic.refresh(2.0)
            except BrokerError:
                cut_short += 1
        assert cut_short > 3, "no look has time for the whole topic"
        assert topic.workers.owner("totals", 1, 0) == "http://a"
    finally:
        await topic.close()


@pytest.mark.long
@scenario
async def test_a_broker_slower_than_a_look_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_router, "REFRESH_S", 0.2)
    with EmbeddedKafka() as kafka:
        known = settings(kafka={"bootstrap.servers": kafka.bootstrap})
        kafka.create_topic(known.workers_topic)
        async with MemoryWorker(known, [TOTALS], partitions=1) as worker:
            worker.put(TOTALS, 0, "ada", Total(1), offset=1)
            producer = Producer({"bootstrap.servers": kafka.bootstrap})
            producer.produce(known.workers_topic, msgspec.json.encode(worker.claims()), worker.url)
            assert producer.flush(DEADLINE_S) == 0
            kafka.fault("delay", times=10_000, delay_ms=500)
            async with TableClient(known, [TOTALS]) as tables:
                assert (await tables.get(TOTALS, "ada", timeout_s=DEADLINE_S)).value == Total(1)


@scenario
async def test_what_a_cancelled_look_has_read_is_shown(
    announcements: Announcements, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was lost to this client until the next announcement."""
    announcements.create()
    announcements.claim("http://a", 1, 0)
    topic, begun = WorkersTopic(announcements.settings), threading.Event()
    read = topic._read

    def noted(deadline_s: float) -> None:
        begun.set()
        read(deadline_s)

    monkeypatch.setattr(topic, "_read", noted)
    try:
        looking = asyncio.create_task(topic.refresh(DEADLINE_S))
        assert await asyncio.to_thread(begun.wait, DEADLINE_S)
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking
        await topic.refresh(DEADLINE_S)
        assert topic.workers.owner("totals", 1, 0) == "http://a"
    finally:
        await topic.close()


@pytest.mark.long
@scenario
async def test_a_silent_broker_keeps_no_client_from_closing() -> None:
    """It took as long as the look that was under way, a minute for one that had doubled."""
    with EmbeddedKafka() as kafka:
        known = settings(kafka={"bootstrap.servers": kafka.bootstrap})
        kafka.create_topic(known.workers_topic)
        kafka.fault("drop", times=10_000)
        topic = WorkersTopic(known)
        looking = asyncio.create_task(topic.refresh(DEADLINE_S))
        await asyncio.sleep(0.5)
        with at_most(3.0, "to close"):
            await topic.close()
        with pytest.raises(BrokerError, match="cannot read the workers topic"):
            await looking
        with pytest.raises(ConfigError, match="is closed"):
            await topic.refresh(DEADLINE_S)
        await topic.close()


@scenario
async def test_an_application_that_never_ran_has_no_workers(announcements: Announcements) -> None:
    topic = WorkersTopic(announcements.settings)
    try:
        await topic.refresh(DEADLINE_S)
        assert topic.workers.urls == frozenset()
        announcements.create()
        announcements.claim("http://a", 1, 0)
        while not topic.workers.urls:  # the client's metadata may be a moment old
            await topic.refresh(DEADLINE_S)
    finally:
        await topic.close()


@pytest.mark.parametrize("records", [5, 1])
@scenario
async def test_a_topic_made_again_is_read_again(announcements: Announcements, records: int) -> None:
    """Also with as many records as before, when its end shows no change."""
    announcements.create()
    topic = WorkersTopic(announcements.settings)
    try:
        for generation in range(records):
            announcements.claim("http://old", generation, 0)
        await topic.refresh(DEADLINE_S)
        assert topic.workers.urls == {"http://old"}
        announcements.broker.delete_topics([announcements.settings.workers_topic])
        announcements.create()
        announcements.claim("http://new", 1, 0)
        while topic.workers.urls != {"http://new"}:
            try:
                await topic.refresh(DEADLINE_S)
            except BrokerError:
                await asyncio.sleep(0.1)  # leaders and metadata settle
    finally:
        await topic.close()


@scenario
async def test_a_broker_that_cannot_be_reached_costs_the_deadline_and_not_more() -> None:
    topic = WorkersTopic(Settings(app="shop", kafka={"bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}"}))
    try:
        with at_most(3.0, "the refusal"), pytest.raises(BrokerError, match="check bootstrap"):
            await topic.refresh(0.5)
    finally:
        await topic.close()


def test_of_claims_in_one_generation_the_later_is_believed() -> None:
    def claim(url: str, generation: int, at_ms: int) -> WorkerClaims:
        held = TableClaims(version=1, partitions=1, active=[0])
        return WorkerClaims(
            url=url, generation=generation, started_ms=0, at_ms=at_ms, tables={"totals": held}
        )

    claims = [claim("http://a", 5, 100), claim("http://b", 5, 200), claim("http://c", 4, 300)]
    for order in (claims, claims[::-1]):
        assert Workers(order).owner("totals", 1, 0) == "http://b"
