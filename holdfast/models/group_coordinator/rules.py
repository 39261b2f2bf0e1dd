"""The classic group coordinator as a fold of requests, with Kafka's states, timers and error codes
(PROTOCOL.md#the-classic-coordinator).

`step` takes a group, a request and its time, and returns the group and the replies. Joins and syncs wait in
the group until they are answered. Deadlines that have passed are worked off first, each at its own time, so
the result does not depend on when the group is looked at. Names of rules are those of Kafka's
GroupMetadataManager.
"""

from __future__ import annotations

from typing import Any, assert_never

import msgspec

from holdfast.core.groups.codes import GroupCode, chosen_protocol
from holdfast.models.group_coordinator.types import (
    NO_GENERATION,
    ClassicGroup,
    ClassicMember,
    DeleteGroup,
    GroupReply,
    GroupState,
    HeartbeatRequest,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    Request,
    SyncGroup,
    TimePasses,
)

MemberOrCode = ClassicMember | GroupCode


def step(group: ClassicGroup, request: Request, at_ms: int) -> tuple[ClassicGroup, list[GroupReply]]:
    """Apply *request* at *at_ms*, after all deadlines up to then."""
    context = TransitionContext(group)
    context.pass_time(at_ms)
    context.take(request, at_ms)
    return context.group, context.replies


def next_deadline_ms(group: ClassicGroup) -> int | None:
    """Return when the group changes without a request; None for never."""
    due = TransitionContext(group).due()
    return None if due is None else due[0]


class TransitionContext:
    """One request's way through a group: *group* is what became of it, *replies* who was answered."""

    def __init__(self, group: ClassicGroup) -> None:
        self.group = group
        self.replies: list[GroupReply] = []

    def take(self, request: Request, at_ms: int) -> None:
        """Apply *request*."""
        match request:
            case JoinGroup():
                self._join(request, at_ms)
            case SyncGroup():
                self._sync(request, at_ms)
            case HeartbeatRequest():
                self._answer(request.request, self._heartbeat(request, at_ms))
            case LeaveGroup():
                self._answer(request.request, self._leave(request, at_ms))
            case OffsetCommit():
                self._answer(request.request, self._commit(request, at_ms))
            case DeleteGroup():
                self._delete(request)
            case TimePasses():
                pass
            case _:
                assert_never(request)

    # -- changes

    def _set(self, **changes: Any) -> None:
        self.group = msgspec.structs.replace(self.group, **changes)

    def _change(self, member: ClassicMember, **changes: Any) -> ClassicMember:
        after = msgspec.structs.replace(member, **changes)
        self._set(
            members=tuple(
                after if each.member_id == member.member_id else each for each in self.group.members
            )
        )
        return after

    def _answer(self, request: int, code: GroupCode, member_id: str = "") -> None:
        self.replies.append(GroupReply(request, code, member_id))

    # -- time

    def pass_time(self, at_ms: int) -> None:
        """Work off every deadline up to *at_ms*, the earliest first, ties in this order: joining, syncing,
        sessions, ids.
        """
        while (due := self.due()) is not None and due[0] <= at_ms:
            when_ms, _, what = due
            if what == "join":
                self._join_is_over(when_ms)
            elif what == "sync":
                late = {
                    each.member_id for each in self.group.members if not each.synced and each.sync is None
                }
                self._set(sync_ends_ms=None)
                if late:
                    self._remove(late, when_ms)
            elif what == "session":
                self._remove(
                    {
                        each.member_id
                        for each in self.group.members
                        if _session_runs(each) and each.session_ends_ms <= when_ms
                    },
                    when_ms,
                )
            else:
                self._set(pending=tuple(each for each in self.group.pending if each[1] > when_ms))
                self._maybe_complete(when_ms)

    def due(self) -> tuple[int, int, str] | None:
        """Return the earliest deadline: its time, its rank among others of that time, and its kind."""
        group, due = self.group, []
        if group.join_ends_ms is not None:
            due.append((group.join_ends_ms, 0, "join"))
        if group.sync_ends_ms is not None:
            due.append((group.sync_ends_ms, 1, "sync"))
        due += [(each.session_ends_ms, 2, "session") for each in group.members if _session_runs(each)]
        due += [(until_ms, 3, "id") for _, until_ms in group.pending]
        return min(due, default=None)

    def _join_is_over(self, at_ms: int) -> None:
        group = self.group
        if group.join_limit_ms is not None and group.newcomers and at_ms < group.join_limit_ms:
            # A member came while the first join waited: others may be on their way.
            self._set(
                join_ends_ms=min(at_ms + group.settings.initial_delay_ms, group.join_limit_ms),
                newcomers=False,
            )
            return
        self._complete(at_ms)

    # -- joining

    def _join(self, said: JoinGroup, at_ms: int) -> None:
        """Check in Kafka's order: session, size, state, protocols, and only then who asks."""
        if not self.group.settings.allows_session(said.session_ms):
            return self._answer(said.request, GroupCode.INVALID_SESSION_TIMEOUT, said.member_id)
        if not self._has_room(said.member_id):
            self._set(pending=tuple(each for each in self.group.pending if each[0] != said.member_id))
            return self._answer(said.request, GroupCode.GROUP_MAX_SIZE_REACHED)
        if self.group.state is GroupState.DEAD:
            return self._answer(said.request, GroupCode.COORDINATOR_NOT_AVAILABLE, said.member_id)
        if not self._fits(said):
            return self._answer(said.request, GroupCode.INCONSISTENT_GROUP_PROTOCOL, said.member_id)
        if said.member_id == "":
            return self._newcomer(said, at_ms)
        if said.member_id in dict(self.group.pending):
            if said.instance_id is not None:  # an id that waits to join is of no instance: Kafka throws
                return self._answer(said.request, GroupCode.UNKNOWN_SERVER_ERROR)
            return self._add(said, said.member_id, at_ms)
        member = self._known(said.member_id, said.instance_id)
        if isinstance(member, GroupCode):
            return self._answer(said.request, member, said.member_id)
        return self._rejoin(member, said, at_ms)

    def _newcomer(self, said: JoinGroup, at_ms: int) -> None:
        before = self.group.static(said.instance_id)
        if before is not None:
            return self._replace(before, said, at_ms)
        if said.instance_id is None and said.requires_id:
            self._set(pending=(*self.group.pending, (said.new_id, at_ms + said.session_ms)))
            return self._answer(said.request, GroupCode.MEMBER_ID_REQUIRED, said.new_id)
        return self._add(said, said.new_id, at_ms)

    def _has_room(self, member_id: str) -> bool:
        """acceptJoiningMember: while a group prepares, those count that have joined again."""
        group, member = self.group, self.group.member(member_id)
        most = group.settings.max_size
        match group.state:
            case GroupState.EMPTY | GroupState.DEAD:
                return len(group.pending) < most or member_id in dict(group.pending)
            case GroupState.PREPARING:
                joined = sum(1 for each in group.members if each.join is not None)
                return (member is not None and member.join is not None) or joined < most
            case _:
                return member is not None or len(group.members) < most

    def _fits(self, said: JoinGroup) -> bool:
        """supportsProtocols: a member that is back counts with what it supported before."""
        names = {name for name, _ in said.protocols}
        if self.group.state is GroupState.EMPTY:
            return bool(said.protocol_type and names)
        common = names.intersection(*({name for name, _ in each.protocols} for each in self.group.members))
        return said.protocol_type == self.group.protocol_type and bool(common)

    def _add(self, said: JoinGroup, member_id: str, at_ms: int) -> None:
        if not self.group.members:
            self._set(protocol_type=said.protocol_type)
        member = ClassicMember(
            member_id=member_id,
            instance_id=said.instance_id,
            protocols=said.protocols,
            session_ms=said.session_ms,
            rebalance_ms=said.rebalance_ms,
            session_ends_ms=at_ms + said.session_ms,
            join=said.request,
        )
        pending = tuple(each for each in self.group.pending if each[0] != member_id)
        leader = self.group.leader if self.group.member(self.group.leader) is not None else member_id
        first = self.group.state is GroupState.PREPARING and self.group.join_limit_ms is not None
        self._set(
            members=(*self.group.members, member),
            pending=pending,
            leader=leader,
            newcomers=first or self.group.newcomers,
        )
        return self._prepare(at_ms)

    def _rejoin(self, member: ClassicMember, said: JoinGroup, at_ms: int) -> None:
        changed = member.protocols != said.protocols
        state = self.group.state
        if (
            state is GroupState.PREPARING
            or changed
            or (state is GroupState.STABLE and member.member_id == self.group.leader)
        ):
            self._park(member, said, at_ms)
            return self._prepare(at_ms)
        self._change(member, session_ends_ms=at_ms + member.session_ms)
        self.replies.append(self._joined(member, said.request))
        return None

    def _park(self, member: ClassicMember, said: JoinGroup, at_ms: int) -> ClassicMember:
        return self._change(
            member,
            protocols=said.protocols,
            session_ms=said.session_ms,
            rebalance_ms=said.rebalance_ms,
            session_ends_ms=at_ms + said.session_ms,
            join=said.request,
        )

    def _replace(self, before: ClassicMember, said: JoinGroup, at_ms: int) -> None:
        """A static member is back under a new id: the old id is fenced, and in a stable group nothing else
        changes (KIP-345).
        """
        for waiting in (before.join, before.sync):
            if waiting is not None:
                self._answer(waiting, GroupCode.FENCED_INSTANCE_ID, before.member_id)
        leader, led = self.group.leader, self.group.leader == before.member_id
        self._change(before, member_id=said.new_id, join=None, sync=None)
        if led:
            self._set(leader=said.new_id)
        member = self.group.member(said.new_id)
        assert member is not None
        member = self._change(
            member,
            protocols=said.protocols,
            session_ms=said.session_ms,
            rebalance_ms=said.rebalance_ms,
            session_ends_ms=at_ms + said.session_ms,
        )
        if self.group.state is GroupState.STABLE and self._chosen() == self.group.protocol:
            joined = self._joined(member, said.request)
            self.replies.append(
                joined._replace(skip_assignment=led)
                if said.may_skip_assignment
                else joined._replace(leader=leader, members=())  # so it does not assign: it syncs
            )
            return
        self._change(member, join=said.request)
        self._prepare(at_ms)

    def _joined(self, member: ClassicMember, request: int) -> GroupReply:
        group = self.group
        listed = tuple((each.member_id, each.subscription(group.protocol)) for each in group.members)
        leads = member.member_id == group.leader
        return GroupReply(
            request,
            GroupCode.NONE,
            member.member_id,
            group.generation,
            group.protocol,
            group.leader,
            listed if leads else (),
        )

    def _chosen(self) -> str:
        return (
            chosen_protocol([tuple(name for name, _ in each.protocols) for each in self.group.members]) or ""
        )

    # -- rebalancing

    def _prepare(self, at_ms: int) -> None:
        """PrepareRebalance, unless one is under way; then see whether everybody has joined."""
        group = self.group
        if group.state is not GroupState.PREPARING:
            for each in group.members:
                if each.sync is not None:
                    self._answer(each.sync, GroupCode.REBALANCE_IN_PROGRESS, each.member_id)
            members = tuple(msgspec.structs.replace(each, sync=None, synced=False) for each in group.members)
            limit_ms = at_ms + max((each.rebalance_ms for each in members), default=0)
            first = group.state is GroupState.EMPTY
            self._set(
                state=GroupState.PREPARING,
                members=members,
                join_ends_ms=min(at_ms + group.settings.initial_delay_ms, limit_ms) if first else limit_ms,
                join_limit_ms=limit_ms if first else None,
                newcomers=False,
                sync_ends_ms=None,
            )
        self._maybe_complete(at_ms)

    def _maybe_complete(self, at_ms: int) -> None:
        group = self.group
        if (
            group.state is GroupState.PREPARING
            and group.join_limit_ms is None
            and not group.pending
            and all(each.join is not None for each in group.members)
        ):
            self._complete(at_ms)

    def _complete(self, at_ms: int) -> None:
        """CompleteJoin: who did not join is gone, but for static members; the others are the next
        generation.
        """
        members = tuple(
            each for each in self.group.members if each.join is not None or each.instance_id is not None
        )
        joined = [each.member_id for each in members if each.join is not None]
        self._set(members=members)
        if members and not joined:
            self._set(join_ends_ms=at_ms + max(each.rebalance_ms for each in members), join_limit_ms=None)
            return  # no member is there to lead: wait for one of the static members
        self._set(
            join_ends_ms=None, join_limit_ms=None, newcomers=False, generation=self.group.generation + 1
        )
        if not members:
            self._set(state=GroupState.EMPTY, protocol="", leader="")
            return
        leader = self.group.leader if self.group.leader in joined else joined[0]
        sync_ends_ms = at_ms + max(each.rebalance_ms for each in members)
        self._set(
            state=GroupState.COMPLETING, leader=leader, protocol=self._chosen(), sync_ends_ms=sync_ends_ms
        )
        for each in self.group.members:
            if each.join is not None:
                self.replies.append(self._joined(each, each.join))
                self._change(
                    each, join=None, sync=None, synced=False, session_ends_ms=at_ms + each.session_ms
                )
            else:
                self._change(each, synced=True)  # it never joined, so it need not sync

    def _remove(self, gone: set[str], at_ms: int) -> None:
        for each in self.group.members:
            for waiting in (each.join, each.sync) if each.member_id in gone else ():
                if waiting is not None:
                    self._answer(waiting, GroupCode.UNKNOWN_MEMBER_ID, "")
        members = tuple(each for each in self.group.members if each.member_id not in gone)
        leader = (
            self.group.leader
            if self.group.leader not in gone
            else next((each.member_id for each in members if each.join is not None), "")
        )
        self._set(members=members, leader=leader)
        if self.group.state in (GroupState.STABLE, GroupState.COMPLETING):
            self._prepare(at_ms)
        else:
            self._maybe_complete(at_ms)

    # -- the other requests

    def _known(self, member_id: str, instance_id: str | None) -> MemberOrCode:
        """validateMember: the member of a request, or what the request is refused with."""
        if instance_id is not None:
            static = self.group.static(instance_id)
            if static is None:
                return GroupCode.UNKNOWN_MEMBER_ID
            if static.member_id != member_id:
                return GroupCode.FENCED_INSTANCE_ID
        member = self.group.member(member_id)
        return GroupCode.UNKNOWN_MEMBER_ID if member is None else member

    def _of_generation(self, member_id: str, instance_id: str | None, generation: int) -> MemberOrCode:
        if self.group.state is GroupState.DEAD:
            return GroupCode.COORDINATOR_NOT_AVAILABLE
        member = self._known(member_id, instance_id)
        if not isinstance(member, GroupCode) and generation != self.group.generation:
            return GroupCode.ILLEGAL_GENERATION
        return member

    def _sync(self, said: SyncGroup, at_ms: int) -> None:
        member = self._of_generation(said.member_id, said.instance_id, said.generation)
        if isinstance(member, GroupCode):
            return self._answer(said.request, member, said.member_id)
        if _differs(said.protocol_type, self.group.protocol_type) or _differs(
            said.protocol, self.group.protocol
        ):
            return self._answer(said.request, GroupCode.INCONSISTENT_GROUP_PROTOCOL, said.member_id)
        if self.group.state is GroupState.PREPARING:
            return self._answer(said.request, GroupCode.REBALANCE_IN_PROGRESS, said.member_id)
        member = self._change(member, synced=True, session_ends_ms=at_ms + member.session_ms)
        if self.group.state is GroupState.STABLE:
            self.replies.append(self._synced(member, said.request))
            return None
        self._change(member, sync=said.request)
        if member.member_id == self.group.leader:
            self._assign(dict(said.assignments), at_ms)
        return None

    def _assign(self, assignments: dict[str, bytes], at_ms: int) -> None:
        """The leader has spoken: whom it forgot gets nothing. Who has not synced yet still must."""
        for each in self.group.members:
            after = self._change(each, assignment=assignments.get(each.member_id, b""), sync=None)
            if each.sync is not None:
                self._change(after, session_ends_ms=at_ms + each.session_ms)
                self.replies.append(self._synced(after, each.sync))
        self._set(state=GroupState.STABLE)

    def _synced(self, member: ClassicMember, request: int) -> GroupReply:
        group = self.group
        return GroupReply(
            request,
            GroupCode.NONE,
            member.member_id,
            group.generation,
            group.protocol,
            group.leader,
            assignment=member.assignment,
        )

    def _heartbeat(self, said: HeartbeatRequest, at_ms: int) -> GroupCode:
        member = self._of_generation(said.member_id, said.instance_id, said.generation)
        if isinstance(member, GroupCode):
            return member
        self._change(member, session_ends_ms=at_ms + member.session_ms)
        return GroupCode.REBALANCE_IN_PROGRESS if self.group.state is GroupState.PREPARING else GroupCode.NONE

    def _leave(self, said: LeaveGroup, at_ms: int) -> GroupCode:
        if self.group.state is GroupState.DEAD:
            return GroupCode.COORDINATOR_NOT_AVAILABLE
        if said.member_id in dict(self.group.pending):
            self._set(pending=tuple(each for each in self.group.pending if each[0] != said.member_id))
            self._maybe_complete(at_ms)
            return GroupCode.NONE
        member: MemberOrCode | None = (
            self.group.static(said.instance_id)
            if said.member_id == ""
            else self._known(said.member_id, said.instance_id)
        )
        if member is None:
            return GroupCode.UNKNOWN_MEMBER_ID
        if isinstance(member, GroupCode):
            return member
        self._remove({member.member_id}, at_ms)
        return GroupCode.NONE

    def _commit(self, said: OffsetCommit, at_ms: int) -> GroupCode:
        """ClassicGroup.validateOffsetCommit: transactions may commit without a member, and while a group
        rebalances.
        """
        if self.group.state is GroupState.DEAD:
            return GroupCode.COORDINATOR_NOT_AVAILABLE
        if said.generation <= NO_GENERATION and self.group.state is GroupState.EMPTY:
            return GroupCode.NONE
        if said.generation <= NO_GENERATION and said.member_id == "" and said.instance_id is None:
            return GroupCode.NONE if said.transactional else GroupCode.UNKNOWN_MEMBER_ID
        member = self._of_generation(said.member_id, said.instance_id, said.generation)
        if isinstance(member, GroupCode):
            return member
        if self.group.state is GroupState.COMPLETING and not said.transactional:
            return GroupCode.REBALANCE_IN_PROGRESS
        if not said.transactional:
            self._change(member, session_ends_ms=at_ms + member.session_ms)
        return GroupCode.NONE

    def _delete(self, said: DeleteGroup) -> None:
        for each in self.group.members:
            for waiting in (each.join, each.sync):
                if waiting is not None:
                    self._answer(waiting, GroupCode.COORDINATOR_NOT_AVAILABLE, each.member_id)
        self._set(
            state=GroupState.DEAD,
            members=(),
            pending=(),
            join_ends_ms=None,
            join_limit_ms=None,
            sync_ends_ms=None,
            leader="",
        )
        self._answer(said.request, GroupCode.NONE)


def _differs(said: str | None, known: str) -> bool:
    """isProtocolInconsistent: what one of both does not know is not compared."""
    return said is not None and known != "" and said != known


def _session_runs(member: ClassicMember) -> bool:
    """A member that waits for an answer of the coordinator cannot be blamed for silence."""
    return member.join is None and member.sync is None
