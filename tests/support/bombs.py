"""Batches that no client library would make, sent as they are: small on the wire, and as large unpacked as
a reader may take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka.protocol.produce import ProduceRequest

from holdfast.config import Settings
from holdfast.core.kafka.compression import Compression
from holdfast.core.kafka.record_batch import Record, RecordBatch, encode_batch
from holdfast.kafka.requests.raw_log import RawLog

MIB = 1 << 20
CODECS = (Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD)
HEADERS_BYTES = MIB
_ENVELOPE_BYTES = 64
"""Upper bound of a record's bytes besides its value; values are this much shorter than the limit."""


def one_value(codec: Compression, size_bytes: int) -> bytes:
    """Return a batch of one record that unpacks to *size_bytes* at most, and to nearly as many.

    No fold can decode it.
    """
    return _batch(codec, [Record(0, None, b"\xff" * (size_bytes - _ENVELOPE_BYTES))])


def many_headers(codec: Compression, size_bytes: int) -> bytes:
    """Return a batch of records that are nothing but the smallest headers there can be, as many as fit a
    reader's piece.
    """
    headers = (("", b""),) * (HEADERS_BYTES // 2 - _ENVELOPE_BYTES)
    return _batch(codec, [Record(at, None, b"\xff", headers) for at in range(size_bytes // HEADERS_BYTES)])


def many_records(codec: Compression, count: int, value: bytes) -> bytes:
    """Return a batch of *count* small records."""
    return _batch(codec, [Record(at, None, value) for at in range(count)])


def _batch(codec: Compression, records: list[Record]) -> bytes:
    return encode_batch(
        RecordBatch(
            base_offset=0,
            attributes=int(codec),
            last_offset_delta=len(records) - 1,
            records=tuple(records),
            base_sequence=-1,
        )
    )


def send_batches(config: Mapping[str, Any], batches: Iterable[tuple[str, int, bytes]]) -> list[int]:
    """Append each (topic, partition, batch) in turn; return the broker's error codes, 0 for success."""

    async def send() -> list[int]:
        codes = []
        async with RawLog(Settings(kafka=dict(config))) as raw:
            for topic, partition, batch in batches:
                request = ProduceRequest(
                    transactional_id=None,
                    required_acks=-1,
                    timeout=30_000,
                    topics=[(topic, [(partition, batch)])],
                )
                response = await raw._client.send(await raw._leader(topic, partition), request)
                codes.append(int(response.topics[0][1][0][1]))
        return codes

    return asyncio.run(send())
