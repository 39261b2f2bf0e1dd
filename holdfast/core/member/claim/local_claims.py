"""A member's record of one claim of its own, and the partitions that it might claim."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from holdfast.core.claims.frames import Frame
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member.claim.gate import Gate
from holdfast.core.member.claim.stages import ClaimStage, ClaimWork

FrameMark = tuple[str, int, int]


def frame_mark(frame: Frame) -> FrameMark:
    """Return the key by which a frame of ours is recognised among those about the same claim: type, time, and
    its last field.
    """
    last = frame.__struct_fields__[-2]  # before the version
    return type(frame).__name__, frame.time_s, getattr(frame, last) if last.endswith("offset") else -1


class LocalClaim:
    """One claim of this instance: the facts known in every stage, and its *stage*.

    *sent* holds when frames that are not seen in the log yet were handed to the shell. *gate* says whether
    messages may be handed out. *beat_at_s* is when the next heartbeat is due, *due_s* that or the end of the
    stage's time limit, as scheduled. *topic_mark* identifies the topic whose offsets it counts, None while
    that is unknown, and *identified_s* is when that topic was last seen to exist.
    """

    __slots__ = (
        "beat_at_s",
        "coordination",
        "due_s",
        "epoch",
        "gate",
        "heartbeat_s",
        "identified_s",
        "kafka_offset",
        "key",
        "lease_until_s",
        "offset_logged",
        "place",
        "sent",
        "stage",
        "topic_mark",
        "unacknowledged",
    )

    def __init__(self, place: TopicPartition, key: str, coordination: int, stage: ClaimStage) -> None:
        self.place, self.key, self.coordination = place, key, coordination
        self.stage: ClaimStage = stage
        self.epoch = self.unacknowledged = 0
        self.sent: dict[FrameMark, float] = {}
        self.gate = Gate()
        self.lease_until_s = self.heartbeat_s = self.identified_s = -inf
        self.due_s = self.beat_at_s = inf
        self.offset_logged = -1
        self.kafka_offset: int | None = None
        self.topic_mark: int | None = None

    def note_sent(self, mark: FrameMark, now_s: float) -> None:
        """Remember when a frame was sent; of frames that look the same, the first, so that a lease is
        rather too short.
        """
        self.sent.setdefault(mark, now_s)

    def take_sent(self, frame: Frame) -> float | None:
        """Return when *frame*, now seen in the log, was sent, and forget the frames sent before it; None if
        it is not remembered.
        """
        sent_s = self.sent.get(frame_mark(frame))
        if sent_s is not None:
            self.sent = {mark: at_s for mark, at_s in self.sent.items() if at_s > sent_s}
        return sent_s


class ClaimView(NamedTuple):
    """One claim as seen from outside, for `claims`."""

    topic: str
    partition: int
    epoch: int
    stage: str
    offset: int
    latest: int
    outstanding: int
    deliver_until_s: float


def held_as(claim: LocalClaim, work: ClaimWork) -> ClaimView:
    """Return *claim*, which was started, as seen from outside."""
    offset, outstanding = work.tracker.current, work.tracker.outstanding
    return ClaimView(
        *claim.place,
        claim.epoch,
        claim.stage.name,
        offset,
        work.latest,
        outstanding,
        claim.gate.deliver_until_s,
    )


class Pool:
    """The partitions that might be claimed: those known to be free, and those to look at again at some time.

    A partition is looked at when its time comes, however often its owner has sent heartbeats since: an
    owner's heartbeats cost nothing here.
    """

    __slots__ = ("_at", "_busy", "_cooling", "_free", "_heap")

    def __init__(self) -> None:
        self._free: list[TopicPartition] = []
        self._at: dict[TopicPartition, int] = {}
        self._busy: dict[TopicPartition, float] = {}
        self._heap: list[tuple[float, TopicPartition]] = []
        self._cooling: dict[TopicPartition, float] = {}

    def __len__(self) -> int:
        return len(self._free)

    def __getitem__(self, index: int) -> TopicPartition:
        return self._free[index]

    def __contains__(self, place: TopicPartition) -> bool:
        return place in self._at

    def free(self, place: TopicPartition) -> bool:
        """Note that *place* may be claimed; return whether that is news."""
        self._busy.pop(place, None)
        if place in self._at:
            return False
        self._at[place] = len(self._free)
        self._free.append(place)
        return True

    def busy(self, place: TopicPartition, until_s: float) -> None:
        """Note that *place* is to be looked at again at *until_s*."""
        self._unfree(place)
        before = self._busy.get(place)
        if before is None or before > until_s:
            self._busy[place] = until_s
            heappush(self._heap, (until_s, place))

    def discard(self, place: TopicPartition) -> None:
        """Forget *place*: it is claimed by this member, or not to be claimed at all."""
        self._unfree(place)
        self._busy.pop(place, None)

    def cool(self, place: TopicPartition, until_s: float) -> None:
        """Let others claim *place* first until *until_s*."""
        self._cooling[place] = until_s

    def cools_for_s(self, place: TopicPartition, now_s: float) -> float:
        """Return for how long others still go first; 0 when they do not."""
        until_s = self._cooling.get(place) if self._cooling else None
        if until_s is None:
            return 0.0
        if until_s <= now_s:
            del self._cooling[place]
            return 0.0
        return until_s - now_s

    def _unfree(self, place: TopicPartition) -> None:
        index = self._at.pop(place, None)
        if index is not None:
            last = self._free.pop()
            if last != place:
                self._free[index] = last
                self._at[last] = index

    def next_s(self) -> float:
        """Return when the next partition is to be looked at."""
        while self._heap and self._busy.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else inf

    def due(self, now_s: float) -> Iterator[TopicPartition]:
        """Take the partitions whose time has come."""
        while self.next_s() <= now_s:
            _, place = heappop(self._heap)
            del self._busy[place]
            yield place
