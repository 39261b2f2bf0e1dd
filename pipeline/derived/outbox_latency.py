"""The table `outbox.latency`: how long rows waited in an outbox, from their creation to their transaction, by
shard, epoch and minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.engine.declared.processor import Emit, Emits, Headers, Processor
from holdfast.core.engine.state.rows import Rows
from holdfast.core.outbox.created_times import rank_of, read_created
from holdfast.core.outbox.harvest import RowsProgress, decode_progress
from holdfast.pipeline.derived.table import ROWS, DerivedTable, StoredRows, row_over, time_at

LATENCY = "outbox.latency"
WAITED = "waited"
MINUTE_MS = 60_000


class PublishedRows(msgspec.Struct, frozen=True):
    """The rows that a transaction published: when each was created, as (ms, how many); *producer* "" for a
    record without rows.
    """

    producer: str
    epoch: int
    created: list[tuple[int, int]]
    sent_ms: int


class LatencyMinute(msgspec.Struct, frozen=True, array_like=True):
    """The minute of a producer that is not over: its transactions with rows so far. How long rows waited is
    in the named table.
    """

    minute: int
    epoch: int
    transactions: int


class OutboxLatency(msgspec.Struct, frozen=True):
    """The waits of the rows of one minute: from their creation, by the database's clock, to the progress
    record of their transaction.

    Percentiles are those of the rows themselves, by nearest rank.
    """

    outbox: str
    shard: int
    epoch: int
    minute: datetime
    transactions: int
    rows: int
    least_ms: int
    p50_ms: int
    p95_ms: int
    p99_ms: int
    greatest_ms: int
    mean_ms: float


def decode_published(
    key: bytes | None, value: bytes | None, headers: Headers, timestamp: int
) -> PublishedRows:
    """Return the rows in a record of a progress topic; DecodeError for an invalid record."""
    found = decode_progress(key, value)
    if not isinstance(found, RowsProgress):
        return PublishedRows("", 0, [], timestamp)
    return PublishedRows(found.producer, found.epoch, read_created(headers), timestamp)


def fold_latency(rows: Rows[Any], event: PublishedRows, at_ms: int) -> Emits:
    """Add a transaction to the minute of its producer; emit the one before where another has begun."""
    if not event.created:
        return None
    return _added(rows, event, at_ms)


def _added(rows: Rows[Any], event: PublishedRows, at_ms: int) -> Iterator[Emit]:
    minute = at_ms // MINUTE_MS
    before: LatencyMinute | None = rows.get(event.producer)
    waited = rows.table(WAITED)
    if before is not None and (before.minute, before.epoch) != (minute, event.epoch):
        prefix = _prefix(event.producer)
        found = [(key, rows_of) for key, rows_of in waited.scan(prefix)]
        yield row_over(
            _latency(event.producer, before, [(int(key[len(prefix) :]), count) for key, count in found])
        )
        for key, _ in found:
            del waited[key]
        before = None
    transactions = 1 if before is None else before.transactions + 1
    rows[event.producer] = LatencyMinute(minute, event.epoch, transactions)
    for created_ms, count in event.created:
        key = f"{_prefix(event.producer)}{event.sent_ms - created_ms}"
        waited[key] = waited.get(key, 0) + count


def _prefix(producer: str) -> str:
    """Return the prefix of the keys of a producer's rows; no other producer's have it, whatever their
    names.
    """
    return f"{len(producer)}:{producer}:"


def _latency(producer: str, of: LatencyMinute, waited: Sequence[tuple[int, int]]) -> OutboxLatency:
    ordered = sorted(waited)
    rows = sum(count for _, count in ordered)
    outbox, _, shard = producer.rpartition("-")
    return OutboxLatency(
        outbox=outbox,
        shard=int(shard) if shard.isdecimal() else -1,
        epoch=of.epoch,
        minute=time_at(of.minute * MINUTE_MS),
        transactions=of.transactions,
        rows=rows,
        least_ms=ordered[0][0],
        p50_ms=rank_of(ordered, 50),
        p95_ms=rank_of(ordered, 95),
        p99_ms=rank_of(ordered, 99),
        greatest_ms=ordered[-1][0],
        mean_ms=sum(ms * count for ms, count in ordered) / rows,
    )


def _current(stored: StoredRows) -> Iterable[OutboxLatency]:
    """Yield the minutes that are not over."""
    for producer, of in stored.items(""):
        prefix = _prefix(producer)
        waited = [
            (int(key[len(prefix) :]), count) for key, count in stored.items(WAITED) if key.startswith(prefix)
        ]
        yield _latency(producer, of, waited)


def outbox_latency(topic: str) -> DerivedTable:
    """Return the table of the outboxes whose progress *topic* holds."""
    processor = Processor(
        name="outbox-latency",
        source=topic,
        decode=decode_published,
        inputs=("key", "value", "headers", "timestamp"),
        fold=fold_latency,
        row=LatencyMinute,
        tables={WAITED: int},
        emits=(ROWS,),
    )
    return DerivedTable(
        name=LATENCY, row=OutboxLatency, processor=processor, current=_current, is_of_topic=True
    )
