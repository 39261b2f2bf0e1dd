"""One instance of a claim client as a pure machine: it decides, a shell moves bytes
(PROTOCOL.md#the-member).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf

from holdfast.core.claims.claim_keys import ClaimKey
from holdfast.core.claims.claim_rows import Claim
from holdfast.core.claims.frames import Frame, ReleaseGroup, check_id
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member.actions import Action, Event, ReleaseReason
from holdfast.core.member.claim.gate import Gate
from holdfast.core.member.claim.local_claims import ClaimView, LocalClaim, frame_mark, held_as
from holdfast.core.member.claim.stages import ATTEMPTS, STARTED, WORKING, Won, reason_of, work_of
from holdfast.core.member.conduct.acquisition import Acquisition
from holdfast.core.member.conduct.claimed_messages import ClaimedMessages
from holdfast.core.member.conduct.renewal import Renewal
from holdfast.core.member.settings import MemberSettings
from holdfast.core.member.state import ClaimState, Draws

__all__ = ["ClaimView", "Draws", "Member"]


class Member:
    """Everything one instance does to claim, keep, measure, commit and release partitions.

    Every input takes *now_s*, a monotonic time in seconds, and returns what to do, in order. Nothing in here
    reads a clock. The shell passes the wall clock by `clock` (at the start, and again before frames are
    observed and before each tick, since it may have jumped) because frames carry it.

    *coordination_partitions* is the number of partitions of the coordination topic. Read all of them that
    `coordination` names.
    """

    def __init__(
        self,
        settings: MemberSettings,
        *,
        coordination_partitions: int,
        draws: Draws,
        now_s: float,
        unix_s: float,
    ) -> None:
        self._state = ClaimState(
            settings, coordination_partitions=coordination_partitions, draws=draws, now_s=now_s, unix_s=unix_s
        )
        self._renewal = Renewal(self._state)
        self._acquisition = Acquisition(self._state, self._renewal)
        self.settings, self._claims = settings, self._state.claims
        self._limit_outstanding = settings.maximum_outstanding
        self._ended = False
        self.messages = ClaimedMessages(self._state, self._renewal, self._done)
        """The messages of held claims: inputs, as those of the member itself."""

    # -- what the shell needs to know

    @property
    def coordination(self) -> frozenset[int]:
        """Return the coordination partitions to read from their beginning and to follow; grows when topics
        are added.
        """
        return frozenset(self._state.topics.numbers.values())

    def reserved(self) -> dict[ClaimKey, Claim]:
        """Return the group's claims that a reset holds: only their release frees them
        (PROTOCOL.md#pausing-and-resetting-a-group).
        """
        return self._state.topics.reserved()

    def wake_at_s(self) -> float:
        """Return when `tick` must be called at the latest; `inf` when nothing is due."""
        if self._ended:
            return inf
        pause_s = self._state.paused_until_s if self._state.paused and not self._state.ending else inf
        return min(
            self._state.schedule.next_due_s(),
            self._state.loop_at_s,
            self._state.pool.next_s(),
            self._acquisition.conflict_at_s,
            self._acquisition.end_at_s,
            pause_s,
        )

    def may_deliver(self, topic: str, partition: int, now_s: float) -> bool:
        """Return whether a message may be delivered and handed out right now: its gate is open, and there is
        `room`.

        False once the lease may be over, fenced, paused, draining, terminated, or when too many messages are
        outstanding.
        """
        claim: LocalClaim | None = self._claims.get((topic, partition))  # type: ignore[call-overload]  # equal to a Place, and cheaper
        return claim is not None and claim.gate.is_open(now_s) and self._room(claim) > 0

    def room(self, topic: str, partition: int) -> int:
        """Return how many more messages may be delivered before some are committed (`maximum_outstanding`);
        0 for a claim that is not held.
        """
        claim = self._claims.get(TopicPartition(topic, partition))
        return 0 if claim is None else self._room(claim)

    def _room(self, claim: LocalClaim) -> int:
        work = work_of(claim.stage)
        return 0 if work is None else max(0, self._limit_outstanding - work.tracker.outstanding)

    def gate(self, topic: str, partition: int) -> Gate | None:
        """Return the gate of a claim, to look at before each of many messages: the same object from `Start`
        to the end of the stay.
        """
        claim = self._claims.get(TopicPartition(topic, partition))
        return None if claim is None else claim.gate

    def deliver_until_s(self, topic: str, partition: int) -> float:
        """Return until when messages may be handed out at present (-inf: not at all).

        The time can become earlier at any input: ask again.
        """
        claim = self._claims.get(TopicPartition(topic, partition))
        return -inf if claim is None or not self._room(claim) else claim.gate.deliver_until_s

    @property
    def claims(self) -> Mapping[TopicPartition, ClaimView]:
        """Return the claims that are held: started and not yet given back."""
        return {
            place: held_as(claim, work)
            for place, claim in self._claims.items()
            if (work := work_of(claim.stage)) is not None
        }

    @property
    def lag(self) -> int:
        """Return the lag of all held claims, in messages, by the latest watermarks."""
        held = (work_of(claim.stage) for claim in self._claims.values())
        return sum(max(0, work.latest - work.tracker.current) for work in held if work is not None)

    @property
    def load(self) -> int:
        """Return how many claims are held."""
        return sum(isinstance(claim.stage, STARTED) for claim in self._claims.values())

    @property
    def topics_held(self) -> tuple[str, ...]:
        """Return the topics whose partition 0 is held, sorted: what whole-topic mode counts."""
        return self._renewal.topics_held()

    @property
    def terminated(self) -> bool:
        """Return whether `terminate` (or a Fail) is through: nothing more will be sent or awaited."""
        return self._ended

    def outstanding(self, topic: str, partition: int) -> int:
        """Return how many messages are delivered and not committed; 0 for a claim that is not held."""
        claim = self._claims.get(TopicPartition(topic, partition))
        return 0 if claim is None or (work := work_of(claim.stage)) is None else work.tracker.outstanding

    def committed_offset(self, topic: str, partition: int) -> int | None:
        """Return the offset that the log shows for the claim (guarded view), by any owner; None when
        it shows none.
        """
        row = self.row(topic, partition)
        return None if row is None else row.current_offset

    def row(self, topic: str, partition: int) -> Claim | None:
        """Return the claim's row in the guarded view; None if it was never taken, or its log is not read."""
        return self._state.topics.row(TopicPartition(topic, partition))

    # -- inputs: the world

    def clock(self, unix_s: float, now_s: float) -> list[Action]:
        """The wall clock says *unix_s* at *now_s*."""
        self._state.wall.lead_s = unix_s - now_s
        return self._state.shell.take()

    def partitions(self, topic: str, count: int, now_s: float) -> list[Action]:
        """*topic* has *count* partitions: call at the start and when metadata changes.

        More are claimed, missing ones given up.
        """
        topics = self._state.topics
        before, topics.counts[topic] = topics.counts.get(topic, 0), count
        for claim in [
            each for place, each in self._claims.items() if place.topic == topic and place.partition >= count
        ]:
            self._renewal.release(claim, ReleaseReason.PARTITION_GONE, now_s, drain=False)
        for partition in range(count, before):
            self._state.pool.discard(TopicPartition(topic, partition))
        if topics.is_live(topic) and count > before:
            self._enter(topic, before, now_s)
        return self._done(now_s)

    def _enter(self, topic: str, begin: int, now_s: float) -> None:
        """Begin to claim partitions of *topic* from *begin* on: its log and their number are known."""
        if self._state.topics.counts.get(topic):
            self._acquisition.reclaim(topic, now_s)
        for partition in range(begin, self._state.topics.counts.get(topic, 0)):
            self._state.sort(TopicPartition(topic, partition), now_s)

    def topics(self, topics: Sequence[str], now_s: float) -> list[Action]:
        """Work on these topics from now on (pattern subscriptions).

        Claims of other topics are handed over. See `coordination` for new partitions to read.
        """
        wanted, known = set(topics), self._state.topics
        for topic in [each for each in known.numbers if each not in wanted]:
            for claim in [each for place, each in self._claims.items() if place.topic == topic]:
                self._renewal.release(claim, ReleaseReason.HANDED_OVER, now_s)
            for partition in range(known.counts.get(topic, 0)):
                self._state.pool.discard(TopicPartition(topic, partition))
            known.retire(topic)
        for topic in sorted(wanted):
            check_id("topic", topic)
            known.add(topic)
            if known.is_live(topic):
                self._enter(topic, 0, now_s)
        return self._done(now_s)

    def caught_up(self, coordination_partition: int, now_s: float) -> list[Action]:
        """All that was in the coordination partition when reading began has been observed.

        Fast reclaim happens here.
        """
        log = self._state.topics.logs.get(coordination_partition)
        if log is None or log.live or self._ended:
            return []
        log.live = True
        self._acquisition.began_ms = max(self._acquisition.began_ms, log.at_ms)
        self._acquisition.check_clock_behind(log, now_s)
        if not self._state.failed:
            self._acquisition.pauses(now_s)
            for topic, place in self._state.topics.numbers.items():
                if place == coordination_partition:
                    self._enter(topic, 0, now_s)
        return self._done(now_s)

    def observe(
        self, frame: Frame, coordination_partition: int, offset: int, at_ms: int, now_s: float
    ) -> list[Action]:
        """A frame was read; *at_ms* is its append time, -1 without LogAppendTime.

        Frames come in offset order; those seen before are ignored.
        """
        log = self._state.topics.logs.get(coordination_partition)
        if (
            log is None
            or not log.arrive(offset, at_ms, now_s)
            or frame.group_id != self.settings.group_id
            or self._ended
        ):
            return []
        if isinstance(frame, ReleaseGroup):
            log.pause(frame)
            if log.live and not self._state.ending:
                self._acquisition.pauses(now_s)
            return self._done(now_s)
        seen = log.fold(frame)
        own = False
        if frame.client_id == self._state.me[0]:
            self._acquisition.own_client_seen(frame, log, at_ms, now_s)
            own = frame.instance_id == self._state.me[1]
            if own:
                self._state.shell.own_seen(TopicPartition(frame.topic, frame.partition), frame)
        if not log.live or self._state.topics.numbers.get(frame.topic) != coordination_partition:
            return self._state.shell.take()
        place = TopicPartition(frame.topic, frame.partition)
        claim = self._claims.get(place)
        if own:
            self._acquisition.own_frame_seen(
                log, frame, None if claim is None else claim.sent.get(frame_mark(frame)), at_ms, now_s
            )
            claim = self._claims.get(place)  # a clock that is too far off ends everything
        if claim is None:
            if own and not self._acquisition.leaving and self._state.mine(seen.after):
                self._acquisition.orphan_seen(place, seen, now_s)
            self._state.sort(place, now_s)
        elif isinstance(claim.stage, ATTEMPTS):
            self._acquisition.attempt_seen(claim, frame, seen, own, now_s)
        else:
            self._renewal.held_seen(claim, frame, seen, own, now_s)
        return self._done(now_s)

    def watermarks(
        self,
        topic: str,
        partition: int,
        earliest: int,
        latest: int,
        committed: int | None,
        now_s: float,
        topic_mark: int | None = None,
    ) -> list[Action]:
        """Earliest, latest (next to be written) and committed offset (None: none), all of the topic that
        *topic_mark* stands for (None: not known). In answer to `FetchOffsets`, and for every claim held a few
        times per heartbeat interval: health is measured by it (then *committed* may be None)."""
        claim = self._claims.get(TopicPartition(topic, partition))
        if claim is None:
            return []
        if isinstance(claim.stage, Won):
            wrong = self._renewal.start(claim, earliest, latest, committed, topic_mark, now_s)
            if wrong is not None:
                self._acquisition.fail(wrong, now_s)
        elif (work := work_of(claim.stage)) is not None:
            work.latest = latest
            self._renewal.identified(claim, topic_mark, -inf, now_s)
        return self._done(now_s)

    def identity(
        self, topic: str, partition: int, topic_mark: int | None, asked_s: float, now_s: float
    ) -> list[Action]:
        """The mark of the topic that was there at *asked_s* or later. In answer to `Identify`."""
        claim = self._claims.get(TopicPartition(topic, partition))
        if claim is not None:
            self._renewal.identified(claim, topic_mark, asked_s, now_s)
        return self._done(now_s)

    def tick(self, now_s: float) -> list[Action]:
        """Do the work that is due. Call at `wake_at_s` or earlier."""
        if self._state.paused and now_s >= self._state.paused_until_s and not self._state.ending:
            self._acquisition.pauses(now_s)
        for claim in self._state.schedule.due(now_s):
            self._renewal.attend(claim, now_s)
        for place in self._state.pool.due(now_s):
            self._state.sort(place, now_s)
        if now_s >= self._acquisition.conflict_at_s:
            self._acquisition.settle_conflict(now_s)
        if now_s >= self._state.loop_at_s:
            self._acquisition.loop(now_s)
        return self._done(now_s)

    def _done(self, now_s: float) -> list[Action]:
        """Return the actions that follow from an input."""
        if self.settings.whole_topic:
            self._renewal.announce_topics()
        if (
            self._state.ending
            and not self._ended
            and (now_s >= self._acquisition.end_at_s or not (self._claims or self._state.shell.sends))
        ):
            self._ended = True
            for claim in list(self._claims.values()):
                self._renewal.stop(claim)
                self._state.shell.notify(
                    Event.ABANDONED,
                    claim,
                    reason_of(claim.stage),
                    "terminated before the log showed it released",
                )
                self._renewal.forget(claim, now_s)
            self._state.shell.notify(Event.TERMINATED)
        return self._state.shell.take()

    def sent(self, send_id: int, ok: bool, now_s: float) -> list[Action]:
        """A `Send` has an outcome. Not ok counts as unknown: the frame may be in the log all the same."""
        sent = self._state.shell.settled(send_id)
        if sent is None:
            return []
        if not ok and self._claims.get(sent.claim.place) is sent.claim:
            self._renewal.retry(sent.claim, sent.frame, now_s)
        return self._done(now_s) if self._state.ending or self._state.shell else []

    def fetch_failed(self, topic: str, partition: int, reason: str, now_s: float) -> list[Action]:
        """The partition cannot be fetched (offset out of range, not authorized, gone): the claim is
        released.
        """
        claim = self._claims.get(TopicPartition(topic, partition))
        if claim is not None:
            self._state.shell.notify(Event.FETCH_FAILED, claim, text=reason)
            self._renewal.release(claim, ReleaseReason.FETCH_FAILED, now_s)
        return self._done(now_s)

    # -- inputs: the user; for what he does with messages see `messages`

    def aim(self, targets: Collection[tuple[str, int]] | None, now_s: float) -> list[Action]:
        """Balanced groups: claim these and only these, hand others over; what stays is not touched.

        None returns to the free race.
        """
        self._state.targets = (
            None if targets is None else frozenset(TopicPartition(*target) for target in targets)
        )
        if self._state.targets is not None:
            for claim in list(self._claims.values()):
                if claim.place not in self._state.targets and not isinstance(claim.stage, ATTEMPTS):
                    self._renewal.release(claim, ReleaseReason.HANDED_OVER, now_s)
        self._state.wake_loop(now_s)
        return self._done(now_s)

    def terminate(self, release: bool, now_s: float) -> list[Action]:
        """Stop: with *release* drain and give everything back, else write a last heartbeat so that a
        restart reclaims fast.
        """
        if self._state.ending:
            return self._done(now_s)
        self._state.ending, self._acquisition.leaving = True, not release
        drain_s = self.settings.drain_within_s if release else 0.0
        self._acquisition.end_at_s = self._state.patience_s(now_s) + drain_s
        for claim in list(self._claims.values()):
            if release:
                if not isinstance(claim.stage, ATTEMPTS):
                    self._renewal.release(claim, ReleaseReason.TERMINATED, now_s)
                continue
            if self._renewal.keeps_back(claim):
                self._renewal.release(claim, ReleaseReason.TERMINATED, now_s, drain=False)
                continue
            self._renewal.stop(claim)
            if isinstance(stage := claim.stage, WORKING):
                self._state.shell.send_heartbeat(claim, stage.work.tracker.current, now_s)
                self._state.shell.commit_offset(claim, stage.work.tracker.current, claim.topic_mark)
            self._renewal.forget(claim, now_s)
        return self._done(now_s)
