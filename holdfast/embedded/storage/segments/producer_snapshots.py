"""``.snapshot`` files: what a partition knew of its producers where a segment begins, in Kafka's bytes."""

from __future__ import annotations

from struct import Struct, error

import google_crc32c

from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.producer_state import (
    LOG_KEY,
    CachedBatch,
    LeaderRow,
    LogEntry,
    OpenTransaction,
    ProducerEntry,
    producer_key,
)
from holdfast.core.kafka.sequences import NO_SEQUENCE, advance

VERSION = 1
_HEAD, _COUNT = Struct(">hI"), Struct(">i")
_ENTRY = Struct(">qhiqiqiq")
_NONE = -1


def snapshot_bytes(rows: Rows[LeaderRow]) -> bytes:
    """Return the snapshot of *rows*: each producer with its last batch, and with its open transaction."""
    found = [
        (int(key.removeprefix("p/")), row) for key, row in rows.scan("p/") if isinstance(row, ProducerEntry)
    ]
    body = _COUNT.pack(len(found)) + b"".join(_entry(producer_id, row) for producer_id, row in found)
    return _HEAD.pack(VERSION, int(google_crc32c.value(body))) + body


def _entry(producer_id: int, row: ProducerEntry) -> bytes:
    last = row.batches[-1] if row.batches else None
    return _ENTRY.pack(
        producer_id,
        row.epoch,
        row.last_sequence,
        _NONE if last is None else last.last_offset,
        0 if last is None else last.last_offset - last.first_offset,
        row.last_timestamp_ms,
        row.coordinator_epoch,
        _NONE if row.txn_first_offset is None else row.txn_first_offset,
    )


def load_snapshot(data: bytes, rows: Rows[LeaderRow], offset: int) -> bool:
    """Put what a snapshot at *offset* knows into *rows*; False, and nothing done, for one that is damaged."""
    try:
        version, crc = _HEAD.unpack_from(data)
        body = data[_HEAD.size :]
        (count,) = _COUNT.unpack_from(body)
        entries = list(_ENTRY.iter_unpack(body[_COUNT.size :]))
    except error:
        return False
    if version != VERSION or len(entries) != count or crc != int(google_crc32c.value(body)):
        return False
    ongoing = []
    for producer_id, epoch, sequence, last_offset, delta, at_ms, coordinator_epoch, first_open in entries:
        first = advance(sequence, -delta) if sequence != NO_SEQUENCE else NO_SEQUENCE
        batch = CachedBatch(first, sequence, last_offset - delta, last_offset, at_ms)
        is_open = first_open != _NONE
        rows[producer_key(producer_id)] = ProducerEntry(
            epoch,
            coordinator_epoch,
            at_ms,
            first_open if is_open else None,
            (batch,) if last_offset != _NONE else (),
        )
        if is_open:
            ongoing.append(OpenTransaction(first_open, producer_id))
    ongoing.sort(key=lambda each: each.first_offset)
    rows[LOG_KEY] = LogEntry(end_offset=offset, high_watermark=offset, ongoing=tuple(ongoing))
    return True
