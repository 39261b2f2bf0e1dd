"""KIP-848's groups as `__consumer_offsets` has them: records of kinds 3 to 8 and 16, and groups made of them
again.

What the log says of a group is an image: a value for each key. A change of the group is the difference of two
images, and a coordinator that starts folds the records to the image that it had (Kafka's
GroupCoordinatorRecordHelpers).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.embedded.groups.group import EmbeddedGroup, MemberHome, ModernTold
from holdfast.embedded.internal_log import Note
from holdfast.embedded.topics.registry import TopicRegistry
from holdfast.models.consumer_group import (
    LEAVE_STATIC_EPOCH,
    SERVER_ASSIGNORS,
    MemberState,
    ModernGroup,
    ModernMember,
    Partitions,
)

GROUP, SUBSCRIPTIONS = "ConsumerGroupMetadata", "ConsumerGroupPartitionMetadata"
MEMBER, PATTERN = "ConsumerGroupMemberMetadata", "ConsumerGroupRegularExpression"
TARGET, PART = "ConsumerGroupTargetAssignmentMetadata", "ConsumerGroupTargetAssignmentMember"
CURRENT = "ConsumerGroupCurrentMemberAssignment"
MODERN_KINDS = (MEMBER, PATTERN, GROUP, PART, TARGET, CURRENT)
"""In the order in which Kafka writes them."""
_GONE_FIRST = (CURRENT, PART, MEMBER, PATTERN)
_NAMED_BY = {MEMBER: "member_id", PART: "member_id", CURRENT: "member_id", PATTERN: "regular_expression"}

ModernImage: TypeAlias = dict[tuple[str, str], Mapping[str, Any]]
"""The records of a group in the log, by kind and member (or pattern)."""


# -- writing


def image_of(group: EmbeddedGroup, topics: TopicRegistry, now_ms: int) -> ModernImage:
    """Return the records that the log shall have of *group*: none before its first member by the new
    protocol.
    """
    modern = group.modern
    if modern is None or modern.epoch == 0:
        return {}
    found: ModernImage = {(GROUP, ""): {"epoch": modern.epoch, "metadata_hash": _hash(modern, topics)}}
    if modern.target_epoch:
        found[TARGET, ""] = _target(group, modern, now_ms)
    for member in modern.members.values():
        found[MEMBER, member.member_id] = _member(group, member)
        found[CURRENT, member.member_id] = _current(group, member, topics)
    for member_id, part in modern.target.items():
        found[PART, member_id] = {"topic_partitions": _places(part, topics)}
    for pattern in {told.pattern for told in group.told.values() if told.pattern}:
        found[PATTERN, pattern] = _matched(group, pattern, now_ms)
    return found


def _target(group: EmbeddedGroup, modern: ModernGroup, now_ms: int) -> Mapping[str, Any]:
    before = group.written.get((TARGET, ""))
    if before is not None and (not modern.members or before["assignment_epoch"] == modern.target_epoch):
        return before  # Kafka computes no assignment for an empty group
    return {"assignment_epoch": modern.target_epoch, "assignment_timestamp": now_ms}


def _matched(group: EmbeddedGroup, pattern: str, now_ms: int) -> Mapping[str, Any]:
    before, topics = group.written.get((PATTERN, pattern)), list(group.matched.get(pattern, ()))
    if before is not None and before["topics"] == topics:
        return before
    return {"topics": topics, "version": 0, "timestamp": now_ms}


def _member(group: EmbeddedGroup, member: ModernMember) -> Mapping[str, Any]:
    home, told = group.homes[member.member_id], group.told[member.member_id]
    return {
        "instance_id": member.instance_id,
        "rack_id": None,
        "client_id": home.client_id,
        "client_host": home.host,
        "subscribed_topic_names": list(told.names),
        "subscribed_topic_regex": told.pattern,
        "rebalance_timeout_ms": told.rebalance_ms,
        "server_assignor": told.assignor,
        "classic_member_metadata": None,
    }


def _current(group: EmbeddedGroup, member: ModernMember, topics: TopicRegistry) -> Mapping[str, Any]:
    since = group.since.get(member.member_id, {})
    return {
        "member_epoch": member.epoch,
        "previous_member_epoch": max(0, member.previous_epoch),
        "state": member.state,
        "assigned_partitions": _places(member.assigned, topics, since),
        "partitions_pending_revocation": _places(member.revoking, topics, since),
    }


def _places(
    places: Partitions, topics: TopicRegistry, since: Mapping[TopicPartition, int] | None = None
) -> list[dict[str, Any]]:
    by_topic: dict[str, list[TopicPartition]] = {}
    for each in sorted(places):
        by_topic.setdefault(each.topic, []).append(each)
    return [
        {
            "topic_id": found.topic_id,
            "partitions": [each.partition for each in parts],
            **({} if since is None else {"assignment_epochs": [since[each] for each in parts]}),
        }
        for topic, parts in by_topic.items()
        if (found := topics.get(topic)) is not None
    ]


def _hash(modern: ModernGroup, topics: TopicRegistry) -> int:
    """Return a number that changes with the topics that members want. Kafka's is another function; a
    coordinator compares its own with its own.
    """
    wanted = sorted({topic for member in modern.members.values() for topic in member.topics})
    found = [
        (each.topic_id, len(each.partitions)) for name in wanted if (each := topics.get(name)) is not None
    ]
    import hashlib  # brings most of OpenSSL

    digest = hashlib.blake2b(repr(found).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True) if found else 0


def changes(group_id: str, before: ModernImage, after: ModernImage) -> Iterator[Note]:
    """Yield the records that turn *before* into *after*: removals first, then additions, as Kafka orders
    them.
    """
    for kind in _GONE_FIRST:
        for key in sorted(key for key in before.keys() - after.keys() if key[0] == kind):
            yield _note(group_id, key, None)
    if before and not after:
        yield from (_note(group_id, (kind, ""), None) for kind in (TARGET, SUBSCRIPTIONS, GROUP))
    for kind in MODERN_KINDS:
        for key, value in sorted((key, value) for key, value in after.items() if key[0] == kind):
            if before.get(key) != value:
                yield _note(group_id, key, value)


def _note(group_id: str, key: tuple[str, str], value: Mapping[str, Any] | None) -> Note:
    kind, name = key
    return Note(kind, {"group_id": group_id, **({_NAMED_BY[kind]: name} if kind in _NAMED_BY else {})}, value)


# -- reading


def take(image: ModernImage, note: Note) -> None:
    """Put a record of a group into its image."""
    key = note.kind, note.key[_NAMED_BY[note.kind]] if note.kind in _NAMED_BY else ""
    if note.value is None:
        image.pop(key, None)
    else:
        image[key] = note.value


def restore(group: EmbeddedGroup, image: ModernImage, topics: TopicRegistry, steady_ms: int) -> None:
    """Bring *group* to the state of *image*, its members last seen at *steady_ms*: they could not send
    anything before.
    """
    group.written = image
    if (GROUP, "") not in image:
        return
    members = {member_id: value for (kind, member_id), value in image.items() if kind == MEMBER}
    group.matched = {
        pattern: tuple(each["topics"]) for (kind, pattern), each in image.items() if kind == PATTERN
    }
    group.told = {member_id: _told(value) for member_id, value in members.items()}
    group.homes = {
        member_id: MemberHome(value["client_id"], value["client_host"])
        for member_id, value in members.items()
    }
    group.since = {member_id: dict(_since(image.get((CURRENT, member_id)), topics)) for member_id in members}
    said = [told.assignor for told in group.told.values() if told.assignor is not None]
    group.modern = ModernGroup(
        epoch=image[GROUP, ""]["epoch"],
        target_epoch=image.get((TARGET, ""), {"assignment_epoch": 0})["assignment_epoch"],
        assignor=said[-1] if said else next(iter(SERVER_ASSIGNORS)),
        members={each: _restored(group, image, each, topics, steady_ms) for each in members},
        target={
            member_id: _held(value["topic_partitions"], topics)
            for (kind, member_id), value in image.items()
            if kind == PART
        },
    )


def _told(value: Mapping[str, Any]) -> ModernTold:
    return ModernTold(
        tuple(value["subscribed_topic_names"]),
        value["subscribed_topic_regex"] or "",
        value["rebalance_timeout_ms"],
        value["server_assignor"],
    )


def _restored(
    group: EmbeddedGroup, image: ModernImage, member_id: str, topics: TopicRegistry, steady_ms: int
) -> ModernMember:
    told, current = group.told[member_id], image.get((CURRENT, member_id), {})
    epoch: int = current.get("member_epoch", 0)
    return ModernMember(
        member_id=member_id,
        instance_id=image[MEMBER, member_id]["instance_id"],
        topics=told.topics(group.matched),
        epoch=epoch,
        previous_epoch=current.get("previous_member_epoch", 0),
        state=MemberState(current.get("state", 0)),
        assigned=_held(current.get("assigned_partitions", ()), topics),
        revoking=_held(current.get("partitions_pending_revocation", ()), topics),
        heard_ms=steady_ms,
        away=epoch == LEAVE_STATIC_EPOCH,
    )


def _held(told: Iterable[Mapping[str, Any]], topics: TopicRegistry) -> Partitions:
    """Return partitions of existing topics; those of deleted ones have no owner any more."""
    return frozenset(place for place, _ in _numbered(told, topics))


def _since(current: Mapping[str, Any] | None, topics: TopicRegistry) -> Iterator[tuple[TopicPartition, int]]:
    if current is not None:
        yield from _numbered(current["assigned_partitions"], topics)
        yield from _numbered(current["partitions_pending_revocation"], topics)


def _numbered(
    told: Iterable[Mapping[str, Any]], topics: TopicRegistry
) -> Iterator[tuple[TopicPartition, int]]:
    """Yield each partition with the epoch since which its member has it, 0 where that was not noted."""
    for each in told:
        topic = topics.by_id(each["topic_id"])
        epochs = each.get("assignment_epochs") or [0] * len(each["partitions"])
        if topic is not None:
            for index, epoch in zip(each["partitions"], epochs, strict=True):
                yield TopicPartition(topic.name, index), epoch
