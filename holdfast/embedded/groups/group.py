"""A group as the embedded coordinator keeps it: members by one of the models, and committed offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from holdfast.core.kafka.topic_partition import Place, TopicPartition
from holdfast.embedded.kept_room import OVERHEAD_BYTES
from holdfast.models.consumer_group import ModernGroup
from holdfast.models.group_coordinator.types import ClassicGroup, CoordinatorSettings, GroupState

_encode = msgspec.msgpack.Encoder().encode
_OFFSET_BYTES = 200
"""The bytes that a committed offset takes in addition to its topic and its metadata."""


class CommittedOffset(NamedTuple):
    """A committed position."""

    offset: int
    leader_epoch: int
    metadata: str
    at_ms: int
    number: int = 0
    """Of its group's commits, those without an outcome included, the how-manieth this was."""


class MemberHome(NamedTuple):
    """A member's address, as it was when it joined."""

    client_id: str
    host: str


class ModernTold(NamedTuple):
    """A modern member's own description, from its join or later."""

    names: tuple[str, ...]
    pattern: str
    rebalance_ms: int
    assignor: str | None

    def topics(self, matched: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        """Return its subscription: the topics that it names, and those that its pattern matches."""
        return tuple(sorted({*self.names, *matched.get(self.pattern, ())}))


def heir_of(group: ModernGroup, instance_id: str | None) -> str:
    """Return the member of *group* whose part a new one with that instance takes; "" for none."""
    found = (each.member_id for each in group.members.values() if each.instance_id == instance_id)
    return next(found, "") if instance_id else ""


@dataclass(slots=True)
class EmbeddedGroup:
    """One group. *modern* is that of KIP-848, once a member has come by its protocol."""

    group_id: str
    classic: ClassicGroup
    is_noted: bool = False
    """True if the log has a generation of the classic group."""
    modern: ModernGroup | None = None
    homes: dict[str, MemberHome] = field(default_factory=dict)
    told: dict[str, ModernTold] = field(default_factory=dict)
    """By modern member."""
    matched: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By pattern of modern members: the topics that it means."""
    since: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    """By modern member: the epoch in which it was given each partition that it has; 0 since it was away, as
    Kafka has it.
    """
    written: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    """The records of the modern group in the log (holdfast.embedded.groups.modern_records)."""
    offsets: dict[Place, CommittedOffset] = field(default_factory=dict)
    pending: dict[int, dict[Place, CommittedOffset]] = field(default_factory=dict)
    """By producer id: offsets of a transaction that has no outcome yet."""
    commits: int = 0
    """The number of committed offsets."""

    @classmethod
    def empty(cls, group_id: str, settings: CoordinatorSettings) -> EmbeddedGroup:
        return cls(group_id, ClassicGroup(settings=settings))

    @property
    def protocol_type(self) -> str:
        """Return the protocol type of its classic members, by the first of them; "" before there was one."""
        return self.classic.protocol_type

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
        """Return whether it has no members."""
        if self.modern is not None:
            return not self.modern.members
        return self.classic.state in (GroupState.EMPTY, GroupState.DEAD)

    @property
    def is_new(self) -> bool:
        """Return whether it never had a member, nor is about to, and nothing is committed."""
        classic = self.classic
        never = (
            classic.generation == 0
            and not classic.pending
            and (self.modern is None or self.modern.epoch == 0)
        )
        return self.is_empty and never and not (self.offsets or self.pending)

    def note_changes(self, before: ModernGroup) -> None:
        """Keep data of its modern members that the model lacks, and forget that of former members."""
        if self.modern is None:
            return
        for member in self.modern.members.values():
            had = (
                self.since.get(member.member_id) or self.since.get(heir_of(before, member.instance_id)) or {}
            )
            held = member.assigned | member.revoking
            now = 0 if member.away else member.epoch
            self.since[member.member_id] = {each: now if member.away else had.get(each, now) for each in held}
        there = self.modern.members
        self.since = {name: each for name, each in self.since.items() if name in there}
        self.told = {name: each for name, each in self.told.items() if name in there}
        self.homes = {name: each for name, each in self.homes.items() if name in there}
        self.matched = {
            told.pattern: self.matched[told.pattern] for told in self.told.values() if told.pattern
        }

    def kept_bytes(self) -> int:
        """Return about how many bytes it holds of what clients said."""
        modern = [self.modern, self.since, self.written]
        said = [
            self.group_id,
            self.classic.members,
            self.classic.pending,
            self.homes,
            self.told,
            self.matched,
        ]
        places = len(self.offsets) + sum(map(len, self.pending.values()))
        kept = [said, modern, self.offsets, list(self.pending.values())]
        return OVERHEAD_BYTES + len(_encode(kept)) + _OFFSET_BYTES * places

    def unstable(self) -> set[Place]:
        """Return for what transactions without an outcome have offsets."""
        return {place for found in self.pending.values() for place in found}

    # -- offsets

    def commit(self, place: Place, offset: CommittedOffset, producer_id: int | None = None) -> None:
        """Keep an offset; until the transaction of *producer_id* has an outcome, where one is given."""
        self.commits += 1
        kept = self.offsets if producer_id is None else self.pending.setdefault(producer_id, {})
        kept[place] = offset._replace(number=self.commits)

    def decide(self, producer_id: int, *, commit: bool) -> None:
        """Take or drop the offsets of a producer's transaction. A commit after one of them stays, as in
        Kafka: the time of an offset's write counts, not that of its decision.
        """
        found = self.pending.pop(producer_id, {})
        for place, offset in found.items() if commit else ():
            before = self.offsets.get(place)
            if before is None or before.number < offset.number:
                self.offsets[place] = offset

    def forget(self, place: Place) -> bool:
        """Forget the committed offset of *place*, in transactions without an outcome too; return whether
        there was one.
        """
        had = self.offsets.pop(place, None) is not None
        for producer_id, found in list(self.pending.items()):
            had = found.pop(place, None) is not None or had
            if not found:
                del self.pending[producer_id]
        return had

    def places(self) -> list[Place]:
        """Return for what it has committed offsets, some perhaps in transactions without an outcome."""
        return list(
            dict.fromkeys([*self.offsets, *(place for each in self.pending.values() for place in each)])
        )
