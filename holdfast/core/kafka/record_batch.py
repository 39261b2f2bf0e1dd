"""Record batches, format 2, byte for byte as they lie in a log segment, a produce request and a fetch
response (KIP-98).

Reading is strict: what Kafka would not have written is a WireError with its byte, and never costs more memory
than the bytes there are (compressed records: than a stated limit). Writing an uncompressed batch that was
read gives the same bytes again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import TypeAlias

import google_crc32c
import msgspec

from holdfast.core.kafka.compression import LIMIT_UNPACKED_BYTES, Compression, compress, decompress
from holdfast.core.kafka.sequences import NO_SEQUENCE, advance
from holdfast.core.kafka.wire import (
    LIMIT_INT16,
    LIMIT_INT32,
    LIMIT_INT64,
    WireReader,
    WireReason,
    check_range,
    put_varbytes,
    put_varlong,
)
from holdfast.errors import WireError

MAGIC = 2
HEADER_BYTES = 61
OVERHEAD_BYTES = 12
"""The size of offset and length, which precede the bytes that the length counts."""
CRC_FROM = 21
"""The checksum covers a batch from its attributes to its end; offset and leader epoch may be changed by a
broker.
"""
LEAST_RECORD_BYTES = 7
NO_PRODUCER = -1

COMPRESSION_BITS, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT, CONTROL_BIT = 0x07, 0x08, 0x10, 0x20
_LAST_COMPRESSION = max(Compression)

_HEADER = Struct(">qiibIhiqqqhii")
_NAMES = (
    *(
        "base_offset",
        "batch_length",
        "partition_leader_epoch",
        "magic",
        "crc32c",
        "attributes",
        "last_offset_delta",
    ),
    *(
        "base_timestamp_ms",
        "max_timestamp_ms",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "records_count",
    ),
)
"""The fields of a header, in order."""
_AFTER_CRC = Struct(">hiqqqhii")
_START = Struct(">qiibI")
_CONTROL = Struct(">hh")
_MARKER = Struct(">hi")

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record, its time and offset relative to its batch. *key* and *value* None are Kafka's null."""

    offset_delta: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp_delta: int = 0
    attributes: int = 0


class BatchFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that every batch has. -1 means no producer, no epoch, no sequence."""

    base_offset: int = 0
    partition_leader_epoch: int = -1
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp_ms: int = -1
    max_timestamp_ms: int = -1
    producer_id: int = NO_PRODUCER
    producer_epoch: int = -1
    base_sequence: int = NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Return the sequence of the last record, even if compaction has removed that record; -1 without
        sequences.
        """
        return (
            NO_SEQUENCE
            if self.base_sequence == NO_SEQUENCE
            else advance(self.base_sequence, self.last_offset_delta)
        )

    @property
    def is_log_append_time(self) -> bool:
        """Return whether the broker's clock counts: then every record has *max_timestamp_ms*."""
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Return whether the batch holds a control record, which no consumer is ever given."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def compression(self) -> Compression:
        return Compression(self.attributes & COMPRESSION_BITS)


class BatchHeader(BatchFields, frozen=True, kw_only=True):
    """The 61 bytes before the records, as they are written."""

    batch_length: int
    crc32c: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        """Return the size of the whole batch."""
        return OVERHEAD_BYTES + self.batch_length


class RecordBatch(BatchFields, frozen=True, kw_only=True):
    """A batch with its records.

    Compaction leaves fewer of them than `last_offset_delta` + 1, perhaps none.
    """

    records: tuple[Record, ...] = ()

    def timestamp_ms(self, record: Record) -> int:
        """Return the time of one of its records."""
        return (
            self.max_timestamp_ms
            if self.is_log_append_time
            else self.base_timestamp_ms + record.timestamp_delta
        )


# -- control records


class ControlType(IntEnum):
    """The meaning of a control record, by Kafka's numbers; UNKNOWN for types of later releases."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class ControlRecord(msgspec.Struct, frozen=True):
    """A control record.

    *coordinator_epoch* is that of the transaction coordinator, None if the record does not end a transaction.
    """

    type: ControlType
    coordinator_epoch: int | None = None


def control_of(batch: RecordBatch, record: Record) -> ControlRecord:
    """Return the decoded record of a control batch; WireError when it cannot be decoded.

    >>> commit = Record(key=bytes([0, 0, 0, 1]), value=bytes([0, 0, 0, 0, 0, 9]))
    >>> control_of(RecordBatch(attributes=CONTROL_BIT, records=(commit,)), commit)
    ControlRecord(type=<ControlType.COMMIT: 1>, coordinator_epoch=9)
    """
    where = f"control record at offset {batch.base_offset + record.offset_delta}"
    if not batch.is_control:
        raise WireError(f"{where}: the batch is no control batch", offset=0, reason=WireReason.RANGE)
    if len(record.key or b"") < _CONTROL.size:
        raise WireError(
            f"{where}: key of {len(record.key or b'')} bytes", offset=0, reason=WireReason.TRUNCATED
        )
    number = _CONTROL.unpack_from(record.key or b"")[1]
    kind = ControlType(number) if number in set(ControlType) else ControlType.UNKNOWN
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return ControlRecord(kind)
    if len(record.value or b"") < _MARKER.size:
        raise WireError(
            f"{where}: value of {len(record.value or b'')} bytes", offset=0, reason=WireReason.TRUNCATED
        )
    return ControlRecord(kind, _MARKER.unpack_from(record.value or b"")[1])


# -- reading


def decode_header(data: bytes | memoryview, at: int = 0) -> BatchHeader:
    """Return the header of the batch at *at*; WireError when it is cut short, of an older format, or
    contradicts itself.
    """
    left = len(data) - at
    if left < HEADER_BYTES:
        if left > 16 and data[at + 16] != MAGIC:
            raise _old_format(data[at + 16], at)
        raise WireError(
            f"the header of a batch takes {HEADER_BYTES} bytes, {left} are left",
            offset=at,
            reason=WireReason.TRUNCATED,
        )
    offset, length, leader, magic, crc, attributes, last, base_ms, max_ms, pid, epoch, sequence, count = (
        _HEADER.unpack_from(data, at)
    )
    if magic != MAGIC:
        raise _old_format(magic, at)
    if length < HEADER_BYTES - OVERHEAD_BYTES:
        raise WireError(
            f"a batch of length {length}, its header alone takes more",
            offset=at + 8,
            reason=WireReason.LENGTH,
        )
    if last < 0 or not 0 <= count <= last + 1:
        raise WireError(
            f"{count} records with offsets up to +{last}", offset=at + 57, reason=WireReason.LENGTH
        )
    if attributes & COMPRESSION_BITS > _LAST_COMPRESSION:
        raise WireError(
            f"compression {attributes & COMPRESSION_BITS} is unknown",
            offset=at + CRC_FROM,
            reason=WireReason.COMPRESSION,
        )
    return BatchHeader(
        base_offset=offset,
        partition_leader_epoch=leader,
        attributes=attributes,
        last_offset_delta=last,
        base_timestamp_ms=base_ms,
        max_timestamp_ms=max_ms,
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=sequence,
        batch_length=length,
        crc32c=crc,
        records_count=count,
    )


def claimed_header(data: bytes | memoryview, at: int = 0) -> BatchHeader | None:
    """Return the header of the batch at *at* as it is, even if it contradicts itself; None when it is cut
    short or of an older format.
    """
    if len(data) - at < HEADER_BYTES or data[at + 16] != MAGIC:
        return None
    told: dict[str, int] = dict(zip(_NAMES, _HEADER.unpack_from(data, at), strict=True))
    del told["magic"]
    return BatchHeader(**told)


def claims_transaction(data: bytes | memoryview) -> bool:
    """Return whether the first batch's header claims a transaction; `claimed_header` for all other fields."""
    return len(data) >= HEADER_BYTES and data[16] == MAGIC and bool(data[CRC_FROM + 1] & TRANSACTIONAL_BIT)


def _old_format(magic: int, at: int) -> WireError:
    return WireError(
        f"format {magic} of a message set; this reads record batches, format {MAGIC}",
        offset=at + 16,
        reason=WireReason.MAGIC,
    )


def decode_batch(
    data: bytes | memoryview, at: int = 0, *, limit_bytes: int = LIMIT_UNPACKED_BYTES
) -> RecordBatch:
    """Return the batch at *at*; WireError when it is cut short, fails its checksum, or its records are not
    what they should be.
    """
    return read_batch(data, at, limit_bytes=limit_bytes)[1]


def read_batch(
    data: bytes | memoryview, at: int = 0, *, limit_bytes: int = LIMIT_UNPACKED_BYTES
) -> tuple[BatchHeader, RecordBatch]:
    """Return header and batch at *at*; the next batch begins `header.size_bytes` later."""
    header = decode_header(data, at)
    records = tuple(_records_of(data, at, header, limit_bytes))
    batch = RecordBatch(
        base_offset=header.base_offset,
        partition_leader_epoch=header.partition_leader_epoch,
        attributes=header.attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp_ms=header.base_timestamp_ms,
        max_timestamp_ms=header.max_timestamp_ms,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        records=records,
    )
    return header, batch


def check_batch(
    data: bytes | memoryview, at: int = 0, *, limit_bytes: int = LIMIT_UNPACKED_BYTES
) -> BatchHeader:
    """Return the header of the batch at *at*; WireError where `read_batch` raises it. No record is kept."""
    header = decode_header(data, at)
    for _ in _records_of(data, at, header, limit_bytes):
        pass
    return header


def _records_of(data: bytes | memoryview, at: int, header: BatchHeader, limit_bytes: int) -> Iterator[Record]:
    end = at + header.size_bytes
    if end > len(data):
        raise WireError(
            f"a batch of {header.size_bytes} bytes, {len(data) - at} are left",
            offset=at + 8,
            reason=WireReason.TRUNCATED,
        )
    body = bytes(data[at + CRC_FROM : end])
    if (found := int(google_crc32c.value(body))) != header.crc32c:
        raise WireError(
            f"checksum {found:08x}, the batch says {header.crc32c:08x}",
            offset=at + 17,
            reason=WireReason.CHECKSUM,
        )
    packed = body[HEADER_BYTES - CRC_FROM :]
    kind, base = header.compression, at + HEADER_BYTES
    unpacked = decompress(kind, packed, limit_bytes=limit_bytes, base=base)
    try:
        yield from _records(WireReader(unpacked, base=0 if kind else base), header)
    except WireError as error:
        if not kind:
            raise
        raise WireError(
            f"unpacked, {error}", offset=base, reason=error.reason
        ) from None  # no byte of *data* to point at


def _records(reader: WireReader, header: BatchHeader) -> Iterator[Record]:
    if header.records_count * LEAST_RECORD_BYTES > reader.left:
        raise reader.error(
            f"{header.records_count} records do not fit {reader.left} bytes", WireReason.LENGTH
        )
    before = -1
    for number in range(header.records_count):
        at = reader.at
        record = _record(reader, number)
        if not before < record.offset_delta <= header.last_offset_delta:
            text = (
                f"record {number} has offset +{record.offset_delta} after +{before}, the last is"
                f" +{header.last_offset_delta}"
            )
            raise reader.error(text, WireReason.ORDER, at)
        before = record.offset_delta
        yield record
    reader.finish("the last record")


def _record(reader: WireReader, number: int) -> Record:
    at = reader.at
    length = reader.varint(f"length of record {number}")
    start, outer = reader.at, reader.end
    if not 0 <= length <= reader.left:
        raise reader.error(
            f"record {number} of {length} bytes, {reader.left} are left", WireReason.LENGTH, at
        )
    reader.end = start + length
    attributes = reader.int8("record attributes")
    timestamp_delta, offset_delta = reader.varlong("timestamp delta"), reader.varint("offset delta")
    key, value = reader.varbytes("key"), reader.varbytes("value")
    at = reader.at
    count = reader.varint("count of headers")
    if not 0 <= count * 2 <= reader.left:
        raise reader.error(f"{count} headers do not fit {reader.left} bytes", WireReason.LENGTH, at)
    headers = tuple(
        (reader.vartext("name of a header"), reader.varbytes("value of a header")) for _ in range(count)
    )
    if reader.left:
        raise reader.error(f"record {number} has {reader.left} bytes too many", WireReason.TRAILING)
    reader.end = outer
    return Record(offset_delta, key, value, headers, timestamp_delta, attributes)


def batches(
    data: bytes | memoryview, at: int = 0, *, limit_bytes: int = LIMIT_UNPACKED_BYTES
) -> Iterator[tuple[int, BatchHeader, RecordBatch]]:
    """Yield (byte, header, batch) of each whole batch in *data*, as a fetch response or a segment holds them.

    The last one may be cut short, as brokers cut responses: it is left out. Anything else that is wrong is a
    WireError.
    """
    while len(data) - at >= HEADER_BYTES:
        header = decode_header(data, at)
        if header.size_bytes > len(data) - at:
            return
        yield at, *read_batch(data, at, limit_bytes=limit_bytes)
        at += header.size_bytes


# -- writing


def encode_batch(batch: RecordBatch) -> bytes:
    """Return the bytes of *batch*, its length, count and checksum computed; WireError for what no reader
    would read back.
    """
    packed = compress(batch.compression, encode_records(batch.records, batch.last_offset_delta))
    check_range("base_offset", batch.base_offset, -LIMIT_INT64, LIMIT_INT64)
    check_range("attributes", batch.attributes, 0, LIMIT_INT16)
    check_range("last_offset_delta", batch.last_offset_delta, 0, LIMIT_INT32)
    check_range("producer_id", batch.producer_id, -1, LIMIT_INT64)
    check_range("producer_epoch", batch.producer_epoch, -1, LIMIT_INT16)
    check_range("base_sequence", batch.base_sequence, -1, LIMIT_INT32)
    body = _AFTER_CRC.pack(
        batch.attributes,
        batch.last_offset_delta,
        batch.base_timestamp_ms,
        batch.max_timestamp_ms,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        len(batch.records),
    )
    body += packed
    length = check_range("batch length", CRC_FROM - OVERHEAD_BYTES + len(body), 0, LIMIT_INT32)
    start = _START.pack(
        batch.base_offset, length, batch.partition_leader_epoch, MAGIC, int(google_crc32c.value(body))
    )
    return start + body


def encode_records(records: Sequence[Record], last_offset_delta: int) -> bytes:
    """Return the records of a batch before compression."""
    out, one, before = bytearray(), bytearray(), -1
    for record in records:
        check_range("offset_delta", record.offset_delta, before + 1, last_offset_delta + 1)
        check_range("timestamp_delta", record.timestamp_delta, -LIMIT_INT64, LIMIT_INT64)
        before = record.offset_delta
        one.clear()
        one.append(check_range("record attributes", record.attributes, -128, 128) & 0xFF)
        put_varlong(one, record.timestamp_delta)
        put_varlong(one, record.offset_delta)
        put_varbytes(one, record.key)
        put_varbytes(one, record.value)
        put_varlong(one, len(record.headers))
        for name, value in record.headers:
            put_varbytes(one, name.encode())
            put_varbytes(one, value)
        put_varlong(out, len(one))
        out += one
    return bytes(out)
