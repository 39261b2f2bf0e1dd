"""A leader's checks of a batch before its position in the log: Kafka's LogValidator, except for the checks of
producers.
"""

from __future__ import annotations

from typing import NamedTuple

import google_crc32c
import msgspec

from holdfast.core.kafka.compression import Compression
from holdfast.core.kafka.record_batch import (
    COMPRESSION_BITS,
    CRC_FROM,
    HEADER_BYTES,
    NO_PRODUCER,
    BatchHeader,
    claimed_header,
    decode_batch,
    decode_header,
    encode_batch,
)
from holdfast.embedded.configs.topic import TopicConfigs
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.errors import WireError

FIRST_WITH_ZSTD = 7
"""Of Produce: older clients may not use that compression."""
_SHOWN_ERRORS = 3


class BatchRefusal(NamedTuple):
    """Why a batch is not taken. *text* None where Kafka says no more than the code; *records* are the numbers
    of the records to blame, each with its own text.
    """

    code: KafkaCode
    text: str | None = None
    records: tuple[tuple[int, str], ...] = ()
    in_log: bool = False
    """True if Kafka refuses it when it is already about to append, and so reports where the log starts."""


MANY_RECORDS, MANY_BYTES = 500, 1 << 14
"""With more records than that, or more bytes that are packed, a look at each record takes long."""
LIMIT_RECORDS = 1_000_000
"""Of a batch that is looked through."""


def takes_long(data: memoryview | None, configs: TopicConfigs, now_ms: int) -> bool:
    """Return whether `checked` and `recoded` look at each record of a batch that may have many."""
    if data is None or len(data) < HEADER_BYTES:
        return False
    few = int.from_bytes(data[HEADER_BYTES - 4 : HEADER_BYTES], "big") < MANY_RECORDS
    if few and len(data) < MANY_BYTES:  # most are: their header is not read for this
        return False
    header = claimed_header(data)
    if header is None or (few and not header.attributes & COMPRESSION_BITS):
        return False
    recodes = configs.codec is not None and configs.codec != header.attributes & COMPRESSION_BITS
    return configs.is_compacted or recodes or _is_out_of_time(header, configs, now_ms)


def checked(
    data: memoryview | None, version: int, configs: TopicConfigs, where: str, now_ms: int
) -> BatchHeader | BatchRefusal:
    """Return the header of the one batch in *data*, or why a Produce request of *version* may not bring
    it.
    """
    if not data:
        return BatchRefusal(KafkaCode.INVALID_RECORD)
    try:
        header = decode_header(data)
    except WireError:
        whole = (claimed := claimed_header(data)) is not None and _is_as_sent(data, claimed)
        return BatchRefusal(KafkaCode.INVALID_RECORD if whole else KafkaCode.CORRUPT_MESSAGE, in_log=whole)
    if header.size_bytes > len(data):
        return BatchRefusal(KafkaCode.CORRUPT_MESSAGE)
    if header.size_bytes < len(data):
        return BatchRefusal(KafkaCode.INVALID_RECORD)
    return _wrong(data, header, version, configs, where, now_ms) or header


def recoded(
    data: memoryview, header: BatchHeader, configs: TopicConfigs
) -> tuple[bytes | memoryview, BatchHeader] | BatchRefusal:
    """Return the batch packed as the topic wants it (``compression.type``), and its header; most want it as
    it came.
    """
    wanted = configs.codec
    if wanted is None or wanted is header.compression:
        return data, header
    if header.records_count > LIMIT_RECORDS:
        return BatchRefusal(KafkaCode.MESSAGE_TOO_LARGE)
    try:
        batch = decode_batch(data)
    except WireError:
        return BatchRefusal(KafkaCode.MESSAGE_TOO_LARGE)  # or what it holds is: more than is ever unpacked
    attributes = batch.attributes & ~COMPRESSION_BITS | wanted
    packed = encode_batch(msgspec.structs.replace(batch, attributes=attributes))
    if len(packed) > configs.max_message_bytes:
        return BatchRefusal(KafkaCode.MESSAGE_TOO_LARGE)
    return packed, decode_header(packed)


def _wrong(
    data: memoryview, header: BatchHeader, version: int, configs: TopicConfigs, where: str, now_ms: int
) -> BatchRefusal | None:
    if header.compression is Compression.ZSTD and version < FIRST_WITH_ZSTD:
        return BatchRefusal(KafkaCode.UNSUPPORTED_COMPRESSION_TYPE)
    if header.size_bytes > configs.max_message_bytes:
        return BatchRefusal(KafkaCode.MESSAGE_TOO_LARGE)
    if not _is_as_sent(data, header):
        return BatchRefusal(KafkaCode.CORRUPT_MESSAGE)
    unfit = (
        header.is_control
        or header.records_count != header.last_offset_delta + 1
        or (header.producer_id != NO_PRODUCER and header.base_sequence < 0)
    )
    if unfit:
        return BatchRefusal(KafkaCode.INVALID_RECORD, in_log=True)
    looks = configs.is_compacted or _is_out_of_time(header, configs, now_ms)
    if looks and header.records_count > LIMIT_RECORDS:
        return BatchRefusal(KafkaCode.MESSAGE_TOO_LARGE)
    if configs.is_compacted and (refusal := _uncompactable(data, where)) is not None:
        return refusal
    return _of_time(data, configs, now_ms) if _is_out_of_time(header, configs, now_ms) else None


def _is_out_of_time(header: BatchHeader, configs: TopicConfigs, now_ms: int) -> bool:
    """Return whether a record of the batch may be of a time that its topic does not take."""
    late = header.max_timestamp_ms - now_ms > configs.after_max_ms
    early = configs.before_max_ms < now_ms and now_ms - header.base_timestamp_ms > configs.before_max_ms
    return (late or early) and not configs.is_append_time


def _is_as_sent(data: memoryview, header: BatchHeader) -> bool:
    return (
        header.size_bytes == len(data) and int(google_crc32c.value(bytes(data[CRC_FROM:]))) == header.crc32c
    )


def _uncompactable(data: memoryview, where: str) -> BatchRefusal | None:
    try:
        keyless = [number for number, each in enumerate(decode_batch(data).records) if each.key is None]
    except WireError:
        return BatchRefusal(KafkaCode.INVALID_RECORD, in_log=True)
    text = f"Compacted topic cannot accept message without key in topic partition {where}"
    return _blamed(KafkaCode.INVALID_RECORD, [(number, text) for number in keyless]) if keyless else None


def _of_time(data: memoryview, configs: TopicConfigs, now_ms: int) -> BatchRefusal | None:
    batch = decode_batch(data)
    low, high = now_ms - configs.before_max_ms, now_ms + configs.after_max_ms
    wrong = []
    for number, each in enumerate(batch.records):
        at_ms = batch.timestamp_ms(each)
        if not low <= at_ms <= high:
            text = (
                f"Timestamp {at_ms} of message with offset {number} is out of range. The timestamp should be"
                f" within [{low}, {high}]"
            )
            wrong.append((number, text))
    return _blamed(KafkaCode.INVALID_TIMESTAMP, wrong) if wrong else None


def _blamed(code: KafkaCode, records: list[tuple[int, str]]) -> BatchRefusal:
    shown = ", ".join(
        f"RecordError(batchIndex={number}, message='{text}')" for number, text in records[:_SHOWN_ERRORS]
    )
    text = (
        f"One or more records have been rejected due to {len(records)} record errors in total, and only"
        f" showing the first three errors at most: [{shown}]"
    )
    return BatchRefusal(code, text, tuple(records), in_log=True)
