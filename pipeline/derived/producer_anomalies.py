"""The table `producers.anomalies`: which stamped records were not simply the next of their producer, by the
ledger's own rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

import msgspec

from holdfast.core.engine.declared.processor import Emits, Processor
from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.sequences import MAX_SEQUENCE, advance
from holdfast.core.producers import ledger
from holdfast.core.producers.ledger import Book, BookRow, LedgerEntry
from holdfast.pipeline.derived.table import ROWS, DerivedTable, StoredRows, row_over, time_at

ANOMALIES = "producers.anomalies"


class ProducerAnomaly(msgspec.Struct, frozen=True):
    """A stamped record that was not simply the next one of its producer in its partition, as `Judgement` has
    it; "restart" is a newer epoch that restarts the count.

    *expected* is the sequence that would have been the next, *missing* how many numbers the record leaves out
    (of a gap). *at* is its append time.
    """

    kind: Literal["gap", "out-of-order", "duplicate", "doubtful", "zombie", "restart"]
    at: datetime
    producer: str
    epoch: int
    newest_epoch: int
    sequence: int
    expected: int
    missing: int
    topic_offset: int


def fold_anomalies(rows: Rows[Any], entry: LedgerEntry, at_ms: int) -> Emits:
    """Enter a record in its producer's book, and emit it if the book notes a fault."""
    key, _epoch, sequence, _, offset = entry
    before: BookRow | None = rows.get(key)
    ledger.fold(rows, entry, at_ms)
    if not isinstance(before, Book):
        return None
    after: Book = rows[key]
    if after.noted is before.noted or after.noted is None:
        return None
    found = []
    expected = advance(before.last_sequence, 1)
    if after.faults.restarts > before.faults.restarts:
        expected = after.first_sequence
        found.append(_anomaly("restart", key, entry, after, expected, 0, at_ms))
    trouble = after.faults.trouble
    if trouble is not None and trouble.offset == offset:
        missing = sequence - expected & MAX_SEQUENCE if trouble.kind is ledger.Judgement.GAP else 0
        found.append(_anomaly(trouble.kind.value, key, entry, after, expected, missing, at_ms))
    return [row_over(each) for each in found]


def _anomaly(
    kind: Any, key: str, entry: LedgerEntry, after: Book, expected: int, missing: int, at_ms: int
) -> ProducerAnomaly:
    _, epoch, sequence, _, offset = entry
    return ProducerAnomaly(
        kind=kind,
        at=time_at(at_ms),
        producer=str(ledger.producer_of_key(key)),
        epoch=epoch,
        newest_epoch=after.epoch,
        sequence=sequence,
        expected=expected,
        missing=missing,
        topic_offset=offset,
    )


def _current(stored: StoredRows) -> Iterable[ProducerAnomaly]:
    return ()


def producer_anomalies(topic: str) -> DerivedTable:
    """Return the table of a stamped topic."""
    processor = Processor(
        name="producers-anomalies",
        source=topic,
        decode=ledger.decode,
        inputs=("headers", "offset"),
        fold=fold_anomalies,
        row=BookRow,
        emits=(ROWS,),
    )
    return DerivedTable(
        name=ANOMALIES, row=ProducerAnomaly, processor=processor, current=_current, is_of_topic=True
    )
