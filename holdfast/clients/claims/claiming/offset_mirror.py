"""The offsets of a claim group to show in `__consumer_offsets`, for lag tools: no other code waits for
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from holdfast.core.claims.claim_rows import Claim
from holdfast.core.claims.lanes import ClaimNames, lowest
from holdfast.core.kafka.topic_partition import Place
from holdfast.core.member.actions import CommitOffset


class MirroredOffset(NamedTuple):
    """An offset to commit to Kafka, and the mark of the topic that it is of, None where that is not known."""

    offset: int
    topic_mark: int | None


class OffsetMirror:
    """Offsets to commit to Kafka. With lanes, the offset of a partition is that of its lowest lane.

    *logged* returns what the coordination log shows of a claim, None without a row. Not locked: the engine's
    lock is held around every call.
    """

    def __init__(self, names: ClaimNames, logged: Callable[[str, int], Claim | None]) -> None:
        self._names, self._logged = names, logged
        self._waiting: dict[Place, MirroredOffset] = {}
        self._of_lanes: dict[Place, MirroredOffset] = {}

    def note(self, action: CommitOffset) -> None:
        """Have Kafka show the offset of *action*, or with lanes what the lowest lane is at now."""
        source, partition = self._names.source(action.topic), action.partition
        offset = MirroredOffset(action.offset, action.topic_mark)
        if source == action.topic:
            self._waiting[source, partition] = offset
        else:
            self._note_lanes(source, partition, {action.topic: offset})

    def look_again(self, topic: str, partition: int) -> None:
        """Look again for the positions of the other lanes of lane *topic*: other members' commits are seen
        only later.
        """
        source = self._names.source(topic)
        if source != topic:
            self._note_lanes(source, partition, {})

    def _note_lanes(self, source: str, partition: int, newer: Mapping[str, MirroredOffset]) -> None:
        lanes = self._names.claimed_as(source)
        shown = [newer[lane] if lane in newer else self._shown(lane, partition) for lane in lanes]
        found = lowest(None if each is None else each.offset for each in shown)
        marks = {each.topic_mark for each in shown if each is not None}
        # None: some lane was never worked on. Several marks: some lanes have not begun the topic made
        # again, and offsets of two topics have no lowest.
        if found is None or len(marks) > 1:
            return
        offset = MirroredOffset(found, marks.pop())
        if self._of_lanes.get((source, partition)) != offset:
            self._waiting[source, partition] = self._of_lanes[source, partition] = offset

    def _shown(self, lane: str, partition: int) -> MirroredOffset | None:
        row = self._logged(lane, partition)
        if row is None or row.current_offset is None:
            return None
        return MirroredOffset(row.current_offset, row.topic_mark)

    def take(self) -> dict[Place, MirroredOffset]:
        """Return the offsets to commit since the last call, by topic and partition of Kafka's."""
        waiting, self._waiting = self._waiting, {}
        return waiting
