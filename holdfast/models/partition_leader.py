"""A partition leader's decision on each batch of an idempotent or transactional producer (docs/producers.md,
The leader's table).

A pure fold: events of one partition in, rows and verdicts out. Time is in the events. The rows of a
partition:

    p/<producer id>           its epoch, last batches, open transaction
    v/<producer id>           a transaction's verification that has begun here and has not yet led to a write
    a/<offset of the marker>  an aborted transaction
    log                       where the log ends and which transactions hold readers of committed records back

`decide` looks at one producer's row and one batch; `lead` keeps the rows. Sequences are compared as Kafka
does: whole batches, the last five of them, 2147483647 followed by 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import msgspec

from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.producer_state import (
    CACHED_BATCHES,
    EXPIRATION_MS,
    LATE_TRANSACTION_BUFFER_MS,
    LOG_KEY,
    MAX_TRANSACTION_TIMEOUT_MS,
    AbortedTransaction,
    Append,
    AppendOutcome,
    AppendVerdict,
    CachedBatch,
    Code,
    EndMarker,
    HighWatermark,
    LeaderEvent,
    LeaderRow,
    LogEntry,
    OpenTransaction,
    Origin,
    ProducerEntry,
    Sweep,
    Verification,
    VerificationBegun,
    aborted_key,
    producer_key,
    verification_key,
)
from holdfast.core.kafka.record_batch import NO_PRODUCER
from holdfast.core.kafka.sequences import NO_EPOCH, NO_SEQUENCE, advance, follows

if TYPE_CHECKING:
    from holdfast.core.engine.declared.processor import Emits

# -- the table


_NEW = ProducerEntry()


def decide(
    entry: ProducerEntry | None, batch: Append, verification: Verification | None = None
) -> AppendVerdict:
    """Return the leader's verdict on *batch*; the first row of the table that applies decides.

    >>> one = CachedBatch(0, 2, 10, 12, 0)
    >>> batch = Append(producer_id=1, epoch=0, first_sequence=4, last_sequence=4, base_offset=13, last_offset=13)
    >>> decide(ProducerEntry(epoch=0, batches=(one,)), batch).reason
    'got sequence 4, expected 3 after the last one, 2: resend from there'
    """  # noqa: E501
    known = _NEW if entry is None else entry
    client = batch.origin is Origin.CLIENT
    open_here = known.txn_first_offset is not None
    if client and known.epoch == batch.epoch:
        for each in known.batches:
            if (each.first_sequence, each.last_sequence) == (batch.first_sequence, batch.last_sequence):
                return _verdict(AppendOutcome.DUPLICATE, 1, batch, each)
    unknown_transaction = batch.transactional and not (open_here and known.epoch == batch.epoch)
    if (
        batch.origin is not Origin.REPLICATION
        and unknown_transaction
        and not (batch.verified and verification is not None)
    ):
        return _refused(
            2,
            Code.INVALID_TXN_STATE,
            batch,
            "no transaction of this producer is open here, nor was one verified",
        )
    if batch.epoch < known.epoch and batch.origin is not Origin.REPLICATION:
        return _refused(
            3, Code.INVALID_PRODUCER_EPOCH, batch, f"epoch {batch.epoch} was replaced by {known.epoch}"
        )
    rule = _sequence_rule(known, batch, verification) if client else 0
    if rule in _OUT_OF_ORDER:
        return _refused(
            rule, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, batch, _expected(rule, known, batch, verification)
        )
    if open_here and not batch.transactional:
        return _refused(
            11, Code.INVALID_TXN_STATE, batch, "a write outside of the producer's open transaction"
        )
    return _verdict(AppendOutcome.ACCEPTED, rule, batch, None)


_OUT_OF_ORDER = frozenset({4, 7, 9, 10})


def _sequence_rule(known: ProducerEntry, batch: Append, verification: Verification | None) -> int:
    first, last = batch.first_sequence, known.last_sequence
    if verification is not None and first > verification.lowest_sequence:
        return 4
    if batch.epoch != known.epoch:
        return 5 if first == 0 else 6 if known.epoch == NO_EPOCH else 7
    if follows(last, first):
        return 8
    return 9 if last == NO_SEQUENCE else 10


def _expected(rule: int, known: ProducerEntry, batch: Append, verification: Verification | None) -> str:
    got = f"got sequence {batch.first_sequence}"
    if rule == 4 and verification is not None:
        return f"{got}, but the transaction's first write here had {verification.lowest_sequence}"
    if rule == 7:
        return f"{got} in the new epoch {batch.epoch}, which begins at 0"
    if rule == 9:
        return f"{got}, but epoch {known.epoch} has written nothing here and begins at 0"
    return (
        f"{got}, expected {advance(known.last_sequence, 1)} after the last one, {known.last_sequence}: resend"
        " from there"
    )


def decide_marker(entry: ProducerEntry | None, marker: EndMarker) -> AppendVerdict:
    """Return the leader's verdict on the end of a transaction: rows 12 and 13 of the table."""
    known = _NEW if entry is None else entry
    checked = marker.origin is not Origin.REPLICATION
    if marker.epoch < known.epoch and checked:
        return _refused(
            12, Code.INVALID_PRODUCER_EPOCH, marker, f"epoch {marker.epoch} was replaced by {known.epoch}"
        )
    if marker.coordinator_epoch < known.coordinator_epoch and checked:
        text = f"coordinator epoch {marker.coordinator_epoch} was replaced by {known.coordinator_epoch}"
        return _refused(12, Code.TRANSACTION_COORDINATOR_FENCED, marker, text)
    return _verdict(AppendOutcome.ACCEPTED, 13 if marker.epoch > known.epoch else 12, marker, None)


def _verdict(
    outcome: AppendOutcome, rule: int, event: Append | EndMarker, where: CachedBatch | None
) -> AppendVerdict:
    if where is not None:
        first, last, at_ms = where.first_offset, where.last_offset, where.max_timestamp_ms
    elif isinstance(event, Append):
        first, last, at_ms = event.base_offset, event.last_offset, event.timestamp_ms
    else:
        first, last, at_ms = event.offset, event.offset, event.timestamp_ms
    return AppendVerdict(
        outcome=outcome,
        rule=rule,
        producer_id=event.producer_id,
        base_offset=first,
        last_offset=last,
        timestamp_ms=at_ms,
    )


def _refused(rule: int, code: Code, event: Append | EndMarker, reason: str) -> AppendVerdict:
    return AppendVerdict(
        outcome=AppendOutcome.REFUSED,
        rule=rule,
        producer_id=event.producer_id,
        base_offset=-1,
        last_offset=-1,
        error=code,
        reason=reason,
    )


# -- the fold


def lead(rows: Rows[LeaderRow], event: LeaderEvent) -> AppendVerdict | None:
    """Apply *event* to the partition's rows and return the verdict on a batch or marker.

    A refused event changes nothing.
    """
    match event:
        case Append():
            return _append(rows, event)
        case EndMarker():
            return _end(rows, event)
        case VerificationBegun():
            _verify(rows, event)
        case HighWatermark():
            _replicated(rows, event)
        case Sweep():
            _sweep(rows, event)
        case _:
            assert_never(event)
    return None


def fold_leader(rows: Rows[LeaderRow], event: LeaderEvent, at_ms: int) -> Emits:
    """Apply *event* as a processor's fold does: a verdict shows in what it changed.

    The events carry their own times.
    """
    lead(rows, event)
    return None


def log_of(rows: Rows[LeaderRow]) -> LogEntry:
    """Return the row of the partition as a whole."""
    log = rows.get(LOG_KEY)
    return log if isinstance(log, LogEntry) else LogEntry()


def producer_of(rows: Rows[LeaderRow], producer_id: int) -> ProducerEntry | None:
    """Return the row of a producer, None when it is unknown here."""
    entry = rows.get(producer_key(producer_id))
    return entry if isinstance(entry, ProducerEntry) else None


def verification_of(rows: Rows[LeaderRow], producer_id: int) -> Verification | None:
    """Return the verification that waits for its write, None for none."""
    found = rows.get(verification_key(producer_id))
    return found if isinstance(found, Verification) else None


def _append(rows: Rows[LeaderRow], batch: Append) -> AppendVerdict:
    if batch.producer_id == NO_PRODUCER:  # nothing is kept of it (UnifiedLog.analyzeAndValidateProducerState)
        rows[LOG_KEY] = msgspec.structs.replace(log_of(rows), end_offset=batch.last_offset + 1)
        return _verdict(AppendOutcome.ACCEPTED, 0, batch, None)
    entry, verification = producer_of(rows, batch.producer_id), verification_of(rows, batch.producer_id)
    verdict = decide(entry, batch, verification)
    if verdict.outcome is not AppendOutcome.ACCEPTED:
        return verdict
    known, log = _NEW if entry is None else entry, log_of(rows)
    kept = known.batches if known.epoch == batch.epoch else ()
    added = CachedBatch(
        batch.first_sequence, batch.last_sequence, batch.base_offset, batch.last_offset, batch.timestamp_ms
    )
    begins = batch.transactional and known.txn_first_offset is None
    rows[producer_key(batch.producer_id)] = ProducerEntry(
        batch.epoch,
        known.coordinator_epoch,
        batch.timestamp_ms,
        batch.base_offset if begins else known.txn_first_offset,
        (*kept, added)[-CACHED_BATCHES:],
    )
    ongoing = (*log.ongoing, OpenTransaction(batch.base_offset, batch.producer_id)) if begins else log.ongoing
    rows[LOG_KEY] = msgspec.structs.replace(log, end_offset=batch.last_offset + 1, ongoing=ongoing)
    if batch.transactional and verification is not None:
        del rows[verification_key(batch.producer_id)]
    return verdict


def _end(rows: Rows[LeaderRow], marker: EndMarker) -> AppendVerdict:
    entry = producer_of(rows, marker.producer_id)
    verdict = decide_marker(entry, marker)
    if verdict.outcome is not AppendOutcome.ACCEPTED:
        return verdict
    known, log = _NEW if entry is None else entry, log_of(rows)
    rows[producer_key(marker.producer_id)] = ProducerEntry(
        marker.epoch,
        marker.coordinator_epoch,
        marker.timestamp_ms,
        None,
        known.batches if marker.epoch == known.epoch else (),
    )
    ongoing, unreplicated = log.ongoing, log.unreplicated
    if known.txn_first_offset is not None:  # else it wrote nothing here, and there is nothing to decide
        done = OpenTransaction(known.txn_first_offset, marker.producer_id, marker.offset)
        ongoing = tuple(each for each in ongoing if each.first_offset != done.first_offset)
        unreplicated = tuple(sorted((*unreplicated, done), key=lambda each: each.first_offset))
        if not marker.commit:
            stable = ongoing[0].first_offset if ongoing else marker.offset + 1
            rows[aborted_key(marker.offset)] = AbortedTransaction(
                marker.producer_id, done.first_offset, marker.offset, stable
            )
    rows[LOG_KEY] = msgspec.structs.replace(
        log, end_offset=marker.offset + 1, ongoing=ongoing, unreplicated=unreplicated
    )
    return verdict


def _verify(rows: Rows[LeaderRow], event: VerificationBegun) -> None:
    entry, before = producer_of(rows, event.producer_id), verification_of(rows, event.producer_id)
    if entry is not None and entry.txn_first_offset is not None and entry.epoch == event.epoch:
        return  # the transaction is open here: nothing left to verify
    if before is None or event.epoch > before.epoch:
        after = Verification(event.epoch, event.sequence, event.at_ms)
    elif event.epoch == before.epoch and event.sequence < before.lowest_sequence:
        after = Verification(before.epoch, event.sequence, before.at_ms)
    else:
        return
    rows[verification_key(event.producer_id)] = after


def _replicated(rows: Rows[LeaderRow], event: HighWatermark) -> None:
    log = log_of(rows)
    waiting = tuple(
        each for each in log.unreplicated if each.last_offset is not None and each.last_offset >= event.offset
    )
    rows[LOG_KEY] = msgspec.structs.replace(
        log, high_watermark=max(log.high_watermark, event.offset), unreplicated=waiting
    )


def _sweep(rows: Rows[LeaderRow], event: Sweep) -> None:
    for key, row in list(rows.scan("p/")):
        if isinstance(row, ProducerEntry) and is_expired(row, event.now_ms, event.expiration_ms):
            del rows[key]
    for key, row in list(rows.scan("v/")):
        if isinstance(row, Verification) and event.now_ms - row.at_ms >= event.expiration_ms:
            del rows[key]


# -- queries


def is_expired(entry: ProducerEntry, now_ms: int, expiration_ms: int = EXPIRATION_MS) -> bool:
    """Return whether a sweep at *now_ms* forgets the producer: idle for long enough, and no transaction
    open.
    """
    return entry.txn_first_offset is None and now_ms - entry.last_timestamp_ms >= expiration_ms


def has_late_transaction(
    rows: Rows[LeaderRow], now_ms: int, max_timeout_ms: int = MAX_TRANSACTION_TIMEOUT_MS
) -> bool:
    """Return whether the oldest open transaction has been silent for longer than any may be: it probably
    hangs.
    """
    log = log_of(rows)
    if not log.ongoing:
        return False
    entry = producer_of(rows, log.ongoing[0].producer_id)
    heard_ms = -1 if entry is None else entry.last_timestamp_ms
    return heard_ms > 0 and now_ms - heard_ms > max_timeout_ms + LATE_TRANSACTION_BUFFER_MS


def last_stable_offset(rows: Rows[LeaderRow]) -> int:
    """Return up to where readers of committed records may read, exclusive."""
    log = log_of(rows)
    unstable = log.first_unstable
    return log.high_watermark if unstable is None else min(log.high_watermark, unstable)
