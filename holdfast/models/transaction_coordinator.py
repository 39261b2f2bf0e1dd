"""A transaction coordinator's decisions (docs/producers.md, The coordinator): ids and epochs, transactions
and their ends.

A pure fold: commands in, rows and answers out. Each transactional id has a row `t/<id>`; `ids` holds the next
producer id. A transition is applied at once; a coordinator that first writes it elsewhere says so with
`TransitionPending`, and its callers wait until then.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.producer_state import MAX_TRANSACTION_TIMEOUT_MS, Code
from holdfast.core.kafka.sequences import MAX_EPOCH, NO_EPOCH
from holdfast.core.kafka.transaction_state import (
    ALLOWED_PREVIOUS,
    EPOCH_PER_TRANSACTION,
    EXHAUSTED_EPOCH,
    ID_BLOCK,
    IDS_KEY,
    MAY_EXPIRE,
    NO_ID,
    PREPARED,
    AbortTimedOut,
    AddPartitions,
    CoordinatorCommand,
    CoordinatorReply,
    CoordinatorRow,
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

_S = TransactionState


def _error(code: Code) -> CoordinatorReply:
    return CoordinatorReply(error=code)


# -- the fold


def coordinate(
    rows: Rows[CoordinatorRow],
    command: CoordinatorCommand,
    at_ms: int,
    *,
    max_timeout_ms: int = MAX_TRANSACTION_TIMEOUT_MS,
) -> CoordinatorReply:
    """Apply *command* at log time *at_ms* and return the answer; a refused command changes nothing."""
    match command:
        case InitProducerId():
            return _init(rows, command, at_ms, max_timeout_ms)
        case AddPartitions():
            return _add(rows, command, at_ms)
        case VerifyPartition():
            return _verify(rows, command)
        case EndTransaction():
            return _end(rows, command, at_ms)
        case MarkersWritten():
            return _complete(rows, command, at_ms)
        case TransitionPending():
            return _pend(rows, command)
        case AbortTimedOut():
            return _abort_timed_out(rows, at_ms)
        case ExpireIds():
            return _expire(rows, command, at_ms)
        case _:
            assert_never(command)


def transaction_of(rows: Rows[CoordinatorRow], transactional_id: str) -> Transaction | None:
    """Return the row of a transactional id, None when it is unknown."""
    found = rows.get(transaction_key(transactional_id))
    return found if isinstance(found, Transaction) else None


def _put(rows: Rows[CoordinatorRow], transactional_id: str, before: Transaction, after: Transaction) -> None:
    steps = (before.state, after.state)
    assert before.state in ALLOWED_PREVIOUS[after.state], (
        f"{transactional_id}: no way from {steps[0].name} to {steps[1].name}"
    )
    # The previous id is that of the state before, so it is the producer's own from the second state on, as in
    # Kafka (TransactionMetadata.prepareTransitionTo): a request with an id of long ago is not a repetition,
    # but late.
    rows[transaction_key(transactional_id)] = msgspec.structs.replace(
        after, previous_producer_id=before.producer_id
    )


def _next_id(rows: Rows[CoordinatorRow]) -> int:
    found = rows.get(IDS_KEY)
    ids = found if isinstance(found, ProducerIds) else ProducerIds()
    end = ids.block_end + ID_BLOCK if ids.next_id + 1 >= ids.block_end else ids.block_end
    rows[IDS_KEY] = ProducerIds(ids.next_id + 1, end)
    return ids.next_id


# -- ids and epochs


def _init(
    rows: Rows[CoordinatorRow], command: InitProducerId, at_ms: int, max_timeout_ms: int
) -> CoordinatorReply:
    transactional_id = command.transactional_id
    if transactional_id is None:
        return CoordinatorReply(producer_id=_next_id(rows), epoch=0)
    if not transactional_id:
        return _error(Code.INVALID_REQUEST)
    if not 0 < command.timeout_ms <= max_timeout_ms:
        return _error(Code.INVALID_TRANSACTION_TIMEOUT)
    known = transaction_of(rows, transactional_id)
    if known is None:
        known = Transaction(_next_id(rows), command.timeout_ms, at_ms)
    if known.pending_state is not None:
        return _error(Code.CONCURRENT_TRANSACTIONS)
    if command.expected is not None and not _may_go_on(known, *command.expected):
        return _error(Code.PRODUCER_FENCED)
    if known.state in PREPARED:
        return _error(Code.CONCURRENT_TRANSACTIONS)
    if known.state is _S.ONGOING:
        # The producer asks again when the abort is complete. Then one that says who it is gets this epoch
        # (KIP-360), and any other start the next one.
        _put(rows, transactional_id, known, _fenced(known, at_ms))
        return CoordinatorReply(error=Code.CONCURRENT_TRANSACTIONS, touched=(transactional_id,))
    expected_epoch = None if command.expected is None else command.expected[1]
    if known.is_exhausted and expected_epoch in (None, known.epoch):
        after = msgspec.structs.replace(
            known,
            producer_id=_next_id(rows),
            epoch=0,
            last_epoch=NO_EPOCH if expected_epoch is None else known.epoch,
        )
    else:
        epochs = _next_epoch(known, expected_epoch)
        if epochs is None:
            return _error(Code.PRODUCER_FENCED)
        after = msgspec.structs.replace(known, epoch=epochs[0], last_epoch=epochs[1])
    after = msgspec.structs.replace(
        after,
        state=_S.EMPTY,
        timeout_ms=command.timeout_ms,
        partitions=(),
        started_ms=-1,
        updated_ms=at_ms,
        next_producer_id=NO_ID,
    )
    _put(rows, transactional_id, known, after)
    return CoordinatorReply(producer_id=after.producer_id, epoch=after.epoch, touched=(transactional_id,))


def _may_go_on(known: Transaction, producer_id: int, epoch: int) -> bool:
    """A producer that names its id must be the current one, or one that has not received its own last change
    of id.
    """
    return (
        known.epoch == NO_EPOCH
        or producer_id == known.producer_id
        or (producer_id == known.previous_producer_id and epoch >= EXHAUSTED_EPOCH)
    )


def _next_epoch(known: Transaction, expected: int | None) -> tuple[int, int] | None:
    """Return epoch and last epoch after InitProducerId; None for a producer that was fenced."""
    if expected is None:
        return known.epoch + 1, NO_EPOCH
    if known.epoch in (NO_EPOCH, expected):
        return known.epoch + 1, known.epoch
    if expected == known.last_epoch:  # the answer to the same question was lost
        return known.epoch, known.last_epoch
    return None


def _fenced(known: Transaction, at_ms: int) -> Transaction:
    """Return the transaction in a new epoch, to be aborted: through PREPARE_EPOCH_FENCE, which is never
    written.

    The producer may continue from the epoch before, as after an abort of its own
    (TransactionMetadata.prepareAbortOrCommit under transaction.version 2); not where the new one is the last:
    from there it needs another id.
    """
    assert known.epoch < MAX_EPOCH, f"epoch {known.epoch} cannot be fenced: there is none after it"
    return msgspec.structs.replace(
        known,
        epoch=known.epoch + 1,
        last_epoch=known.epoch if known.epoch + 1 < EXHAUSTED_EPOCH else NO_EPOCH,
        state=_S.PREPARE_ABORT,
        pending_state=None,
        updated_ms=at_ms,
        client_version=EPOCH_PER_TRANSACTION,  # the coordinator's own, whatever the producer's is
    )


# -- transactions


def _add(rows: Rows[CoordinatorRow], command: AddPartitions, at_ms: int) -> CoordinatorReply:
    if not command.transactional_id:
        return _error(Code.INVALID_REQUEST)
    known = transaction_of(rows, command.transactional_id)
    if known is None or known.producer_id != command.producer_id:
        return _error(Code.INVALID_PRODUCER_ID_MAPPING)
    if known.epoch != command.epoch:
        return _error(Code.PRODUCER_FENCED)
    if known.pending_state is not None or known.state in PREPARED:
        return _error(Code.CONCURRENT_TRANSACTIONS)
    partitions = tuple(sorted({*known.partitions, *command.partitions}))
    same = CoordinatorReply(producer_id=known.producer_id, epoch=known.epoch)
    if known.state is _S.ONGOING and len(partitions) == len(known.partitions):
        return same
    after = msgspec.structs.replace(
        known,
        state=_S.ONGOING,
        partitions=partitions,
        started_ms=known.started_ms if known.state is _S.ONGOING else at_ms,
        updated_ms=at_ms,
        client_version=command.client_version,
    )
    _put(rows, command.transactional_id, known, after)
    return msgspec.structs.replace(same, touched=(command.transactional_id,))


def _verify(rows: Rows[CoordinatorRow], command: VerifyPartition) -> CoordinatorReply:
    known = transaction_of(rows, command.transactional_id)
    if known is None or known.producer_id != command.producer_id:
        return _error(Code.INVALID_PRODUCER_ID_MAPPING)
    if known.epoch != command.epoch:
        return _error(Code.PRODUCER_FENCED)
    if known.pending_state is not None or known.state in PREPARED:
        return _error(Code.CONCURRENT_TRANSACTIONS)
    if known.state is not _S.ONGOING or command.partition not in known.partitions:
        return _error(Code.TRANSACTION_ABORTABLE)
    return CoordinatorReply(producer_id=known.producer_id, epoch=known.epoch)


def _end(rows: Rows[CoordinatorRow], command: EndTransaction, at_ms: int) -> CoordinatorReply:
    if not command.transactional_id:
        return _error(Code.INVALID_REQUEST)
    known = transaction_of(rows, command.transactional_id)
    if known is None:
        return _error(Code.INVALID_PRODUCER_ID_MAPPING)
    own_epochs = command.client_version >= EPOCH_PER_TRANSACTION
    if own_epochs and known.pending_state is not None:
        # First of all: the pending change may be that of the producer id, over which the checks below would
        # stumble over.
        return _error(Code.CONCURRENT_TRANSACTIONS)
    over = (
        own_epochs
        and command.producer_id == known.previous_producer_id
        and command.epoch == EXHAUSTED_EPOCH
        and known.epoch == 0
    )
    if known.producer_id != command.producer_id and not over:
        return _error(Code.INVALID_PRODUCER_ID_MAPPING)
    again = over or (
        own_epochs and known.epoch == command.epoch + 1 and known.state in PREPARED | MAY_EXPIRE - {_S.EMPTY}
    )
    if not again and (known.epoch != command.epoch or (own_epochs and known.state in PREPARED)):
        return _error(Code.PRODUCER_FENCED)
    if known.pending_state is not None:
        return _error(Code.CONCURRENT_TRANSACTIONS)
    if known.state is _S.ONGOING:
        after = _prepared(rows, known, command, at_ms)
        _put(rows, command.transactional_id, known, after)
        return _told(after, command.transactional_id)
    if own_epochs and not again and not command.commit:
        # Nothing was written, yet the epoch moves, so that nothing of it can arrive later (Kafka 4,
        # TransactionCoordinator.endTransaction with noPartitionAdded).
        assert known.state in MAY_EXPIRE
        after = _prepared(rows, msgspec.structs.replace(known, started_ms=at_ms), command, at_ms)
        _put(rows, command.transactional_id, known, after)
        return _told(after, command.transactional_id)
    wanted = (
        (_S.PREPARE_COMMIT, _S.COMPLETE_COMMIT) if command.commit else (_S.PREPARE_ABORT, _S.COMPLETE_ABORT)
    )
    if known.state is wanted[0]:
        return _error(Code.CONCURRENT_TRANSACTIONS)
    if known.state is wanted[1] and again is own_epochs:
        return _told(known)
    return _error(Code.INVALID_TXN_STATE)


def _prepared(
    rows: Rows[CoordinatorRow], known: Transaction, command: EndTransaction, at_ms: int
) -> Transaction:
    state = _S.PREPARE_COMMIT if command.commit else _S.PREPARE_ABORT
    after = msgspec.structs.replace(
        known, state=state, updated_ms=at_ms, client_version=command.client_version
    )
    if command.client_version < EPOCH_PER_TRANSACTION:
        return after
    # The markers carry the new epoch, so that nothing of this transaction can be written after them.
    next_id = _next_id(rows) if known.is_exhausted else NO_ID
    return msgspec.structs.replace(
        after, epoch=known.epoch + 1, last_epoch=known.epoch, next_producer_id=next_id
    )


def _told(known: Transaction, *touched: str) -> CoordinatorReply:
    """Return the id and epoch with which a client continues: after the last epoch of an id comes the next
    id.
    """
    if known.next_producer_id != NO_ID:
        return CoordinatorReply(producer_id=known.next_producer_id, epoch=0, touched=touched)
    return CoordinatorReply(producer_id=known.producer_id, epoch=known.epoch, touched=touched)


def _complete(rows: Rows[CoordinatorRow], command: MarkersWritten, at_ms: int) -> CoordinatorReply:
    known = transaction_of(rows, command.transactional_id)
    if known is None or known.state not in PREPARED:
        return _error(Code.INVALID_TXN_STATE)
    state = _S.COMPLETE_COMMIT if known.state is _S.PREPARE_COMMIT else _S.COMPLETE_ABORT
    after = msgspec.structs.replace(known, state=state, partitions=(), updated_ms=at_ms, pending_state=None)
    if known.next_producer_id != NO_ID:
        after = msgspec.structs.replace(
            after,
            producer_id=known.next_producer_id,
            next_producer_id=NO_ID,
            epoch=0,
        )
    _put(rows, command.transactional_id, known, after)
    return _told(after, command.transactional_id)


def _pend(rows: Rows[CoordinatorRow], command: TransitionPending) -> CoordinatorReply:
    known = transaction_of(rows, command.transactional_id)
    if known is None:
        return _error(Code.INVALID_PRODUCER_ID_MAPPING)
    if command.state is not None and known.state not in ALLOWED_PREVIOUS[command.state]:
        return _error(Code.INVALID_TXN_STATE)
    rows[transaction_key(command.transactional_id)] = msgspec.structs.replace(
        known, pending_state=command.state
    )
    return CoordinatorReply(touched=(command.transactional_id,))


# -- sweeps


def _abort_timed_out(rows: Rows[CoordinatorRow], at_ms: int) -> CoordinatorReply:
    touched = []
    for key, row in list(rows.scan("t/")):
        if (
            isinstance(row, Transaction)
            and row.state is _S.ONGOING
            and row.pending_state is None
            and row.started_ms + row.timeout_ms < at_ms
        ):
            touched.append(key.removeprefix("t/"))
            _put(rows, touched[-1], row, _fenced(row, at_ms))
    return CoordinatorReply(touched=tuple(touched))


def _expire(rows: Rows[CoordinatorRow], command: ExpireIds, at_ms: int) -> CoordinatorReply:
    touched = []
    for key, row in list(rows.scan("t/")):
        if (
            isinstance(row, Transaction)
            and row.state in MAY_EXPIRE
            and row.updated_ms <= at_ms - command.expiration_ms
        ):
            touched.append(key.removeprefix("t/"))
            del rows[key]  # through DEAD, which is never written either
    return CoordinatorReply(touched=tuple(touched))
