"""What `__consumer_offsets` is to show of a claim group, for lag tools: nothing waits for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.core.claims.lanes import ClaimNames, lowest
from holdfast.core.kafka.topic_partition import Place
from holdfast.core.member.actions import CommitOffset


class OffsetMirror:
    """Offsets to commit to Kafka. With lanes, the offset of a partition is that of its lowest lane.

    *logged* returns the offset that the coordination log shows for a claim, None without one. Not locked: the
    engine's lock is held around every call.
    """

    def __init__(self, names: ClaimNames, logged: Callable[[str, int], int | None]) -> None:
        self._names, self._logged = names, logged
        self._waiting: dict[Place, int] = {}
        self._of_lanes: dict[Place, int] = {}

    def note(self, action: CommitOffset) -> None:
        """Have Kafka show the offset of *action*, or with lanes what the lowest lane is at now."""
        source, partition = self._names.source(action.topic), action.partition
        if source == action.topic:
            self._waiting[source, partition] = action.offset
        else:
            self._note_lanes(source, partition, {action.topic: action.offset})

    def look_again(self, topic: str, partition: int) -> None:
        """Look again where the lanes beside lane *topic* stand: what others commit is seen only later."""
        source = self._names.source(topic)
        if source != topic:
            self._note_lanes(source, partition, {})

    def _note_lanes(self, source: str, partition: int, newer: Mapping[str, int]) -> None:
        lanes = self._names.claimed_as(source)
        found = lowest(newer[lane] if lane in newer else self._logged(lane, partition) for lane in lanes)
        # None: some lane was never worked on.
        if found is not None and self._of_lanes.get((source, partition)) != found:
            self._waiting[source, partition] = self._of_lanes[source, partition] = found

    def take(self) -> dict[Place, int]:
        """Return what is to be committed since the last call, by topic and partition of Kafka's."""
        waiting, self._waiting = self._waiting, {}
        return waiting
