"""The control batches by which brokers end transactions."""

from __future__ import annotations

from struct import pack

from holdfast.core.kafka.record_batch import (
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    ControlType,
    Record,
    RecordBatch,
)


def marker_batch(
    kind: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    base_offset: int,
    timestamp_ms: int,
) -> RecordBatch:
    """Return the control batch that ends a transaction."""
    marker = Record(key=pack(">hh", 0, kind), value=pack(">hi", 0, coordinator_epoch))
    return RecordBatch(
        base_offset=base_offset,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        records=(marker,),
    )
