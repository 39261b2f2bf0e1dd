"""How a member keeps its claims, and gives them back: heartbeats, health, leases, releases, both ways of
delivery.
"""

from __future__ import annotations

from math import inf

from holdfast.core.claims.frames import ClaimingMessages, Frame, Heartbeat, ReleasingPartition
from holdfast.core.claims.views import Claim
from holdfast.core.member.actions import Deliver, Event, Notify, ReleaseReason, Start, Stop
from holdfast.core.member.health import HealthCheck
from holdfast.core.member.local_claims import ATTEMPTS, ClaimStage, LocalClaim
from holdfast.core.member.log_view import FrameEffect
from holdfast.core.member.settings import (
    ATTEMPT_INTERVALS,
    COOLDOWN_INTERVALS,
    RETRY_INTERVALS,
    Delivery,
)
from holdfast.core.member.state import ClaimState
from holdfast.core.member.tracking import Tracker
from holdfast.core.member.velocity import ClaimVerdict

REASONS = {
    ClaimVerdict.EXPIRED: ReleaseReason.EXPIRED,
    ClaimVerdict.PAUSED: ReleaseReason.PAUSED,
    ClaimVerdict.OVERDUE: ReleaseReason.HANDLER_TIMEOUT,
    ClaimVerdict.WEDGED: ReleaseReason.WEDGED,
    ClaimVerdict.BEHIND: ReleaseReason.BEHIND,
}
COOLING = frozenset(
    {
        ReleaseReason.EXPIRED,
        ReleaseReason.HANDLER_TIMEOUT,
        ReleaseReason.WEDGED,
        ReleaseReason.BEHIND,
        ReleaseReason.FETCH_FAILED,
        ReleaseReason.UNREADABLE,
    }
)
"""Releases after which this member lets others go first for a while (`COOLDOWN_INTERVALS`)."""


class Renewal:
    """Decisions about claims that are held."""

    def __init__(self, state: ClaimState) -> None:
        self._state, self._settings, self.health = state, state.settings, HealthCheck(state)

    # -- starting

    def start(self, claim: LocalClaim, now_s: float) -> None:
        """Begin to consume: the claim is won, and the watermarks are known."""
        row = self._state.row(claim)
        told = None if row is None else row.current_offset
        offset = (
            told if told is not None else claim.committed if claim.committed is not None else claim.earliest
        )
        offset = max(offset, claim.earliest, claim.offset_logged)
        claim.tracker = Tracker(offset)
        claim.handed = offset
        claim.kafka_offset = claim.committed
        claim.stage, claim.started, claim.message_s = ClaimStage.ACTIVE, True, now_s
        claim.deliver_until_s = claim.lease_until_s
        claim.deadline_s = inf
        if claim.offset_logged < 0 or row is None or row.current_offset != offset:
            self._state.send_heartbeat(claim, offset, now_s)
        self._plan_beat(claim, now_s + self._state.jitter_s())
        self._state.out.append(Start(*claim.place, offset, claim.epoch))

    def _plan_beat(self, claim: LocalClaim, at_s: float) -> None:
        claim.beat_at_s = at_s
        self._state.plan(claim, min(claim.beat_at_s, claim.deadline_s))

    # -- keeping

    def _beat(self, claim: LocalClaim, now_s: float) -> None:
        """Check the health of a claim and renew it, or give it back."""
        if (
            claim.stage is ClaimStage.ACTIVE
            and (verdict := self.health.check(claim, now_s)) is not ClaimVerdict.KEEP
        ):
            self.release(claim, REASONS[verdict], now_s)
            return
        self.renew(claim, now_s)

    def renew(self, claim: LocalClaim, now_s: float) -> int:
        self._plan_beat(claim, now_s + self._state.jitter_s())
        return self._state.send_heartbeat(claim, claim.offset(), now_s)

    def _accepted(self, claim: LocalClaim, frame: Frame, row: Claim, now_s: float) -> None:
        """A frame of ours was seen in the log and made or left us the owner: the lease counts from when it
        was sent.
        """
        sent_s = claim.take_sent(frame)
        if sent_s is not None and sent_s > claim.heartbeat_s:
            claim.heartbeat_s = sent_s
            claim.lease_until_s = sent_s + self._settings.lease_s
        if claim.stage is ClaimStage.ACTIVE or (claim.stage is ClaimStage.DRAINING and not claim.stopped):
            claim.deliver_until_s = claim.lease_until_s
        if claim.stage is ClaimStage.DRAINING and claim.reason is ReleaseReason.BEHIND:
            claim.deadline_s = min(claim.drain_until_s, claim.lease_until_s)
        if (
            claim.stage is ClaimStage.ACTIVE
            and row.current_offset is not None
            and row.current_offset < claim.offset_logged
        ):
            # The log went back: a heartbeat of ours came twice, the second time late. Put it right before
            # somebody starts from there, unless what puts it right is under way.
            under_way = any(offset >= claim.offset_logged for _, _, offset in claim.sent)
            if not under_way:
                self._state.send_heartbeat(claim, claim.offset(), now_s)

    # -- at most once

    def propose(self, claim: LocalClaim, offset_end: int, now_s: float) -> None:
        """Step 3: announce the batch."""
        claim.proposed = offset_end
        self._state.send_proposal(claim, offset_end, now_s)
        self._patience(claim, now_s)

    def _proposal_seen(self, claim: LocalClaim, row: Claim, now_s: float) -> None:
        """Step 4: the announcement is in the log. Commit if it holds; else announce again later."""
        if claim.proposed is None or claim.stage is not ClaimStage.ACTIVE:
            return
        if row.proposed_offset == claim.proposed:
            claim.committing, claim.proposed = claim.proposed, None
            claim.deadline_s = inf
            self.renew(claim, now_s)  # step 5
            self._patience(claim, now_s)

    def _commit_seen(self, claim: LocalClaim, row: Claim) -> None:
        """Step 6: the log says that the batch is ours alone, so it may be handed out."""
        end = claim.committing
        if end is None or row.current_offset is None or row.current_offset < end:
            return
        begin = claim.tracker.current
        claim.committing = None
        claim.tracker.skip_to(end)
        if claim.stage is ClaimStage.ACTIVE:
            claim.deadline_s = inf
        if claim.stage in (ClaimStage.ACTIVE, ClaimStage.DRAINING) and not claim.stopped:
            self._state.out.append(Deliver(*claim.place, end))
        else:
            self._state.tell(
                Event.UNDELIVERED,
                claim,
                text=f"offsets {begin} to {end - 1} were committed too late to be handed out",
            )

    def _patience(self, claim: LocalClaim, now_s: float) -> None:
        claim.deadline_s = now_s + ATTEMPT_INTERVALS * self._state.interval_s
        self._state.plan(claim, min(claim.beat_at_s, claim.deadline_s))

    def _batch_late(self, claim: LocalClaim, now_s: float) -> None:
        """The log does not show what was sent for the batch in hand: send it again.

        Both frames may be repeated.
        """
        if claim.proposed is not None:
            self.propose(claim, claim.proposed, now_s)
        elif claim.committing is not None:
            self.renew(claim, now_s)
            self._patience(claim, now_s)
        else:
            claim.deadline_s = (
                inf  # nothing is under way any more: an old deadline must not keep the member awake
            )

    # -- giving back

    def release(self, claim: LocalClaim, reason: ReleaseReason, now_s: float, *, drain: bool = True) -> None:
        """Give a claim back: stop handing out, wait for what is in flight, tell the log."""
        match claim.stage:
            case ClaimStage.CLAIMING | ClaimStage.RECLAIMING:
                self.forget(claim, now_s)  # should it be won all the same, it is given back when that is seen
                return
            case ClaimStage.DRAINING if not drain:
                self.finish(claim, now_s)
                return
            case ClaimStage.DRAINING if reason is ReleaseReason.PAUSED:
                self.stop(claim)
                self._drain(claim, self._settings.drain_within_s, now_s)
                return
            case ClaimStage.DRAINING:
                if (
                    claim.reason is ReleaseReason.BEHIND
                ):  # that had all the time a handler may take; any other reason has not
                    self._drain(claim, self._settings.drain_within_s, now_s)
                return
            case ClaimStage.RELEASING:
                return
            case ClaimStage.WON | ClaimStage.ACTIVE:
                pass
        claim.reason = reason
        claim.cooldown = reason in COOLING
        self._state.tell(Event.RELEASING, claim, reason)
        if claim.stage is ClaimStage.WON:
            self._give_back_unstarted(claim, now_s)
            return
        claim.stage = ClaimStage.DRAINING
        claim.proposed = None  # not committed, so not lost: the next owner reads it
        wait_s = self._settings.drain_within_s if drain else 0.0
        if reason is ReleaseReason.BEHIND and not self._settings.interop:
            # Nobody is in a hurry for it: who is at work on a message is not made to do it in vain.
            wait_s = self._settings.overdue_after_s
        if self._settings.delivery is Delivery.AT_LEAST_ONCE or reason is ReleaseReason.PAUSED:
            self.stop(
                claim
            )  # a pause is obeyed at once, though at most once it costs what was committed for hand-out
        # Behind the lease nobody may count on us. In it, what is in flight gets its time to be committed
        # (D21).
        self._drain(claim, wait_s, now_s)

    def _drain(self, claim: LocalClaim, wait_s: float, now_s: float) -> None:
        """Wait for what is in flight, no longer than *wait_s* from now."""
        claim.drain_until_s = min(claim.drain_until_s, now_s + wait_s)
        claim.deadline_s = min(claim.drain_until_s, claim.lease_until_s)
        if claim.deadline_s <= now_s:
            self.finish(claim, now_s)
        else:
            # Even with nothing in flight, the shell first gives back what it has not handed out.
            self.drained(claim, now_s)

    def drained(self, claim: LocalClaim, now_s: float) -> None:
        """Give a draining claim back if nothing is in flight any more; else see to it that it stays ours
        meanwhile.
        """
        if not self.health.in_flight(claim):
            self.finish(claim, now_s)
        else:
            self._state.plan(claim, min(claim.beat_at_s, claim.deadline_s))

    def stop(self, claim: LocalClaim) -> None:
        if claim.started and not claim.stopped:
            self._state.out.append(Stop(*claim.place))
        claim.stopped = True
        claim.close()

    def finish(self, claim: LocalClaim, now_s: float) -> None:
        """Tell the log that the claim is free, until it shows."""
        self.stop(claim)
        if claim.stage is not ClaimStage.RELEASING:
            claim.stage = ClaimStage.RELEASING
            # A log that does not answer is not waited for beyond the lease; one that was silent for all of it
            # gets one chance.
            claim.deadline_s = max(claim.lease_until_s, now_s + ATTEMPT_INTERVALS * self._state.interval_s)
        claim.beat_at_s = now_s + ATTEMPT_INTERVALS * self._state.interval_s
        self._state.plan(claim, min(claim.beat_at_s, claim.deadline_s))
        claim.releases += 1
        # A batch whose commit is not seen yet was not handed out and will not be: if the log has not taken
        # it, it is the next owner's.
        self._state.send_release(claim, max(claim.tracker.current, 0), now_s)

    def _give_back_unstarted(self, claim: LocalClaim, now_s: float) -> None:
        row = self._state.row(claim)
        if row is None or row.current_offset is None:
            # No offset is known, and a release must name one: others would start there. The claim lapses by
            # itself.
            self._state.tell(Event.ABANDONED, claim, claim.reason)
            self.forget(claim, now_s)
            return
        claim.tracker = Tracker(max(row.current_offset, claim.offset_logged))
        self.finish(claim, now_s)

    def _released(self, claim: LocalClaim, now_s: float) -> None:
        self._state.tell(Event.RELEASED, claim, claim.reason)
        self.forget(claim, now_s)

    def _fenced(self, claim: LocalClaim, text: str, now_s: float) -> None:
        """The claim is another's: not one more message."""
        self.stop(claim)
        self._state.tell(Event.FENCED, claim, text=text)
        self.forget(claim, now_s)

    def forget(self, claim: LocalClaim, now_s: float) -> None:
        """The claim is not ours any more, as far as we are concerned."""
        held = claim.stage not in ATTEMPTS
        claim.close()
        claim.stopped = True
        self._state.plan(claim, inf)
        if self._state.claims.get(claim.place) is not claim:
            return
        del self._state.claims[claim.place]
        # A repeated release may still be under way; appended after another claim of ours, it would give that
        # back.
        unsettled = claim.releases > 1 and claim.unacknowledged
        if (claim.cooldown or unsettled) and self._state.claimable(claim.place):
            self._state.cooling[claim.place] = now_s + COOLDOWN_INTERVALS * self._state.interval_s
        self._state.sort(claim.place, now_s)
        if self._settings.maximum_claims and len(self._state.pool):
            self._state.wake_loop(now_s)  # the limit may have been what kept the loop from what is free
        if held and self._settings.whole_topic and not self._state.ending:
            for other in [
                each for each in self._state.claims.values() if each.place.topic == claim.place.topic
            ]:
                self.release(other, ReleaseReason.TOPIC_INCOMPLETE, now_s)

    # -- what the log shows of a claim that is held

    def held_seen(self, claim: LocalClaim, frame: Frame, seen: FrameEffect, own: bool, now_s: float) -> None:
        row = seen.after
        if not self._state.mine(row):
            released = row is not None and row.heartbeat_at_s is None
            if (
                claim.stage is ClaimStage.RELEASING
                and released
                and own
                and isinstance(frame, ReleasingPartition)
            ):
                assert row is not None
                self._state.commit_offset(claim, row.current_offset)
                self._released(claim, now_s)
            elif released:
                self._fenced(claim, "the log shows it released", now_s)
            elif row is not None:
                self._fenced(claim, f"{row.client_id} (instance {row.instance_id}) holds it", now_s)
            return
        assert row is not None
        if (
            self._state.logs[claim.coordination].replaced(claim.key, *self._state.me)
            and claim.stage is not ClaimStage.RELEASING
        ):
            # In a mixed fleet the other members follow the rival: stop, and free the claim in the view that
            # still names us.
            self.stop(claim)
            self._state.tell(Event.FENCED, claim, text="members of the Go library hold another for its owner")
            claim.reason = ReleaseReason.UNWANTED
            self.finish(claim, now_s)
            return
        if not own:
            return
        if isinstance(frame, Heartbeat):
            self._accepted(claim, frame, row, now_s)
            self._state.commit_offset(claim, row.current_offset)
            self._commit_seen(claim, row)
            if claim.stage is ClaimStage.DRAINING:
                self.drained(claim, now_s)
        elif isinstance(frame, ClaimingMessages):
            claim.take_sent(frame)
            self._proposal_seen(claim, row, now_s)

    # -- what is due

    def attend(self, claim: LocalClaim, now_s: float) -> None:
        """Do what is due for one claim."""
        match claim.stage:
            case ClaimStage.CLAIMING | ClaimStage.RECLAIMING:
                self._state.tell(
                    Event.ATTEMPT_TIMED_OUT, claim, text="the log did not show the attempt in time"
                )
                self.forget(claim, now_s)
            case ClaimStage.WON:
                if now_s >= claim.deadline_s:
                    claim.reason, claim.cooldown = ReleaseReason.UNREADABLE, True
                    self._give_back_unstarted(claim, now_s)
                else:
                    self._state.look(claim)
                    self._plan_beat(claim, now_s + RETRY_INTERVALS * 5 * self._state.interval_s)
            case ClaimStage.ACTIVE:
                if now_s >= claim.deadline_s:
                    self._batch_late(claim, now_s)
                if now_s >= claim.beat_at_s:
                    self._beat(claim, now_s)
                elif claim.due_s == inf:
                    self._state.plan(claim, min(claim.beat_at_s, claim.deadline_s))
            case ClaimStage.DRAINING:
                if now_s >= claim.deadline_s:
                    self.finish(claim, now_s)
                else:
                    self.renew(claim, now_s)
            case ClaimStage.RELEASING:
                if now_s >= claim.deadline_s:
                    self._state.tell(
                        Event.ABANDONED, claim, claim.reason, "the log did not show the release in time"
                    )
                    claim.cooldown = True
                    self.forget(claim, now_s)
                else:
                    self.finish(claim, now_s)

    def retry(self, claim: LocalClaim, frame: Frame, now_s: float) -> None:
        """A frame did not reach the log, or nobody knows: do not wait for the next occasion."""
        soon_s = now_s + RETRY_INTERVALS * self._state.interval_s
        match claim.stage:
            case ClaimStage.CLAIMING | ClaimStage.RECLAIMING:
                self._state.tell(Event.ATTEMPT_TIMED_OUT, claim, text="the broker did not take the frame")
                self.forget(claim, now_s)
                self._state.pool.discard(claim.place)
                if self._state.claimable(claim.place):
                    self._state.pool.busy(claim.place, soon_s)
            case ClaimStage.ACTIVE | ClaimStage.DRAINING if isinstance(frame, Heartbeat):
                if claim.beat_at_s > soon_s:
                    self._plan_beat(claim, soon_s)
            case ClaimStage.ACTIVE if isinstance(frame, ClaimingMessages) and claim.proposed is not None:
                claim.deadline_s = min(claim.deadline_s, soon_s)
                self._state.plan(claim, min(claim.beat_at_s, claim.deadline_s))
            case ClaimStage.RELEASING if isinstance(frame, ReleasingPartition):
                claim.beat_at_s = min(claim.beat_at_s, soon_s)
                self._state.plan(claim, min(claim.beat_at_s, claim.deadline_s))
            case _:
                pass

    # -- whole topics

    def topics_held(self) -> tuple[str, ...]:
        held = {
            claim.place.topic
            for claim in self._state.claims.values()
            if claim.place.partition == 0 and claim.stage is ClaimStage.ACTIVE
        }
        return tuple(sorted(held))

    def tell_topics(self) -> None:
        """Tell the topics held, once for each change."""
        if self._settings.whole_topic and (held := self.topics_held()) != self._state.topics_told:
            self._state.topics_told = held
            self._state.out.append(Notify(Event.TOPICS, topics=held))
