"""Members of KIP-848's groups: ConsumerGroupHeartbeat, ConsumerGroupDescribe."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

import msgspec

from holdfast.core.groups.codes import GroupCode
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.embedded.apis.call import NO_KEPT_ROOM, Call, Fields
from holdfast.embedded.apis.coordinators import elsewhere
from holdfast.embedded.apis.describing import NOT_ASKED
from holdfast.embedded.apis.patterns import PatternTrouble, name_pattern
from holdfast.embedded.groups.group import EmbeddedGroup, MemberHome, ModernTold, heir_of
from holdfast.embedded.internal_log import OFFSETS
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.security.acl_rules import AclOperation, AclResource
from holdfast.models.consumer_group import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    SERVER_ASSIGNORS,
    HeartbeatReply,
    ModernGroup,
    ModernHeartbeat,
    ModernMember,
    Partitions,
)
from holdfast.models.consumer_group import heartbeat as beat

_HIDDEN_TOPICS = "The described group uses topics that the client is not authorized to describe."
_FIRST_BY_CLIENT = 1
"""From then on the client chooses its member id."""


def consumer_group_heartbeat(call: Call) -> Fields:
    """Answer ConsumerGroupHeartbeat."""
    fields, groups = call.fields, call.cluster.groups
    group_id = fields["group_id"]
    if not call.may_group(AclOperation.READ, group_id):
        return {"error_code": KafkaCode.GROUP_AUTHORIZATION_FAILED}
    if not all(
        call.may_topic(AclOperation.DESCRIBE, each) for each in fields["subscribed_topic_names"] or ()
    ):
        return {"error_code": KafkaCode.TOPIC_AUTHORIZATION_FAILED}
    if (trouble := _trouble(call)) is not None:
        return {"error_code": KafkaCode.INVALID_REQUEST, "error_message": trouble}
    if (assignor := fields["server_assignor"]) not in (None, *SERVER_ASSIGNORS):
        return {"error_code": GroupCode.UNSUPPORTED_ASSIGNOR, "error_message": _unknown_assignor(assignor)}
    if (code := elsewhere(call, OFFSETS, group_id)) is not None:
        return {"error_code": code}
    group = groups.get(group_id)
    if group is None and fields["member_epoch"] != 0:
        what = "Group" if fields["member_epoch"] < JOIN_EPOCH else "Consumer group"
        return {
            "error_code": KafkaCode.GROUP_ID_NOT_FOUND,
            "error_message": f"{what} {group_id} not found.",
        }
    group = group or groups.opened(group_id)
    if group.modern is None and not group.is_empty:
        text = f"Group {group_id} is not a consumer group."
        return {"error_code": KafkaCode.GROUP_ID_NOT_FOUND, "error_message": text}
    if fields["member_epoch"] >= JOIN_EPOCH and not call.has_room():
        groups.forget_new(group_id)
        return {"error_code": GroupCode.GROUP_MAX_SIZE_REACHED, "error_message": NO_KEPT_ROOM}
    if (trouble := _crowded(call, group)) is not None:
        return {"error_code": GroupCode.GROUP_MAX_SIZE_REACHED, "error_message": trouble}
    return _beaten(call, group)


def _crowded(call: Call, group: EmbeddedGroup) -> str | None:
    """Return why a new member finds no room (throwIfConsumerGroupIsFull)."""
    modern, most = group.modern, call.cluster.settings.group_max_size
    newcomer = modern is not None and call.fields["member_id"] not in modern.members
    if call.fields["member_epoch"] < JOIN_EPOCH or not newcomer or modern is None:
        return None
    full = len(modern.members) >= most
    return f"The consumer group has reached its maximum capacity of {most} members." if full else None


def _trouble(call: Call) -> str | None:
    fields, epoch = call.fields, call.fields["member_epoch"]
    joins = epoch == JOIN_EPOCH
    identified = call.version >= _FIRST_BY_CLIENT or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH
    for name, said in (
        ("MemberId", fields["member_id"] if identified else None),
        ("GroupId", fields["group_id"]),
        ("InstanceId", fields["instance_id"]),
        ("RackId", fields["rack_id"]),
    ):
        if said is not None and not said.strip():
            return f"{name} can't be empty."
    if epoch == LEAVE_STATIC_EPOCH and fields["instance_id"] is None:
        return "InstanceId can't be null."
    if epoch < LEAVE_STATIC_EPOCH:
        return "MemberEpoch is invalid."
    if not joins:
        return None
    if fields["rebalance_timeout_ms"] == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    if fields["topic_partitions"] is None or fields["topic_partitions"]:
        return "TopicPartitions must be empty when (re-)joining."
    if fields["subscribed_topic_names"] is None and fields["subscribed_topic_regex"] is None:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    return None


def _wrong_pattern(pattern: str | None) -> str | None:
    found = name_pattern(pattern or "")
    if not isinstance(found, PatternTrouble):
        return None
    return f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {found.text}."


def _beaten(call: Call, group: EmbeddedGroup) -> Fields:
    fields = call.fields
    member_id = fields["member_id"] or _new_id(call)
    before = group.modern or ModernGroup()
    held = before.members.get(member_id)
    instance_id = fields["instance_id"]
    heir = heir_of(before, instance_id)
    if instance_id is not None and not heir and fields["member_epoch"] != JOIN_EPOCH:
        code, text = KafkaCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown."
        return {"error_code": code, "error_message": text}
    stays = fields["member_epoch"] >= JOIN_EPOCH
    wrong = _wrong_pattern(fields["subscribed_topic_regex"]) if stays else None
    known = group.told.get(member_id) or group.told.get(heir)
    told = _told_by(known, fields, takes_pattern=stays and wrong is None)
    matched = {**group.matched, told.pattern: _matched(call, told.pattern)} if told.pattern else group.matched
    said = ModernHeartbeat(
        member_id=member_id,
        epoch=fields["member_epoch"],
        instance_id=instance_id,
        topics=_topics(fields, told, matched),
        owned=None if fields["topic_partitions"] is None else _places(call, fields["topic_partitions"]),
        assignor=fields["server_assignor"],
    )
    meant = _with_meant(before, group.told, matched)
    group.matched = matched
    after, reply = beat(meant, said, call.cluster.topics.counts(), call.cluster.steady_ms())
    if reply.code is not GroupCode.NONE:
        return _refused(call, group, before, after, said, reply.code)
    if wrong is not None:
        call.cluster.groups.forget_new(group.group_id)
        return {"error_code": KafkaCode.INVALID_REGULAR_EXPRESSION, "error_message": wrong}
    call.cluster.groups.become_modern(group)
    group.modern, group.told[member_id] = after, told
    group.homes[member_id] = MemberHome(call.client_id, call.host)
    call.cluster.groups.modern_changed(group, before)
    return {
        "error_code": KafkaCode.NONE,
        "member_id": member_id,
        "member_epoch": reply.epoch,
        "heartbeat_interval_ms": call.cluster.settings.consumer_heartbeat_ms if reply.epoch >= 0 else 0,
        "assignment": _assignment(call, held, reply) if reply.epoch >= 0 else None,
    }


def _refused(
    call: Call,
    group: EmbeddedGroup,
    before: ModernGroup,
    after: ModernGroup,
    said: ModernHeartbeat,
    code: GroupCode,
) -> Fields:
    """Answer a heartbeat that is refused, with which others may yet have been found gone."""
    group.modern = after if group.modern is not None or after.epoch else None
    call.cluster.groups.modern_changed(group, before)
    call.cluster.groups.forget_new(group.group_id)
    return {"error_code": code, "error_message": _text(code, said, group, before.members.get(said.member_id))}


def remove_member(call: Call, group: EmbeddedGroup, member_id: str, instance_id: str | None) -> int:
    """Have a member be gone, as an administrator asks by LeaveGroup, and return the code."""
    before = group.modern or ModernGroup()
    found = member_id if instance_id is None else heir_of(before, instance_id)
    if found not in before.members:
        return KafkaCode.UNKNOWN_MEMBER_ID
    if member_id not in ("", found):
        return GroupCode.FENCED_INSTANCE_ID
    leaves = ModernHeartbeat(member_id=found, epoch=LEAVE_EPOCH, instance_id=instance_id)
    group.modern, _ = beat(before, leaves, call.cluster.topics.counts(), call.cluster.steady_ms())
    call.cluster.groups.modern_changed(group, before)
    return KafkaCode.NONE


def _new_id(call: Call) -> str:
    return str(uuid.UUID(bytes=call.cluster.chance.randbytes(16), version=4))


def _told_by(before: ModernTold | None, fields: Fields, *, takes_pattern: bool) -> ModernTold:
    """Return a member's own description, from now or before; for one that leaves, or is refused for its
    pattern, that from before.
    """
    names = fields["subscribed_topic_names"]
    pattern = fields["subscribed_topic_regex"] if takes_pattern else None
    before = before or ModernTold((), "", -1, None)
    return ModernTold(
        before.names if names is None else tuple(sorted(names)),
        before.pattern if pattern is None else pattern,
        fields["rebalance_timeout_ms"] if fields["rebalance_timeout_ms"] != -1 else before.rebalance_ms,
        fields["server_assignor"] or before.assignor,
    )


def _matched(call: Call, pattern: str) -> tuple[str, ...]:
    found = name_pattern(pattern)
    assert not isinstance(found, PatternTrouble)  # it was looked at when a member brought it
    return tuple(sorted(each.name for each in call.cluster.topics if found.matches(each.name)))


def _with_meant(
    group: ModernGroup, told: Mapping[str, ModernTold], matched: Mapping[str, tuple[str, ...]]
) -> ModernGroup:
    """Return *group* with the topics that its members' patterns match by now."""
    members = {
        name: msgspec.structs.replace(each, topics=told[name].topics(matched)) if told[name].pattern else each
        for name, each in group.members.items()
    }
    return msgspec.structs.replace(group, members=members)


def _topics(
    fields: Fields, told: ModernTold, matched: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...] | None:
    """Return a member's present subscription; None if it is unchanged."""
    if fields["subscribed_topic_names"] is None and not told.pattern:
        return None
    return told.topics(matched)


def _places(call: Call, told: Iterable[Fields]) -> Partitions:
    topics = call.cluster.topics
    return frozenset(
        TopicPartition(topic.name, index)
        for each in told
        if (topic := topics.by_id(each["topic_id"])) is not None
        for index in each["partitions"]
    )


def _text(
    code: GroupCode, said: ModernHeartbeat, group: EmbeddedGroup, held: ModernMember | None
) -> str | None:
    match code:
        case GroupCode.FENCED_MEMBER_EPOCH:
            assert held is not None
            than = "greater" if said.epoch > held.epoch else "smaller"
            return (
                f"The consumer group member has a {than} member epoch ({said.epoch}) than the one known by"
                f" the group coordinator ({held.epoch}). The member must abandon all its partitions and"
                " rejoin."
            )
        case GroupCode.UNRELEASED_INSTANCE_ID:
            owner = heir_of(group.modern or ModernGroup(), said.instance_id)
            return (
                f"Static member {said.member_id} with instance id {said.instance_id} cannot join the group"
                f" because the instance id is owned by {owner} member."
            )
        case GroupCode.UNKNOWN_MEMBER_ID:
            return f"Member {said.member_id} is not a member of group {group.group_id}."
        case GroupCode.UNSUPPORTED_ASSIGNOR:
            return _unknown_assignor(said.assignor)
    return None


def _unknown_assignor(name: str | None) -> str:
    known = ", ".join(SERVER_ASSIGNORS)
    return f"ServerAssignor {name} is not supported. Supported assignors: {known}."


def _assignment(call: Call, before: ModernMember | None, reply: HeartbeatReply) -> Fields | None:
    """Return a member's assignment, None where it is the one sent last."""
    fields = call.fields
    subscribes = fields["subscribed_topic_names"] is not None or fields["subscribed_topic_regex"] is not None
    full = fields["rebalance_timeout_ms"] != -1 and subscribes and fields["topic_partitions"] is not None
    if before is not None and fields["member_epoch"] != 0 and not full and before.assigned == reply.assigned:
        return None
    return {"topic_partitions": _told(call, reply.assigned)}


def _told(call: Call, places: Iterable[TopicPartition], *, named: bool = False) -> list[Fields]:
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(places):
        by_topic.setdefault(topic, []).append(index)
    return [
        {"topic_id": found.topic_id, "partitions": indexes, **({"topic_name": topic} if named else {})}
        for topic, indexes in by_topic.items()
        if (found := call.cluster.topics.get(topic)) is not None
    ]


# -- describing


def consumer_group_describe(call: Call) -> Fields:
    """Answer ConsumerGroupDescribe."""
    return {"groups": [_described(call, each) for each in dict.fromkeys(call.fields["group_ids"])]}


def _described(call: Call, group_id: str) -> Fields:
    asked = call.fields["include_authorized_operations"]
    answer: Fields = {"group_id": group_id}
    group = call.cluster.groups.get(group_id)
    if not call.may_group(AclOperation.DESCRIBE, group_id):
        return {**answer, "error_code": KafkaCode.GROUP_AUTHORIZATION_FAILED}
    if not group_id:
        return {**answer, "error_code": KafkaCode.INVALID_GROUP_ID}
    if (code := elsewhere(call, OFFSETS, group_id)) is not None:
        return {**answer, "error_code": code}
    if group is None or group.modern is None:
        text = (
            f"Group {group_id} not found." if group is None else f"Group {group_id} is not a consumer group."
        )
        return {**answer, "error_code": KafkaCode.GROUP_ID_NOT_FOUND, "error_message": text}
    modern = group.modern
    if not all(call.may_topic(AclOperation.DESCRIBE, each) for each in _topics_of(modern)):
        return {**answer, "error_code": KafkaCode.TOPIC_AUTHORIZATION_FAILED, "error_message": _HIDDEN_TOPICS}
    return {
        **answer,
        "error_code": KafkaCode.NONE,
        "authorized_operations": call.operations(AclResource.GROUP, group_id) if asked else NOT_ASKED,
        "group_state": group.state,
        "group_epoch": modern.epoch,
        "assignment_epoch": modern.target_epoch,
        "assignor_name": modern.assignor,
        "members": [_member(call, group, modern, each) for each in modern.members.values()],
    }


def _topics_of(group: ModernGroup) -> set[str]:
    """Return the topics that a group's members have or shall have."""
    held = {each.topic for member in group.members.values() for each in member.assigned}
    return held | {each.topic for target in group.target.values() for each in target}


def _member(call: Call, group: EmbeddedGroup, modern: ModernGroup, member: ModernMember) -> Fields:
    home = group.homes[member.member_id]
    target = modern.target.get(member.member_id, frozenset())
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "member_epoch": member.epoch,
        "client_id": home.client_id,
        "client_host": home.host,
        "subscribed_topic_names": list(member.topics),
        "subscribed_topic_regex": group.told[member.member_id].pattern,
        "assignment": {"topic_partitions": _told(call, member.assigned, named=True)},
        "target_assignment": {"topic_partitions": _told(call, target, named=True)},
        "member_type": 1,
    }
