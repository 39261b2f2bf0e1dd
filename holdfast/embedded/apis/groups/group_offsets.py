"""Offsets of groups: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

from holdfast.core.groups.codes import GroupCode
from holdfast.core.kafka.topic_partition import Place, TopicPartition
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
from holdfast.models.group_coordinator.types import NO_GENERATION, OffsetCommit

FIRST_BY_ID = 10
FIRST_OF_SEVERAL = 8
_FIRST_WITH_CODE = 2
"""Of OffsetFetch: from then on an answer has a code of its own."""
FIRST_NOT_FOUND = 9
"""The first version of OffsetCommit with this error: older ones answer with a generation that is not the
group's.
"""
LIMIT_METADATA_BYTES = 4_096
NOTHING = CommittedOffset(-1, -1, "", -1)


class AskedTopic(NamedTuple):
    """A topic of a commit: its name in the answer, and its partitions, each with the error for any caller; 0
    if it exists.
    """

    named: Fields
    partitions: list[tuple[Fields, Place, int]]


def asked_offsets(call: Call) -> list[AskedTopic]:
    """Return the topics of a commit, checked as Kafka does before it looks at the group."""
    return [_asked_topic(call, each) for each in call.fields["topics"]]


def _asked_topic(call: Call, told: Fields) -> AskedTopic:
    by_id = told.get("topic_id") if call.version >= FIRST_BY_ID else None
    found = call.cluster.topics.get(told["name"]) if by_id is None else call.cluster.topics.by_id(by_id)
    name = told["name"] if by_id is None else found.name if found is not None else ""
    count = 0 if found is None else len(found.partitions)
    whole = KafkaCode.NONE
    if by_id is not None and found is None:
        whole = KafkaCode.UNKNOWN_TOPIC_ID
    elif not call.may_topic(AclOperation.READ, name):
        whole = KafkaCode.TOPIC_AUTHORIZATION_FAILED
    unknown = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    indexes = [each["partition_index"] for each in told["partitions"]]
    codes = [whole or (KafkaCode.NONE if 0 <= each < count else unknown) for each in indexes]
    places: list[Place] = [(name, each) for each in indexes]
    named = {"name": name} if by_id is None else {"topic_id": by_id}
    return AskedTopic(named, list(zip(told["partitions"], places, codes, strict=True)))


def places_in(asked: Iterable[AskedTopic]) -> list[Place]:
    """Return the partitions of a commit that are there: without any, Kafka does not ask the coordinator."""
    return [place for topic in asked for _, place, why in topic.partitions if not why]


def commit_trouble(
    call: Call,
    places: Iterable[Place],
    member: tuple[int, str, str | None],
    *,
    transactional: bool = False,
) -> int:
    """Return the code with which a commit of *member* (generation, id, instance) for *places* is answered; 0
    takes it.
    """
    generation, member_id, instance_id = member
    groups = call.cluster.groups
    group = groups.get(call.fields["group_id"])
    if group is None:
        if generation >= 0:
            told = call.version >= FIRST_NOT_FOUND and not transactional
            return KafkaCode.GROUP_ID_NOT_FOUND if told else KafkaCode.ILLEGAL_GENERATION
        group = groups.opened(call.fields["group_id"])
    if group.modern is not None:
        if transactional and generation == NO_GENERATION and member_id == "" and instance_id is None:
            return KafkaCode.NONE
        since = group.since.get(member_id, {})
        code = commit_code(
            group.modern, member_id, generation, since=[since.get(TopicPartition(*each)) for each in places]
        )
        stale = transactional and code is GroupCode.STALE_MEMBER_EPOCH
        old = call.version < FIRST_NOT_FOUND and member_id in group.modern.members and not transactional
        return KafkaCode.UNSUPPORTED_VERSION if old else KafkaCode.ILLEGAL_GENERATION if stale else code
    request = OffsetCommit(
        request=groups.number(),
        member_id=member_id,
        generation=generation,
        instance_id=instance_id,
        transactional=transactional,
    )
    return at_once(groups.take(group, request)).code


def offset_commit(call: Call) -> Fields:
    """Answer OffsetCommit."""
    fields, groups = call.fields, call.cluster.groups
    group_id = fields["group_id"]
    asked = asked_offsets(call)
    if not call.may_group(AclOperation.READ, group_id):
        return {"topics": refused(asked, KafkaCode.GROUP_AUTHORIZATION_FAILED)}
    code: int | None = None
    if (places := places_in(asked)) and not call.has_room():
        code = KafkaCode.INVALID_COMMIT_OFFSET_SIZE
    elif places:
        member = fields["generation_id_or_member_epoch"], fields["member_id"], fields["group_instance_id"]
        code = elsewhere(call, OFFSETS, group_id) or commit_trouble(call, places, member)
    topics, taken = commits(call, asked, code or KafkaCode.NONE)
    if taken:
        groups.commit(groups.opened(group_id), taken)
    else:
        groups.forget_new(group_id)
    return {"topics": topics}


def refused(asked: Iterable[AskedTopic], code: int) -> list[Fields]:
    """Return the answer to a commit that is refused with *code*, whatever else is wrong with it."""
    return [_topic(each, [code] * len(each.partitions)) for each in asked]


def _topic(asked: AskedTopic, codes: Iterable[int]) -> Fields:
    pairs = zip(asked.partitions, codes, strict=True)
    answers = [{"partition_index": place[1], "error_code": code} for (_, place, _), code in pairs]
    return {**asked.named, "partitions": answers}


def commits(
    call: Call, asked: Iterable[AskedTopic], code: int
) -> tuple[list[Fields], dict[Place, CommittedOffset]]:
    """Return the answer to each partition of a commit that is answered with *code*, and the offsets to
    keep.
    """
    topics, taken = [], {}
    for topic in asked:
        codes = []
        for told, place, why in topic.partitions:
            codes.append(why or code or _oversized(told))
            if not codes[-1]:
                taken[place] = _committed(call, told)
        topics.append(_topic(topic, codes))
    return topics, taken


def _oversized(told: Fields) -> int:
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
    """Return the answer for older clients, whose protocol has no field for the code of a group."""
    return [
        {
            "name": topic["name"],
            "partitions": [_answer(each, NOTHING, code) for each in topic["partition_indexes"]],
        }
        for topic in told["topics"]
    ]


def _fenced(group: EmbeddedGroup, told: Fields) -> int:
    """Return the error of a member of a modern group that may not fetch: its epoch is stale."""
    epoch, member_id = told.get("member_epoch", -1), told.get("member_id")
    if group.modern is None or (epoch < 0 and member_id is None):
        return GroupCode.NONE
    member = group.modern.members.get(member_id or "")
    if member is None:
        return GroupCode.UNKNOWN_MEMBER_ID
    return GroupCode.NONE if epoch == member.epoch else GroupCode.STALE_MEMBER_EPOCH


def _every(call: Call, group: EmbeddedGroup | None) -> Iterator[Fields]:
    by_topic: dict[str, list[int]] = {}
    unstable = group.unstable() if group is not None else ()
    for topic, index in () if group is None else group.offsets:
        by_topic.setdefault(topic, []).append(index)
    for topic, indexes in by_topic.items():
        if not call.may_topic(AclOperation.DESCRIBE, topic):
            continue
        found = call.cluster.topics.get(topic)
        named = (
            {"name": topic} if call.version < FIRST_BY_ID else {"topic_id": found.topic_id if found else b""}
        )
        yield {**named, "partitions": [_offset(call, group, (topic, each), unstable) for each in indexes]}


def _asked(call: Call, group: EmbeddedGroup | None, told: Fields) -> Iterator[Fields]:
    unstable = group.unstable() if group is not None else ()
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
                    else _offset(call, group, (name, each), unstable)
                )
            )
            for each in topic["partition_indexes"]
        ]
        yield {**named, "partitions": partitions}


def _offset(call: Call, group: EmbeddedGroup | None, place: Place, unstable: Container[Place]) -> Fields:
    if group is None:
        return _answer(place[1], NOTHING, KafkaCode.NONE)
    if call.fields["require_stable"] and place in unstable:
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
    topics, subscribed = [], _subscribed(group)
    for topic in call.fields["topics"]:
        name, indexes = topic["name"], [each["partition_index"] for each in topic["partitions"]]
        why = _undeletable(call, subscribed, name)
        if not why:
            call.cluster.groups.forget(group, [(name, each) for each in indexes])
        forbidden = why if why is KafkaCode.TOPIC_AUTHORIZATION_FAILED else KafkaCode.NONE
        codes = [forbidden or _unknown(call, name, each) or why for each in indexes]
        answers = [
            {"partition_index": each, "error_code": code} for each, code in zip(indexes, codes, strict=True)
        ]
        topics.append({"name": name, "partitions": answers})
    return {"error_code": KafkaCode.NONE, "topics": topics}


def _undeletable(call: Call, subscribed: Container[str] | None, topic: str) -> KafkaCode:
    if not call.may_topic(AclOperation.READ, topic):
        return KafkaCode.TOPIC_AUTHORIZATION_FAILED
    wanted = subscribed is None or topic in subscribed
    return KafkaCode.GROUP_SUBSCRIBED_TO_TOPIC if wanted else KafkaCode.NONE


def _unknown(call: Call, topic: str, index: int) -> KafkaCode:
    known = call.cluster.topics.partition(topic, index) is not None
    return KafkaCode.NONE if known else KafkaCode.UNKNOWN_TOPIC_OR_PARTITION


def _subscribed(group: EmbeddedGroup) -> Container[str] | None:
    """Return the topics that members want; None where a classic member does not say it as consumers do: it
    may want any.
    """
    if group.modern is not None:
        return {topic for each in group.modern.members.values() for topic in each.topics}
    if group.protocol_type != "consumer":
        return ()
    classic = group.classic
    said = [each.subscription(classic.protocol) for each in classic.members]
    try:
        return {topic for each in said for topic in _subscription(each)}
    except WireError:
        return None


def _subscription(data: bytes) -> list[str]:
    version = min(WireReader(data).int16("version"), message("ConsumerProtocolSubscription").versions[-1])
    topics: list[str] = decode("ConsumerProtocolSubscription", version, data, 2)["topics"]
    return topics
