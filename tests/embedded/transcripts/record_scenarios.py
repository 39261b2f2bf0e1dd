"""Conversations about records and where they are."""

from __future__ import annotations

import time
from typing import Any

import google_crc32c

from holdfast.core.kafka.compression import Compression
from holdfast.core.kafka.record_batch import (
    CONTROL_BIT,
    CRC_FROM,
    HEADER_BYTES,
    TRANSACTIONAL_BIT,
)
from tests.embedded.clients.raw_client import RawClient
from tests.embedded.transcripts.asking import batch, fetch, produce, scenario
from tests.embedded.transcripts.talk import Talk

# -- records


@scenario
def produced(talk: Talk) -> None:
    topic = talk.topic("orders")
    for version in talk.versions("Produce"):
        produce(talk, topic, batch(b"a", b"b"), version)
    produce(talk, topic, batch(b"a"), acks=1)
    produce(talk, topic, batch(b"a"), acks=5)
    produce(talk, topic, batch(b"a"), index=1)
    produce(talk, talk.name("nowhere"), batch(b"a"))
    talk.ask(
        "Produce",
        13,
        acks=-1,
        timeout_ms=1000,
        topic_data=[{"topic_id": b"x" * 16, "partition_data": [{"index": 0, "records": batch(b"a")}]}],
    )
    produce(talk, topic, b"")
    produce(talk, topic, batch(b"a") + batch(b"b"))
    good = batch(b"a")
    produce(talk, topic, good[:30] + bytes([good[30] ^ 1]) + good[31:])
    produce(talk, topic, batch(b"a", attributes=CONTROL_BIT))
    produce(talk, topic, batch(b"a", attributes=Compression.ZSTD), 6)
    produce(talk, topic, batch(b"a", attributes=Compression.GZIP))
    produce(talk, topic, batch(b"x" * 1_100_000))
    produce(talk, topic, batch(b"a", at_ms=int(time.time() * 1000) + 7_200_000), 4)
    produce(talk, topic, batch(b"a", producer_id=9, producer_epoch=0, base_sequence=-1))
    for version in (4, 12):
        fetch(talk, topic, 0, version)


@scenario
def produced_as_topics_want(talk: Talk) -> None:
    stamped = talk.topic("stamped", message_timestamp_type="LogAppendTime")
    produce(talk, stamped, batch(b"a", b"b", at_ms=5))
    fetch(talk, stamped, 0)
    plain = talk.topic("plain", compression_type="uncompressed")
    produce(talk, plain, batch(b"a" * 100, attributes=Compression.GZIP))
    fetch(talk, plain, 0)
    small = talk.topic("small", max_message_bytes="200")
    produce(talk, small, batch(b"a" * 300))
    produce(talk, small, batch(b"a" * 100))
    past = talk.topic("past", message_timestamp_before_max_ms="1000")
    produce(talk, past, batch(b"a"))
    kept = talk.topic("kept", cleanup_policy="compact")
    produce(talk, kept, batch(b"a"))
    produce(talk, kept, batch(b"a", b"b", key=None), 8)
    produce(talk, kept, batch(b"a", key=None), 7)


@scenario
def repeated(talk: Talk) -> None:
    topic = talk.topic("orders")
    producer = talk.until("InitProducerId", 5, transactional_id=None, transaction_timeout_ms=1000)[
        "producer_id"
    ]

    def send(epoch: int, first: int, count: int = 1) -> None:
        told = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": first}
        produce(talk, topic, batch(*([b"v"] * count), **told))

    for epoch, first, count in (
        *((0, 0, 3), (0, 0, 3), (0, 3, 1), (0, 5, 1), (0, 0, 2), (0, 4, 1), (0, 5, 1), (0, 6, 1), (0, 7, 1)),
        *((0, 8, 1), (0, 3, 1), (0, 5, 1), (2, 0, 1), (1, 0, 1), (2, 2, 1), (3, 1, 1), (3, 0, 2)),
    ):
        send(epoch, first, count)
    told = {"producer_id": producer + 100_000, "producer_epoch": 4, "base_sequence": 77}
    produce(talk, topic, batch(b"a", **told))
    talk.ask("DescribeProducers", 0, topics=[{"name": topic, "partition_indexes": [0, 1]}])
    talk.ask("DescribeProducers", 0, topics=[{"name": talk.name("nowhere"), "partition_indexes": [0]}])
    fetch(talk, topic, 0)


@scenario
def fetched(talk: Talk) -> None:
    topic = talk.topic("orders", 2)
    for value in (b"a", b"b", b"c"):
        produce(talk, topic, batch(value, value))
    for version in talk.versions("Fetch"):
        fetch(talk, topic, 3, version)
    for offset in (0, 6, 7, -1):
        fetch(talk, topic, offset)
    fetch(talk, topic, 0, max_bytes=1, partition_max_bytes=1)
    for epoch in (0, 1):
        fetch(talk, topic, 0, current_leader_epoch=epoch)
    for epoch in (0, 1):
        fetch(talk, topic, 6, last_fetched_epoch=epoch)
    fetch(talk, talk.name("nowhere"), 0)
    part = {"partition": 5, "fetch_offset": 0, "partition_max_bytes": 1000}
    fetch(talk, topic, 0, topics=[{"topic": topic, "partitions": [part]}])
    talk.ask(
        "Fetch", 13, max_wait_ms=0, topics=[{"topic_id": b"x" * 16, "partitions": [{**part, "partition": 0}]}]
    )


@scenario
def fetch_sessions(talk: Talk) -> None:
    topic = talk.topic("orders", 2)
    both = [
        {
            "topic": topic,
            "partitions": [
                {"partition": each, "fetch_offset": 0, "partition_max_bytes": 1000} for each in (0, 1)
            ],
        }
    ]
    told: dict[str, Any] = {"max_wait_ms": 0, "max_bytes": 1 << 20}
    session = talk.ask("Fetch", 12, session_id=0, session_epoch=0, topics=both, **told)["session_id"]
    assert session > 0
    talk.ask("Fetch", 12, session_id=session, session_epoch=1, topics=[], **told)
    produce(talk, topic, batch(b"a"))
    talk.ask("Fetch", 12, session_id=session, session_epoch=2, topics=[], **told)
    on = [{"topic": topic, "partitions": [{"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1000}]}]
    talk.ask("Fetch", 12, session_id=session, session_epoch=3, topics=on, **told)
    talk.ask("Fetch", 12, session_id=session, session_epoch=3, topics=[], **told)
    talk.ask("Fetch", 12, session_id=session + 1, session_epoch=4, topics=[], **told)
    forgotten = [{"topic": topic, "partitions": [0]}]
    talk.ask(
        "Fetch", 12, session_id=session, session_epoch=4, topics=[], forgotten_topics_data=forgotten, **told
    )
    produce(talk, topic, batch(b"b"))
    talk.ask("Fetch", 12, session_id=session, session_epoch=5, topics=[], **told)
    talk.ask("Fetch", 12, session_id=session, session_epoch=-1, topics=both, **told)
    talk.ask("Fetch", 12, session_id=session, session_epoch=6, topics=[], **told)


@scenario
def waited_for(talk: Talk) -> None:
    topic = talk.topic("orders")
    want = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    waiting = {"max_wait_ms": 10_000, "min_bytes": 1, "max_bytes": 1 << 20}
    talk.client("reader").send("Fetch", 12, topics=[{"topic": topic, "partitions": [want]}], **waiting)
    produce(talk, topic, batch(b"a"))
    talk.tell("the reader", talk.client("reader").receive("Fetch", 12))
    talk.ask(
        "Fetch",
        12,
        topics=[{"topic": topic, "partitions": [{**want, "fetch_offset": 1}]}],
        max_wait_ms=50,
        min_bytes=1,
    )


# -- positions


@scenario
def offsets_listed(talk: Talk) -> None:
    topic = talk.topic("orders")

    def at(at_ms: int, version: int = 10, name: str = topic, **more: Any) -> None:
        told = {"partition_index": 0, "timestamp": at_ms, "current_leader_epoch": -1, **more}
        isolation = told.pop("isolation_level", 0)
        partition = [{"name": name, "partitions": [told]}]
        talk.ask(
            "ListOffsets",
            version,
            replica_id=-1,
            isolation_level=isolation,
            topics=partition,
            timeout_ms=1000,
        )

    for at_ms in (-1, -2, -3, -4, -5):
        at(at_ms)
    for at_ms in (1000, 3000, 2000):
        produce(talk, topic, batch(b"a", at_ms=at_ms))
    for at_ms in (-1, -2, -3, -4, -5, 0, 1000, 1001, 2500, 3000, 3001):
        at(at_ms)
    for version in talk.versions("ListOffsets"):
        at(-1, version)
        at(1000, version)
    at(-1, isolation_level=1)
    for version, at_ms in ((6, -3), (7, -4), (8, -5), (10, -6), (11, -6), (11, -7)):
        at(at_ms, version)
    at(-1, current_leader_epoch=5)
    at(-1, name=talk.name("nowhere"))
    at(-1, partition_index=9)


@scenario
def epochs_and_deletions(talk: Talk) -> None:
    topic = talk.topic("orders")

    def epoch(number: int, version: int = 4, **more: Any) -> None:
        told = {"partition": 0, "leader_epoch": number, "current_leader_epoch": -1, **more}
        asked = [{"topic": topic, "partitions": [told]}]
        talk.ask("OffsetForLeaderEpoch", version, replica_id=-1, topics=asked)

    def delete(offset: int, version: int = 2, index: int = 0, name: str = topic) -> None:
        told = [{"name": name, "partitions": [{"partition_index": index, "offset": offset}]}]
        talk.ask("DeleteRecords", version, topics=told, timeout_ms=10_000)

    epoch(0)
    for _ in range(3):
        produce(talk, topic, batch(b"a", b"b"))
    for version in talk.versions("OffsetForLeaderEpoch"):
        epoch(0, version)
    epoch(3)
    epoch(-1)
    epoch(0, current_leader_epoch=3)
    epoch(0, partition=7)
    for version in talk.versions("DeleteRecords"):
        delete(1 + version, version)
    delete(2)
    delete(9)
    delete(-2)
    delete(0, index=4)
    delete(0, name=talk.name("nowhere"))
    fetch(talk, topic, 2)
    fetch(talk, topic, 3)
    delete(-1)
    fetch(talk, topic, 6)


# -- refusals


@scenario
def refused_without_an_answer(talk: Talk) -> None:
    """A producer that wants no answer learns of a refusal by the end of its connection only."""
    topic = talk.topic("orders")
    cut = batch(b"a")[:-1] + b"x"
    for name, data in ((topic, batch(b"a")), (topic, cut), (talk.name("nowhere"), batch(b"a"))):
        told = [{"name": name, "partition_data": [{"index": 0, "records": data}]}]
        with RawClient(talk.endpoint) as client:
            client.send("Produce", 11, acks=0, timeout_ms=1_000, topic_data=told)
            try:
                answer: Any = client.ask("Metadata", 12, topics=[])["brokers"]
            except ConnectionError:
                answer = "closed"
        talk.tell("Metadata 12", answer)


@scenario
def records_that_do_not_fit_their_batch(talk: Talk) -> None:
    """Of a compacted topic, whose records are looked at."""
    topic = talk.topic("states", cleanup_policy="compact")
    good = batch(b"aaaa", b"bbbb")
    for at, data in ((HEADER_BYTES, b"\x64"), (HEADER_BYTES, b"\x02"), (23, b"\0\0\0\0"), (23, b"\0\0\0\2")):
        produce(talk, topic, _changed(good, at, data))
    other = _changed(good, 23, b"\0\0\0\2")
    produce(talk, topic, _changed(other, 57, b"\0\0\0\3"))
    produce(talk, topic, good)
    data = batch(b"a", attributes=TRANSACTIONAL_BIT, producer_id=5, producer_epoch=0, base_sequence=0)
    produce(talk, talk.topic("orders"), data)


def _changed(data: bytes, at: int, part: bytes) -> bytes:
    """Return a batch with other bytes at *at*, and the checksum of these."""
    changed = bytearray(data)
    changed[at : at + len(part)] = part
    changed[17:21] = int(google_crc32c.value(bytes(changed[CRC_FROM:]))).to_bytes(4, "big")
    return bytes(changed)
