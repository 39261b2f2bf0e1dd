"""Rebuilds a leader's state of its producers from the batches of its log."""

from __future__ import annotations

from collections import deque

from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.producer_state import CACHED_BATCHES, Append, EndMarker, LeaderRow, Origin
from holdfast.core.kafka.record_batch import (
    CONTROL_BIT,
    NO_PRODUCER,
    TRANSACTIONAL_BIT,
    BatchHeader,
    ControlType,
    control_of,
    decode_batch,
)
from holdfast.embedded.logs.log_files import LoadedBatch
from holdfast.models.partition_leader import lead


class LogReplay:
    """Applies batches that were accepted before to *rows*, one after the other; `finish` when there are no
    more.

    Of what has no producer nothing is kept, and of a producer outside of transactions only its last batches
    count, so the others are passed over.
    """

    def __init__(self, rows: Rows[LeaderRow]) -> None:
        self._rows = rows
        self._last: dict[int, deque[BatchHeader]] = {}

    def take(self, found: LoadedBatch) -> None:
        """Apply the next batch."""
        header = found.header
        producer_id, attributes = header.producer_id, header.attributes
        if producer_id == NO_PRODUCER:
            return
        if not attributes & (CONTROL_BIT | TRANSACTIONAL_BIT):
            if producer_id not in self._last:
                self._last[producer_id] = deque(maxlen=CACHED_BATCHES)
            self._last[producer_id].append(header)
            return
        self._settle(producer_id)
        if attributes & CONTROL_BIT:
            _replay_marker(self._rows, found)
        else:
            _replay(self._rows, header)

    def _settle(self, producer_id: int) -> None:
        for each in self._last.pop(producer_id, ()):
            _replay(self._rows, each)

    def finish(self) -> None:
        """Have *rows* be complete."""
        for each in list(self._last):
            self._settle(each)


def _replay(rows: Rows[LeaderRow], header: BatchHeader) -> None:
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
