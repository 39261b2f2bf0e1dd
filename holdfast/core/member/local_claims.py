"""What a member remembers about one claim of its own, and which partitions it might claim."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from holdfast.core.claims.frames import Frame
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member.actions import ReleaseReason
from holdfast.core.member.tracking import Tracker
from holdfast.core.member.velocity import Health


class ClaimStage(StrEnum):
    """How far a claim has come. What happens when is in PROTOCOL.md#the-life-of-a-claim."""

    CLAIMING = "claiming"
    RECLAIMING = "reclaiming"
    WON = "won"
    ACTIVE = "active"
    DRAINING = "draining"
    RELEASING = "releasing"


ATTEMPTS = frozenset({ClaimStage.CLAIMING, ClaimStage.RECLAIMING})

FrameMark = tuple[str, int, int]


def frame_mark(frame: Frame) -> FrameMark:
    """Return what tells a frame of ours from the others about the same claim: type, time, and its last
    field.
    """
    last = frame.__struct_fields__[-2]  # before the version
    return type(frame).__name__, frame.time_s, getattr(frame, last) if last.endswith("offset") else -1


class LocalClaim:
    """One claim of this instance.

    *sent* holds when frames that are not seen in the log yet were handed to the shell. *deliver_until_s* is the gate: until then, and
    not a moment longer, messages may be handed out. *beat_at_s* is when the next heartbeat is due, *deadline_s* when patience with the
    present stage ends, *due_s* the earlier of both as it stands in the schedule. *committing* is the end of
    the batch whose commit (at most once) is under way, *proposed* that of one announced and *handed* how far
    batches were handed out. *work_s* is when the user began with what is in hand, or when messages began to
    wait (*waits*): never later than the offset *checked*, where the last check found it, moved on.
    *drain_until_s* is how long a release waits at most.
    """

    __slots__ = (
        "beat_at_s",
        "checked",
        "committed",
        "committing",
        "cooldown",
        "coordination",
        "deadline_s",
        "deliver_until_s",
        "drain_until_s",
        "due_s",
        "earliest",
        "epoch",
        "flush_to",
        "handed",
        "health",
        "heartbeat_s",
        "kafka_offset",
        "key",
        "latest",
        "lease_until_s",
        "message_s",
        "offset_logged",
        "place",
        "proposed",
        "reason",
        "releases",
        "sent",
        "stage",
        "started",
        "stopped",
        "tracker",
        "unacknowledged",
        "waits",
        "warned",
        "work_s",
    )

    def __init__(
        self, place: TopicPartition, key: str, coordination: int, stage: ClaimStage, now_s: float
    ) -> None:
        self.place, self.key, self.coordination, self.stage = place, key, coordination, stage
        self.epoch = 0
        self.sent: dict[FrameMark, float] = {}
        self.lease_until_s = self.deliver_until_s = self.heartbeat_s = -inf
        self.due_s = self.beat_at_s = self.deadline_s = inf
        self.message_s = now_s
        self.tracker = Tracker(0)
        self.health = Health()
        self.earliest = 0
        self.latest: int | None = None
        self.committed: int | None = None
        self.started = self.stopped = False
        self.offset_logged = -1
        self.kafka_offset: int | None = None
        self.flush_to: int | None = None
        self.reason: ReleaseReason | None = None
        self.cooldown = False
        self.proposed: int | None = None
        self.committing: int | None = None
        self.handed = 0
        self.releases = self.unacknowledged = 0
        self.work_s, self.checked = now_s, -1
        self.waits = self.warned = False
        self.drain_until_s = inf

    def offset(self) -> int:
        """Return the offset that frames carry: what is done, or at most once what is committed or about to
        be.
        """
        current = self.tracker.current
        return current if self.committing is None else max(current, self.committing)

    def close(self) -> None:
        """Shut the gate for good."""
        self.deliver_until_s = -inf

    def note_sent(self, mark: FrameMark, now_s: float) -> None:
        """Remember when a frame was sent; of frames that look the same, the first, so that a lease is
        rather too short.
        """
        self.sent.setdefault(mark, now_s)

    def take_sent(self, frame: Frame) -> float | None:
        """Return when *frame*, now seen in the log, was sent, and forget what was sent before; None for
        one not remembered.
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
    latest: int | None
    outstanding: int
    deliver_until_s: float


def held_as(claim: LocalClaim) -> ClaimView:
    """Return *claim* as seen from outside."""
    offset, outstanding = claim.tracker.current, claim.tracker.outstanding
    return ClaimView(
        *claim.place, claim.epoch, claim.stage.value, offset, claim.latest, outstanding, claim.deliver_until_s
    )


class Pool:
    """The partitions that might be claimed: those known to be free, and those to look at again at some time.

    A partition is looked at when its time comes, however often its owner has sent heartbeats meanwhile: an
    owner's heartbeats cost nothing here.
    """

    __slots__ = ("_at", "_busy", "_free", "_heap")

    def __init__(self) -> None:
        self._free: list[TopicPartition] = []
        self._at: dict[TopicPartition, int] = {}
        self._busy: dict[TopicPartition, float] = {}
        self._heap: list[tuple[float, TopicPartition]] = []

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
