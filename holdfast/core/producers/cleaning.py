"""The fold that cleans a stamped topic by its ledger.

New records are emitted to a clean topic, the others with their reason to a topic of verdicts, in the same
transaction as the ledger (docs/producers.md, The ledgers).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.core.engine.declared.processor import Emit, Headers
from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.sequences import advance
from holdfast.core.producers.ledger import KEPT, LIMIT_HOLES, NOBODY, Book, BookRow, Judgement, record
from holdfast.core.producers.stamps import Stamp, read_stamp


class Whole(msgspec.Struct, frozen=True):
    """A record with everything that is copied to the clean topic."""

    value: bytes | None
    key: bytes | None
    headers: Headers
    partition: int
    offset: int
    stamp: Stamp


def decode_whole(
    value: bytes | None, key: bytes | None, headers: Headers, partition: int, offset: int
) -> Whole:
    """Return the whole record; for inputs ("value", "key", "headers", "partition", "offset")."""
    stamp = read_stamp(headers)
    return Whole(value, key, headers, partition, offset, NOBODY if stamp is None else stamp)


class LedgerVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict on one record; the expected next number has none.

    *kept* says whether it was copied to the clean topic.
    """

    verdict: Judgement
    kept: bool
    producer: str
    epoch: int
    sequence: int
    current_epoch: int
    expected: int
    topic: str
    partition: int
    offset: int
    at_ms: int
    reason: str


_encode_verdict = msgspec.json.Encoder().encode


def fold_clean(
    rows: Rows[BookRow], whole: Whole, at_ms: int, *, source: str, clean: str, verdicts: str
) -> Iterator[Emit]:
    """Enter a record, emit it to *clean* if it is new, and emit everything unusual to *verdicts*.

    Key, value, headers and partition stay the same, so the clean topic needs as many partitions as *source*.
    A record without a stamp is copied: no rule speaks against it.
    """
    stamp = whole.stamp
    before, judgement = record(rows, stamp, whole.offset, at_ms)
    if judgement in KEPT:
        yield Emit(clean, whole.key, whole.value, whole.headers, whole.partition)
    if judgement is not Judgement.NEW and before is not None:
        verdict = _verdict_of(before, whole, judgement, at_ms, source)
        yield Emit(verdicts, stamp.producer, _encode_verdict(verdict), partition=whole.partition)


def _verdict_of(book: Book, whole: Whole, judgement: Judgement, at_ms: int, source: str) -> LedgerVerdict:
    stamp, expected = whole.stamp, advance(book.last_sequence, 1)
    if stamp.epoch > book.epoch and stamp.first is not None:
        expected = stamp.first
    reasons = {
        Judgement.GAP: f"numbers {expected} to {advance(stamp.sequence, -1)} have not come",
        Judgement.LATE: f"number {stamp.sequence} came after {book.last_sequence}",
        Judgement.DUPLICATE: f"number {stamp.sequence} has come before, the next is {expected}",
        Judgement.DOUBTFUL: (
            f"number {stamp.sequence} may have come before: more than {LIMIT_HOLES} ranges of numbers are"
            " missing"
        ),
        Judgement.ZOMBIE: f"epoch {stamp.epoch} was replaced by {book.epoch}",
    }
    return LedgerVerdict(
        verdict=judgement,
        kept=judgement in KEPT,
        producer=stamp.producer,
        epoch=stamp.epoch,
        sequence=stamp.sequence,
        current_epoch=max(book.epoch, stamp.epoch),
        expected=expected,
        topic=source,
        partition=whole.partition,
        offset=whole.offset,
        at_ms=at_ms,
        reason=reasons[judgement],
    )


decode_verdict = msgspec.json.Decoder(LedgerVerdict).decode
