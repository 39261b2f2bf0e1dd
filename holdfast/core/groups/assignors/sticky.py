"""The sticky assignors: everybody keeps what he has as far as balance allows (KIP-54, KIP-429).

Names and order of the steps follow Kafka's AbstractStickyAssignor, for whom comes first decides who keeps
what. Where Kafka's code would fail or give a partition to a member that does not subscribe to it, this one
does not (PROTOCOL.md#where-the-assignors-differ).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from holdfast.core.groups.assignors.sticky_general import balanced_part
from holdfast.core.groups.assignors.types import Assignment, Subscriber, all_partitions
from holdfast.core.groups.java_order import hash_order, string_order
from holdfast.core.kafka.topic_partition import TopicPartition


class Ownership:
    """Members' previous partitions, cleaned: each with the member that still has a valid claim to it.

    *owned* lists each member's partitions in the order of a HashMap; *disputed* are those two members of one
    generation claimed.
    """

    __slots__ = ("disputed", "owned")

    def __init__(self, counts: Mapping[str, int], members: Sequence[Subscriber]) -> None:
        by_id = {member.member_id: member for member in members}
        self.owned: dict[str, list[TopicPartition]] = {}
        self.disputed: set[TopicPartition] = set()
        owner_of: dict[TopicPartition, str] = {}
        for member_id in hash_order(by_id):
            member = by_id[member_id]
            mine = self.owned[member_id] = []
            for each in dict.fromkeys(member.owned):
                if not 0 <= each.partition < counts.get(each.topic, 0):
                    continue
                other = owner_of.get(each)
                if other is None:
                    mine.append(each)
                    owner_of[each] = member_id
                elif member.generation == by_id[other].generation:
                    self.disputed.add(each)
                    _discard(self.owned[other], each)
                    owner_of[each] = member_id  # no owner, but the next claimant is measured against this one
                elif member.generation > by_id[other].generation:
                    mine.append(each)
                    _discard(self.owned[other], each)
                    owner_of[each] = member_id


def _discard(parts: list[TopicPartition], each: TopicPartition) -> None:
    if each in parts:
        parts.remove(each)


def sticky(counts: Mapping[str, int], members: Sequence[Subscriber]) -> Assignment:
    """Return the assignment that moves as little as balance allows."""
    return _sticky(counts, members)[0]


def cooperative(counts: Mapping[str, int], members: Sequence[Subscriber]) -> Assignment:
    """Return one cooperative round: the sticky result without the partitions that another member must give
    up first.
    """
    parts, moving = _sticky(counts, members)
    if moving is None:
        moving = _transferred(members, parts)
    return {
        member_id: [each for each in part if moving.get(each) != member_id]
        for member_id, part in parts.items()
    }


def _sticky(
    counts: Mapping[str, int], members: Sequence[Subscriber]
) -> tuple[Assignment, dict[TopicPartition, str] | None]:
    """Return the result and, where the method knows them, the partitions that change owner with their new
    one.
    """
    ownership = Ownership(counts, members)
    if len({frozenset(member.topics) for member in members}) == 1:
        method = _Constrained(counts, ownership)
        return method.assign(), method.moving
    return balanced_part(counts, members, ownership.owned), None


def _transferred(members: Sequence[Subscriber], parts: Assignment) -> dict[TopicPartition, str]:
    given_up = {each for member in members for each in set(member.owned).difference(parts[member.member_id])}
    return {
        each: member.member_id
        for member in members
        for each in set(parts[member.member_id]).difference(member.owned)
        if each in given_up
    }


class _Constrained:
    """All members subscribe to the same topics: everybody ends with the quota or one more."""

    def __init__(self, counts: Mapping[str, int], ownership: Ownership) -> None:
        self._counts, self._owned, self._disputed = counts, ownership.owned, ownership.disputed
        total = sum(counts.values())
        self._least, self._slots = divmod(total, len(self._owned))
        self._most = self._least + (self._slots > 0)
        self._slots_used = 0
        self._parts: Assignment = {member_id: [] for member_id in self._owned}
        self._under: list[str] = []
        self._exactly: list[str] = []
        self._given_up: dict[TopicPartition, str] = {}
        self.moving: dict[TopicPartition, str] = {}

    def assign(self) -> Assignment:
        for member_id, owned in self._owned.items():
            self._keep(
                member_id, sorted((each for each in owned if each not in self._disputed), key=_by_number)
            )
        kept = {each for part in self._parts.values() for each in part}
        self._deal([each for each in all_partitions(self._counts) if each not in kept])
        return self._parts

    def _keep(self, member_id: str, owned: list[TopicPartition]) -> None:
        part = self._parts[member_id]
        if len(owned) < self._least:
            part.extend(owned)
            self._under.append(member_id)
            return
        if len(owned) >= self._most and self._slots_used < self._slots:
            self._slots_used += 1
            if self._slots_used == self._slots:
                self._exactly.clear()
            keep = self._most
        else:
            keep = self._least
            if self._slots_used < self._slots:
                self._exactly.append(member_id)
        part.extend(owned[:keep])
        self._given_up.update((each, member_id) for each in owned[keep:])

    def _deal(self, free: list[TopicPartition]) -> None:
        under = deque(sorted(self._under, key=string_order))
        exactly = deque(sorted(self._exactly, key=string_order))
        for each in free:
            if under:
                member_id = under.popleft()
                self._give(each, member_id)
                # Still short: after the others, for the next turn of the circle. Full: it may take one of the
                # slots.
                (under if len(self._parts[member_id]) < self._least else exactly).append(member_id)
            else:
                self._give(each, exactly.popleft())

    def _give(self, each: TopicPartition, member_id: str) -> None:
        self._parts[member_id].append(each)
        if self._given_up.get(each, member_id) != member_id or each in self._disputed:
            self.moving[each] = member_id


def _by_number(each: TopicPartition) -> tuple[int, str]:
    return each.partition, each.topic
