"""A transaction coordinator's state of a transactional id, and the commands that change it
(docs/producers.md, The coordinator).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TypeAlias

import msgspec

from holdfast.core.kafka.producer_state import Code
from holdfast.core.kafka.sequences import MAX_EPOCH, NO_EPOCH
from holdfast.core.kafka.topic_partition import Place

EXHAUSTED_EPOCH = MAX_EPOCH - 1
TRANSACTIONAL_ID_EXPIRATION_MS = 604_800_000
ID_BLOCK = 1_000
NO_ID = -1
EPOCH_PER_TRANSACTION = 2
"""From this version of the client's protocol on (KIP-890), each transaction has an epoch of its own."""

IDS_KEY = "ids"


class TransactionState(IntEnum):
    """The states, with the numbers that `__transaction_state` has for them.

    PREPARE_EPOCH_FENCE is never written.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


_S = TransactionState
ALLOWED_PREVIOUS: Mapping[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.ONGOING: frozenset({_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    _S.PREPARE_ABORT: frozenset(
        {_S.ONGOING, _S.PREPARE_EPOCH_FENCE, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}
    ),
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: frozenset({_S.EMPTY, _S.COMPLETE_ABORT, _S.COMPLETE_COMMIT}),
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.ONGOING}),
}
MAY_EXPIRE = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
PREPARED = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})


# -- rows


class Transaction(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """One transactional id; -1 is no id, no epoch, no time.

    *started_ms* is when its open or last transaction got its first partition.
    """

    producer_id: int
    timeout_ms: int
    updated_ms: int
    epoch: int = NO_EPOCH
    last_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    state: TransactionState = TransactionState.EMPTY
    pending_state: TransactionState | None = None
    partitions: tuple[Place, ...] = ()
    started_ms: int = -1
    client_version: int = 0
    coordinator_epoch: int = 0

    @property
    def is_exhausted(self) -> bool:
        """Return whether the epochs of this producer id are used up."""
        return self.epoch >= EXHAUSTED_EPOCH


class ProducerIds(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="i"):
    """The next producer id, and the end of the block it is taken from."""

    next_id: int = 0
    block_end: int = ID_BLOCK


CoordinatorRow: TypeAlias = Transaction | ProducerIds


def transaction_key(transactional_id: str) -> str:
    return f"t/{transactional_id}"


# -- commands


class InitProducerId(msgspec.Struct, frozen=True, kw_only=True, tag="init"):
    """A producer starts.

    *expected* is the id and epoch it has (KIP-360): it continues after an error instead of fencing itself.
    """

    transactional_id: str | None
    timeout_ms: int
    expected: tuple[int, int] | None = None


class AddPartitions(msgspec.Struct, frozen=True, kw_only=True, tag="add"):
    """The transaction will write to these partitions."""

    transactional_id: str
    producer_id: int
    epoch: int
    partitions: tuple[Place, ...]
    client_version: int = 0


class VerifyPartition(msgspec.Struct, frozen=True, kw_only=True, tag="verify"):
    """A leader asks whether a transaction has announced that it writes to a partition."""

    transactional_id: str
    producer_id: int
    epoch: int
    partition: Place


class EndTransaction(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """Commit or abort."""

    transactional_id: str
    producer_id: int
    epoch: int
    commit: bool
    client_version: int = 0


class MarkersWritten(msgspec.Struct, frozen=True, kw_only=True, tag="written"):
    """Every partition of the transaction has its marker."""

    transactional_id: str


class TransitionPending(msgspec.Struct, frozen=True, kw_only=True, tag="pending"):
    """A transition to *state* is being written elsewhere; None: no more."""

    transactional_id: str
    state: TransactionState | None


class AbortTimedOut(msgspec.Struct, frozen=True, kw_only=True, tag="timeouts"):
    """The sweep every 10 s: transactions open for longer than their timeout are fenced and aborted."""


class ExpireIds(msgspec.Struct, frozen=True, kw_only=True, tag="expiry"):
    """The hourly sweep: transactional ids unused for *expiration_ms* are forgotten."""

    expiration_ms: int = TRANSACTIONAL_ID_EXPIRATION_MS


CoordinatorCommand: TypeAlias = (
    InitProducerId
    | AddPartitions
    | VerifyPartition
    | EndTransaction
    | MarkersWritten
    | TransitionPending
    | AbortTimedOut
    | ExpireIds
)


class CoordinatorReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the caller. *touched* are the transactional ids whose rows changed."""

    error: Code = Code.NONE
    producer_id: int = NO_ID
    epoch: int = NO_EPOCH
    touched: tuple[str, ...] = ()
