"""KIP-848's consumer groups as a fold: a target for the group, and each member on its own way to it
(PROTOCOL.md#incremental-reconciliation).

There is no barrier. The coordinator has a member revoke what the target gives to another, and assigns a
partition when its last holder has revoked it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum
from typing import NamedTuple

import msgspec

from holdfast.core.groups.assignors.assign import assign
from holdfast.core.groups.assignors.types import AssignorName, Subscriber
from holdfast.core.groups.codes import GroupCode
from holdfast.core.kafka.topic_partition import TopicPartition

JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH = 0, -1, -2
SESSION_MS = 45_000
SERVER_ASSIGNORS: Mapping[str, AssignorName] = {"uniform": AssignorName.STICKY, "range": AssignorName.RANGE}
Partitions = frozenset[TopicPartition]
NOTHING: Partitions = frozenset()


class MemberState(IntEnum):
    """A member's progress to the target; the numbers are Kafka's."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


class ModernState(StrEnum):
    """The state of the group."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ModernMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member: *assigned* is what it may hold, *revoking* what it must give up and still holds."""

    member_id: str
    instance_id: str | None
    topics: tuple[str, ...]
    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: Partitions
    revoking: Partitions
    heard_ms: int
    away: bool = False


class ModernGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group: the target counts when it was computed for the group's *epoch*."""

    epoch: int = 0
    target_epoch: int = 0
    assignor: str = "uniform"
    members: dict[str, ModernMember] = {}
    target: dict[str, Partitions] = {}

    @property
    def state(self) -> ModernState:
        """Return where the group is."""
        if not self.members:
            return ModernState.EMPTY
        if self.epoch > self.target_epoch:
            return ModernState.ASSIGNING
        there = all(
            each.state is MemberState.STABLE and each.epoch == self.target_epoch
            for each in self.members.values()
        )
        return ModernState.STABLE if there else ModernState.RECONCILING


class ModernHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """ConsumerGroupHeartbeat:

    *epoch* 0 joins, -1 leaves, -2 leaves for a while (static). None is "as before".
    """

    member_id: str
    epoch: int
    instance_id: str | None = None
    topics: tuple[str, ...] | None = None
    owned: Partitions | None = None
    assignor: str | None = None


class HeartbeatReply(NamedTuple):
    """The answer to a heartbeat; *assigned* are the partitions that the member may own from now on."""

    code: GroupCode
    epoch: int = -1
    assigned: Partitions = NOTHING


class MemberStep(NamedTuple):
    """One step of a member towards its target."""

    state: MemberState
    epoch: int
    assigned: Partitions
    revoking: Partitions


def next_step(
    *,
    current: Partitions,
    target: Partitions,
    owned: Partitions | None,
    taken: Partitions,
    epoch: int,
    target_epoch: int,
) -> MemberStep:
    """Return a member's next step.

        assigned = current ∩ target          what it keeps
        revoking = current − target          what it must give up before its epoch moves
        pending  = target − assigned         what it gets as soon as it is free: not in *taken*, the parts of
        other members

    *owned* is what it says it holds; None says nothing, and then it may hold everything still.

    >>> a, b, c = (TopicPartition("t", number) for number in range(3))
    >>> step = next_step(current=frozenset([a, b]), target=frozenset([a, c]), owned=None, taken=frozenset(), epoch=1, target_epoch=2)
    >>> step.state.name, step.epoch, sorted(step.revoking) == [b]
    ('UNREVOKED_PARTITIONS', 1, True)
    """  # noqa: E501
    assigned, revoking = current & target, current - target
    if revoking and (owned is None or owned & revoking):
        return MemberStep(MemberState.UNREVOKED_PARTITIONS, epoch, assigned, revoking)
    pending = target - assigned
    free = pending - taken
    state = MemberState.UNRELEASED_PARTITIONS if pending - free else MemberState.STABLE
    return MemberStep(state, target_epoch, assigned | free, NOTHING)


def heartbeat(
    group: ModernGroup, said: ModernHeartbeat, counts: Mapping[str, int], at_ms: int
) -> tuple[ModernGroup, HeartbeatReply]:
    """Apply a heartbeat at *at_ms* and return the group with the answer.

    *counts* are the partitions of each topic at that moment.
    """
    group = _refreshed(_without_gone(group, at_ms), counts)
    if said.assignor is not None and said.assignor not in SERVER_ASSIGNORS:
        return group, HeartbeatReply(GroupCode.UNSUPPORTED_ASSIGNOR)
    member = group.members.get(said.member_id)
    if said.epoch < 0:
        return _left(group, member, said, counts)
    if member is None:
        if said.epoch != JOIN_EPOCH:
            return group, HeartbeatReply(GroupCode.UNKNOWN_MEMBER_ID)
        joined = _joined(group, said, at_ms)
        if isinstance(joined, GroupCode):
            return group, HeartbeatReply(joined)
        joined = msgspec.structs.replace(joined, assignor=said.assignor or joined.assignor)
        group = (
            _retargeted(joined, counts)
            if joined.epoch > group.epoch or joined.assignor != group.assignor
            else joined
        )
        member = group.members[said.member_id]
    else:
        if (code := _check_epoch(member, said)) is not GroupCode.NONE:
            return group, HeartbeatReply(code)
        topics = member.topics if said.topics is None else said.topics
        member = msgspec.structs.replace(member, heard_ms=at_ms, topics=topics, away=False)
        assignor = said.assignor or group.assignor
        changed = member.topics != group.members[said.member_id].topics or assignor != group.assignor
        group = _with(msgspec.structs.replace(group, assignor=assignor), member)
        if changed:
            group = _retargeted(group, counts)
    return _reconciled(group, member, said)


def time_passes(group: ModernGroup, counts: Mapping[str, int], at_ms: int) -> ModernGroup:
    """Return the group without the members that were silent for a session at *at_ms*, their partitions given
    to the others; the same group if there are none.
    """
    left = _without_gone(group, at_ms)
    return group if left is group else _refreshed(left, counts)


def commit_code(
    group: ModernGroup, member_id: str, epoch: int, *, since: Iterable[int | None] = (None,)
) -> GroupCode:
    """Return the code for an offset commit of *member_id* in *epoch*; epoch -1 is a consumer outside of any
    group.

    An earlier epoch may commit partitions that the member has had *since* then, or longer (KIP-1251); None
    is a partition that it does not have.
    """
    member = group.members.get(member_id)
    if member is None:
        return GroupCode.NONE if epoch < 0 and not group.members else GroupCode.UNKNOWN_MEMBER_ID
    held = epoch < member.epoch and all(each is not None and each <= epoch for each in since)
    return GroupCode.NONE if epoch == member.epoch or held else GroupCode.STALE_MEMBER_EPOCH


def _check_epoch(member: ModernMember, said: ModernHeartbeat) -> GroupCode:
    if said.epoch in (member.epoch, JOIN_EPOCH):
        return GroupCode.NONE
    # The answer with the present epoch was lost: it continues as long as it owns nothing beyond its part.
    behind = said.epoch == member.previous_epoch and said.owned is not None and said.owned <= member.assigned
    return GroupCode.NONE if behind and said.epoch < member.epoch else GroupCode.FENCED_MEMBER_EPOCH


def _joined(group: ModernGroup, said: ModernHeartbeat, at_ms: int) -> ModernGroup | GroupCode:
    before = next(
        (
            each
            for each in group.members.values()
            if said.instance_id is not None and each.instance_id == said.instance_id
        ),
        None,
    )
    if before is not None and not before.away:
        return GroupCode.UNRELEASED_INSTANCE_ID
    members, target = dict(group.members), dict(group.target)
    member = ModernMember(
        member_id=said.member_id,
        instance_id=said.instance_id,
        topics=said.topics or (),
        epoch=0,
        previous_epoch=-1,
        state=MemberState.STABLE,
        assigned=NOTHING,
        revoking=NOTHING,
        heard_ms=at_ms,
    )
    if before is not None:
        # It left for a while: its part waited for it.
        del members[before.member_id]
        target[said.member_id] = target.pop(before.member_id, NOTHING)
        member = msgspec.structs.replace(
            member, assigned=before.assigned, topics=before.topics if said.topics is None else said.topics
        )
        if member.topics == before.topics:
            return msgspec.structs.replace(group, members={**members, said.member_id: member}, target=target)
    return msgspec.structs.replace(
        group, members={**members, said.member_id: member}, target=target, epoch=group.epoch + 1
    )


def _left(
    group: ModernGroup, member: ModernMember | None, said: ModernHeartbeat, counts: Mapping[str, int]
) -> tuple[ModernGroup, HeartbeatReply]:
    if member is None:
        return group, HeartbeatReply(GroupCode.UNKNOWN_MEMBER_ID)
    if said.epoch == LEAVE_STATIC_EPOCH and member.instance_id is not None:
        if said.instance_id != member.instance_id:
            return group, HeartbeatReply(GroupCode.FENCED_INSTANCE_ID)
        return _with(
            group, msgspec.structs.replace(member, away=True, epoch=LEAVE_STATIC_EPOCH)
        ), HeartbeatReply(GroupCode.NONE, said.epoch)
    return _without(group, {said.member_id}, counts), HeartbeatReply(GroupCode.NONE, said.epoch)


def _reconciled(
    group: ModernGroup, member: ModernMember, said: ModernHeartbeat
) -> tuple[ModernGroup, HeartbeatReply]:
    waits = member.state is MemberState.UNREVOKED_PARTITIONS and (
        said.owned is None or said.owned & member.revoking
    )
    if not waits and (member.epoch != group.target_epoch or member.state is not MemberState.STABLE):
        others = [each for each in group.members.values() if each.member_id != member.member_id]
        step = next_step(
            current=member.assigned,
            target=group.target.get(member.member_id, NOTHING),
            owned=said.owned,
            taken=NOTHING.union(*(each.assigned | each.revoking for each in others)),
            epoch=member.epoch,
            target_epoch=group.target_epoch,
        )
        member = msgspec.structs.replace(
            member,
            state=step.state,
            epoch=step.epoch,
            previous_epoch=member.epoch if step.epoch != member.epoch else member.previous_epoch,
            assigned=step.assigned,
            revoking=step.revoking,
        )
        group = _with(group, member)
    return group, HeartbeatReply(GroupCode.NONE, member.epoch, member.assigned)


def _with(group: ModernGroup, member: ModernMember) -> ModernGroup:
    return msgspec.structs.replace(group, members={**group.members, member.member_id: member})


def _without(group: ModernGroup, gone: set[str], counts: Mapping[str, int]) -> ModernGroup:
    members = {member_id: each for member_id, each in group.members.items() if member_id not in gone}
    target = {member_id: part for member_id, part in group.target.items() if member_id not in gone}
    return _retargeted(
        msgspec.structs.replace(group, members=members, target=target, epoch=group.epoch + 1), counts
    )


def _without_gone(group: ModernGroup, at_ms: int) -> ModernGroup:
    gone = {member_id for member_id, each in group.members.items() if at_ms - each.heard_ms >= SESSION_MS}
    if not gone:
        return group
    members = {member_id: each for member_id, each in group.members.items() if member_id not in gone}
    target = {member_id: part for member_id, part in group.target.items() if member_id not in gone}
    return msgspec.structs.replace(group, members=members, target=target, epoch=group.epoch + 1)


def _refreshed(group: ModernGroup, counts: Mapping[str, int]) -> ModernGroup:
    """Return the group with a target for its epoch and for the partitions there are."""
    wanted = {
        TopicPartition(topic, number)
        for each in group.members.values()
        for topic in each.topics
        for number in range(counts.get(topic, 0))
    }
    if group.epoch > group.target_epoch:
        return _retargeted(group, counts)
    if wanted != NOTHING.union(*group.target.values()):
        return _retargeted(msgspec.structs.replace(group, epoch=group.epoch + 1), counts)
    return group


def _retargeted(group: ModernGroup, counts: Mapping[str, int]) -> ModernGroup:
    epoch = max(group.epoch, group.target_epoch + 1)
    members = [
        Subscriber(
            member_id=each.member_id,
            instance_id=each.instance_id,
            topics=each.topics,
            owned=tuple(sorted(group.target.get(each.member_id, NOTHING))),
            generation=epoch - 1,
        )
        for each in group.members.values()
    ]
    parts = assign(SERVER_ASSIGNORS[group.assignor], counts, members)
    target = {member_id: frozenset(part) for member_id, part in parts.items()}
    return msgspec.structs.replace(group, epoch=epoch, target_epoch=epoch, target=target)
