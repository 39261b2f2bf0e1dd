"""The batch that ends a transaction in a partition, as Kafka writes it."""

from __future__ import annotations

from struct import Struct

from holdfast.core.kafka.producer_state import EndMarker
from holdfast.core.kafka.record_batch import (
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    ControlType,
    Record,
    RecordBatch,
    encode_batch,
)

_KEY, _VALUE = Struct(">hh"), Struct(">hi")
_VERSION = 0


def marker_batch(marker: EndMarker) -> bytes:
    """Return the bytes of *marker*, before the leader has put in offset and epoch."""
    kind = ControlType.COMMIT if marker.commit else ControlType.ABORT
    record = Record(key=_KEY.pack(_VERSION, kind), value=_VALUE.pack(_VERSION, marker.coordinator_epoch))
    return encode_batch(
        RecordBatch(
            attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
            base_timestamp_ms=marker.timestamp_ms,
            max_timestamp_ms=marker.timestamp_ms,
            producer_id=marker.producer_id,
            producer_epoch=marker.epoch,
            records=(record,),
        )
    )
