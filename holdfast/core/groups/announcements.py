"""Announcements of the members of balanced groups on the topic `holdfast.groups` (PROTOCOL.md#announcements).

A value is the format byte and a MessagePack array whose first element names the kind. Reading is strict: what
breaks a limit is refused with its reason, and nothing is half accepted.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TypeAlias

import msgspec

from holdfast.core.claims.frames import check_id
from holdfast.core.groups.assignors.types import NO_GENERATION, AssignorName
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.untrusted import UNFIT
from holdfast.errors import AnnouncementError, FrameError

GROUPS_TOPIC = "holdfast.groups"
FORMAT = b"\x01"

LIMIT_ANNOUNCEMENT_BYTES = 900_000
LIMIT_TOPICS = 1_000
LIMIT_PARTITIONS = 100_000
LIMIT_GROUP_MEMBERS = 1_000
LIMIT_ASSIGNORS = 4
LIMIT_PATTERN = 1_000
SESSION_LOW_MS = 1_000
SESSION_HIGH_MS = 1_800_000

TopicBlock: TypeAlias = tuple[str, tuple[int, ...]]
"""A topic and some of its partitions, ascending."""


class AnnouncementReason(StrEnum):
    """Why a value is no announcement."""

    NULL = "null"
    SIZE = "too large"
    FORMAT = "format"
    SHAPE = "shape"
    ID = "id"
    LIMIT = "limit"
    ORDER = "order"


class GroupMember(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One member of a group.

    *pattern* is how it chose *topics*: members of one pattern share what any of them has found.
    """

    member_id: str
    client_id: str
    static_id: str | None
    topics: tuple[str, ...]
    pattern: str | None
    counts: tuple[tuple[str, int], ...]
    assignors: tuple[str, ...]
    session_ms: int
    target: tuple[TopicBlock, ...] = ()


class Announce(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="announce"):
    """The member is here, wants *topics* and holds *owned*. A member sends this when it joins and when any of
    it changes.

    *counts* are the partition counts it sees. *generation* is that of the target *owned* came from, -1 for
    none. *assignors* come with the preferred one first.
    """

    group_id: str
    member_id: str
    client_id: str
    static_id: str | None
    topics: tuple[str, ...]
    pattern: str | None
    counts: tuple[tuple[str, int], ...]
    owned: tuple[TopicBlock, ...]
    generation: int
    assignors: tuple[str, ...]
    session_ms: int


class Beat(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="beat"):
    """The member is still here. *generation* is the one it works towards."""

    group_id: str
    member_id: str
    generation: int


class Leave(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="leave"):
    """The member goes for good.

    A static one is removed by its *static_id* and an empty *member_id*: an administrator's word.
    """

    group_id: str
    member_id: str
    static_id: str | None = None


class Summary(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="summary"):
    """The whole group as its sender saw it after the record at *as_of*: the start for a reader that did not
    read the beginning.

    It counts only when nothing changed the group between *as_of* and itself. *seen* are members with their
    last sign of life, ms.
    """

    group_id: str
    as_of: int
    generation: int
    assignor: str
    members: tuple[GroupMember, ...]
    seen: tuple[tuple[str, int], ...]
    fenced: tuple[str, ...]


Announcement: TypeAlias = Announce | Beat | Leave | Summary

_decoder: msgspec.msgpack.Decoder[Announcement] = msgspec.msgpack.Decoder(Announce | Beat | Leave | Summary)
_encoder = msgspec.msgpack.Encoder()


def decode(value: bytes | None) -> Announcement:
    """Return the announcement in *value*, or raise AnnouncementError.

    >>> decode(encode(Beat("orders-group", "m-1", 7)))
    Beat(group_id='orders-group', member_id='m-1', generation=7)
    """
    if value is None:
        raise AnnouncementError(
            "a record without a value: announcements are never deleted by key", AnnouncementReason.NULL
        )
    if len(value) > LIMIT_ANNOUNCEMENT_BYTES:
        raise AnnouncementError(
            f"{len(value)} bytes, the limit is {LIMIT_ANNOUNCEMENT_BYTES}", AnnouncementReason.SIZE
        )
    if value[:1] != FORMAT:
        raise AnnouncementError(
            f"begins with {value[:1]!r}, not {FORMAT!r}: another format, or not ours",
            AnnouncementReason.FORMAT,
        )
    try:
        found = _decoder.decode(memoryview(value)[1:])
    except UNFIT as error:
        raise AnnouncementError(f"no announcement: {error}", AnnouncementReason.SHAPE) from None
    check(found)
    return found


def encode(announcement: Announcement) -> bytes:
    """Return the value of the record; AnnouncementError for what `decode` would refuse."""
    check(announcement)
    value = FORMAT + _encoder.encode(announcement)
    if len(value) > LIMIT_ANNOUNCEMENT_BYTES:
        raise AnnouncementError(
            f"{len(value)} bytes, the limit is {LIMIT_ANNOUNCEMENT_BYTES}", AnnouncementReason.SIZE
        )
    return value


def check(announcement: Announcement) -> None:
    """Raise AnnouncementError unless every field is within its limits."""
    _check_id("group_id", announcement.group_id)
    match announcement:
        case Announce():
            _check_id("member_id", announcement.member_id)
            _check_member(announcement)
            _check_blocks("owned", announcement.owned)
            _check_number("generation", announcement.generation, NO_GENERATION, 1 << 62)
        case Beat():
            _check_id("member_id", announcement.member_id)
            _check_number("generation", announcement.generation, NO_GENERATION, 1 << 62)
        case Leave():
            if announcement.member_id or announcement.static_id is None:
                _check_id("member_id", announcement.member_id)
            if announcement.static_id is not None:
                _check_id("static_id", announcement.static_id)
        case Summary():
            _check_summary(announcement)


def _check_summary(summary: Summary) -> None:
    _check_number("as_of", summary.as_of, 0, 1 << 62)
    _check_number("generation", summary.generation, 0, 1 << 62)
    if summary.assignor:
        _check_assignors((summary.assignor,))
    ids = [member.member_id for member in summary.members]
    if len(ids) > LIMIT_GROUP_MEMBERS:
        _refuse(AnnouncementReason.LIMIT, f"{len(ids)} members, the limit is {LIMIT_GROUP_MEMBERS}")
    if len(set(ids)) < len(ids) or sorted(ids) != sorted(member_id for member_id, _ in summary.seen):
        _refuse(AnnouncementReason.ORDER, "members and signs of life are not of the same distinct members")
    given: set[TopicPartition] = set()
    for member in summary.members:
        _check_id("member_id", member.member_id)
        _check_member(member)
        _check_blocks("target", member.target)
        mine = partitions_of(member.target)
        if not given.isdisjoint(mine):
            _refuse(AnnouncementReason.ORDER, "a partition is in the targets of two members")
        given.update(mine)
    for member_id in summary.fenced:
        _check_id("fenced", member_id)


def _check_member(member: Announce | GroupMember) -> None:
    _check_id("client_id", member.client_id)
    if member.static_id is not None:
        _check_id("static_id", member.static_id)
    if member.pattern is not None and not 0 < len(member.pattern) <= LIMIT_PATTERN:
        _refuse(
            AnnouncementReason.LIMIT, f"pattern of {len(member.pattern)} characters, use 1 to {LIMIT_PATTERN}"
        )
    if len(member.topics) > LIMIT_TOPICS or len(member.counts) > LIMIT_TOPICS:
        _refuse(AnnouncementReason.LIMIT, f"more than {LIMIT_TOPICS} topics")
    for name, topics in (("topics", member.topics), ("counts", tuple(topic for topic, _ in member.counts))):
        if list(topics) != sorted(set(topics)):
            _refuse(AnnouncementReason.ORDER, f"{name} are not ascending and distinct")
        for topic in topics:
            _check_id("topic", topic)
    for topic, count in member.counts:
        _check_number(f"partition count of {topic}", count, 0, LIMIT_PARTITIONS + 1)
    if sum(count for _, count in member.counts) > LIMIT_PARTITIONS:
        _refuse(AnnouncementReason.LIMIT, f"more than {LIMIT_PARTITIONS} partitions")
    _check_assignors(member.assignors)
    _check_number("session_ms", member.session_ms, SESSION_LOW_MS, SESSION_HIGH_MS + 1)


def _check_assignors(names: tuple[str, ...]) -> None:
    if (
        not 0 < len(names) <= LIMIT_ASSIGNORS
        or len(set(names)) < len(names)
        or not set(names) <= set(AssignorName)
    ):
        _refuse(
            AnnouncementReason.LIMIT,
            f"assignors {names!r:.200}: name 1 to {LIMIT_ASSIGNORS} of {', '.join(AssignorName)}, each once",
        )


def _check_blocks(name: str, blocks: tuple[TopicBlock, ...]) -> None:
    if [topic for topic, _ in blocks] != sorted({topic for topic, _ in blocks}):
        _refuse(AnnouncementReason.ORDER, f"topics of {name} are not ascending and distinct")
    if sum(len(partitions) for _, partitions in blocks) > LIMIT_PARTITIONS:
        _refuse(AnnouncementReason.LIMIT, f"more than {LIMIT_PARTITIONS} partitions in {name}")
    for topic, partitions in blocks:
        _check_id("topic", topic)
        if not partitions or list(partitions) != sorted(set(partitions)):
            _refuse(
                AnnouncementReason.ORDER, f"partitions of {topic} in {name} are not ascending and distinct"
            )
        _check_number("partition", partitions[0], 0, LIMIT_PARTITIONS)
        _check_number("partition", partitions[-1], 0, LIMIT_PARTITIONS)


def _check_id(field: str, identifier: str) -> None:
    try:
        check_id(field, identifier)
    except FrameError as error:
        raise AnnouncementError(str(error), AnnouncementReason.ID) from None


def _check_number(field: str, number: int, low: int, high: int) -> None:
    if not low <= number < high:
        _refuse(AnnouncementReason.LIMIT, f"{field} {number} is not within {low}..{high - 1}")


def _refuse(reason: AnnouncementReason, text: str) -> None:
    raise AnnouncementError(text, reason)


def blocks_of(partitions: Iterable[TopicPartition | tuple[str, int]]) -> tuple[TopicBlock, ...]:
    """Return *partitions* by topic, both ascending.

    >>> blocks_of([("b", 1), ("a", 2), ("a", 0)])
    (('a', (0, 2)), ('b', (1,)))
    """
    by_topic: dict[str, set[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, set()).add(partition)
    return tuple((topic, tuple(sorted(by_topic[topic]))) for topic in sorted(by_topic))


def partitions_of(blocks: Iterable[TopicBlock]) -> tuple[TopicPartition, ...]:
    """Return the partitions of *blocks*: the inverse of `blocks_of`."""
    return tuple(TopicPartition(topic, partition) for topic, partitions in blocks for partition in partitions)
