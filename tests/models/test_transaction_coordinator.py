"""The transaction coordinator: ids and epochs, KIP-360, epochs of each transaction (KIP-890), timeouts,
and random lives of producers.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.kafka.producer_state import Code
from holdfast.core.kafka.sequences import MAX_EPOCH
from holdfast.core.kafka.transaction_state import (
    ALLOWED_PREVIOUS,
    EXHAUSTED_EPOCH,
    ID_BLOCK,
    TRANSACTIONAL_ID_EXPIRATION_MS,
    AbortTimedOut,
    AddPartitions,
    CoordinatorCommand,
    CoordinatorReply,
    EndTransaction,
    ExpireIds,
    InitProducerId,
    MarkersWritten,
    ProducerIds,
    Transaction,
    TransactionState,
    TransitionPending,
    VerifyPartition,
    transaction_key,
)
from tests.models.leading import Desk
from tests.support.scale import scaled

S = TransactionState
ORDERS = ("orders", 0)


def init(
    desk: Desk, expected: tuple[int, int] | None = None, name: str | None = "pay", timeout_ms: int = 60_000
) -> CoordinatorReply:
    return desk.do(InitProducerId(transactional_id=name, timeout_ms=timeout_ms, expected=expected))


def add(
    desk: Desk, pid: int, epoch: int, *partitions: tuple[str, int], name: str = "pay", version: int = 0
) -> CoordinatorReply:
    found = partitions or (ORDERS,)
    return desk.do(
        AddPartitions(
            transactional_id=name, producer_id=pid, epoch=epoch, partitions=found, client_version=version
        )
    )


def end(desk: Desk, pid: int, epoch: int, *, commit: bool = True, version: int = 0) -> CoordinatorReply:
    return desk.do(
        EndTransaction(
            transactional_id="pay", producer_id=pid, epoch=epoch, commit=commit, client_version=version
        )
    )


def written(desk: Desk) -> CoordinatorReply:
    return desk.do(MarkersWritten(transactional_id="pay"))


def placed(desk: Desk, **fields: Any) -> None:
    """Put the transactional id into a state of its life."""
    desk.rows[transaction_key("pay")] = Transaction(
        **{"producer_id": 9, "timeout_ms": 60_000, "updated_ms": 0, **fields}
    )


# -- ids


def test_a_producer_without_a_transactional_id_gets_a_new_id_and_leaves_no_row() -> None:
    desk = Desk()
    assert [init(desk, name=None).producer_id for _ in range(3)] == [0, 1, 2]
    assert init(desk, name=None).epoch == 0
    assert list(desk.rows.scan("t/")) == []


def test_ids_come_in_blocks() -> None:
    desk = Desk()
    for at in range(ID_BLOCK + 5):
        assert init(desk, name=None).producer_id == at
        ids = desk.rows.get("ids")
        assert isinstance(ids, ProducerIds)
        assert ids.next_id < ids.block_end


def test_requests_that_make_no_sense_are_refused() -> None:
    desk = Desk()
    assert init(desk, name="").error is Code.INVALID_REQUEST
    for timeout_ms in (0, -1, 900_001):
        assert init(desk, timeout_ms=timeout_ms).error is Code.INVALID_TRANSACTION_TIMEOUT
    assert init(desk, timeout_ms=900_000).error is Code.NONE
    assert add(desk, 0, 0, name="").error is Code.INVALID_REQUEST
    assert add(desk, 0, 0, name="unknown").error is Code.INVALID_PRODUCER_ID_MAPPING
    assert end(Desk(), 0, 0).error is Code.INVALID_PRODUCER_ID_MAPPING


# -- epochs


def test_each_start_raises_the_epoch_and_fences_the_one_before() -> None:
    desk = Desk()
    first, second = init(desk), init(desk)
    assert (first.producer_id, first.epoch, second.epoch) == (second.producer_id, 0, 1)
    assert add(desk, first.producer_id, 0).error is Code.PRODUCER_FENCED
    assert add(desk, first.producer_id, 1).error is Code.NONE
    assert add(desk, 77, 1).error is Code.INVALID_PRODUCER_ID_MAPPING


def test_a_start_during_a_transaction_aborts_it_under_the_next_epoch() -> None:
    desk = Desk()
    pid = init(desk).producer_id
    add(desk, pid, 0)
    assert init(desk).error is Code.CONCURRENT_TRANSACTIONS
    assert (desk.row().state, desk.row().epoch, desk.row().last_epoch) == (S.PREPARE_ABORT, 1, 0)
    assert end(desk, pid, 0).error is Code.PRODUCER_FENCED
    assert init(desk).error is Code.CONCURRENT_TRANSACTIONS, "until the markers are written"
    written(desk)
    assert (init(desk).epoch, desk.row().state) == (2, S.EMPTY)


def test_a_producer_that_names_its_id_continues_after_an_error() -> None:
    """KIP-360."""
    desk = Desk()
    pid = init(desk).producer_id
    assert init(desk, (pid, 0)).epoch == 1
    assert init(desk, (pid, 0)).epoch == 1, "the answer was lost; asked again, it is the same"
    assert init(desk, (pid, 1)).epoch == 2
    assert init(desk, (pid, 0)).error is Code.PRODUCER_FENCED
    assert init(desk, (pid + 1, 2)).error is Code.PRODUCER_FENCED
    assert init(desk).epoch == 3
    assert init(desk, (pid, 2)).error is Code.PRODUCER_FENCED, "a start by another forgets the last epoch"


def test_a_producer_continues_though_its_transaction_was_aborted_for_it() -> None:
    """KIP-360, as Apache Kafka 4.3.1 answers: by its own start, or after its timeout."""
    for began in (False, True):
        desk = Desk()
        pid = init(desk).producer_id
        add(desk, pid, 0)
        if began:
            assert init(desk, (pid, 0)).error is Code.CONCURRENT_TRANSACTIONS
        else:
            desk.at_ms += 60_001
            assert desk.do(AbortTimedOut()).touched == ("pay",)
        written(desk)
        assert (init(desk, (pid, 0)).epoch, desk.row().state) == (1, S.EMPTY)
        assert init(desk, (pid, 0)).epoch == 1, "the answer was lost; asked again, it is the same"
        assert init(desk).epoch == 2
        assert init(desk, (pid, 0)).error is Code.PRODUCER_FENCED
        assert init(desk, (pid, 1)).error is Code.PRODUCER_FENCED, "another has started"


def test_a_producer_whose_epochs_are_used_up_by_such_an_abort_is_fenced() -> None:
    for epoch in (EXHAUSTED_EPOCH - 1, EXHAUSTED_EPOCH):
        desk = Desk()
        placed(desk, epoch=epoch, state=S.ONGOING, partitions=(ORDERS,))
        assert init(desk, (9, epoch)).error is Code.CONCURRENT_TRANSACTIONS
        written(desk)
        assert init(desk, (9, epoch)).error is Code.PRODUCER_FENCED


def test_the_first_call_of_a_producer_that_believes_to_have_an_id_gives_a_new_one() -> None:
    desk = Desk()
    answer = init(desk, (55, 3))
    assert (answer.error, answer.epoch, answer.producer_id) == (Code.NONE, 0, 0)


def test_after_the_last_epoch_comes_the_next_id() -> None:
    desk = Desk()
    placed(desk, epoch=EXHAUSTED_EPOCH)
    answer = init(desk)
    assert (answer.epoch, answer.producer_id != 9) == (0, True)
    assert (desk.row().previous_producer_id, desk.row().last_epoch) == (9, -1)
    placed(desk, epoch=EXHAUSTED_EPOCH)
    answer = init(desk, (9, EXHAUSTED_EPOCH))
    assert (answer.epoch, desk.row().last_epoch) == (0, EXHAUSTED_EPOCH)
    assert init(desk, (9, EXHAUSTED_EPOCH)) == answer.__class__(
        producer_id=answer.producer_id, epoch=0, touched=("pay",)
    )
    assert init(desk, (9, EXHAUSTED_EPOCH - 1)).error is Code.PRODUCER_FENCED


def test_an_exhausted_epoch_is_fenced_once_more_and_never_beyond_the_largest() -> None:
    desk = Desk()
    placed(desk, epoch=EXHAUSTED_EPOCH, state=S.ONGOING, partitions=(ORDERS,))
    assert init(desk).error is Code.CONCURRENT_TRANSACTIONS
    assert desk.row().epoch == MAX_EPOCH
    written(desk)
    assert (init(desk).epoch, desk.row().producer_id != 9) == (0, True)


# -- transactions


def test_a_transaction_takes_partitions_and_keeps_when_it_began() -> None:
    desk = Desk()
    pid = init(desk).producer_id
    desk.at_ms = 5_000
    assert add(desk, pid, 0, ("b", 1), ("a", 2)).touched == ("pay",)
    desk.at_ms = 6_000
    assert add(desk, pid, 0, ("a", 2)).touched == (), "nothing new, nothing written"
    assert add(desk, pid, 0, ("c", 0)).touched == ("pay",)
    assert (desk.row().partitions, desk.row().started_ms, desk.row().updated_ms) == (
        (("a", 2), ("b", 1), ("c", 0)),
        5_000,
        6_000,
    )
    end(desk, pid, 0)
    assert add(desk, pid, 0).error is Code.CONCURRENT_TRANSACTIONS
    written(desk)
    assert (desk.row().state, desk.row().partitions) == (S.COMPLETE_COMMIT, ())
    desk.at_ms = 7_000
    add(desk, pid, 0)
    assert desk.row().started_ms == 7_000


def test_a_leader_learns_whether_a_partition_was_announced() -> None:
    desk = Desk()
    pid = init(desk).producer_id

    def ask(partition: tuple[str, int], epoch: int = 0, producer_id: int = pid) -> Code:
        return desk.do(
            VerifyPartition(transactional_id="pay", producer_id=producer_id, epoch=epoch, partition=partition)
        ).error

    assert ask(ORDERS) is Code.TRANSACTION_ABORTABLE
    add(desk, pid, 0)
    assert ask(ORDERS) is Code.NONE
    assert ask(("orders", 1)) is Code.TRANSACTION_ABORTABLE
    assert ask(ORDERS, epoch=1) is Code.PRODUCER_FENCED
    assert ask(ORDERS, producer_id=pid + 1) is Code.INVALID_PRODUCER_ID_MAPPING
    end(desk, pid, 0)
    assert ask(ORDERS) is Code.CONCURRENT_TRANSACTIONS


def test_while_a_transition_is_pending_everybody_is_asked_to_wait() -> None:
    desk = Desk()
    pid = init(desk).producer_id
    add(desk, pid, 0)
    desk.do(TransitionPending(transactional_id="pay", state=S.PREPARE_COMMIT))
    assert init(desk).error is Code.CONCURRENT_TRANSACTIONS
    assert add(desk, pid, 0, ("c", 1)).error is Code.CONCURRENT_TRANSACTIONS
    assert end(desk, pid, 0).error is Code.CONCURRENT_TRANSACTIONS
    assert end(desk, pid, 1).error is Code.PRODUCER_FENCED, "who may not ask at all is told first"
    assert end(desk, pid, 1, version=2).error is Code.CONCURRENT_TRANSACTIONS, (
        "with epochs of their own, the pending one may be the new one"
    )
    desk.do(TransitionPending(transactional_id="pay", state=None))
    assert end(desk, pid, 0).error is Code.NONE
    assert desk.do(TransitionPending(transactional_id="pay", state=S.ONGOING)).error is Code.INVALID_TXN_STATE
    assert (
        desk.do(TransitionPending(transactional_id="who", state=None)).error
        is Code.INVALID_PRODUCER_ID_MAPPING
    )


def test_markers_without_an_end_are_refused() -> None:
    desk = Desk()
    init(desk)
    assert written(desk).error is Code.INVALID_TXN_STATE
    assert desk.do(MarkersWritten(transactional_id="who")).error is Code.INVALID_TXN_STATE


# -- an epoch for each transaction


def test_each_transaction_has_its_own_epoch_and_an_end_asked_again_is_known_by_it() -> None:
    """KIP-890."""
    desk = Desk()
    pid, epoch = init(desk).producer_id, 0
    for commit in (True, False, True):
        assert add(desk, pid, epoch, version=2).error is Code.NONE
        answer = end(desk, pid, epoch, commit=commit, version=2)
        assert (answer.producer_id, answer.epoch) == (pid, epoch + 1)
        assert end(desk, pid, epoch, commit=commit, version=2).error is Code.CONCURRENT_TRANSACTIONS
        written(desk)
        again = end(desk, pid, epoch, commit=commit, version=2)
        assert (again.error, again.producer_id, again.epoch) == (Code.NONE, pid, epoch + 1)
        assert end(desk, pid, epoch, commit=not commit, version=2).error is Code.INVALID_TXN_STATE
        epoch += 1
    assert end(desk, pid, epoch - 2, version=2).error is Code.PRODUCER_FENCED


def test_the_last_epoch_ends_in_the_next_id_and_its_end_may_be_asked_again() -> None:
    """KIP-890."""
    desk = Desk()
    placed(desk, epoch=EXHAUSTED_EPOCH, state=S.ONGOING, partitions=(ORDERS,))
    answer = end(desk, 9, EXHAUSTED_EPOCH, version=2)
    new = answer.producer_id
    assert (answer.epoch, new != 9) == (0, True)
    assert (desk.row().producer_id, desk.row().epoch) == (9, MAX_EPOCH), "the markers still have the old id"
    assert end(desk, 9, EXHAUSTED_EPOCH, version=2).error is Code.CONCURRENT_TRANSACTIONS
    written(desk)
    assert (desk.row().producer_id, desk.row().epoch, desk.row().previous_producer_id) == (new, 0, 9)
    again = end(desk, 9, EXHAUSTED_EPOCH, version=2)
    assert (again.error, again.producer_id, again.epoch) == (Code.NONE, new, 0)
    assert end(desk, 9, EXHAUSTED_EPOCH - 1, version=2).error is Code.INVALID_PRODUCER_ID_MAPPING
    assert add(desk, new, 0, version=2).error is Code.NONE
    late = end(desk, 9, EXHAUSTED_EPOCH, version=2)
    assert late.error is Code.INVALID_PRODUCER_ID_MAPPING, "it would end the transaction of the new id"
    assert desk.row().state is S.ONGOING
    assert init(desk, (9, EXHAUSTED_EPOCH)).error is Code.PRODUCER_FENCED


def test_a_fenced_transaction_is_aborted_by_the_coordinators_own_protocol() -> None:
    """As Apache Kafka 4.3 writes it, whatever the producer speaks (the transcript `log_of_transactions`)."""
    desk = Desk()
    pid = init(desk).producer_id
    add(desk, pid, 0)
    assert desk.row().client_version == 0
    init(desk)
    assert (desk.row().state, desk.row().client_version) == (S.PREPARE_ABORT, 2)


# -- sweeps


def test_a_transaction_open_for_longer_than_its_timeout_is_fenced_and_aborted() -> None:
    desk = Desk()
    pid = init(desk, timeout_ms=30_000).producer_id
    add(desk, pid, 0)
    desk.at_ms += 30_000
    assert desk.do(AbortTimedOut()).touched == ()
    desk.at_ms += 1
    assert desk.do(AbortTimedOut()).touched == ("pay",)
    assert (desk.row().state, desk.row().epoch) == (S.PREPARE_ABORT, 1)
    assert end(desk, pid, 0).error is Code.PRODUCER_FENCED
    assert desk.do(AbortTimedOut()).touched == ()


@pytest.mark.parametrize("state", TransactionState)
def test_only_ids_without_a_transaction_are_forgotten(state: TransactionState) -> None:
    desk = Desk()
    placed(desk, epoch=1, state=state)
    desk.at_ms = TRANSACTIONAL_ID_EXPIRATION_MS - 1
    assert desk.do(ExpireIds()).touched == ()
    desk.at_ms += 1
    assert (desk.do(ExpireIds()).touched == ("pay",)) is (
        state in (S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)
    )


# -- random lives

TRANSACTIONAL = ("pay", "ship")
steps = st.lists(
    st.tuples(st.sampled_from(["init", "init", "go on", "add", "add", "commit", "abort", "again", "written", "written", "time", "expire"]), st.sampled_from(TRANSACTIONAL), st.integers(-1, 1)),  # noqa: E501
    max_size=80,
)  # fmt: skip


def command_of(
    kind: str, name: str, row: Transaction | None, back: int, version: int, last: CoordinatorCommand | None
) -> CoordinatorCommand:
    pid, epoch = (row.producer_id, max(-1, row.epoch + back)) if row is not None else (3, 0)
    match kind:
        case "init":
            return InitProducerId(transactional_id=name, timeout_ms=60_000)
        case "go on":
            return InitProducerId(transactional_id=name, timeout_ms=60_000, expected=(pid, epoch))
        case "add":
            return AddPartitions(
                transactional_id=name,
                producer_id=pid,
                epoch=epoch,
                partitions=(ORDERS,),
                client_version=version,
            )
        case "commit" | "abort":
            return EndTransaction(
                transactional_id=name,
                producer_id=pid,
                epoch=epoch,
                commit=kind == "commit",
                client_version=version,
            )
        case "written":
            return MarkersWritten(transactional_id=name)
        case "time":
            return AbortTimedOut()
        case "expire":
            return ExpireIds(expiration_ms=150_000)
        case _:
            return last or ExpireIds()


@given(steps, st.sampled_from([0, 2]), st.sampled_from([0, EXHAUSTED_EPOCH - 3]))
@settings(max_examples=scaled(150))
def test_whatever_happens_states_follow_the_table_and_no_identity_is_given_twice(
    lives: list[tuple[str, str, int]], version: int, epoch: int
) -> None:
    desk = Desk()
    placed(desk, epoch=epoch)
    desk.rows["ids"] = ProducerIds(10, 1_000)
    given_out: set[tuple[int, int]] = set()
    last: CoordinatorCommand | None = None
    for kind, name, back in lives:
        before = {key: row for key, row in desk.rows.scan("t/") if isinstance(row, Transaction)}
        command = command_of(kind, name, before.get(transaction_key(name)), back, version, last)
        desk.at_ms += 61_000 if kind == "time" else 7
        answer = desk.do(command)
        after = {key: row for key, row in desk.rows.scan("t/") if isinstance(row, Transaction)}
        for key, row in after.items():
            old = before.get(key)
            if old is not None and old != row:
                assert old.state in ALLOWED_PREVIOUS[row.state], (old, row)
                assert row.epoch <= MAX_EPOCH
                if old.producer_id == row.producer_id:
                    assert row.epoch >= old.epoch, "an epoch never goes back"
        if isinstance(command, InitProducerId) and command.expected is None and answer.error is Code.NONE:
            identity = (answer.producer_id, answer.epoch)
            assert identity not in given_out, "two starts were given the same identity"
            given_out.add(identity)
        last = command
