"""The table `quarantine`: which records were set aside, why, and which of them were sent again."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

import msgspec

from holdfast.clients.quarantine.records import RETRIED_TO, read_copy, text_header
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Emits, Headers, Processor
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import DecodeError
from holdfast.pipeline.derived.table import ROWS, DerivedTable, StoredRows, row_over, time_at

QUARANTINE = "quarantine"


class QuarantineEvent(msgspec.Struct, frozen=True):
    """A record that was set aside (*event* "refused") or sent again ("retried"); of a retry only the record's
    position and processor, and *retried_to*, are known.

    *stage* "fetch" is a batch that could not be read, from *offset* on. *at* is when, *appended* when the
    record was appended to its topic.
    """

    event: Literal["refused", "retried"]
    at: datetime
    processor: str
    topic: str
    topic_partition: int
    offset: int
    stage: str | None = None
    error: str | None = None
    reason: str | None = None
    appended: datetime | None = None
    size_bytes: int | None = None
    retried_to: str | None = None
    noted_at: int = 0


def decode_event(
    key: bytes | None, value: bytes | None, headers: Headers, timestamp: int, offset: int
) -> QuarantineEvent:
    """Return the event in a record of the quarantine topic; DecodeError unless it is a copy or a note of a
    retry.
    """
    at = time_at(timestamp)
    if (retried_to := text_header(headers, RETRIED_TO)) is not None:
        topic, partition, of, processor = _place(key)
        return QuarantineEvent(
            "retried", at, processor, topic, partition, of, retried_to=retried_to, noted_at=offset
        )
    found = read_copy(headers, value, timestamp)
    if found is None:
        raise DecodeError("neither the copy of a refused record nor the note of a retry: no worker wrote it")
    return QuarantineEvent(
        "refused",
        at,
        found.processor,
        found.topic,
        found.partition,
        found.offset,
        stage=found.stage,
        error=found.error,
        reason=found.reason,
        appended=None if found.appended_ms < 0 else time_at(found.appended_ms),
        size_bytes=found.size_bytes,
        noted_at=offset,
    )


def _place(key: bytes | None) -> tuple[str, int, int, str]:
    """Return topic, partition, offset and processor by the key of a note."""
    try:
        topic, partition, offset, processor = (key or b"").decode().split("/")
        return topic, int(partition), int(offset), processor
    except ValueError as error:
        raise DecodeError(
            f"key {(key or b'')[:80]!r} does not name a record: topic/partition/offset/processor"
        ) from error


def fold_event(rows: Rows[Any], event: QuarantineEvent, at_ms: int) -> Emits:
    """Emit each event; no event depends on others."""
    return (row_over(event),)


def _current(stored: StoredRows) -> Iterable[QuarantineEvent]:
    return ()


def quarantine_events(settings: Settings) -> DerivedTable:
    """Return the table of an application's quarantine."""
    processor = Processor(
        name="quarantine-events",
        source=settings.quarantine_topic,
        decode=decode_event,
        inputs=("key", "value", "headers", "timestamp", "offset"),
        fold=fold_event,
        row=int,
        emits=(ROWS,),
    )
    return DerivedTable(name=QUARANTINE, row=QuarantineEvent, processor=processor, current=_current)
