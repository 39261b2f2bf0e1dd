"""A harvester's data besides the rows themselves: leases, epochs, the status, quarantined rows."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.outbox.schema.layouts import OutboxRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLeader:
    """The leader that took the last epoch of a shard: written by `OutboxRows.epoch`, read by people, metrics
    and `OutboxRows.check`.
    """

    shard: int
    epoch: int
    leader: str
    updated_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEpoch:
    """The epoch of a shard that a leader took, and writes under."""

    shard: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStop:
    """Why a shard is not published until a person resumes it, and since when."""

    shard: int
    why: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStatus:
    """The contents of an outbox.

    *waiting* is counted up to a million; *failing* rows are among them; *quarantined* ones are not.
    """

    waiting: int
    oldest_id: int | None
    oldest_created_ms: int | None
    failing: int
    quarantined: int
    leases: tuple[ShardLeader, ...]
    stops: tuple[ShardStop, ...] = ()
    numbers: str | None = None
    """A remark on the rows' numbers; None while they only rise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedRow:
    """One row that was set aside, and why."""

    row: OutboxRow
    reason: str
    quarantined_ms: int
