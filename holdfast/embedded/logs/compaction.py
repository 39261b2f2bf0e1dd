"""Compacts the batches of a log: the rules of Kafka's Cleaner and of MemoryRecords.filterTo."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from holdfast.core.kafka.compression import Compression
from holdfast.core.kafka.producer_state import AbortedTransaction
from holdfast.core.kafka.record_batch import (
    COMPRESSION_BITS,
    ControlType,
    Record,
    RecordBatch,
    control_of,
    decode_batch,
    encode_batch,
)
from holdfast.embedded.logs.stored_batch import LogBatch, StoredBatch

DELETE_HORIZON_BIT = 0x40
"""Of a batch's attributes: its base timestamp is the time from which on its tombstones, or its marker, may
go.
"""
_NO_TIME = -1
_TURN_BATCHES, _TURN_BYTES = 32, 64 * 1024
"""The part of a log that is looked at before others have their turn: a few milliseconds of work."""


class CompactionRules(NamedTuple):
    """The settings of a log's topic, and its clock. Times are in milliseconds."""

    now_ms: int
    min_lag_ms: int
    max_lag_ms: int
    dirty_ratio: float
    tombstones_ms: int
    """The life of a tombstone, from the first compaction that meets it (``delete.retention.ms``)."""


class Compacted(NamedTuple):
    """The batches that are left, and the aborted transactions that readers must still know of."""

    batches: list[LogBatch]
    aborted: list[AbortedTransaction]


def is_due(clean: int, dirty: Sequence[LogBatch], rules: CompactionRules) -> bool:
    """Return whether a log is compacted that has *clean* bytes compacted before, and *dirty* batches after
    them.
    """
    size = sum(each.size for each in dirty)
    late = any(0 <= each.max_timestamp_ms < rules.now_ms - rules.max_lag_ms for each in dirty)
    return size > 0 and (late or size / (clean + size) > rules.dirty_ratio)


def compacting(
    stored: Sequence[LogBatch],
    aborted: Iterable[AbortedTransaction],
    is_last: Callable[[RecordBatch], bool],
    rules: CompactionRules,
) -> Generator[None, None, Compacted]:
    """Return the compacted *stored*, a log from its start up to where it may be compacted. Yield where others
    may have their turn.

    *is_last* recognises the batch by which a producer that is still known wrote last: it stays, if need be
    empty. Raises WireError for a damaged batch.
    """
    transactions = _Transactions(aborted)
    batches: list[tuple[RecordBatch, bool]] = []
    latest: dict[bytes, int] = {}
    for was, ends_turn in _in_turns(stored):
        batch = decode_batch(was.data)
        gone = transactions.may_go(batch)
        batches.append((batch, gone))
        if not gone:
            latest.update(_offsets_of_keys(batch))
        if ends_turn:
            yield
    left = []
    for (was, ends_turn), (batch, gone) in zip(_in_turns(stored), batches, strict=True):
        records = tuple(_kept(batch, latest, rules, droppable=gone))
        if records:
            left.append(_rebuilt(was, batch, records, rules, empties=gone))
        elif is_last(batch) or was is stored[-1]:  # the last one shows where the compacted part ends
            left.append(_emptied(was, batch))
        if ends_turn:
            yield
    return Compacted(left, sorted(transactions.left(), key=lambda each: each.last_offset))


def _in_turns(stored: Sequence[LogBatch]) -> Iterator[tuple[LogBatch, bool]]:
    """Yield each batch, and whether a turn ends with it."""
    batches = size = 0
    for each in stored:
        batches, size = batches + 1, size + each.size
        ends_turn = batches >= _TURN_BATCHES or size >= _TURN_BYTES
        if ends_turn:
            batches = size = 0
        yield each, ends_turn


class _Transactions:
    """The transactions that were aborted, and those that still have records, at the present batch."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._with_records: list[AbortedTransaction] = []
        self._coming = sorted(aborted, key=lambda each: each.first_offset)
        self._aborted: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()

    def may_go(self, batch: RecordBatch) -> bool:
        """Return whether a batch has aborted records, or is the marker of a transaction without any record
        left.
        """
        while self._coming and self._coming[0].first_offset <= batch.last_offset:
            begun = self._coming.pop(0)
            self._aborted[begun.producer_id] = begun
        if batch.is_control:
            return self._ended(batch)
        if not batch.is_transactional:
            return False
        self._seen.add(batch.producer_id)
        return batch.producer_id in self._aborted

    def _ended(self, batch: RecordBatch) -> bool:
        producer = batch.producer_id
        had_records = producer in self._seen
        self._seen.discard(producer)
        if any(control_of(batch, each).type is ControlType.ABORT for each in batch.records):
            aborted = self._aborted.pop(producer, None)
            if aborted is not None and had_records:
                self._with_records.append(aborted)
        return not had_records

    def left(self) -> list[AbortedTransaction]:
        """Return the aborted transactions that readers must still know of, those whose markers come later
        among them.
        """
        return [*self._with_records, *self._aborted.values(), *self._coming]


def _offsets_of_keys(batch: RecordBatch) -> dict[bytes, int]:
    """Return the offset of the last record of each key."""
    if batch.is_control:
        return {}
    return {each.key: batch.base_offset + each.offset_delta for each in batch.records if each.key is not None}


def _horizon_ms(batch: RecordBatch) -> int | None:
    return batch.base_timestamp_ms if batch.attributes & DELETE_HORIZON_BIT else None


def _kept(
    batch: RecordBatch, latest: dict[bytes, int], rules: CompactionRules, *, droppable: bool
) -> Iterator[Record]:
    horizon_ms = _horizon_ms(batch)
    expired = horizon_ms is not None and horizon_ms <= rules.now_ms
    if batch.is_control:
        yield from () if droppable and expired else batch.records
    elif not droppable:
        for each in batch.records:
            is_latest = each.key is not None and latest[each.key] == batch.base_offset + each.offset_delta
            if is_latest and (each.value is not None or not expired):
                yield each


def _rebuilt(
    was: LogBatch,
    batch: RecordBatch,
    records: tuple[Record, ...],
    rules: CompactionRules,
    *,
    empties: bool,
) -> LogBatch:
    """Return the batch with *records*, and with the time from which on a tombstone or an empty transaction's
    marker may go, if there is one and it has none.
    """
    horizon_ms = _horizon_ms(batch)
    wants = (batch.is_control and empties) or any(each.value is None for each in records)
    if len(records) == len(batch.records) and (horizon_ms is not None or not wants):
        return was
    if horizon_ms is None and wants:
        horizon_ms = rules.now_ms + rules.tombstones_ms
    times = [batch.timestamp_ms(each) for each in records]
    base_ms = times[0] if horizon_ms is None else horizon_ms
    timed = zip(records, times, strict=True)
    rebuilt = msgspec.structs.replace(
        batch,
        attributes=batch.attributes | (0 if horizon_ms is None else DELETE_HORIZON_BIT),
        base_timestamp_ms=base_ms,
        max_timestamp_ms=max(times),
        records=tuple(msgspec.structs.replace(each, timestamp_delta=at - base_ms) for each, at in timed),
    )
    return _replaced(was, rebuilt, rebuilt.max_timestamp_ms)


def _emptied(was: LogBatch, batch: RecordBatch) -> StoredBatch:
    """Return the header alone: it keeps the offsets and the producer's sequences."""
    attributes = batch.attributes & ~(COMPRESSION_BITS | DELETE_HORIZON_BIT) | Compression.NONE
    empty = msgspec.structs.replace(batch, attributes=attributes, base_timestamp_ms=_NO_TIME, records=())
    return _replaced(was, empty, _NO_TIME)


def _replaced(was: LogBatch, batch: RecordBatch, max_ms: int) -> StoredBatch:
    return StoredBatch(was.first_offset, was.last_offset, max_ms, was.leader_epoch, encode_batch(batch))
