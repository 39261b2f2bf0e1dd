"""A topic as it must be, as it is, and as it is to be changed; and its faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from holdfast.core.engine.declared.processor import Processor


class TopicRole(StrEnum):
    """The purpose of a topic in the application."""

    SOURCE = "source"
    COORDINATION = "coordination"
    CHANGELOG = "changelog"
    CHOICES = "choices"
    BASE = "base"
    """The first rows of a table, of a version that migrates an earlier one."""
    GLOBAL = "global"
    """Folded whole by each worker into a global table."""
    EMIT = "emit"
    BETWEEN = "between"
    """Internal: from one processor of the application to another."""
    QUARANTINE = "quarantine"
    WORKERS = "workers"
    SKIPS = "skips"
    BESIDE = "beside"
    """Holdfast's own, made and read by others than the application's workers."""


PURPOSES = {
    TopicRole.SOURCE: "records that processors fold",
    TopicRole.COORDINATION: "who holds which partition, as ClaimConsumers say it",
    TopicRole.CHANGELOG: "the rows of a table, from which a worker restores it",
    TopicRole.CHOICES: "in which order a table's sources were folded, to fold them so again",
    TopicRole.BASE: "what a table's version began with",
    TopicRole.GLOBAL: "a table that each worker has whole",
    TopicRole.EMIT: "what folds emit",
    TopicRole.BETWEEN: "records from one processor to another",
    TopicRole.QUARANTINE: "records that were refused, with the reason",
    TopicRole.WORKERS: "who serves which table, for queries",
    TopicRole.SKIPS: "offsets that folds leave out",
    TopicRole.BESIDE: "holdfast's own, of clients and outboxes",
}
"""The purpose of a topic of each role, in a few words."""


class Severity(StrEnum):
    """An error makes state wrong or a worker stop; a warning makes it worse than it could be."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """The required state of one topic.

    *partitions* None: the count is not declared, and the topic that would give it does not exist.
    """

    name: str
    partitions: int | None
    config: Mapping[str, str]
    replication_factor: int
    role: TopicRole
    takes_bytes: int = 0
    """The size of the largest record batch that it must take at least."""
    source: str | None = None
    """The topic whose partitions it follows: of a changelog or of choices, and of a topic that a fold emits
    to in place.
    """
    kept_ms: int | None = None
    """The declared retention of its records; FOREVER_MS for ever, LANDED_MS until they are landed, None
    without a declaration.
    """
    beside: Mapping[str, str] = field(default_factory=dict)
    """Topics that must have as many partitions, since a processor folds both, and the names of the
    processors.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition as the cluster sees it; *leader* None when it has none."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """One topic as it is."""

    name: str
    partitions: tuple[PartitionState, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)
    """The part of *config* that was set for this topic and is not the cluster's default."""

    @property
    def replication_factor(self) -> int:
        """Return the replicas of the worst partition."""
        return min((len(partition.replicas) for partition in self.partitions), default=0)

    @property
    def internal(self) -> bool:
        """Return whether Kafka keeps this topic for itself."""
        return self.name in (
            "__consumer_offsets",
            "__transaction_state",
            "__share_group_state",
            "__cluster_metadata",
        )


@dataclass(frozen=True, slots=True)
class ClusterIds:
    """Kafka's ids of a cluster, and of topics in it by name, with their numbers of partitions."""

    cluster_id: str
    topics: Mapping[str, str]
    partitions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTopics:
    """The brokers and those topics that were asked for."""

    brokers: tuple[int, ...]
    topics: Mapping[str, TopicState]

    def partitions(self, topic: str) -> int | None:
        """Return the partition count of *topic*, None when it does not exist."""
        found = self.topics.get(topic)
        return len(found.partitions) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """Create a topic; its partition count is known."""

    spec: TopicSpec
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfig:
    """Set these keys of an existing topic's configuration and leave the others."""

    topic: str
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RegisterSchema:
    """Register the schema that folds write to *topic* with, under *subject* of the schema registry; *kind* is
    its type there.
    """

    topic: str
    subject: str
    kind: str


TopicChange = CreateTopic | AlterConfig | RegisterSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFinding:
    """One thing that is not as it should be, and what to do."""

    severity: Severity
    topic: str
    message: str
    remedy: str
    chain: bool = False
    """True if versions do not fit each other."""
    limited: bool = False
    """True if a topic keeps its records for a time, as its owner may well mean it."""

    @classmethod
    def error(cls, topic: str, message: str, remedy: str) -> Self:
        return cls(severity=Severity.ERROR, topic=topic, message=message, remedy=remedy)

    @classmethod
    def warning(cls, topic: str, message: str, remedy: str) -> Self:
        return cls(severity=Severity.WARNING, topic=topic, message=message, remedy=remedy)

    def __str__(self) -> str:
        return f"topic {self.topic} {self.message}: {self.remedy}"


Processors = Sequence[Processor[Any, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaustTopics:
    """The topics of an application's ordinary agents: those that they *read*, those that Faust *keeps* for
    itself, the prefixes (*begin*) of the names that it derives when agents run, and the one whose owner is
    the *leader*, which receives no records.
    """

    read: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    begin: tuple[str, ...] = ()
    leader: tuple[str, ...] = ()
