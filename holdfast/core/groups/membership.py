"""Balanced groups as a fold of the topic `holdfast.groups`: who is a member, and which partitions are whose
(PROTOCOL.md#balanced-groups).

Everybody who reads the topic computes the same target, with the assignor the members agree on; no message
carries it. The claims decide what an owner does about it: a target never takes a partition from
anybody, it says who should hand over to whom.

Rows, by key (no id contains `/`):

    group          members in the order they came, generation, target
    group/member   the member's last sign of life and what it announced to hold
    group//        how far the group has been read, and when to look for members that have gone

Time is the log's. Members that have gone are looked for at each record about their group: a group without
records has no members to serve.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias, assert_never

import msgspec

from holdfast.core.engine.declared.processor import Emits
from holdfast.core.engine.state.rows import Rows
from holdfast.core.groups.announcements import (
    LIMIT_GROUP_MEMBERS,
    Announce,
    Announcement,
    Beat,
    GroupMember,
    Leave,
    Summary,
    TopicBlock,
    blocks_of,
    decode,
    partitions_of,
)
from holdfast.core.groups.assignors.assign import assign
from holdfast.core.groups.assignors.types import AssignorName, Subscriber
from holdfast.core.groups.codes import GroupCode, chosen_protocol
from holdfast.core.groups.java_order import coordinator_partition
from holdfast.core.kafka.topic_partition import TopicPartition

LIMIT_FENCED_MEMBERS = 16
LIMIT_PENDING = 1_000


class Group(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="g"):
    """A group's members, each with its part of the target.

    *fenced* are the latest member ids replaced by a newer process.
    """

    generation: int
    assignor: str
    members: tuple[GroupMember, ...]
    fenced: tuple[str, ...] = ()


class LastSeen(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="s"):
    """A member's last sign of life, and its last announcement: what it holds, and the generation it works
    towards.
    """

    at_ms: int
    owned: tuple[TopicBlock, ...]
    generation: int


class ReadProgress(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="p"):
    """The part of a group's records that has been read.

    *complete* is False while the beginning is unknown: then no member may act on the group. *look_at_ms* is
    when the first member can have gone. *pending* holds signs of life of unknown members, until a summary
    lists them.
    """

    first: int
    last: int
    changed: int
    look_at_ms: int = 0
    complete: bool = False
    generation_seen: int = 0
    summaries: int = 0
    pending: tuple[tuple[str, int], ...] = ()


GroupsRow: TypeAlias = Group | LastSeen | ReadProgress


class NumberedAnnouncement(NamedTuple):
    """An announcement and its offset."""

    offset: int
    announcement: Announcement


EMPTY = Group(0, "", ())


def seen_key(group_id: str, member_id: str) -> str:
    """Return the row key of a member's last sign of life."""
    return f"{group_id}/{member_id}"


def progress_key(group_id: str) -> str:
    """Return the row key of how far a group has been read."""
    return f"{group_id}//"


def route(key: str, partitions: int) -> int:
    """Return the partition of `holdfast.groups` where a group lives: Kafka's rule for coordinators."""
    return coordinator_partition(key.split("/", 1)[0], partitions)


def decode_numbered(value: bytes | None, offset: int) -> NumberedAnnouncement:
    """Return the event of a record; AnnouncementError as `announcements.decode`."""
    return NumberedAnnouncement(offset, decode(value))


def fold_groups(rows: Rows[GroupsRow], numbered: NumberedAnnouncement, at_ms: int) -> Emits:
    """Apply an announcement; *at_ms* is the partition's append time. Emits nothing."""
    apply(rows, numbered, at_ms)
    return None


def apply(rows: Rows[GroupsRow], numbered: NumberedAnnouncement, at_ms: int) -> GroupCode:
    """Apply an announcement and return the code for its sender; a refused one changes no target."""
    offset, announcement = numbered
    group_id = announcement.group_id
    group: Group = rows.get(group_id) or EMPTY  # type: ignore[assignment]
    progress: ReadProgress = rows.get(progress_key(group_id)) or ReadProgress(offset, offset, -1)  # type: ignore[assignment]
    if isinstance(announcement, Summary):
        return _adopt(rows, group, progress, announcement, at_ms)
    fold = _Fold(rows, group_id, group, progress, at_ms)
    fold.look()
    match announcement:
        case Announce():
            code = fold.announced(announcement)
        case Beat():
            code = fold.beaten(announcement)
        case Leave():
            code = fold.left(announcement)
        case _:
            assert_never(announcement)
    fold.close(offset)
    return code


class _Fold:
    """One announcement's way through a group."""

    def __init__(
        self, rows: Rows[GroupsRow], group_id: str, group: Group, progress: ReadProgress, at_ms: int
    ) -> None:
        self._rows, self._group_id, self._before, self._at_ms = rows, group_id, group, at_ms
        self._group, self._progress = group, progress
        self._look_at_ms = progress.look_at_ms
        self._pending = progress.pending
        self._seen_generation = progress.generation_seen

    def _seen(self, member_id: str) -> LastSeen:
        return self._rows[seen_key(self._group_id, member_id)]  # type: ignore[return-value]

    def look(self) -> None:
        """Remove the members whose session is over."""
        if self._at_ms < self._look_at_ms or not self._group.members:
            return
        ends = {
            each.member_id: self._seen(each.member_id).at_ms + each.session_ms for each in self._group.members
        }
        gone = [member_id for member_id, end_ms in ends.items() if end_ms <= self._at_ms]
        if gone:
            self._remove(gone)
        self._look_at_ms = min((end_ms for end_ms in ends.values() if end_ms > self._at_ms), default=0)

    def announced(self, announcement: Announce) -> GroupCode:
        if announcement.member_id in self._group.fenced:
            return GroupCode.FENCED_INSTANCE_ID
        self._seen_generation = max(self._seen_generation, announcement.generation)
        found = [each for each in self._group.members if _same_place(each, announcement)]
        others = [each for each in self._group.members if each not in found]
        if len(others) >= LIMIT_GROUP_MEMBERS:
            return GroupCode.GROUP_MAX_SIZE_REACHED
        if chosen_protocol([*(each.assignors for each in others), announcement.assignors]) is None:
            return GroupCode.INCONSISTENT_GROUP_PROTOCOL
        # One process under each client id and each static id: the newer one replaces the older one, and takes
        # its part.
        before = next(
            (each for each in found if each.member_id == announcement.member_id), found[0] if found else None
        )
        after = GroupMember(
            announcement.member_id,
            announcement.client_id,
            announcement.static_id,
            announcement.topics,
            announcement.pattern,
            announcement.counts,
            announcement.assignors,
            announcement.session_ms,
            before.target if before is not None else announcement.owned,
        )
        members = [
            after if each is before else each
            for each in self._group.members
            if each is before or each not in found
        ]
        if before is None:
            members.append(after)
        replaced = tuple(each.member_id for each in found if each.member_id != announcement.member_id)
        for member_id in replaced:
            del self._rows[seen_key(self._group_id, member_id)]
        self._rows[seen_key(self._group_id, announcement.member_id)] = LastSeen(
            self._at_ms, announcement.owned, announcement.generation
        )
        self._look_when_silent(announcement.session_ms)
        self._pending = tuple(each for each in self._pending if each[0] != announcement.member_id)
        fenced = (*self._group.fenced, *replaced)[-LIMIT_FENCED_MEMBERS:]
        self._group = msgspec.structs.replace(self._group, members=tuple(members), fenced=fenced)
        if before is None or len(found) > 1 or _wants(before) != _wants(after):
            self._assign(newcomer=announcement if before is None else None)
        return GroupCode.NONE

    def beaten(self, announcement: Beat) -> GroupCode:
        key = seen_key(self._group_id, announcement.member_id)
        seen: LastSeen | None = self._rows.get(key)  # type: ignore[assignment]
        if seen is None:
            if announcement.member_id in self._group.fenced:
                return GroupCode.FENCED_INSTANCE_ID
            if not self._progress.complete:
                self._seen_generation = max(self._seen_generation, announcement.generation)
                kept = tuple(each for each in self._pending if each[0] != announcement.member_id)
                self._pending = (*kept, (announcement.member_id, self._at_ms))[-LIMIT_PENDING:]
            return GroupCode.UNKNOWN_MEMBER_ID
        self._rows[key] = LastSeen(self._at_ms, seen.owned, announcement.generation)
        return GroupCode.NONE

    def left(self, announcement: Leave) -> GroupCode:
        gone = [
            each.member_id
            for each in self._group.members
            if (
                each.member_id == announcement.member_id
                if announcement.member_id
                else each.static_id == announcement.static_id
            )
        ]
        if not gone:
            return (
                GroupCode.FENCED_INSTANCE_ID
                if announcement.member_id in self._group.fenced
                else GroupCode.UNKNOWN_MEMBER_ID
            )
        self._remove(gone)
        return GroupCode.NONE

    def close(self, offset: int) -> None:
        """Write what has changed."""
        changed = self._group is not self._before and self._group != self._before
        if changed:
            self._rows[self._group_id] = self._group
        progress = self._progress
        self._rows[progress_key(self._group_id)] = ReadProgress(
            progress.first,
            offset,
            offset if changed else progress.changed,
            self._look_at_ms,
            progress.complete,
            self._seen_generation,
            progress.summaries,
            self._pending,
        )

    def _look_when_silent(self, session_ms: int) -> None:
        end_ms = self._at_ms + session_ms
        self._look_at_ms = min(self._look_at_ms, end_ms) if self._look_at_ms else end_ms

    def _remove(self, gone: list[str]) -> None:
        for member_id in gone:
            del self._rows[seen_key(self._group_id, member_id)]
        members = tuple(each for each in self._group.members if each.member_id not in gone)
        self._group = msgspec.structs.replace(self._group, members=members)
        self._assign()

    def _assign(self, newcomer: Announce | None = None) -> None:
        """Compute the target again. Partitions that members own in the present one count as theirs."""
        group = self._group
        name = chosen_protocol([each.assignors for each in group.members]) or group.assignor
        wanted = subscriptions(group)
        held = frozenset(partitions_of(newcomer.owned)) if newcomer is not None else frozenset()
        subscribers = [
            Subscriber(
                member_id=each.member_id,
                instance_id=each.static_id,
                topics=wanted[each.member_id],
                owned=self._kept(each, held)
                if newcomer is None or each.member_id != newcomer.member_id
                else partitions_of(each.target),
                generation=group.generation - (newcomer is not None and each.member_id == newcomer.member_id),
            )
            for each in group.members
        ]
        parts = assign(method_of(name), counts_of(group), subscribers) if subscribers else {}
        members = tuple(
            msgspec.structs.replace(each, target=blocks_of(parts[each.member_id])) for each in group.members
        )
        generation = max(group.generation, self._seen_generation) + 1
        self._group = Group(generation, name, members, group.fenced)

    def _kept(self, member: GroupMember, held: frozenset[TopicPartition]) -> tuple[TopicPartition, ...]:
        """Return a member's part of the present target, without what a newcomer holds and the member has
        not taken over yet.
        """
        target = partitions_of(member.target)
        if held.isdisjoint(target):
            return target
        owned = frozenset(partitions_of(self._seen(member.member_id).owned))
        return tuple(each for each in target if each not in held or each in owned)


def _same_place(member: GroupMember, announcement: Announce) -> bool:
    return (
        member.member_id == announcement.member_id
        or member.client_id == announcement.client_id
        or (announcement.static_id is not None and member.static_id == announcement.static_id)
    )


def _wants(member: GroupMember) -> tuple[object, ...]:
    """Return the properties of a member on which the target depends, besides its partitions."""
    return member.static_id, member.topics, member.pattern, member.counts, member.assignors


def _adopt(
    rows: Rows[GroupsRow], group: Group, progress: ReadProgress, announcement: Summary, at_ms: int
) -> GroupCode:
    """Take a summary for the truth, if it is one: everything of the group since *as_of* was read here and
    changed nothing.

    For a reader that knows the group it says what its rows say already. Signs of life since *as_of* are kept.
    """
    key = progress_key(announcement.group_id)
    if progress.changed > announcement.as_of or progress.first > announcement.as_of or rows.get(key) is None:
        return GroupCode.ILLEGAL_GENERATION
    later = {
        each.member_id: seen
        for each in group.members
        if (seen := rows.get(seen_key(announcement.group_id, each.member_id))) is not None
    }
    pending = dict(progress.pending)
    for each in group.members:
        del rows[seen_key(announcement.group_id, each.member_id)]
    look_at_ms = 0
    for member, (member_id, seen_ms) in zip(
        sorted(announcement.members, key=lambda each: each.member_id), sorted(announcement.seen), strict=True
    ):
        known = later.get(member_id)
        known_ms = max(pending.get(member_id, -1), known.at_ms if isinstance(known, LastSeen) else -1)
        owned, generation = (
            (known.owned, known.generation)
            if isinstance(known, LastSeen)
            else (member.target, announcement.generation)
        )
        rows[seen_key(announcement.group_id, member_id)] = LastSeen(max(seen_ms, known_ms), owned, generation)
        end_ms = max(seen_ms, known_ms) + member.session_ms
        look_at_ms = min(look_at_ms, end_ms) if look_at_ms else end_ms
    rows[announcement.group_id] = Group(
        announcement.generation, announcement.assignor, announcement.members, announcement.fenced
    )
    rows[key] = ReadProgress(
        progress.first,
        progress.last,
        progress.changed,
        look_at_ms,
        True,
        announcement.generation,
        progress.summaries + 1,
    )
    return GroupCode.NONE


def summary_of(rows: Mapping[str, GroupsRow], group_id: str) -> Summary | None:
    """Return the summary a member may write of the group as it sees it; None of a group it knows nothing
    about.

    For a group not read from its beginning the generation is one higher than any that was seen.
    """
    group, progress = rows.get(group_id), rows.get(progress_key(group_id))
    if not isinstance(group, Group) or not isinstance(progress, ReadProgress):
        return None
    seen = {each.member_id: rows[seen_key(group_id, each.member_id)] for each in group.members}
    generation = (
        group.generation if progress.complete else max(group.generation, progress.generation_seen) + 1
    )
    signs = tuple(
        (member_id, row.at_ms) for member_id, row in sorted(seen.items()) if isinstance(row, LastSeen)
    )
    return Summary(group_id, progress.last, generation, group.assignor, group.members, signs, group.fenced)


# -- what a group wants


def method_of(name: str) -> AssignorName:
    """Return the assignor that computes a target.

    Cooperative rounds withhold partitions that are still owned; here the claims do that.
    """
    return AssignorName.STICKY if name == AssignorName.COOPERATIVE_STICKY else AssignorName(name)


def counts_of(group: Group) -> dict[str, int]:
    """Return the partition count of each topic: the most that any member sees, since partitions are only
    ever added.
    """
    counts: dict[str, int] = {}
    for member in group.members:
        for topic, count in member.counts:
            counts[topic] = max(count, counts.get(topic, 0))
    return counts


def subscriptions(group: Group) -> dict[str, tuple[str, ...]]:
    """Return each member's topics.

    Members of one pattern share what any of them has found: metadata reaches them at different times.
    """
    found: dict[str, set[str]] = {}
    for member in group.members:
        if member.pattern is not None:
            found.setdefault(member.pattern, set()).update(member.topics)
    return {
        member.member_id: member.topics if member.pattern is None else tuple(sorted(found[member.pattern]))
        for member in group.members
    }


def target_of(group: Group | None, member_id: str) -> frozenset[TopicPartition] | None:
    """Return a member's part of the target; None when it is no member."""
    members = () if group is None else group.members
    return next(
        (frozenset(partitions_of(each.target)) for each in members if each.member_id == member_id), None
    )
