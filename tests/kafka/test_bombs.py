"""Hostile batches on a real broker: a partition stops before one and says so, the others continue, and memory
stays within its bound.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from holdfast.config import Settings
from holdfast.dev.fixtures import SessionBroker
from holdfast.kafka.fetching.records import Records
from holdfast.kafka.fetching.source_fetcher import Fetched, SourceFetcher
from holdfast.kafka.requests.connections import connector
from tests.support.columns import take
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

MIB = 1 << 20
CODECS = ["gzip", "snappy", "lz4", "zstd"]
BOMB_BYTES = 200_000_000
LIMIT_BYTES = 64 * MIB


def send(
    broker: SessionBroker,
    topic: str,
    codec: str,
    values: Sequence[bytes],
    *,
    partition: int = 0,
    linger_ms: int = 0,
) -> None:
    producer = Producer(
        broker.client_config(
            **{
                "compression.type": codec,
                "message.max.bytes": 1_000_000_000,
                "linger.ms": linger_ms,
                "queue.buffering.max.kbytes": 2 << 20,
            }
        )
    )
    producer.list_topics(
        topic, timeout=DEADLINE_S
    )  # or the flush begins with those that have found their leader, a batch of their own
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(DEADLINE_S) == 0


@asynccontextmanager
async def feeding(
    broker: SessionBroker, positions: dict[tuple[str, int], int]
) -> AsyncIterator[SourceFetcher]:
    with ThreadPoolExecutor(2) as executor:
        connect = connector(Settings(kafka=broker.client_config()), timeout_s=DEADLINE_S)
        feed = SourceFetcher(
            connect, executor, fetch_records=10_000, fetch_bytes=8 * MIB, queue_bytes=8 * MIB
        )
        await feed.assign(positions)
        try:
            async with asyncio.timeout(DEADLINE_S):
                yield feed
        finally:
            await feed.close()


async def until(feed: SourceFetcher, seen: list[Fetched], count: int) -> None:
    while sum(map(len, seen)) < count:
        seen += await feed.fetch(0, 0.2)


@pytest.mark.variants("snappy", "lz4", "zstd")
@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_stops_its_partition_and_no_other_until_it_is_skipped(
    broker: SessionBroker, codec: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.create_topic("bombs", partitions=2, config={"max.message.bytes": str(32 * MIB)})
    send(broker, topic, codec, [b"before"])
    send(broker, topic, codec, [bytes(BOMB_BYTES)])
    send(broker, topic, codec, [b"after"])

    async def run() -> None:
        async with feeding(broker, {(topic, 0): 0, (topic, 1): 0}) as feed:
            seen: list[Fetched] = []
            while not feed.unreadable:
                seen += await feed.fetch(0, 0.2)
            assert [value for each in seen for value in each.records.values] == [b"before"]
            found = feed.unreadable[topic, 0]
            assert (found.first, found.last, found.codec, found.error, found.records_count) == (
                1,
                1,
                codec,
                "TooLargeError",
                1,
            )
            assert f"{LIMIT_BYTES}" in found.reason
            for _ in range(3):  # it says so once, and does not turn in circles
                assert await feed.fetch(0, 0.2) == []
            errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
            assert len(errors) == 1
            assert all(
                part in errors[0].getMessage()
                for part in (topic, "partition 0", "offset 1, which cannot be read", "unpack to more than")
            )
            send(broker, topic, codec, [b"other"], partition=1)
            await until(feed, seen, 2)
            feed.skip((topic, 0), found.last)
            assert feed.unreadable == {}
            await until(feed, seen, 3)
            assert [(each.partition, each.first, each.last) for each in seen] == [
                (0, 0, 0),
                (1, 0, 0),
                (0, 1, 2),
            ]
            assert seen[-1].records.values == [b"after"]
            assert feed.ends() == {(topic, 0): 3, (topic, 1): 1}

    asyncio.run(run())


HUNGRY = """
import asyncio, resource, sys
from concurrent.futures import ThreadPoolExecutor
from holdfast.kafka.requests.connections import connector
from holdfast.kafka.fetching.source_fetcher import SourceFetcher
from holdfast.config import Settings

def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

async def run(bootstrap, topic, partitions, deadline_s):
    with ThreadPoolExecutor(2) as executor:
        connect = connector(Settings(kafka={"bootstrap.servers": bootstrap}), timeout_s=deadline_s)
        feed = SourceFetcher(connect, executor, fetch_records=10_000, fetch_bytes=8 << 20, queue_bytes=8 << 20)
        before = peak_mib()
        await feed.assign({(topic, number): 0 for number in range(partitions)})
        met, good = set(), 0
        while good < partitions:
            good += sum(map(len, await feed.fetch(0, 0.2)))
            for place, found in list(feed.unreadable.items()):
                met.add(found.codec)
                feed.skip(place, found.last)
        await feed.close()
        print(peak_mib() - before, ",".join(sorted(met)))

asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
"""  # noqa: E501


@pytest.mark.variant
def test_memory_stays_within_its_bound_whatever_is_sent(broker: SessionBroker) -> None:
    topic = broker.create_topic("bombs", partitions=4, config={"max.message.bytes": str(64 * MIB)})
    for partition, codec in enumerate(CODECS):
        for size in (BOMB_BYTES, 400_000_000 if codec == "gzip" else BOMB_BYTES):
            send(broker, topic, codec, [bytes(size)], partition=partition)
        send(broker, topic, codec, [b"good"], partition=partition)
    command = [sys.executable, "-P", "-c", HUNGRY, broker.bootstrap, topic, "4", str(DEADLINE_S)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True, cwd=ROOT)
    peak_mib, met = done.stdout.split()
    assert met == ",".join(sorted(CODECS))
    # The bound in docs/operating.md: twice the fetched bytes, one batch of a leader, and three times the
    # limit for an unpacked batch.
    assert int(peak_mib) < 2 * 8 + 64 + 3 * 64


def librdkafka(broker: SessionBroker, topic: str, count: int) -> Records:
    consumer = Consumer(
        broker.client_config(
            **{"group.id": "x", "enable.auto.commit": False, "isolation.level": "read_committed"}
        )
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages: list[Message] = []
    while len(messages) < count:
        messages += consumer.consume(count - len(messages), 1.0)
    consumer.close()
    assert not any(message.error() for message in messages)
    records = Records()
    take(records, messages)
    return records


@pytest.mark.parametrize("time", ["CreateTime", "LogAppendTime"])
def test_the_columns_are_those_that_librdkafka_gives(broker: SessionBroker, time: str) -> None:
    """All codecs, headers, nulls, and transactions that end either way, or began before others that ended
    first.
    """
    topic = broker.create_topic("mixed", config={"message.timestamp.type": time})
    count = 0
    producers = [
        Producer(
            broker.client_config(
                **{"compression.type": codec, "transactional.id": f"{topic}-{codec}", "linger.ms": 5}
            )
        )
        for codec in [*CODECS, "none"]
    ]
    for producer in producers:
        producer.init_transactions(DEADLINE_S)
    for turn in range(8):
        for number, producer in enumerate(producers):
            producer.begin_transaction()
            for each in range(turn * 7 + 1):
                producer.produce(
                    topic,
                    None if each % 5 == 4 else b"%d-%d-%d" % (turn, number, each) * (1 + each % 3),
                    None if each % 3 else b"k%d" % each,
                    headers=[("a", b"1"), ("é", None), ("", b"")] if each % 4 == 1 else None,
                    timestamp=1_700_000_000_000 + each * 3 if each % 2 else 0,
                )
            producer.flush(DEADLINE_S)
        for number, producer in enumerate(reversed(producers)):
            if (turn + number) % 3:
                producer.commit_transaction(DEADLINE_S)
                count += turn * 7 + 1
            else:
                producer.abort_transaction(DEADLINE_S)
    send(broker, topic, "zstd", [b"end"])
    wanted = librdkafka(broker, topic, count + 1)

    async def run() -> None:
        async with feeding(broker, {(topic, 0): 0}) as feed:
            seen: list[Fetched] = []
            await until(feed, seen, count + 1)
            for name in ("times_ms", "values", "keys", "headers"):
                assert [each for fetched in seen for each in getattr(fetched.records, name)] == getattr(
                    wanted, name
                ), name
            assert [offset for fetched in seen for offset in fetched.records.offsets] == list(wanted.offsets)
            assert all(left.last + 1 == right.first for left, right in pairwise(seen))

    asyncio.run(run())


def test_a_log_that_ends_with_a_marker_has_an_end_that_is_reached(broker: SessionBroker) -> None:
    topic = broker.create_topic("marked")
    producer = Producer(broker.client_config(**{"transactional.id": topic}))
    producer.init_transactions(DEADLINE_S)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, b"1")
        end(DEADLINE_S)

    async def run() -> None:
        async with feeding(broker, {(topic, 0): 0}) as feed:
            (fetched,) = await feed.fetch(0, DEADLINE_S)
            assert (fetched.last, len(fetched)) == (0, 1)
            while feed.ends()[topic, 0] != 1:
                assert await feed.fetch(0, 0.1) == []

    asyncio.run(run())
