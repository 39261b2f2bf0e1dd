"""Batches that no producer may write, on a real broker's disk: damaged, lying, or with a broken header;
and sound ones of any size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import google_crc32c
from confluent_kafka import Producer

from holdfast.core.kafka.record_batch import CRC_FROM, decode_header
from holdfast.dev.fixtures import SessionBroker
from tests.support.lost_markers import log_file
from tests.support.patience import DEADLINE_S

MIB = 1 << 20
CODECS = ["gzip", "snappy", "lz4", "zstd"]
BOMB_BYTES = 200_000_000
CRC_AT = 17


def send(
    broker: SessionBroker,
    topic: str,
    codec: str,
    values: Sequence[bytes],
    *,
    partition: int = 0,
    linger_ms: int = 0,
) -> None:
    """Write *values*, packed so; each flush of a topic that is known is one batch where *linger_ms* is
    long.
    """
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
    producer.list_topics(topic, DEADLINE_S)
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(DEADLINE_S) == 0


def bombs_topic(broker: SessionBroker) -> str:
    return broker.create_topic("bombs", config={"max.message.bytes": str(64 * MIB)})


def damage(
    broker: SessionBroker,
    topic: str,
    offset: int,
    change: Callable[[bytearray], None],
    *,
    checksum: bool = False,
) -> None:
    """Change the batch that begins at *offset* where it lies, its length kept; with *checksum* it is right
    again afterwards.
    """
    path = log_file(broker, topic, 0)
    data, at = path.read_bytes(), 0
    while (header := decode_header(data, at)).base_offset != offset:
        at += header.size_bytes
    batch = bytearray(data[at : at + header.size_bytes])
    change(batch)
    assert len(batch) == header.size_bytes
    if checksum:
        batch[CRC_AT:CRC_FROM] = int(google_crc32c.value(bytes(batch[CRC_FROM:]))).to_bytes(4, "big")
    with path.open("r+b") as file:
        file.seek(at)
        file.write(batch)


def spoil(batch: bytearray) -> None:
    """Damage the last byte of a batch."""
    batch[-1] ^= 1


def lie(batch: bytearray) -> None:
    """Have the first record claim to be longer than the batch."""
    batch[61] = 0x7E


def break_header(batch: bytearray) -> None:
    """Have the header claim a codec that does not exist."""
    batch[CRC_FROM + 1] |= 7


def one_batch(broker: SessionBroker, topic: str, **more: str) -> Producer:
    """Return a producer that sends all records for *topic* up to a flush in one batch, however many they are
    and however slow the machine is.
    """
    config: dict[str, Any] = {
        "compression.type": "zstd",
        "linger.ms": 30_000,
        "batch.num.messages": 1_000_000,
        "queue.buffering.max.messages": 1_000_000,
        "batch.size": 64 << 20,
        "message.max.bytes": 64 << 20,
    }
    producer = Producer(broker.client_config(**config, **more))
    # Or the flush begins with those that have found their leader.
    producer.list_topics(topic, timeout=DEADLINE_S)
    return producer
