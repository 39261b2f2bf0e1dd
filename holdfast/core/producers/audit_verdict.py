"""The faults of a whole partition of an outbox, from the rows of its audit. Pure.

A number that came late is out of order and not lost: that is known only at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from holdfast.core.engine.fold.folding import Refused
from holdfast.core.kafka.sequences import MAX_SEQUENCE, NO_SEQUENCE, advance, distance
from holdfast.core.producers import ledger
from holdfast.core.producers.audit import (
    FOUND_KEY,
    AuditFinding,
    AuditRow,
    FindingKind,
    Found,
    Rules,
    missing,
)
from holdfast.core.producers.ledger import Book, Totals


class PartitionAudit(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one partition.

    *records* were read, *audited* of them are the outbox's; *first_offset* is where the log begins: records
    deleted before it are not proved. *repeated* are allowed repetitions, *undigested* those of the outbox's
    records without a digest. *ends* says whether the last numbers were compared with the leaders' reports.
    *findings* are in the order of offsets, *untold* more were found.
    """

    topic: str
    partition: int
    first_offset: int
    records: int
    audited: int
    producers: int
    repeated: int
    undigested: int
    alike: int = 0
    """Records that are like the one before them of their key, under another number."""
    ends: bool
    untold: int
    findings: tuple[AuditFinding, ...]

    @property
    def is_clean(self) -> bool:
        return not self.findings and not self.untold


def conclude(
    topic: str,
    partition: int,
    rows: Mapping[str, AuditRow],
    refused: Iterable[Refused],
    *,
    rules: Rules,
    first_offset: int,
    records: int,
    expected: Mapping[str, int] | None = None,
) -> PartitionAudit:
    """Return the faults of a partition, from the rows that `fold` made of all of it.

    *expected* holds the last number of each producer as its leaders report it, None when that is unknown or
    not to be compared. *rows* may lack those of keys.
    """
    whole = first_offset == 0
    kept = _books(rows)
    found = rows.get(FOUND_KEY)
    totals = rows.get(ledger.TOTALS_KEY)
    kept_findings = [row for row in rows.values() if isinstance(row, AuditFinding)]
    counted = found.findings if isinstance(found, Found) else 0
    findings = [
        each
        for one in kept_findings
        for each in (
            [one] if one.kind is not FindingKind.LOST else _still_lost(one, kept.get(one.producer), whole)
        )
    ]
    for producer, book in kept.items():
        if whole and book.first_sequence > MAX_SEQUENCE >> 1 and not book.faults.restarts:
            findings.append(
                _lost(producer, book.epoch, 0, advance(book.first_sequence, -1), book.first_offset, -1)
            )
    findings += [_unreadable(each) for each in refused]
    for producer, last in (expected or {}).items():
        if rules.covers(producer):
            findings += _short(producer, last, kept.get(producer), whole)
    return PartitionAudit(
        topic=topic,
        partition=partition,
        first_offset=first_offset,
        records=records,
        audited=records - (totals.unstamped if isinstance(totals, Totals) else 0),
        producers=len(kept),
        repeated=found.repeated if isinstance(found, Found) else 0,
        undigested=found.undigested if isinstance(found, Found) else 0,
        alike=found.alike if isinstance(found, Found) else 0,
        ends=expected is not None,
        untold=max(0, counted - len(kept_findings)),
        findings=tuple(
            sorted(findings, key=lambda each: (each.offset, each.kind, each.producer, each.first))
        ),
    )


def _books(rows: Mapping[str, AuditRow]) -> dict[str, Book]:
    out = {}
    for key, row in rows.items():
        producer = ledger.producer_of_key(key)
        if producer is not None and isinstance(row, Book):
            out[producer] = row
    return out


def _still_lost(gap: AuditFinding, book: Book | None, whole: bool) -> Iterable[AuditFinding]:
    """Yield what of a gap has not come late; a gap at the beginning of a log that was cut off there is
    none.
    """
    if gap.after < 0 and not whole:
        return
    faults = ledger.NO_FAULTS if book is None else book.faults
    if faults.forgotten != NO_SEQUENCE and distance(gap.last, faults.forgotten) >= 0:
        yield gap  # too much is missing to remember what came late
        return
    width = gap.last - gap.first & MAX_SEQUENCE
    for hole in faults.holes:
        if (hole.first - gap.first & MAX_SEQUENCE) <= width:
            yield msgspec.structs.replace(
                gap, first=hole.first, last=hole.last, reason=missing(hole.first, hole.last)
            )


def _lost(
    producer: str, epoch: int, first: int, last: int, offset: int, after: int, why: str = ""
) -> AuditFinding:
    reason = missing(first, last) + why
    return AuditFinding(
        kind=FindingKind.LOST,
        offset=offset,
        after=after,
        producer=producer,
        epoch=epoch,
        first=first,
        last=last,
        reason=reason,
    )


def _short(producer: str, last: int, book: Book | None, whole: bool) -> Iterable[AuditFinding]:
    """Yield the records that the leaders report as published and that no reader can read."""
    why = f"; its leaders have published up to {last}"
    if book is None:
        if whole and last != NO_SEQUENCE:
            yield _lost(producer, 0, 0, last, 0, -1, why)
    elif distance(book.last_sequence, last) > 0:
        yield _lost(
            producer,
            book.epoch,
            advance(book.last_sequence, 1),
            last,
            book.last_offset + 1,
            book.last_offset,
            why,
        )


def _unreadable(refused: Refused) -> AuditFinding:
    return AuditFinding(
        kind=FindingKind.UNREADABLE,
        offset=refused.offset,
        after=-1,
        producer="",
        epoch=-1,
        first=-1,
        last=-1,
        reason=refused.reason,
    )
