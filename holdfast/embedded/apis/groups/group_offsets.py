"""Offsets of groups: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.groups.codes import GroupCode
from holdfast.core.kafka.topic_partition import Place
from holdfast.core.kafka.wire import WireReader
from holdfast.embedded.apis.call import Call, Fields
from holdfast.embedded.apis.coordinators import elsewhere
from holdfast.embedded.apis.groups.group_members import at_once, misplaced
from holdfast.embedded.groups.group import CommittedOffset, EmbeddedGroup
from holdfast.embedded.internal_log import OFFSETS
from holdfast.embedded.protocol.codec import decode
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.protocol.table import message
from holdfast.embedded.security.acl_rules import AclOperation
from holdfast.errors import WireError
from holdfast.models.consumer_group import commit_code
from holdfast.models.group_coordinator.types import OffsetCommit

FIRST_BY_ID = 10
FIRST_OF_SEVERAL = 8
_FIRST_WITH_CODE = 2
"""Of OffsetFetch: from then on an answer has a code of its own."""
FIRST_NOT_FOUND = 9
"""Of OffsetCommit: older versions are told of a generation that is not the group's."""
_OF_EVERYTHING = (KafkaCode.GROUP_AUTHORIZATION_FAILED, KafkaCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
"""Codes that one is told of every topic, whatever else is wrong with it."""
LIMIT_METADATA_BYTES = 4_096
NOTHING = CommittedOffset(-1, -1, "", -1)


def commit_trouble(
    call: Call, generation: int, member_id: str, instance_id: str | None, *, transactional: bool = False
) -> int:
    """Return the code with which a commit of that member is answered; 0 takes it."""
    group = call.cluster.groups.get(call.fields["group_id"])
    if group is None:
        if generation >= 0:
            told = call.version >= FIRST_NOT_FOUND and not transactional
            return KafkaCode.GROUP_ID_NOT_FOUND if told else KafkaCode.ILLEGAL_GENERATION
        group = call.cluster.groups.opened(call.fields["group_id"])
    if group.modern is not None:
        return commit_code(group.modern, member_id, generation)
    request = OffsetCommit(
        request=call.cluster.groups.number(),
        member_id=member_id,
        generation=generation,
        instance_id=instance_id,
        transactional=transactional,
    )
    return at_once(call.cluster.groups.take(group, request)).code


def offset_commit(call: Call) -> Fields:
    """Answer OffsetCommit."""
    fields = call.fields
    member = fields["generation_id_or_member_epoch"], fields["member_id"], fields["group_instance_id"]
    code = misplaced(call) or commit_trouble(call, *member)
    topics, taken = commits(call, code)
    if taken:
        call.cluster.groups.commit(call.cluster.groups.opened(fields["group_id"]), taken)
    else:
        call.cluster.groups.forget_new(fields["group_id"])
    return {"topics": topics}


def commits(call: Call, code: int) -> tuple[list[Fields], dict[Place, CommittedOffset]]:
    """Return the answer to each partition of a commit that is answered with *code*, and the offsets to
    keep.
    """
    topics, taken = [], {}
    for topic in call.fields["topics"]:
        by_id = topic.get("topic_id") if call.version >= FIRST_BY_ID else None
        found = call.cluster.topics.by_id(by_id) if by_id is not None else None
        name = topic["name"] if by_id is None else found.name if found is not None else ""
        partitions = []
        forbidden = KafkaCode.NONE if may_read(call, name) else KafkaCode.TOPIC_AUTHORIZATION_FAILED
        for each in topic["partitions"]:
            why = (
                code
                if code in _OF_EVERYTHING
                else forbidden or code or _misplaced(call, name, each, by_id is not None)
            )
            if not why:
                taken[(name, each["partition_index"])] = _committed(call, each)
            partitions.append({"partition_index": each["partition_index"], "error_code": why})
        named = {"name": name} if by_id is None else {"topic_id": by_id}
        topics.append({**named, "partitions": partitions})
    return topics, taken


def may_read(call: Call, topic: str) -> bool:
    """Return whether who asks may commit offsets of *topic*; "" is one that is not there."""
    return not topic or call.may_topic(AclOperation.READ, topic)


def _misplaced(call: Call, topic: str, told: Fields, by_id: bool) -> int:
    if by_id and not topic:
        return KafkaCode.UNKNOWN_TOPIC_ID
    if call.cluster.topics.partition(topic, told["partition_index"]) is None:
        return KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    size = len((told["committed_metadata"] or "").encode())
    return KafkaCode.OFFSET_METADATA_TOO_LARGE if size > LIMIT_METADATA_BYTES else KafkaCode.NONE


def _committed(call: Call, told: Fields) -> CommittedOffset:
    return CommittedOffset(
        told["committed_offset"],
        told["committed_leader_epoch"],
        told["committed_metadata"] or "",
        call.cluster.now_ms(),
    )


# -- fetching


def offset_fetch(call: Call) -> Fields:
    """Answer OffsetFetch."""
    if call.version >= FIRST_OF_SEVERAL:
        return {"groups": [_fetched(call, each) for each in call.fields["groups"]]}
    found = _fetched(call, call.fields)
    del found["group_id"]
    return found


def _fetched(call: Call, told: Fields) -> Fields:
    group_id = told["group_id"]
    answer: Fields = {"group_id": group_id, "topics": [], "error_code": KafkaCode.NONE}
    may = call.may_group(AclOperation.DESCRIBE, group_id)
    code: int | None = elsewhere(call, OFFSETS, group_id) if may else KafkaCode.GROUP_AUTHORIZATION_FAILED
    group = call.cluster.groups.get(group_id)
    if code is None and group is not None:
        code = _fenced(group, told)
    if code:
        old = call.version < _FIRST_WITH_CODE
        return {**answer, "error_code": code, "topics": _each(told, KafkaCode(code)) if old else []}
    answer["topics"] = list(_every(call, group) if told["topics"] is None else _asked(call, group, told))
    return answer


def _each(told: Fields, code: KafkaCode) -> list[Fields]:
    """Return what older clients are told, who have no place for the code of a group."""
    return [
        {
            "name": topic["name"],
            "partitions": [_answer(each, NOTHING, code) for each in topic["partition_indexes"]],
        }
        for topic in told["topics"]
    ]


def _fenced(group: EmbeddedGroup, told: Fields) -> int:
    """Return why a member of a modern group may not fetch: it is behind."""
    epoch, member_id = told.get("member_epoch", -1), told.get("member_id")
    if group.modern is None or (epoch < 0 and member_id is None):
        return GroupCode.NONE
    return commit_code(group.modern, member_id or "", epoch)


def _every(call: Call, group: EmbeddedGroup | None) -> Iterator[Fields]:
    by_topic: dict[str, list[int]] = {}
    for topic, index in () if group is None else group.offsets:
        by_topic.setdefault(topic, []).append(index)
    for topic, indexes in by_topic.items():
        if not call.may_topic(AclOperation.DESCRIBE, topic):
            continue
        found = call.cluster.topics.get(topic)
        named = (
            {"name": topic} if call.version < FIRST_BY_ID else {"topic_id": found.topic_id if found else b""}
        )
        yield {**named, "partitions": [_offset(call, group, (topic, each)) for each in indexes]}


def _asked(call: Call, group: EmbeddedGroup | None, told: Fields) -> Iterator[Fields]:
    for topic in told["topics"]:
        if call.version < FIRST_BY_ID:
            name, named = topic["name"], {"name": topic["name"]}
        else:
            found = call.cluster.topics.by_id(topic["topic_id"])
            name, named = found.name if found is not None else "", {"topic_id": topic["topic_id"]}
        unknown = call.version >= FIRST_BY_ID and not name
        forbidden = bool(name) and not call.may_topic(AclOperation.DESCRIBE, name)
        partitions = [
            (
                _answer(each, NOTHING, KafkaCode.UNKNOWN_TOPIC_ID)
                if unknown
                else (
                    _answer(each, NOTHING, KafkaCode.TOPIC_AUTHORIZATION_FAILED)
                    if forbidden
                    else _offset(call, group, (name, each))
                )
            )
            for each in topic["partition_indexes"]
        ]
        yield {**named, "partitions": partitions}


def _offset(call: Call, group: EmbeddedGroup | None, place: Place) -> Fields:
    if group is None:
        return _answer(place[1], NOTHING, KafkaCode.NONE)
    if call.fields["require_stable"] and group.is_unstable(place):
        return _answer(place[1], NOTHING, KafkaCode.UNSTABLE_OFFSET_COMMIT)
    return _answer(place[1], group.offsets.get(place, NOTHING), KafkaCode.NONE)


def _answer(index: int, committed: CommittedOffset, code: KafkaCode) -> Fields:
    return {
        "partition_index": index,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": code,
    }


# -- deleting


def offset_delete(call: Call) -> Fields:
    """Answer OffsetDelete."""
    code = misplaced(call, AclOperation.DELETE)
    group = call.cluster.groups.get(call.fields["group_id"])
    if code is None and group is None:
        code = KafkaCode.GROUP_ID_NOT_FOUND
    if (
        code is None
        and group is not None
        and not group.is_empty
        and group.protocol_type not in ("", "consumer")
    ):
        code = KafkaCode.NON_EMPTY_GROUP
    if code is not None or group is None:
        return {"error_code": code, "topics": []}
    topics = []
    for topic in call.fields["topics"]:
        name, indexes = topic["name"], [each["partition_index"] for each in topic["partitions"]]
        why = _undeletable(call, group, name)
        if not why:
            call.cluster.groups.forget(group, [(name, each) for each in indexes])
        forbidden = why if why is KafkaCode.TOPIC_AUTHORIZATION_FAILED else KafkaCode.NONE
        codes = [forbidden or _unknown(call, name, each) or why for each in indexes]
        answers = [
            {"partition_index": each, "error_code": code} for each, code in zip(indexes, codes, strict=True)
        ]
        topics.append({"name": name, "partitions": answers})
    return {"error_code": KafkaCode.NONE, "topics": topics}


def _undeletable(call: Call, group: EmbeddedGroup, topic: str) -> KafkaCode:
    if not may_read(call, topic):
        return KafkaCode.TOPIC_AUTHORIZATION_FAILED
    return KafkaCode.GROUP_SUBSCRIBED_TO_TOPIC if _subscribed(group, topic) else KafkaCode.NONE


def _unknown(call: Call, topic: str, index: int) -> KafkaCode:
    known = call.cluster.topics.partition(topic, index) is not None
    return KafkaCode.NONE if known else KafkaCode.UNKNOWN_TOPIC_OR_PARTITION


def _subscribed(group: EmbeddedGroup, topic: str) -> bool:
    """Whether a member wants *topic*; a classic member that does not say it as consumers do may want any."""
    if group.modern is not None:
        return any(topic in each.topics for each in group.modern.members.values())
    if group.protocol_type != "consumer":
        return False
    classic = group.classic
    said = [each.subscription(classic.protocol) for each in classic.members]
    try:
        return any(topic in _subscription(each) for each in said)
    except WireError:
        return True


def _subscription(data: bytes) -> list[str]:
    version = min(WireReader(data).int16("version"), message("ConsumerProtocolSubscription").versions[-1])
    topics: list[str] = decode("ConsumerProtocolSubscription", version, data, 2)["topics"]
    return topics
