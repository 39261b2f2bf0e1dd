"""The first and end offsets of logs, as far as groups and their resets need to know."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.committed import CommittedOffsets
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.claims.claim_keys import ClaimKey
from holdfast.core.claims.frames import topic_mark
from holdfast.core.claims.resets import Scope, Spot, data_topic
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import TopicError


class GroupOffsets:
    """Offsets of a group's partitions. Each call asks the broker again."""

    def __init__(self, settings: Settings, *, timeout_s: float, clock: Clock = system_clock) -> None:
        self._settings, self._timeout_s, self._clock = settings, timeout_s, clock
        self._admin = Admin(settings, timeout_s=timeout_s, clock=clock)

    def spots(self, current: Mapping[ClaimKey, int | None], at_ms: int | None) -> dict[ClaimKey, Spot]:
        """Return the offsets of each partition, given its current one (None: unknown); with *at_ms* also its
        first offset of that time.

        One whose offset is unknown begins where the broker's committed offset is, if there is one.
        GroupError or TopicError when a partition does not exist.
        """
        places = {key: (data_topic(key.topic), key.partition) for key in current}
        wanted = sorted(set(places.values()))
        marks = self.marks({topic for topic, _ in wanted})
        ends = self._admin.offsets(wanted)
        times = {} if at_ms is None else self._admin.offsets_at(wanted, at_ms)
        untold: dict[str, list[Place]] = {}
        for key, offset in current.items():
            if offset is None:  # a lane begins at its partition's offset
                untold.setdefault(key.group_id, []).append(places[key])
        committed = {
            group: self._book(group).committed(sorted(set(each)), marks) for group, each in untold.items()
        }
        spots = {}
        for key, place in places.items():
            offset = current[key]
            if offset is None:
                offset = committed[key.group_id].get(place)
            spots[key] = Spot(offset, *ends[place], times.get(place))
        return spots

    def marks(self, topics: Collection[str]) -> dict[str, int | None]:
        """Return the mark of each topic (PROTOCOL.md#topics-that-are-made-again), None where the broker knows
        no ids; TopicError for one that is not there.
        """
        if not topics:
            return {}
        return {
            topic: topic_mark(topic_id) for topic, topic_id in self._admin.topic_ids(topics).topics.items()
        }

    def commit(self, group: str, new: Mapping[ClaimKey, int], marks: Mapping[str, int | None]) -> None:
        """Commit offsets of the topics with these marks to Kafka, all in one request: of lanes, the lowest of
        each partition.
        """
        lowest: dict[Place, int] = {}
        for key, at in new.items():
            place = (data_topic(key.topic), key.partition)
            lowest[place] = min(at, lowest.get(place, at))
        self._book(group).commit(lowest, marks)

    def _book(self, group: str) -> CommittedOffsets:
        return CommittedOffsets(self._settings, group, timeout_s=self._timeout_s, clock=self._clock)

    def marks_there(self, topics: Collection[str]) -> dict[str, int | None]:
        """Return `marks` of those of *topics* that exist."""
        return self.marks(self._admin.cluster(topics).topics.keys() & set(topics)) if topics else {}

    def bounds(self, places: Iterable[Place]) -> Mapping[Place, tuple[int, int]]:
        """Return where those partitions begin, and their next offset, that exist and have a leader."""
        wanted = set(places)
        topics = self._admin.cluster({topic for topic, _ in wanted}).topics
        led = {
            (name, each.partition)
            for name, state in topics.items()
            for each in state.partitions
            if each.leader is not None
        }
        return self._admin.offsets(sorted(wanted & led))

    def places(self, group: str, scope: Scope, topics: Collection[str]) -> list[Place]:
        """Return the partitions of *topics* that *scope* means, whether anybody has read them or not.

        TopicError when the scope names a topic that is neither among *topics* nor what one of them is a lane
        of, or a partition that does not exist.
        """
        data = {data_topic(topic) for topic in topics}
        counts = {name: len(state.partitions) for name, state in self._admin.cluster(data).topics.items()}
        known = {topic for topic in topics if data_topic(topic) in counts} | counts.keys()
        for topic, partitions in scope.topics.items():
            if topic not in known:
                raise TopicError(
                    f"group {group} and topic {topic}: no such topic there; see `holdfast groups describe"
                    f" {group}`"
                )
            count = counts[data_topic(topic)]
            if beyond := sorted(partition for partition in partitions if partition >= count):
                raise TopicError(
                    f"topic {data_topic(topic)} has {count} partitions: there is no partition {beyond[0]}"
                )
        return [
            (topic, partition)
            for topic in sorted(topics)
            for partition in range(counts.get(data_topic(topic), 0))
            if scope.has(topic, partition)
        ]
