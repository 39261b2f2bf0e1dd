"""Taking records from fetched batches: a handful at a time, so that nothing on the event loop waits for all
of a large fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import count

import pytest
from confluent_kafka import Producer

from holdfast.config import Settings
from holdfast.dev.fixtures import SessionBroker
from holdfast.kafka.fetching.source_fetcher import HANDFUL, SourceFetcher
from holdfast.kafka.requests.connections import connector
from tests.support.patience import DEADLINE_S

RECORDS = 3 * HANDFUL + 100


@pytest.fixture(scope="module")
def topic(broker: SessionBroker) -> str:
    name = broker.create_topic("events", partitions=2)
    producer = Producer(broker.client_config())
    for number in range(RECORDS):
        producer.produce(name, b"%d" % number, partition=number % 2)
    assert producer.flush(DEADLINE_S) == 0
    return name


@asynccontextmanager
async def reading(
    broker: SessionBroker, topic: str, *, fetch_records: int, fetch_bytes: int = 1 << 20
) -> AsyncIterator[SourceFetcher]:
    """Yield a feed at the beginning of both partitions, whose records are fetched."""
    with ThreadPoolExecutor(2) as executor:
        connect = connector(Settings(kafka=broker.client_config()), timeout_s=DEADLINE_S)
        feed = SourceFetcher(
            connect, executor, fetch_records=fetch_records, fetch_bytes=fetch_bytes, queue_bytes=64 << 20
        )
        await feed.assign({(topic, 0): 0, (topic, 1): 0})
        try:
            async with asyncio.timeout(DEADLINE_S):
                # The responses that bring the records carry the ends.
                while sum(feed.ends().values()) < RECORDS:  # noqa: ASYNC110  nobody tells an event of it
                    await asyncio.sleep(0.05)
                yield feed
        finally:
            await feed.close()


def test_a_large_fetch_lets_others_have_their_turn(broker: SessionBroker, topic: str) -> None:
    async def run() -> None:
        async with reading(broker, topic, fetch_records=10_000) as feed:
            turns = count()

            async def other() -> None:
                while True:
                    next(turns)
                    await asyncio.sleep(0)

            others, seen = asyncio.ensure_future(other()), 0
            while seen < RECORDS:
                await asyncio.sleep(0)
                before = next(turns)
                taken = sum(map(len, await feed.fetch(0, DEADLINE_S)))
                assert next(turns) - before > taken // HANDFUL, taken
                seen += taken
            others.cancel()

    asyncio.run(run())


@pytest.mark.parametrize("fetch_records", [1, 700, HANDFUL, HANDFUL + 1])
def test_no_fetch_is_larger_than_it_may_be_and_together_they_are_all(
    broker: SessionBroker, topic: str, fetch_records: int
) -> None:
    async def run() -> None:
        async with reading(broker, topic, fetch_records=fetch_records) as feed:
            seen: dict[int, list[int]] = {0: [], 1: []}
            while sum(map(len, seen.values())) < min(RECORDS, 5 * fetch_records):
                fetches = await feed.fetch(0, DEADLINE_S)
                assert sum(map(len, fetches)) <= fetch_records
                for each in fetches:
                    assert each.first == len(seen[each.partition])
                    seen[each.partition] += [int(value or b"") for value in each.records.values]
                    assert each.last == len(seen[each.partition]) - 1
            for partition, numbers in seen.items():
                assert numbers == list(range(partition, RECORDS, 2))[: len(numbers)]

    asyncio.run(run())


def test_a_fetch_ends_when_it_has_the_bytes_it_may_have(broker: SessionBroker, topic: str) -> None:
    async def run() -> None:
        async with reading(broker, topic, fetch_records=10_000, fetch_bytes=1) as feed:
            # A batch that the broker has cut shorter is a handful too.
            assert 0 < sum(map(len, await feed.fetch(0, DEADLINE_S))) <= HANDFUL

    asyncio.run(run())


def test_records_taken_for_an_older_assignment_do_not_come_out(
    broker: SessionBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.kafka.fetching.source_fetcher.HANDFUL", 1)

    async def run() -> None:
        async with reading(broker, topic, fetch_records=10_000) as feed:
            fetching = asyncio.ensure_future(feed.fetch(0, DEADLINE_S))
            await asyncio.sleep(0)  # it has taken its first handful
            await feed.assign({(topic, 1): 5})
            assert await fetching == []
            (fetched,) = await feed.fetch(1, DEADLINE_S)
            assert (fetched.partition, fetched.first, fetched.records.offsets[0]) == (1, 5, 5)

    asyncio.run(run())
