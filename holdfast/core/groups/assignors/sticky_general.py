"""The sticky assignor for members of unequal subscriptions: fill the least loaded, then move what improves
the balance.

The order of every walk is Kafka's (AbstractStickyAssignor.GeneralAssignmentBuilder). What Kafka looks up by
scanning all members and partitions is counted here instead: owners per topic, and members sorted by load.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence

from holdfast.core.groups.assignors.types import NO_GENERATION, Assignment, Subscriber, all_partitions
from holdfast.core.groups.java_order import HashOrder, partition_hash, string_hash, string_order
from holdfast.core.kafka.topic_partition import TopicPartition

Pair = tuple[str, str]


def balanced_part(
    counts: Mapping[str, int], members: Sequence[Subscriber], owned: Mapping[str, list[TopicPartition]]
) -> Assignment:
    """Return each member's part; *owned* is what members validly hold, of topics they may not subscribe to
    any more.
    """
    return _General(counts, members, owned).assign()


class _Load:
    """Members in play with their partitions, the least loaded first, ties by id."""

    def __init__(self, parts: Assignment) -> None:
        self.parts = parts
        self.order = sorted(
            (len(part), string_order(member_id), member_id) for member_id, part in parts.items()
        )
        self.owner_of = {each: member_id for member_id, part in parts.items() for each in part}
        self._owners: dict[str, dict[str, int]] = {}
        for each, member_id in self.owner_of.items():
            self._count(each.topic, member_id, 1)

    def _count(self, topic: str, member_id: str, change: int) -> None:
        owners = self._owners.setdefault(topic, {})
        owners[member_id] = owners.get(member_id, 0) + change
        if not owners[member_id]:
            del owners[member_id]

    def size(self, member_id: str) -> int:
        return len(self.parts[member_id])

    def largest_owner(self, topic: str) -> int:
        """Return the load of the most loaded owner of a partition of *topic*."""
        return max(
            (
                len(self.parts[member_id])
                for member_id in self._owners.get(topic, ())
                if member_id in self.parts
            ),
            default=0,
        )

    def leave(self, member_id: str) -> list[TopicPartition]:
        """Take a member out of play."""
        self._unsort(member_id)
        return self.parts.pop(member_id)

    def _unsort(self, member_id: str) -> None:
        del self.order[bisect_left(self.order, (self.size(member_id), string_order(member_id), member_id))]

    def _sort(self, member_id: str) -> None:
        insort(self.order, (self.size(member_id), string_order(member_id), member_id))

    def give(self, each: TopicPartition, member_id: str) -> None:
        self._unsort(member_id)
        self.parts[member_id].append(each)
        self._sort(member_id)
        self.owner_of[each] = member_id
        self._count(each.topic, member_id, 1)

    def take(self, each: TopicPartition) -> str:
        member_id = self.owner_of.pop(each)
        self._unsort(member_id)
        self.parts[member_id].remove(each)
        self._sort(member_id)
        self._count(each.topic, member_id, -1)
        return member_id


class _Movements:
    """Moves made so far.

    A move back between the same two members is preferred to another partition of the topic moving.
    """

    def __init__(self) -> None:
        self._pair_of: dict[TopicPartition, Pair] = {}
        self._moved: dict[str, dict[Pair, HashOrder[TopicPartition]]] = {}

    def instead(self, each: TopicPartition, source: str, target: str) -> TopicPartition:
        """Return the partition to move from *source* to *target* when *each* should: one that came the
        other way, if any.
        """
        pairs = self._moved.get(each.topic)
        if not pairs:
            return each
        if each in self._pair_of:
            source = self._pair_of[each][0]
        back = pairs.get((target, source))
        return next(iter(back)) if back else each

    def note(self, each: TopicPartition, source: str, target: str) -> None:
        code = partition_hash(string_hash(each.topic), each.partition)
        pairs = self._moved.setdefault(each.topic, {})
        before = self._pair_of.pop(each, None)
        if before is not None:
            pairs[before].remove(each, code)
            if not len(pairs[before]):
                del pairs[before]
            source = before[0]
        if source != target:
            self._pair_of[each] = (source, target)
            pairs.setdefault((source, target), HashOrder()).add(each, code)


class _General:
    def __init__(
        self,
        counts: Mapping[str, int],
        members: Sequence[Subscriber],
        owned: Mapping[str, list[TopicPartition]],
    ) -> None:
        self._counts = counts
        self._topics = {
            member.member_id: frozenset(topic for topic in member.topics if topic in counts)
            for member in members
        }
        self._consumers: dict[str, list[str]] = {topic: [] for topic in counts}
        for member_id, topics in self._topics.items():
            for topic in topics:
                self._consumers[topic].append(member_id)
        self._limit = {
            member_id: sum(counts[topic] for topic in topics) for member_id, topics in self._topics.items()
        }
        valid = {
            member_id: [each for each in owned[member_id] if each.topic in topics]
            for member_id, topics in self._topics.items()
        }
        # A member that lost a topic makes everything movable at once; else new partitions move first.
        self._revoked = any(len(valid[member_id]) < len(owned[member_id]) for member_id in valid)
        self._before = self._older_claims(members)
        self._load = _Load(valid)
        self._movements = _Movements()

    def _older_claims(self, members: Sequence[Subscriber]) -> dict[TopicPartition, str]:
        """Return the owner of each partition in the latest generation before the highest one: the partition
        returns there if balance allows.
        """
        highest = max((member.generation for member in members), default=NO_GENERATION)
        latest: dict[TopicPartition, tuple[int, str]] = {}
        by_id = {member.member_id: member for member in members}
        for member_id in HashOrder((each, string_hash(each)) for each in by_id):
            member = by_id[member_id]
            if member.generation >= highest:
                continue
            for each in member.owned:
                if each.topic in self._topics[member_id] and (
                    each not in latest or member.generation > latest[each][0]
                ):
                    latest[each] = (member.generation, member_id)
        return {each: member_id for each, (_, member_id) in latest.items()}

    def assign(self) -> Assignment:
        topics = sorted(self._consumers, key=lambda topic: (len(self._consumers[topic]), topic))
        everything = [each for each in all_partitions(self._counts, topics) if self._consumers[each.topic]]
        free = [each for each in everything if each not in self._load.owner_of]
        fresh = not self._load.order[-1][0]
        for each in free:
            self._load.give(each, self._least_loaded(each.topic))
        contested = {topic for topic, consumers in self._consumers.items() if len(consumers) > 1}
        fixed = {
            member_id: self._load.leave(member_id)
            for member_id in self._topics
            if not self._may_change(member_id, contested)
        }
        before = {member_id: list(part) for member_id, part in self._load.parts.items()}
        if not self._revoked:
            self._improve([each for each in free if each.topic in contested])
        changed = self._improve([each for each in everything if each.topic in contested])
        parts = self._load.parts
        if not fresh and changed and _score(parts.values()) >= _score(before.values()):
            parts = before
        return {**parts, **fixed}

    def _may_change(self, member_id: str, contested: set[str]) -> bool:
        part = self._load.parts[member_id]
        return len(part) < self._limit[member_id] or any(each.topic in contested for each in part)

    def _least_loaded(self, topic: str) -> str:
        return next(member_id for _, _, member_id in self._load.order if topic in self._topics[member_id])

    def _is_balanced(self) -> bool:
        order = self._load.order
        if order[0][0] >= order[-1][0] - 1:
            return True
        largest = {topic: self._load.largest_owner(topic) for topic in self._counts}
        return not any(
            size < self._limit[member_id]
            and any(largest[topic] > size + 1 for topic in self._topics[member_id])
            for size, _, member_id in order
        )

    def _improve(self, movable: list[TopicPartition]) -> bool:
        """Move partitions from members to others with at least two fewer, over and over until nothing is
        gained.
        """
        performed, modified = False, True
        while modified:
            modified = False
            for each in movable:
                if self._is_balanced():
                    break
                size = self._load.size(self._load.owner_of[each])
                former = self._before.get(each)
                if former in self._load.parts and size > self._load.size(former) + 1:
                    self._move(each, former)
                    performed = modified = True
                elif any(
                    size > self._load.size(other) + 1
                    for other in self._consumers[each.topic]
                    if other in self._load.parts
                ):
                    self._move(each, self._least_loaded(each.topic))
                    performed = modified = True
        return performed

    def _move(self, each: TopicPartition, target: str) -> None:
        each = self._movements.instead(each, self._load.owner_of[each], target)
        source = self._load.take(each)
        self._movements.note(each, source, target)
        self._load.give(each, target)


def _score(parts: Iterable[Sequence[TopicPartition]]) -> int:
    """Return the sum of the differences of load over all pairs: 0 is perfect balance."""
    sizes = sorted(len(part) for part in parts)
    return sum(size * (2 * at - len(sizes) + 1) for at, size in enumerate(sizes))
