"""Members of classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable
from typing import Any

from holdfast.core.groups.codes import GroupCode
from holdfast.embedded.apis.call import Call, Fields
from holdfast.embedded.apis.coordinators import elsewhere
from holdfast.embedded.apis.groups.modern_groups import remove_member
from holdfast.embedded.groups.group import EmbeddedGroup, MemberHome
from holdfast.embedded.internal_log import OFFSETS
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.security.acl_rules import AclOperation
from holdfast.models.group_coordinator.types import (
    GroupReply,
    HeartbeatRequest,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
)

FIRST_WITH_IDS = 4
"""Of JoinGroup: from then on a newcomer gets its id first, and joins with it."""
FIRST_NULL_PROTOCOL = 7
FIRST_SKIPPED = 9
FIRST_WITH_PROTOCOL = 5
"""Of SyncGroup."""
FIRST_OF_SEVERAL = 3
"""Of LeaveGroup."""


def misplaced(call: Call, operation: AclOperation = AclOperation.READ) -> KafkaCode | None:
    """Return why this broker does not answer for the group of a call: it has another one, or who asks may not
    do *operation* to it.
    """
    return forbidden(call, operation) or elsewhere(call, OFFSETS, call.fields["group_id"])


def forbidden(call: Call, operation: AclOperation = AclOperation.READ) -> KafkaCode | None:
    """Return why no broker answers for the group of a call: who asks may not do *operation* to it, or it has
    no name.
    """
    group_id = call.fields["group_id"]
    if not call.may_group(operation, group_id):
        return KafkaCode.GROUP_AUTHORIZATION_FAILED
    return None if group_id else KafkaCode.INVALID_GROUP_ID


# -- joining


def join_group(call: Call) -> Fields | Awaitable[Fields]:
    """Answer JoinGroup."""
    fields, groups = call.fields, call.cluster.groups
    code: int | None = forbidden(call)
    if code is None and not groups.allows_session(fields["session_timeout_ms"]):
        code = GroupCode.INVALID_SESSION_TIMEOUT
    if code is None:
        code = elsewhere(call, OFFSETS, fields["group_id"])
    if code is not None:
        return _not_joined(call, code)
    if not call.has_room():
        return _not_joined(call, GroupCode.GROUP_MAX_SIZE_REACHED)
    group = groups.get(fields["group_id"])
    if group is not None and group.modern is not None and not group.is_empty:
        return _not_joined(call, KafkaCode.INCONSISTENT_GROUP_PROTOCOL)
    is_new = group is None or group.modern is not None
    if is_new and fields["member_id"]:
        return _not_joined(call, KafkaCode.UNKNOWN_MEMBER_ID)
    group = group or groups.opened(fields["group_id"])
    if group.modern is not None:
        groups.become_classic(group)
    request = _join_request(call)
    _note_home(call, group, request)
    reply = groups.take(group, request)
    if is_new:
        groups.note_new(group)
    if not isinstance(reply, GroupReply):
        return _joined_later(call, group, reply)
    return _joined(call, group, reply)


def _note_home(call: Call, group: EmbeddedGroup, request: JoinGroup) -> None:
    """Note a member's address; a static one that is back is described at its first address, as Kafka does."""
    before = group.classic.static(request.instance_id)
    home = MemberHome(call.client_id, call.host)
    group.homes[request.member_id or request.new_id] = home
    group.homes[request.new_id] = home if before is None else group.homes[before.member_id]


def _join_request(call: Call) -> JoinGroup:
    fields = call.fields
    session_ms, rebalance_ms = fields["session_timeout_ms"], fields["rebalance_timeout_ms"]
    instance_id = fields["group_instance_id"]
    prefix = call.client_id if instance_id is None else instance_id
    return JoinGroup(
        request=call.cluster.groups.number(),
        member_id=fields["member_id"],
        new_id=f"{prefix}-{uuid.UUID(bytes=call.cluster.chance.randbytes(16), version=4)}",
        protocols=tuple((each["name"], each["metadata"]) for each in fields["protocols"]),
        instance_id=instance_id,
        session_ms=session_ms,
        rebalance_ms=rebalance_ms if rebalance_ms >= 0 else session_ms,
        requires_id=call.version >= FIRST_WITH_IDS,
        protocol_type=fields["protocol_type"],
        may_skip_assignment=call.version >= FIRST_SKIPPED,
    )


async def _joined_later(call: Call, group: EmbeddedGroup, waiting: asyncio.Future[GroupReply]) -> Fields:
    return _joined(call, group, await waiting)


def _joined(call: Call, group: EmbeddedGroup, reply: GroupReply) -> Fields:
    if reply.code is not GroupCode.NONE:
        return {**_not_joined(call, reply.code), "member_id": reply.member_id}
    instances = {each.member_id: each.instance_id for each in group.classic.members}
    return {
        "error_code": KafkaCode.NONE,
        "generation_id": reply.generation,
        "protocol_type": group.protocol_type,
        "protocol_name": reply.protocol,
        "leader": reply.leader,
        "skip_assignment": reply.skip_assignment,
        "member_id": reply.member_id,
        "members": [
            {"member_id": each, "group_instance_id": instances.get(each), "metadata": metadata}
            for each, metadata in reply.members
        ],
    }


def _not_joined(call: Call, code: int) -> Fields:
    return {
        "error_code": code,
        "generation_id": -1,
        "protocol_name": None if call.version >= FIRST_NULL_PROTOCOL else "",
        "leader": "",
        "member_id": "" if code == KafkaCode.GROUP_AUTHORIZATION_FAILED else call.fields["member_id"],
        "members": [],
    }


# -- syncing, heartbeats, leaving


def sync_group(call: Call) -> Fields | Awaitable[Fields]:
    """Answer SyncGroup."""
    fields = call.fields
    if call.version >= FIRST_WITH_PROTOCOL and None in (fields["protocol_type"], fields["protocol_name"]):
        return {"error_code": KafkaCode.INCONSISTENT_GROUP_PROTOCOL}
    if (code := misplaced(call)) is not None:
        return {"error_code": code}
    group = call.cluster.groups.get(fields["group_id"])
    if group is None or group.modern is not None:
        return {"error_code": KafkaCode.UNKNOWN_MEMBER_ID}
    if _is_beyond_a_record(call, group):
        return {"error_code": KafkaCode.UNKNOWN_SERVER_ERROR}
    if fields["assignments"] and not call.has_room():
        return {"error_code": GroupCode.GROUP_MAX_SIZE_REACHED}
    request = SyncGroup(
        request=call.cluster.groups.number(),
        member_id=fields["member_id"],
        generation=fields["generation_id"],
        instance_id=fields["group_instance_id"],
        protocol=fields["protocol_name"],
        protocol_type=fields["protocol_type"],
        assignments=tuple((each["member_id"], each["assignment"]) for each in fields["assignments"]),
    )
    reply = call.cluster.groups.take(group, request)
    return _synced(group, reply) if isinstance(reply, GroupReply) else _synced_later(group, reply)


def _is_beyond_a_record(call: Call, group: EmbeddedGroup) -> bool:
    """Return whether a generation with the assignments of a leader is larger than a record may be: Kafka does
    not write it either, and answers so.
    """
    assigned = sum(len(each["assignment"]) for each in call.fields["assignments"])
    if not assigned:
        return False
    subscribed = sum(len(each.subscription(group.classic.protocol)) for each in group.classic.members)
    return assigned + subscribed > call.cluster.settings.message_max_bytes


async def _synced_later(group: EmbeddedGroup, waiting: asyncio.Future[GroupReply]) -> Fields:
    return _synced(group, await waiting)


def _synced(group: EmbeddedGroup, reply: GroupReply) -> Fields:
    if reply.code is not GroupCode.NONE:
        return {"error_code": reply.code}
    return {
        "error_code": KafkaCode.NONE,
        "protocol_type": group.protocol_type,
        "protocol_name": reply.protocol,
        "assignment": reply.assignment,
    }


def heartbeat(call: Call) -> Fields:
    """Answer Heartbeat."""
    fields = call.fields
    if (code := misplaced(call)) is not None:
        return {"error_code": code}
    group = call.cluster.groups.get(fields["group_id"])
    if group is None:
        return {"error_code": KafkaCode.UNKNOWN_MEMBER_ID}
    request = HeartbeatRequest(
        request=call.cluster.groups.number(),
        member_id=fields["member_id"],
        generation=fields["generation_id"],
        instance_id=fields["group_instance_id"],
    )
    return {"error_code": at_once(call.cluster.groups.take(group, request)).code}


def leave_group(call: Call) -> Fields:
    """Answer LeaveGroup."""
    fields = call.fields
    if (code := misplaced(call)) is not None:
        return {"error_code": code, "members": []}
    if call.version < FIRST_OF_SEVERAL:
        return {"error_code": _left(call, fields["member_id"], None)}
    left = [
        {
            "member_id": each["member_id"],
            "group_instance_id": each["group_instance_id"],
            "error_code": _left(call, each["member_id"], each["group_instance_id"]),
        }
        for each in fields["members"]
    ]
    return {"error_code": KafkaCode.NONE, "members": left}


def _left(call: Call, member_id: str, instance_id: str | None) -> int:
    group = call.cluster.groups.get(call.fields["group_id"])
    if group is None:
        return KafkaCode.UNKNOWN_MEMBER_ID
    if group.modern is not None:
        return remove_member(call, group, member_id, instance_id)
    number = call.cluster.groups.number()
    request = LeaveGroup(request=number, member_id=member_id, instance_id=instance_id)
    return at_once(call.cluster.groups.take(group, request)).code


def at_once(reply: Any) -> GroupReply:
    """Return the reply to a request that never waits for others."""
    assert isinstance(reply, GroupReply)
    return reply
