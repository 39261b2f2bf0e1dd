"""State, requests and replies of the classic group coordinator (PROTOCOL.md#the-classic-coordinator): plain
values, no rules.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, TypeAlias

import msgspec

from holdfast.core.groups.codes import GroupCode

NO_GENERATION = -1


class GroupState(StrEnum):
    """The state of a classic group."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class CoordinatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The broker's settings of groups, with Kafka's defaults."""

    initial_delay_ms: int = 3_000
    session_low_ms: int = 6_000
    session_high_ms: int = 1_800_000
    max_size: int = 2_147_483_647

    def allows_session(self, session_ms: int) -> bool:
        """Return whether members may be silent for *session_ms*."""
        return self.session_low_ms <= session_ms <= self.session_high_ms


class JoinGroup(msgspec.Struct, frozen=True, kw_only=True):
    """JoinGroup.

    *member_id* "" is a newcomer; *new_id* is the id it gets. *protocols* are (name, subscription), the
    preferred first.
    """

    request: int
    member_id: str
    new_id: str
    protocols: tuple[tuple[str, bytes], ...]
    instance_id: str | None = None
    session_ms: int = 45_000
    rebalance_ms: int = 300_000
    requires_id: bool = True
    protocol_type: str = "consumer"
    may_skip_assignment: bool = True
    """True if a leader that is back under a new id understands that it need not assign again."""


class SyncGroup(msgspec.Struct, frozen=True, kw_only=True):
    """SyncGroup; the leader's carries the assignments."""

    request: int
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol: str | None = None
    protocol_type: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class HeartbeatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Heartbeat."""

    request: int
    member_id: str
    generation: int
    instance_id: str | None = None


class LeaveGroup(msgspec.Struct, frozen=True, kw_only=True):
    """LeaveGroup: by member id, or, an administrator's word, by the instance id of a static member."""

    request: int
    member_id: str = ""
    instance_id: str | None = None


class OffsetCommit(msgspec.Struct, frozen=True, kw_only=True):
    """OffsetCommit, or (*transactional*) TxnOffsetCommit, which is fenced alike where it names a member.

    Generation -1 without a member is a simple consumer, or a producer that does not name its group.
    """

    request: int
    member_id: str = ""
    generation: int = NO_GENERATION
    instance_id: str | None = None
    transactional: bool = False


class DeleteGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The group is deleted."""

    request: int


class TimePasses(msgspec.Struct, frozen=True, kw_only=True):
    """Time has passed and nothing else has happened."""

    request: int = -1


Request: TypeAlias = (
    JoinGroup | SyncGroup | HeartbeatRequest | LeaveGroup | OffsetCommit | DeleteGroup | TimePasses
)


class GroupReply(NamedTuple):
    """The answer to the request of that number.

    *members* are the leader's list of (member id, subscription).
    """

    request: int
    code: GroupCode
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol: str = ""
    leader: str = ""
    members: tuple[tuple[str, bytes], ...] = ()
    assignment: bytes = b""
    skip_assignment: bool = False


class ClassicMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member.

    *join* and *sync* are the numbers of its waiting requests; *session_ends_ms* does not count while it
    waits.
    """

    member_id: str
    instance_id: str | None
    protocols: tuple[tuple[str, bytes], ...]
    session_ms: int
    rebalance_ms: int
    session_ends_ms: int
    assignment: bytes = b""
    join: int | None = None
    sync: int | None = None
    synced: bool = False

    def subscription(self, protocol: str) -> bytes:
        """Return its subscription under *protocol*."""
        return dict(self.protocols).get(protocol, b"")


class ClassicGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group.

    *protocol_type* is that of its first member: others must have the same, from the first moment on.
    *join_ends_ms* is when joining is over; *join_limit_ms* bounds the first join, which newcomers extend.
    """

    settings: CoordinatorSettings = CoordinatorSettings()
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: tuple[ClassicMember, ...] = ()
    pending: tuple[tuple[str, int], ...] = ()
    join_ends_ms: int | None = None
    join_limit_ms: int | None = None
    newcomers: bool = False
    sync_ends_ms: int | None = None

    def member(self, member_id: str) -> ClassicMember | None:
        """Return the member of that id."""
        return next((each for each in self.members if each.member_id == member_id), None)

    def static(self, instance_id: str | None) -> ClassicMember | None:
        """Return the member of that instance id."""
        return (
            None
            if instance_id is None
            else next((each for each in self.members if each.instance_id == instance_id), None)
        )
