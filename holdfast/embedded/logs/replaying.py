"""What a leader knows of its producers, worked out again from the batches of its log."""

from __future__ import annotations

from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.producer_state import Append, EndMarker, LeaderRow, Origin
from holdfast.core.kafka.record_batch import NO_PRODUCER, ControlType, control_of, decode_batch
from holdfast.embedded.logs.log_files import LoadedBatch
from holdfast.models.partition_leader import lead


def replay(rows: Rows[LeaderRow], found: LoadedBatch) -> None:
    """Apply a batch that was accepted before to *rows*; of what has no producer nothing is kept."""
    header = found.header
    if header.producer_id == NO_PRODUCER:
        return
    if header.is_control:
        _replay_marker(rows, found)
        return
    lead(
        rows,
        Append(
            producer_id=header.producer_id,
            epoch=header.producer_epoch,
            first_sequence=header.base_sequence,
            last_sequence=header.last_sequence,
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            timestamp_ms=header.max_timestamp_ms,
            transactional=header.is_transactional,
            origin=Origin.REPLICATION,
        ),
    )


def _replay_marker(rows: Rows[LeaderRow], found: LoadedBatch) -> None:
    header, batch = found.header, decode_batch(found.batch.data)
    for record in batch.records:
        control = control_of(batch, record)
        if control.type in (ControlType.ABORT, ControlType.COMMIT):
            marker = EndMarker(
                producer_id=header.producer_id,
                epoch=header.producer_epoch,
                commit=control.type is ControlType.COMMIT,
                coordinator_epoch=control.coordinator_epoch or 0,
                offset=header.last_offset,
                timestamp_ms=header.max_timestamp_ms,
                origin=Origin.REPLICATION,
            )
            lead(rows, marker)
