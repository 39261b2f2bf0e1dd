"""A partition leader's state of its producers, and the events that change it (docs/producers.md, The leader's
table).
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import TypeAlias

import msgspec

from holdfast.core.kafka.sequences import NO_EPOCH, NO_SEQUENCE

CACHED_BATCHES = 5
EXPIRATION_MS = 86_400_000
MAX_TRANSACTION_TIMEOUT_MS = 900_000
LATE_TRANSACTION_BUFFER_MS = 300_000


class Code(IntEnum):
    """Kafka's error codes that concern producers; `Code(47).name` is Kafka's own word."""

    NONE = 0
    INVALID_REQUEST = 42
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    UNKNOWN_PRODUCER_ID = 59
    PRODUCER_FENCED = 90
    TRANSACTION_ABORTABLE = 120


class Origin(StrEnum):
    """The source of an append: only a client's sequences are checked, replicated batches were checked
    before.
    """

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


# -- rows


class CachedBatch(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The part of a batch by which a repetition is recognised."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    max_timestamp_ms: int


class ProducerEntry(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """One producer on one partition; -1 means unknown. *batches* are the last five, oldest first."""

    epoch: int = NO_EPOCH
    coordinator_epoch: int = -1
    last_timestamp_ms: int = -1
    txn_first_offset: int | None = None
    batches: tuple[CachedBatch, ...] = ()

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class Verification(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="v"):
    """The coordinator was asked whether a transaction may write here; *lowest_sequence* is the first that
    asked.
    """

    epoch: int
    lowest_sequence: int
    at_ms: int


class OpenTransaction(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A transaction that holds back the last stable offset.

    *last_offset* is that of its marker once it is decided.
    """

    first_offset: int
    producer_id: int
    last_offset: int | None = None


class AbortedTransaction(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="a"):
    """An aborted transaction, which readers of committed records leave out: the producer's batches from
    *first_offset* to the marker at *last_offset*.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class LogEntry(msgspec.Struct, frozen=True, array_like=True, tag="l"):
    """The partition as a whole.

    *ongoing* and *unreplicated* (decided above the high watermark) are sorted by first offset.
    """

    end_offset: int = 0
    high_watermark: int = 0
    ongoing: tuple[OpenTransaction, ...] = ()
    unreplicated: tuple[OpenTransaction, ...] = ()

    @property
    def first_unstable(self) -> int | None:
        """Return the offset that readers of committed records may not pass; None if they may read to the
        end.
        """
        firsts = [each[0].first_offset for each in (self.ongoing, self.unreplicated) if each]
        return min(firsts, default=None)


LeaderRow: TypeAlias = ProducerEntry | Verification | AbortedTransaction | LogEntry

LOG_KEY = "log"


def producer_key(producer_id: int) -> str:
    return f"p/{producer_id}"


def verification_key(producer_id: int) -> str:
    return f"v/{producer_id}"


def aborted_key(marker_offset: int) -> str:
    return f"a/{marker_offset:019d}"


# -- events


class Append(msgspec.Struct, frozen=True, kw_only=True, tag="append"):
    """A batch arrives.

    *base_offset* is where it would lie; *verified* says that the writer went through a verification. Of a
    producer without an id (-1) nothing is checked or kept.
    """

    producer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int = -1
    transactional: bool = False
    verified: bool = False
    origin: Origin = Origin.CLIENT


class EndMarker(msgspec.Struct, frozen=True, kw_only=True, tag="marker"):
    """The coordinator ends a transaction, also of a producer that has written nothing here."""

    producer_id: int
    epoch: int
    commit: bool
    coordinator_epoch: int
    offset: int
    timestamp_ms: int = -1
    origin: Origin = Origin.COORDINATOR


class VerificationBegun(msgspec.Struct, frozen=True, kw_only=True, tag="verification"):
    """A write of a transaction that is not yet known here asks the coordinator first."""

    producer_id: int
    epoch: int
    sequence: int
    at_ms: int


class HighWatermark(msgspec.Struct, frozen=True, kw_only=True, tag="high-watermark"):
    """All replicas in sync have everything below *offset*."""

    offset: int


class Sweep(msgspec.Struct, frozen=True, kw_only=True, tag="sweep"):
    """Producers idle for *expiration_ms* are forgotten."""

    now_ms: int
    expiration_ms: int = EXPIRATION_MS


LeaderEvent: TypeAlias = Append | EndMarker | VerificationBegun | HighWatermark | Sweep


class AppendOutcome(StrEnum):
    """The outcome of appending a batch or marker."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REFUSED = "error"


class AppendVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the producer.

    *rule* is the row of the table that decided (0: nothing to check); a duplicate has its first offsets.
    """

    outcome: AppendOutcome
    rule: int
    producer_id: int
    base_offset: int
    last_offset: int
    timestamp_ms: int = -1
    error: Code = Code.NONE
    reason: str = ""
