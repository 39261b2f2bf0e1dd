"""The open transactions that have lost their ends, by the logs alone."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.broker_logs.folds import TransactionNote
from holdfast.core.broker_logs.lost_ends import (
    Decided,
    EndsRow,
    OpenTransactions,
    UnendedTransaction,
    fold_ends,
    lost_ends,
)
from holdfast.core.kafka.record_batch import TRANSACTIONAL_BIT, ControlType, Record, RecordBatch
from holdfast.core.kafka.transaction_state import Transaction, TransactionState
from tests.support.marker_batches import marker_batch

ONGOING, EMPTY = TransactionState.ONGOING, TransactionState.EMPTY
COMMITTING, ABORTING = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMMITTED, ABORTED = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
ORDERS_0, ORDERS_1 = ("orders", 0), ("orders", 1)


def data(offset: int, producer_id: int, epoch: int = 0, attributes: int = TRANSACTIONAL_BIT) -> RecordBatch:
    return RecordBatch(
        base_offset=offset,
        attributes=attributes,
        producer_id=producer_id,
        producer_epoch=epoch,
        records=(Record(),),
    )


def marker(offset: int, producer_id: int, kind: ControlType = ControlType.COMMIT) -> RecordBatch:
    return marker_batch(
        kind,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=1,
        base_offset=offset,
        timestamp_ms=1,
    )


def test_a_transaction_is_open_when_no_marker_follows_it() -> None:
    open_ones = OpenTransactions("orders", 0)
    batches = [
        data(0, 1),
        data(1, 2),
        data(2, 1),
        marker(3, 1),
        data(4, 3, attributes=0),
        data(5, 1, 7),
        data(6, 4),
        marker(7, 4, ControlType.ABORT),
    ]
    for batch in batches:
        open_ones.add(batch)
    assert sorted(open_ones.found()) == [
        UnendedTransaction("orders", 0, 1, 2, 0),
        UnendedTransaction("orders", 0, 5, 1, 7),
    ]


def folded(*notes: tuple[str, Transaction | None]) -> dict[str, EndsRow]:
    rows: Any = {}
    for name, noted in notes:
        fold_ends(rows, TransactionNote(transactional_id=name, noted=noted), 0)
    return dict(rows)


def noted(
    state: TransactionState, *places: tuple[str, int], pid: int = 7, epoch: int = 3, at_ms: int = 50
) -> Transaction:
    return Transaction(
        producer_id=pid, timeout_ms=60_000, updated_ms=at_ms, epoch=epoch, state=state, partitions=places
    )


HANGS = UnendedTransaction("orders", 0, 100, 7, 3)


def decided(
    *notes: tuple[str, Transaction | None], hangs: UnendedTransaction = HANGS
) -> list[Decided | None]:
    return [each.decided for each in lost_ends([hangs], folded(*notes), [hangs])]


@pytest.mark.parametrize(
    ("deciding", "done", "commit"), [(COMMITTING, COMMITTED, True), (ABORTING, ABORTED, False)]
)
def test_a_complete_transaction_without_its_marker_is_to_end_as_was_decided(
    deciding: TransactionState, done: TransactionState, commit: bool
) -> None:
    notes = [("a", noted(ONGOING, ORDERS_0)), ("a", noted(deciding, ORDERS_0, ORDERS_1)), ("a", noted(done))]
    assert decided(*notes) == [Decided("a", 3, commit, 50)]


@pytest.mark.parametrize("state", [ONGOING, COMMITTING, ABORTING])
def test_a_transaction_under_way_has_not_lost_anything(state: TransactionState) -> None:
    before = [("a", noted(COMMITTING, ORDERS_0)), ("a", noted(COMMITTED))]
    assert decided(*before, ("a", noted(state, ORDERS_0))) == []


def test_a_transaction_under_way_elsewhere_does_not_excuse_one_that_hangs() -> None:
    notes = [
        ("a", noted(ABORTING, ORDERS_0)),
        ("a", noted(ABORTED)),
        ("a", noted(ONGOING, ORDERS_1, epoch=4)),
    ]
    assert decided(*notes) == [Decided("a", 3, False, 50)]


def test_the_decision_outlives_what_its_id_does_next_and_the_id() -> None:
    notes = [("a", noted(COMMITTING, ORDERS_0)), ("a", noted(COMMITTED)), ("a", noted(EMPTY, epoch=4))]
    later = [("a", noted(ABORTING, ORDERS_1, epoch=4, at_ms=60)), ("a", noted(ABORTED, epoch=4)), ("a", None)]
    assert decided(*notes, *later) == [Decided("a", 3, True, 50)]


def test_a_fence_decides_for_the_epoch_before_it() -> None:
    assert decided(("a", noted(ABORTING, ORDERS_0, epoch=4)), ("a", noted(ABORTED, epoch=4))) == [
        Decided("a", 4, False, 50)
    ]


@pytest.mark.parametrize(
    "notes",
    [
        [],
        [("a", noted(COMMITTED))],
        [("a", noted(COMMITTING, ORDERS_0, epoch=2)), ("a", noted(COMMITTED, epoch=2))],
        [("b", noted(COMMITTING, ORDERS_0, pid=8)), ("b", noted(COMMITTED, pid=8))],
    ],
    ids=["nothing told", "compacted away", "of an older epoch", "of another producer"],
)
def test_facts_that_the_log_does_not_have_are_not_guessed(
    notes: list[tuple[str, Transaction | None]],
) -> None:
    assert decided(*notes) == [None]


def test_a_transaction_that_was_open_only_once_may_have_ended_or_begun_since() -> None:
    rows, next_one = folded(("a", noted(COMMITTED))), UnendedTransaction("orders", 0, 120, 7, 3)
    assert lost_ends([HANGS], rows, [next_one]) == []
    assert lost_ends([], rows, [HANGS]) == []
