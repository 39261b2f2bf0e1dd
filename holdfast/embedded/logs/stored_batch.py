"""A batch as the leader stores it: a client's bytes, with the leader's offset, epoch and perhaps time put
in.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple, Protocol

import google_crc32c

from holdfast.core.kafka.record_batch import CRC_FROM, LOG_APPEND_TIME_BIT, BatchHeader

_OFFSET, _EPOCH_MAGIC, _CRC = Struct(">q"), Struct(">ib"), Struct(">I")
_FROM_ATTRIBUTES = Struct(">hiqq")
_LENGTH_AT, _EPOCH_AT, _CRC_AT, _MAGIC = 8, 12, 17, 2


class LogBatch(Protocol):
    """A batch in a log, wherever its bytes are."""

    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def max_timestamp_ms(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def data(self) -> bytes:
        """All of its bytes."""


class StoredBatch(NamedTuple):
    """A batch in memory, *data* all of its bytes."""

    first_offset: int
    last_offset: int
    max_timestamp_ms: int
    leader_epoch: int
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)


def stored_batch(
    data: bytes | memoryview, header: BatchHeader, *, offset: int, leader_epoch: int, append_ms: int | None
) -> StoredBatch:
    """Return the batch *data* as it lies at *offset*; *append_ms* is the leader's time, None where the
    client's counts.

    The records are not touched. Only a batch whose kind of time changes gets another checksum.
    """
    attributes, max_ms = header.attributes & ~LOG_APPEND_TIME_BIT, header.max_timestamp_ms
    if append_ms is not None:
        attributes, max_ms = attributes | LOG_APPEND_TIME_BIT, append_ms
    start = _OFFSET.pack(offset) + bytes(data[_LENGTH_AT:_EPOCH_AT]) + _EPOCH_MAGIC.pack(leader_epoch, _MAGIC)
    if attributes == header.attributes and max_ms == header.max_timestamp_ms:
        rest = data[_CRC_AT:]
    else:
        told = _FROM_ATTRIBUTES.pack(attributes, header.last_offset_delta, header.base_timestamp_ms, max_ms)
        body = told + bytes(data[CRC_FROM + len(told) :])
        rest = _CRC.pack(int(google_crc32c.value(body))) + body
    last = offset + header.last_offset_delta
    return StoredBatch(offset, last, max_ms, leader_epoch, b"".join((start, rest)))
