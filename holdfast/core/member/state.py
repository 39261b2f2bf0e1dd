"""What all of a member's decisions stand on: its logs, its claims, its schedule, and what it has asked the
shell to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple, Protocol

from holdfast.core.claims.claim_keys import ClaimKey, claim_key, parse_claim_key
from holdfast.core.claims.frames import (
    ClaimingMessages,
    ClaimingPartition,
    Frame,
    Heartbeat,
    ReleasingPartition,
    coordination_partition,
)
from holdfast.core.claims.guarded import Claim, is_reserved
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member.actions import (
    Action,
    CommitOffset,
    Event,
    FetchOffsets,
    Notify,
    ReleaseReason,
    Send,
)
from holdfast.core.member.local_claims import FrameMark, LocalClaim, Pool, frame_mark
from holdfast.core.member.log_view import LogView
from holdfast.core.member.settings import (
    CLAIM_LOOP_INTERVALS,
    JITTER_HIGH_INTERVALS,
    JITTER_LOW_INTERVALS,
    MemberSettings,
)
from holdfast.core.member.stages import ClaimStage

LIMIT_DUE = 100
"""Claims attended to in one tick: the rest in the next, which is due at once.

Keeps a tick short after a stall.
"""


class Draws(Protocol):
    """Where chance comes from: `random.Random(seed)` fits."""

    def uniform(self, a: float, b: float, /) -> float: ...


class _Sent(NamedTuple):
    claim: LocalClaim
    frame: Frame


class ClaimState:
    """State and small change of a member. No decisions."""

    def __init__(
        self,
        settings: MemberSettings,
        *,
        coordination_partitions: int,
        draws: Draws,
        now_s: float,
        unix_s: float,
    ) -> None:
        assert coordination_partitions > 0
        self.settings = settings
        self.interval_s = settings.heartbeat_interval_s
        self.me = (settings.client_id, settings.instance_id)
        self._partitions = coordination_partitions
        self.draws = draws
        self.unix_lead_s = unix_s - now_s
        self.out: list[Action] = []
        self._send_id = 0
        self.sends: dict[int, _Sent] = {}
        self._unseen: dict[TopicPartition, tuple[FrameMark, float]] = {}
        self.logs: dict[int, LogView] = {}
        self.topics: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self.retired: set[str] = set()
        self.claims: dict[TopicPartition, LocalClaim] = {}
        self.pool = Pool()
        self.cooling: dict[TopicPartition, float] = {}
        self._heap: list[tuple[float, int, LocalClaim]] = []
        self._heap_id = 0
        self.loop_at_s = inf
        self.paused, self.paused_until_s = False, inf
        self.ending = self.failed = False
        self.topics_told: tuple[str, ...] = ()
        self.targets: frozenset[TopicPartition] | None = None
        for topic in settings.topics:
            self.add_topic(topic)

    def add_topic(self, topic: str) -> None:
        log = self.topics[topic] = coordination_partition(topic, self._partitions)
        if log not in self.logs:
            self.logs[log] = LogView(self.settings)

    def reserved(self) -> dict[ClaimKey, Claim]:
        """Return the group's claims that a reset holds: only their release frees them
        (PROTOCOL.md#pausing-and-resetting-a-group).
        """
        return {
            parse_claim_key(key): row
            for log in self.logs.values()
            if log.live
            for key, row in log.claims()
            if is_reserved(row)
        }

    # -- time and chance

    def unix_s(self, now_s: float) -> float:
        return now_s + self.unix_lead_s

    def _frame_s(self, now_s: float) -> int:
        """Return the time for a frame: 0 and less mean "none" to some readers."""
        return max(1, int(self.unix_s(now_s)))

    def jitter_s(self) -> float:
        return self.draws.uniform(JITTER_LOW_INTERVALS, JITTER_HIGH_INTERVALS) * self.interval_s

    def plan(self, claim: LocalClaim, at_s: float) -> None:
        """Attend to *claim* at *at_s*, and not before."""
        claim.due_s = at_s
        if at_s < inf:
            self._heap_id += 1
            heappush(self._heap, (at_s, self._heap_id, claim))

    def plan_next(self, claim: LocalClaim) -> None:
        """Attend to *claim* at its next heartbeat, or when patience with its stage ends."""
        self.plan(claim, min(claim.beat_at_s, claim.stage.until_s))

    def due(self, now_s: float) -> Iterable[LocalClaim]:
        """Take the claims that are to be attended to, the earliest first, no more than LIMIT_DUE."""
        taken: list[LocalClaim] = []
        while self._heap and self._heap[0][0] <= now_s and len(taken) < LIMIT_DUE:
            at_s, _, claim = heappop(self._heap)
            if claim.due_s == at_s:
                claim.due_s = inf
                taken.append(claim)
        return taken

    def next_due_s(self) -> float:
        while self._heap and self._heap[0][2].due_s != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else inf

    # -- asking the shell

    def take(self) -> list[Action]:
        """Return what is to be done by now."""
        out = self.out
        if out:
            self.out = []
        return out

    def _send(self, claim: LocalClaim, frame: Frame, now_s: float) -> int:
        self._send_id += 1
        self.sends[self._send_id] = _Sent(claim, frame)
        claim.unacknowledged += 1
        mark = frame_mark(frame)
        before = self._unseen.get(claim.place)
        if before is not None and before[0] == mark:
            now_s = before[1]  # two attempts in one second: what the log shows may be the first
        self._unseen[claim.place] = mark, now_s
        claim.note_sent(mark, now_s)
        self.out.append(Send(frame, claim.coordination, self._send_id))
        return self._send_id

    def own_seen(self, place: TopicPartition, frame: Frame) -> None:
        """Note that the log shows *frame*, which is ours."""
        unseen = self._unseen.get(place)
        if unseen is not None and unseen[0] == frame_mark(frame):
            del self._unseen[place]

    def unmoved(self, place: TopicPartition, offset: int) -> int:
        """Return what to name in a release of *place*, nothing of which was done, so that it moves nothing.
        The row that was read is at *offset*.

        While the log does not show the last frame that was sent about *place*, as when a member reads what it
        missed, the row is what was. Since then the claim may have been given back, reset to less, and granted
        to us anew: *offset* would undo the reset, and what is to be read again would be lost. 0 moves no
        offset whatever the row is by now. Members of the Go library take an offset as it is; beside them
        there are no resets.
        """
        return offset if self.settings.interop or place not in self._unseen else 0

    def send_claiming(self, claim: LocalClaim, now_s: float) -> None:
        client_id, instance_id = self.me
        frame = ClaimingPartition(
            self._frame_s(now_s), instance_id, client_id, self.settings.group_id, *claim.place
        )
        self._send(claim, frame, now_s)

    def send_heartbeat(self, claim: LocalClaim, offset: int, now_s: float) -> int:
        client_id, instance_id = self.me
        claim.offset_logged = max(claim.offset_logged, offset)
        frame = Heartbeat(
            self._frame_s(now_s), instance_id, client_id, self.settings.group_id, *claim.place, offset
        )
        return self._send(claim, frame, now_s)

    def send_release(self, claim: LocalClaim, offset: int, now_s: float) -> int:
        client_id, instance_id = self.me
        frame = ReleasingPartition(
            self._frame_s(now_s), instance_id, client_id, self.settings.group_id, *claim.place, offset
        )
        return self._send(claim, frame, now_s)

    def send_proposal(self, claim: LocalClaim, offset_end: int, now_s: float) -> None:
        client_id, instance_id = self.me
        frame = ClaimingMessages(
            self._frame_s(now_s), instance_id, client_id, self.settings.group_id, *claim.place, offset_end
        )
        self._send(claim, frame, now_s)

    def commit_offset(self, claim: LocalClaim, offset: int | None) -> None:
        """Have `__consumer_offsets` follow the log: what the log did not take, as from an owner that was
        replaced, is not committed.
        """
        if offset is not None and offset != claim.kafka_offset:
            claim.kafka_offset = offset
            self.out.append(CommitOffset(*claim.place, offset))

    def look(self, claim: LocalClaim) -> None:
        self.out.append(FetchOffsets(*claim.place))

    def tell(
        self,
        event: Event,
        claim: LocalClaim | None = None,
        reason: ReleaseReason | None = None,
        text: str = "",
    ) -> None:
        if claim is None:
            self.out.append(Notify(event, reason=reason, text=text))
        else:
            self.out.append(Notify(event, *claim.place, reason=reason, text=text))

    # -- looking around

    def new_claim(self, place: TopicPartition, stage: ClaimStage) -> LocalClaim:
        claim = LocalClaim(place, claim_key(self.settings.group_id, *place), self.topics[place.topic], stage)
        self.claims[place] = claim
        self.pool.discard(place)
        return claim

    def _log(self, place: TopicPartition) -> LogView:
        return self.logs[self.topics[place.topic]]

    def row(self, claim: LocalClaim) -> Claim | None:
        return self.logs[claim.coordination].row(claim.place)

    def mine(self, row: Claim | None) -> bool:
        """Return whether *row* names this very instance as its owner."""
        return (
            row is not None and row.heartbeat_at_s is not None and (row.client_id, row.instance_id) == self.me
        )

    def claimable(self, place: TopicPartition) -> bool:
        """Return whether *place* exists, as far as this member is concerned, and its log is known."""
        log = self.topics.get(place.topic)
        if log is None or place.topic in self.retired:
            return False
        return place.partition < self.counts.get(place.topic, 0) and self.logs[log].live

    def sort(self, place: TopicPartition, now_s: float) -> None:
        """Put *place*, not claimed by this member, where it belongs in the pool."""
        if place in self.claims:
            return
        if not self.claimable(place):
            self.pool.discard(place)
            return
        wait_s = self._log(place).busy_for_s(place, now_s, self.unix_s(now_s))
        if self.cooling and (cool_s := self.cooling.get(place)) is not None:
            if cool_s > now_s:
                wait_s = max(wait_s, cool_s - now_s)
            else:
                del self.cooling[place]
        if wait_s > 0:
            self.pool.busy(place, now_s + wait_s + 0.001)
        elif self.pool.free(place):
            self.wake_loop(now_s)

    def wake_loop(self, now_s: float) -> None:
        """Run the loop soon: members that see the same partition go free should not all claim it, so each
        waits a little by chance.
        """
        wait_s = 0.0 if self.aims() else self.draws.uniform(0.0, CLAIM_LOOP_INTERVALS) * self.interval_s
        self.loop_at_s = min(self.loop_at_s, now_s + wait_s)

    def aims(self) -> bool:
        return self.targets is not None or self.settings.balanced
