"""Groups as `__consumer_offsets` has them, for a coordinator that starts: Kafka's
GroupMetadataManager.replay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.kafka.topic_partition import Place
from holdfast.embedded.groups.group import CommittedOffset, EmbeddedGroup, MemberHome
from holdfast.embedded.groups.modern_records import ModernImage, restore, take
from holdfast.embedded.internal_log import Decision, Note, read_notes
from holdfast.embedded.topics.partition import EmbeddedPartition
from holdfast.embedded.topics.registry import TopicRegistry
from holdfast.models.group_coordinator.types import ClassicGroup, ClassicMember, GroupState


def load_groups(
    home: EmbeddedPartition,
    groups: dict[str, EmbeddedGroup],
    opened: Callable[[str], EmbeddedGroup],
    topics: TopicRegistry,
    steady_ms: int,
) -> None:
    """Put the groups of partition *home* into *groups*, where *opened* makes one that is not there."""
    pending: dict[int, set[str]] = {}
    images: dict[str, ModernImage] = {}
    for each in read_notes(home):
        if isinstance(each, Decision):
            for group_id in pending.pop(each.producer_id, ()):
                if group_id in groups:
                    groups[group_id].decide(each.producer_id, commit=each.commit)
            continue
        note, producer_id = each
        if note.kind == "GroupMetadata":
            _load_generation(opened(note.key["group"]), note.value, steady_ms)
        elif note.kind == "OffsetCommit":
            group = opened(note.key["group"])
            _load_offset(group, note, producer_id)
            if producer_id is not None:
                pending.setdefault(producer_id, set()).add(group.group_id)
        else:
            take(images.setdefault(note.key["group_id"], {}), note)
    for group_id, image in images.items():
        restore(opened(group_id), image, topics, steady_ms)
    for group_id in [name for name, group in groups.items() if group.is_new]:
        del groups[group_id]  # it was deleted


def _load_offset(group: EmbeddedGroup, note: Note, producer_id: int | None) -> None:
    place: Place = note.key["topic"], note.key["partition"]
    value = note.value
    if value is None:
        group.forget(place)
        return
    offset = CommittedOffset(
        value["offset"], value["leader_epoch"], value["metadata"], value["commit_timestamp"]
    )
    group.commit(place, offset, producer_id)


def _load_generation(group: EmbeddedGroup, value: Mapping[str, Any] | None, steady_ms: int) -> None:
    if value is None:  # it is gone, or has become a modern one, whose offsets stay
        group.classic = ClassicGroup(settings=group.classic.settings)
        group.is_noted = False
        return
    group.is_noted = True
    group.classic = _classic(group.classic, value, steady_ms)
    group.homes = {
        each["member_id"]: MemberHome(each["client_id"], each["client_host"]) for each in value["members"]
    }


def _classic(before: ClassicGroup, value: Mapping[str, Any], steady_ms: int) -> ClassicGroup:
    protocol = value["protocol"] or ""
    return ClassicGroup(
        settings=before.settings,
        state=GroupState.STABLE if value["members"] else GroupState.EMPTY,
        generation=value["generation"],
        protocol_type=value["protocol_type"],
        protocol=protocol,
        leader=value["leader"] or "",
        members=tuple(_member(each, protocol, steady_ms) for each in value["members"]),
    )


def _member(told: Mapping[str, Any], protocol: str, steady_ms: int) -> ClassicMember:
    """Return a member whose session begins again: it has not been able to say anything."""
    return ClassicMember(
        member_id=told["member_id"],
        instance_id=told["group_instance_id"],
        protocols=((protocol, bytes(told["subscription"])),),
        session_ms=told["session_timeout"],
        rebalance_ms=told["rebalance_timeout"],
        session_ends_ms=steady_ms + told["session_timeout"],
        assignment=bytes(told["assignment"]),
        synced=True,
    )
