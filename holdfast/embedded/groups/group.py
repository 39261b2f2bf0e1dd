"""A group as the embedded coordinator keeps it: members by one of the models, and committed offsets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.core.kafka.topic_partition import Place
from holdfast.models.consumer_group import ModernGroup
from holdfast.models.group_coordinator.types import ClassicGroup, CoordinatorSettings, GroupState


class CommittedOffset(NamedTuple):
    """A committed position."""

    offset: int
    leader_epoch: int
    metadata: str
    at_ms: int


class MemberHome(NamedTuple):
    """Where a member is, as it said when it joined."""

    client_id: str
    host: str


@dataclass(slots=True)
class EmbeddedGroup:
    """One group. *modern* is that of KIP-848, once a member has come by its protocol."""

    group_id: str
    classic: ClassicGroup
    protocol_type: str = ""
    modern: ModernGroup | None = None
    homes: dict[str, MemberHome] = field(default_factory=dict)
    patterns: dict[str, str] = field(default_factory=dict)
    """Of a modern member that subscribes by a pattern."""
    offsets: dict[Place, CommittedOffset] = field(default_factory=dict)
    pending: dict[int, dict[Place, CommittedOffset]] = field(default_factory=dict)
    """By producer id: offsets of a transaction that has no outcome yet."""

    @classmethod
    def empty(cls, group_id: str, settings: CoordinatorSettings) -> EmbeddedGroup:
        return cls(group_id, ClassicGroup(settings=settings))

    @property
    def state(self) -> str:
        """Kafka's word for where it is."""
        return str(self.classic.state if self.modern is None else self.modern.state)

    @property
    def kind(self) -> str:
        """Kafka's word for its protocol."""
        return "classic" if self.modern is None else "consumer"

    @property
    def is_empty(self) -> bool:
        """Whether nobody is in it."""
        if self.modern is not None:
            return not self.modern.members
        return self.classic.state in (GroupState.EMPTY, GroupState.DEAD)

    @property
    def is_new(self) -> bool:
        """Whether nobody was ever in it, and nothing committed."""
        never = self.classic.generation == 0 and (self.modern is None or self.modern.epoch == 0)
        return self.is_empty and never and not (self.offsets or self.pending)

    def is_unstable(self, place: Place) -> bool:
        """Whether a transaction without an outcome has an offset for *place*."""
        return any(place in found for found in self.pending.values())

    def decide(self, producer_id: int, *, commit: bool) -> None:
        """Take or drop the offsets of a producer's transaction."""
        found = self.pending.pop(producer_id, None)
        if commit and found is not None:
            self.offsets.update(found)
