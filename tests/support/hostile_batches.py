"""Batches that brokers take from any writer of a topic, and that librdkafka cannot read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import google_crc32c
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.structs import TopicPartition
from confluent_kafka import Producer

from holdfast.core.kafka.record_batch import CRC_FROM, HEADER_BYTES, Record, RecordBatch, encode_batch
from holdfast.core.kafka.wire import put_varlong
from holdfast.dev.fixtures import SessionBroker
from tests.support.patience import DEADLINE_S

BOMB_BYTES = 120_000_000
"""More than librdkafka unpacks of zstd, 100 MB; some KB on the wire."""
KEY = b"k"
"""Compacted topics take no record without one."""
ROOM = {"compression.type": "producer"}
"""A topic that was made before holdfast asked for compression.type=uncompressed."""


def send(
    broker: SessionBroker,
    topic: str,
    values: Sequence[bytes],
    *,
    partition: int = 0,
    codec: str = "none",
    key: bytes | None = None,
) -> None:
    """Write *values*, a batch each."""
    producer = Producer(
        broker.client_config(
            **{
                "compression.type": codec,
                "message.max.bytes": 1_000_000_000,
                "queue.buffering.max.kbytes": 2 << 20,
                "linger.ms": 0,
            }
        )
    )
    for value in values:
        producer.produce(topic, value, key, partition=partition)
        assert producer.flush(DEADLINE_S) == 0


def send_bomb(broker: SessionBroker, topic: str, *, partition: int = 0, codec: str = "zstd") -> None:
    """Write a record of a few KB that unpacks to 120 MB."""
    send(broker, topic, [bytes(BOMB_BYTES)], partition=partition, codec=codec, key=KEY)


def _varint(number: int) -> bytes:
    out = bytearray()
    put_varlong(out, number)
    return bytes(out)


def _framed(body: bytes) -> bytes:
    return _varint(len(body)) + body


def corrupt_batch(count: int = 1, *, wrong: int = 0) -> bytes:
    """Return a batch of *count* records of which number *wrong* has a value of -5 bytes; its checksum is
    right.
    """
    records = b"".join(
        _framed(
            b"\x00"
            + _varint(0)
            + _varint(number)
            + _framed(KEY)
            + (_varint(-5) if number == wrong else _framed(b"v"))
            + _varint(0)
        )
        for number in range(count)
    )
    return _sealed(_header(count) + records)


def misplaced_batch(value: bytes, offset_delta: int = 1_000) -> bytes:
    """Return a batch of one record that claims an offset *offset_delta* higher than its real one."""
    return _sealed(
        _header(1)
        + _framed(b"\x00" + _varint(0) + _varint(offset_delta) + _framed(KEY) + _framed(value) + _varint(0))
    )


def _header(count: int) -> bytes:
    records = tuple(Record(number) for number in range(count))
    return encode_batch(
        RecordBatch(base_timestamp_ms=0, max_timestamp_ms=0, last_offset_delta=count - 1, records=records)
    )[:HEADER_BYTES]


def _sealed(batch: bytes) -> bytes:
    out = bytearray(batch)
    out[8:12] = (len(out) - 12).to_bytes(4, "big")
    out[CRC_FROM - 4 : CRC_FROM] = int(google_crc32c.value(bytes(out[CRC_FROM:]))).to_bytes(4, "big")
    return bytes(out)


def send_raw(broker: SessionBroker, topic: str, batch: bytes, *, partition: int = 0) -> None:
    """Have the leader append *batch* as it is."""

    async def produce() -> None:
        client = AIOKafkaClient(bootstrap_servers=broker.bootstrap)
        await client.bootstrap()
        try:
            await client.set_topics([topic])
            await client.force_metadata_update()
            leader = client.cluster.leader_for_partition(TopicPartition(topic, partition))
            request = ProduceRequest(
                transactional_id=None,
                required_acks=-1,
                timeout=30_000,
                topics=[(topic, [(partition, batch)])],
            )
            answer = await client.send(leader, request)
            assert answer.topics[0][1][0][1] == 0, "the broker takes it"
        finally:
            await client.close()

    asyncio.run(produce())


def send_hostile(broker: SessionBroker, topic: str, *, partition: int = 0) -> None:
    """Write a bomb, a corrupt batch of two records, and a record that lies about its offset: four offsets."""
    send_bomb(broker, topic, partition=partition)
    send_raw(broker, topic, corrupt_batch(2), partition=partition)
    send_raw(broker, topic, misplaced_batch(b"forged"), partition=partition)
