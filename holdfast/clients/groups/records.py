"""The reports about groups, claim groups and the broker's own alike; field names are those of
kafka-consumer-groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from holdfast.core.claims.staleness import ClaimStatus
from holdfast.core.kafka.topic_partition import Place


class GroupKind(StrEnum):
    """The keeper of a group: the coordination topic, or the broker's group coordinator."""

    CLAIM = "claim"
    CONSUMER = "consumer"


class ShownState(StrEnum):
    """States of a claim group, in Kafka's words where it has one.

    The broker's groups have the broker's own, or NO_ANSWER where their coordinator was silent.
    """

    STABLE = "Stable"
    EMPTY = "Empty"
    PAUSED = "Paused"
    RESETTING = "Resetting"
    NO_ANSWER = "NoAnswer"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """One group.

    *members* are those that own a partition; *partitions* the number that they own among the known ones. All
    are 0 in state NO_ANSWER, where they are unknown.
    """

    group: str
    kind: GroupKind
    state: str
    members: int
    partitions_held: int
    partitions: int
    coordinator: str | None = None
    assignment_strategy: str | None = None
    paused_until_s: int | None = None
    resets: tuple[str, ...] = ()
    """Resets that hold partitions: under way, or waiting to be settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSurvey:
    """All groups by name, and the owners in each: *owners* has, by kind and name of a group, the
    `consumer_id` of each owned topic partition.

    A lane counts as a topic partition of its own: its topic has the lane's name. *unlisted* says which
    brokers did not list the groups that they coordinate; empty if all have.
    """

    groups: tuple[GroupDescription, ...]
    owners: Mapping[tuple[GroupKind, str], Mapping[Place, str]]
    unlisted: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """A group's position in one partition, and its owner; None is unknown or unowned. *log_end_offset* None:
    no such partition.

    *lane* is None for a partition worked on as a whole. One worked on in lanes has a line `all-of-8`, with
    the lowest offset and the lag, and a line for each lane that was ever claimed, `3-of-8`, with its owner.
    """

    group: str
    topic: str
    partition: int
    current_offset: int | None
    log_end_offset: int | None
    lag: int | None
    consumer_id: str | None
    host: str | None
    client_id: str | None
    lane: str | None = None
    status: ClaimStatus | None = None
    owner_epoch: int | None = None
    heartbeat_age_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """One member and its partitions. *obeys_pause* None: a member of a broker's group, which cannot be
    paused.
    """

    group: str
    consumer_id: str
    host: str | None
    client_id: str
    assignment: tuple[tuple[str, int], ...]
    obeys_pause: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The new offset of a group in one partition; *current_offset* is None if unknown."""

    group: str
    topic: str
    partition: int
    current_offset: int | None
    new_offset: int


class ResetStep(StrEnum):
    """The progress of a reset of a claim group.

    Up to CLAIMED it can fail, and then every partition keeps its offset; from DECIDED on it is done.
    """

    PAUSED = "paused"
    WAITING = "waiting"
    CLAIMING = "claiming"
    CLAIMED = "claimed"
    DECIDED = "decided"
    MOVING = "moving"
    RESUMED = "resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetProgress:
    """One step of a reset: *done* of *total* partitions; *waiting_for* names members that still hold some."""

    step: ResetStep
    done: int = 0
    total: int = 0
    waiting_for: tuple[str, ...] = ()
