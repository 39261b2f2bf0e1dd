"""Transactions whose ends the brokers have lost: open in a partition's log, though their coordinator holds
them for ended.

Readers of committed records wait before them for ever. How they come about: docs/operating.md, "A transaction
that never ends".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from holdfast.core.broker_logs.folds import TRANSACTION_TOPIC, TransactionNote, decode_transaction
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.record_batch import ControlType, RecordBatch, control_of
from holdfast.core.kafka.transaction_state import PREPARED, Transaction, TransactionState, transaction_key

ENDS = "transaction-ends"
ENDING = frozenset({ControlType.COMMIT, ControlType.ABORT})

# -- what a partition's log says


class UnendedTransaction(msgspec.Struct, frozen=True, order=True):
    """A transaction without a marker in one partition's log, that begins there at *first_offset*."""

    topic: str
    partition: int
    first_offset: int
    producer_id: int
    epoch: int


class OpenTransactions:
    """The transactions that are open at the end of consecutive batches, the first of which begins with none
    open.
    """

    def __init__(self, topic: str, partition: int) -> None:
        self._topic, self._partition = topic, partition
        self._open: dict[int, UnendedTransaction] = {}

    def add(self, batch: RecordBatch) -> None:
        if is_marker(batch):
            self._open.pop(batch.producer_id, None)
        elif batch.is_transactional and not batch.is_control and batch.producer_id not in self._open:
            place = self._topic, self._partition
            self._open[batch.producer_id] = UnendedTransaction(
                *place, batch.base_offset, batch.producer_id, batch.producer_epoch
            )

    def found(self) -> list[UnendedTransaction]:
        return list(self._open.values())


def is_marker(batch: RecordBatch) -> bool:
    """Return whether a batch ends a transaction of its producer."""
    return batch.is_control and any(control_of(batch, record).type in ENDING for record in batch.records)


# -- what the coordinators' log says


class KnownTransaction(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """A transactional id as its coordinator last wrote it."""

    transactional_id: str
    noted: Transaction


class Decided(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """The last decision on a transaction of one producer id that wrote to one partition, and the epoch its
    markers have.
    """

    transactional_id: str
    epoch: int
    commit: bool
    at_ms: int


EndsRow: TypeAlias = KnownTransaction | Decided


def decision_key(producer_id: int, topic: str, partition: int) -> str:
    return f"d/{producer_id}/{topic}/{partition}"


def fold_ends(rows: Rows[EndsRow], note: TransactionNote, at_ms: int) -> None:
    """Keep the latest state of each transactional id, and the last decision for each partition: decisions
    outlive the id's next steps.
    """
    key, noted = transaction_key(note.transactional_id), note.noted
    if noted is None or noted.state is TransactionState.DEAD:
        if key in rows:
            del rows[key]
        return
    rows[key] = KnownTransaction(note.transactional_id, noted)
    if noted.state in PREPARED:
        commit = noted.state is TransactionState.PREPARE_COMMIT
        for place in noted.partitions:
            rows[decision_key(noted.producer_id, *place)] = Decided(
                note.transactional_id, noted.epoch, commit, noted.updated_ms
            )


def ends_log() -> Processor[TransactionNote, EndsRow]:
    """Return the fold of `__transaction_state` that knows how transactions were to end, for replays."""
    return Processor(
        name=ENDS,
        source=TRANSACTION_TOPIC,
        decode=decode_transaction,
        inputs=("key", "value"),
        fold=fold_ends,
        row=EndsRow,
    )


# -- both


class LostEnd(msgspec.Struct, frozen=True, kw_only=True):
    """An open transaction whose end is lost.

    *decided* is its coordinator's decision, None when the coordinator's log no longer has it.
    """

    transaction: UnendedTransaction
    decided: Decided | None


def lost_ends(
    before: Iterable[UnendedTransaction], rows: Mapping[str, EndsRow], after: Iterable[UnendedTransaction]
) -> list[LostEnd]:
    """Return the transactions that were open *before* and *after* the coordinators' log was read as *rows*,
    and whose end is lost.

    A coordinator writes that a transaction is complete when it takes all its markers for written. So one that
    was open before its log was read, is not under way by that log, and is open after, has lost its end.
    """
    under_way = {
        (row.noted.producer_id, *place)
        for row in rows.values()
        if isinstance(row, KnownTransaction)
        and (row.noted.state is TransactionState.ONGOING or row.noted.state in PREPARED)
        for place in row.noted.partitions
    }
    found: list[LostEnd] = []
    for each in sorted(set(before) & set(after)):
        if (each.producer_id, each.topic, each.partition) not in under_way:
            row = rows.get(decision_key(each.producer_id, each.topic, each.partition))
            found.append(
                LostEnd(
                    transaction=each,
                    decided=row if isinstance(row, Decided) and row.epoch >= each.epoch else None,
                )
            )
    return found
