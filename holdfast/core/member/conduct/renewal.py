"""Keeps a member's claims, and gives them back: heartbeats, health, leases, releases, both ways of
delivery.
"""

from __future__ import annotations

from math import inf
from typing import assert_never

from msgspec.structs import replace

from holdfast.core.claims.claim_rows import Claim, is_of_another
from holdfast.core.claims.frames import ClaimingMessages, Frame, Heartbeat, ReleasingPartition
from holdfast.core.member.actions import Event, ReleaseReason
from holdfast.core.member.claim.local_claims import LocalClaim
from holdfast.core.member.claim.stages import (
    ATTEMPTS,
    COOLING,
    GIVEN_BACK,
    STARTED,
    Active,
    Claiming,
    ClaimWork,
    Committing,
    Declining,
    Draining,
    Proposed,
    Reclaiming,
    Releasing,
    Won,
    cools,
    hands_out,
    reason_of,
    work_of,
)
from holdfast.core.member.claim.velocity import ClaimVerdict
from holdfast.core.member.conduct.health import HealthCheck
from holdfast.core.member.logs.log_view import FrameEffect
from holdfast.core.member.settings import (
    COOLDOWN_INTERVALS,
    RETRY_INTERVALS,
    Delivery,
    OffsetReset,
)
from holdfast.core.member.state import ClaimState
from holdfast.errors import TopicError

REASONS = {
    ClaimVerdict.EXPIRED: ReleaseReason.EXPIRED,
    ClaimVerdict.PAUSED: ReleaseReason.PAUSED,
    ClaimVerdict.OVERDUE: ReleaseReason.HANDLER_TIMEOUT,
    ClaimVerdict.WEDGED: ReleaseReason.WEDGED,
    ClaimVerdict.BEHIND: ReleaseReason.BEHIND,
}


class Renewal:
    """Decisions about claims that are held."""

    def __init__(self, state: ClaimState) -> None:
        self._state, self._settings, self.health = state, state.settings, HealthCheck(state)
        self._topics_announced: tuple[str, ...] = ()

    # -- starting

    def start(
        self,
        claim: LocalClaim,
        earliest: int,
        latest: int,
        committed: int | None,
        topic_mark: int | None,
        now_s: float,
    ) -> TopicError | None:
        """Begin to consume: the claim is won, and the watermarks are known. Return why the member cannot, if
        so.
        """
        row = self._state.row(claim)
        if row is not None and topic_mark in row.former_marks:
            return None  # the broker that was asked does not know yet that this topic was deleted: ask again
        logged = None if row is None else row.current_offset
        if row is not None and is_of_another(row, topic_mark):
            logged, claim.offset_logged = None, -1
            self._state.shell.notify(
                Event.TOPIC_MADE_AGAIN,
                claim,
                text=(
                    f"the group's offset {row.current_offset} is of a topic of this name that was deleted; of"
                    f" this one it begins at the {self._settings.auto_offset_reset} offset"
                    " (auto_offset_reset)"
                ),
            )
        known = logged if logged is not None else committed
        if known is None:
            begin = self._reset_to(claim, earliest, latest)
            if isinstance(begin, TopicError):
                return begin
            known = begin
        offset = max(known, earliest, claim.offset_logged)
        claim.kafka_offset, claim.topic_mark = committed, topic_mark
        claim.stage = Active(ClaimWork(offset, latest, now_s))
        claim.gate.extend(claim.lease_until_s)
        if claim.offset_logged < 0 or row is None or row.current_offset != offset:
            self._state.shell.send_heartbeat(claim, offset, now_s)
        self._plan_beat(claim, now_s + self._state.jitter_s())
        self._state.shell.start(claim, offset)
        return None

    def _reset_to(self, claim: LocalClaim, earliest: int, latest: int) -> int | TopicError:
        """Return where a partition begins of which the group has no offset; the error where it does not."""
        match self._settings.auto_offset_reset:
            case OffsetReset.EARLIEST:
                return earliest
            case OffsetReset.LATEST:
                return latest
            case OffsetReset.NONE:
                group, (topic, partition) = self._settings.group_id, claim.place
                return TopicError(
                    f"group {group} has no offset of {topic}/{partition} as it is now, and auto_offset_reset"
                    f" is none. Say where to begin: holdfast groups reset-offsets {group} --to-earliest"
                    f" --topic {topic}:{partition} --execute; or choose another auto_offset_reset"
                )
            case _ as never:
                assert_never(never)

    def identified(self, claim: LocalClaim, topic_mark: int | None, asked_s: float, now_s: float) -> None:
        """Compare the topic that was there at *asked_s* with the one that the claim's offsets are of; another
        one is begun by a claim of its own.
        """
        if topic_mark is None or not isinstance(claim.stage, Active | Draining):
            return
        if claim.topic_mark is None:
            claim.topic_mark = topic_mark
        elif topic_mark == claim.topic_mark:
            claim.identified_s = max(claim.identified_s, asked_s)
            self.commit_if_due(claim, now_s)
        elif reason_of(claim.stage) is not ReleaseReason.TOPIC_MADE_AGAIN:
            self._state.shell.notify(
                Event.TOPIC_MADE_AGAIN,
                claim,
                text="the topic was deleted and made again: the claim is given back, and claimed anew",
            )
            self.release(claim, ReleaseReason.TOPIC_MADE_AGAIN, now_s)

    def _plan_beat(self, claim: LocalClaim, at_s: float) -> None:
        claim.beat_at_s = at_s
        self._state.schedule.plan_next(claim)

    # -- keeping

    def _beat(self, claim: LocalClaim, now_s: float) -> None:
        """Check the health of a claim and renew it, or give it back."""
        stage = claim.stage
        assert isinstance(stage, Active)
        if (verdict := self.health.check(claim, stage, now_s)) is not ClaimVerdict.KEEP:
            self.release(claim, REASONS[verdict], now_s)
        else:
            self.renew(claim, stage, now_s)

    def renew(self, claim: LocalClaim, stage: Active | Draining, now_s: float) -> int:
        self._plan_beat(claim, now_s + self._state.jitter_s())
        return self._state.shell.send_heartbeat(claim, self.offset(stage), now_s)

    def offset(self, stage: Active | Draining) -> int:
        """Return the offset that frames carry: the end of the finished messages, or at most once of the
        committed ones, including a batch whose commit is under way.
        """
        current, batch = stage.work.tracker.current, stage.batch
        return max(current, batch.end) if isinstance(batch, Committing) else current

    def _accepted(self, claim: LocalClaim, frame: Frame, row: Claim, now_s: float) -> None:
        """A frame of ours was seen in the log and made or left us the owner: the lease counts from when it
        was sent.
        """
        sent_s = claim.take_sent(frame)
        if sent_s is not None and sent_s > claim.heartbeat_s:
            claim.heartbeat_s = sent_s
            claim.lease_until_s = sent_s + self._settings.lease_s
        stage = claim.stage
        if hands_out(stage):
            claim.gate.extend(claim.lease_until_s)
        if isinstance(stage, Draining) and stage.reason is ReleaseReason.BEHIND:
            claim.stage = replace(stage, until_s=min(stage.drain_until_s, claim.lease_until_s))
        if (
            isinstance(stage, Active)
            and row.current_offset is not None
            and row.current_offset < claim.offset_logged
            and not is_of_another(row, claim.topic_mark)
        ):
            # The log went back: a heartbeat of ours came twice, the second time late. Put it right before
            # another member starts from there, unless the frame that puts it right is under way.
            under_way = any(offset >= claim.offset_logged for _, _, offset in claim.sent)
            if not under_way:
                self._state.shell.send_heartbeat(claim, self.offset(stage), now_s)

    # -- at most once

    def propose(self, claim: LocalClaim, work: ClaimWork, offset_end: int, now_s: float) -> None:
        """Step 3: announce the batch, and make sure of its topic."""
        self._state.shell.send_proposal(claim, offset_end, now_s)
        if claim.topic_mark is not None:
            self._state.shell.identify(claim)
        claim.stage = Active(work, Proposed(offset_end, self._state.patience_s(now_s), now_s))
        self._state.schedule.plan_next(claim)

    def _proposal_seen(self, claim: LocalClaim, row: Claim, now_s: float) -> None:
        """Step 4: the announcement is in the log. Commit if it holds; else announce again later."""
        match claim.stage:
            case Active(work=work, batch=Proposed(end=end) as batch) if row.proposed_offset == end:
                claim.stage = Active(work, replace(batch, shown=True))
                self.commit_if_due(claim, now_s)
            case _:
                pass

    def commit_if_due(self, claim: LocalClaim, now_s: float) -> None:
        """Commit the announced batch, once the log shows the announcement, all messages committed before have
        been handed out (a process that is killed loses the others), and the topic is known to have been the
        claim's when it was fetched.
        """
        match claim.stage:
            case Active(work=work, batch=Proposed(end=end, shown=True, since_s=since_s)) if (
                work.handed >= work.tracker.current
                and (claim.topic_mark is None or claim.identified_s >= since_s)
            ):
                self._commit(claim, Active(work, Committing(end, inf)), end, now_s)
            case _:
                pass

    def _commit(self, claim: LocalClaim, stage: Active, end: int, now_s: float) -> None:
        """Step 5: commit the batch that ends before *end*."""
        claim.stage = stage
        self.renew(claim, stage, now_s)
        claim.stage = Active(stage.work, Committing(end, self._state.patience_s(now_s)))
        self._state.schedule.plan_next(claim)

    def _commit_seen(self, claim: LocalClaim, row: Claim) -> None:
        """Step 6: the log says that the batch is ours alone, so it may be handed out."""
        stage = claim.stage
        if not isinstance(stage, STARTED) or not isinstance(stage.batch, Committing):
            return
        end = stage.batch.end
        if row.current_offset is None or row.current_offset < end:
            return
        begin = stage.work.tracker.current
        claim.stage = replace(stage, batch=None)
        stage.work.tracker.skip_to(end)
        if hands_out(stage):
            self._state.shell.deliver(claim, end)
        elif stage.work.left is None:
            self._state.shell.notify(
                Event.UNDELIVERED,
                claim,
                text=f"offsets {begin} to {end - 1} were committed too late to be handed out",
            )

    def _batch_late(self, claim: LocalClaim, stage: Active, now_s: float) -> None:
        """The log does not show the frame sent for the batch in hand: send it again.

        Both frames may be repeated.
        """
        match stage.batch:
            case Proposed(shown=True) as batch:
                # It waits for the user, or for the broker to name the topic's id.
                claim.stage = Active(stage.work, replace(batch, until_s=self._state.patience_s(now_s)))
                if claim.topic_mark is not None:
                    self._state.shell.identify(claim)
                self._state.schedule.plan_next(claim)
            case Proposed(end=end):
                self.propose(claim, stage.work, end, now_s)
            case Committing(end=end):
                self._commit(claim, stage, end, now_s)
            case None:
                pass

    # -- giving back

    def release(self, claim: LocalClaim, reason: ReleaseReason, now_s: float, *, drain: bool = True) -> None:
        """Give a claim back: stop handing out, wait for messages in flight, write the release to the log."""
        match claim.stage:
            case Claiming() | Reclaiming():
                self.forget(claim, now_s)  # should it be won all the same, it is given back when that is seen
            case Won() as stage:
                self._state.shell.notify(Event.RELEASING, claim, reason)
                self._give_back_unstarted(claim, stage, reason, now_s)
            case Active() as stage:
                self._state.shell.notify(Event.RELEASING, claim, reason)
                self._begin_to_drain(claim, stage, reason, now_s, drain=drain)
            case Draining() if not drain:
                self.finish(claim, now_s)
            case Draining() if reason is ReleaseReason.PAUSED:
                self.stop(claim)
                self._drain(claim, self._settings.drain_within_s, now_s)
            case Draining(reason=ReleaseReason.BEHIND):
                # It had all the time a handler may take; with any other reason it has not.
                self._drain(claim, self._settings.drain_within_s, now_s)
            case Draining() | Releasing() | Declining():
                pass
            case _ as never:
                assert_never(never)

    def _begin_to_drain(
        self, claim: LocalClaim, stage: Active, reason: ReleaseReason, now_s: float, *, drain: bool
    ) -> None:
        # A batch that is only announced is not committed, so not lost: the next owner reads it.
        batch = stage.batch if isinstance(stage.batch, Committing) else None
        claim.stage = Draining(work=stage.work, batch=batch, reason=reason)
        wait_s = self._settings.drain_within_s if drain else 0.0
        if reason is ReleaseReason.BEHIND and not self._settings.interop:
            # There is no hurry: a handler at work on a message is not interrupted in vain.
            wait_s = self._settings.overdue_after_s
        if self._settings.delivery is Delivery.AT_LEAST_ONCE or reason is ReleaseReason.PAUSED:
            # A pause is obeyed at once, though at most once it costs the messages committed for hand-out.
            self.stop(claim)
        # After the lease others no longer count on this owner. Within it, messages in flight get time to be
        # committed (D21).
        self._drain(claim, wait_s, now_s)

    def _drain(self, claim: LocalClaim, wait_s: float, now_s: float) -> None:
        """Wait for messages in flight, no longer than *wait_s* from now."""
        stage = claim.stage
        assert isinstance(stage, Draining)
        drain_until_s = min(stage.drain_until_s, now_s + wait_s)
        until_s = min(drain_until_s, claim.lease_until_s)
        claim.stage = replace(stage, drain_until_s=drain_until_s, until_s=until_s)
        if until_s <= now_s:
            self.finish(claim, now_s)
        else:
            # Even with nothing in flight, the shell first gives back what it has not handed out.
            self.drained(claim, now_s)

    def drained(self, claim: LocalClaim, now_s: float) -> None:
        """Give a draining claim back if no message is in flight any more; else keep it renewed until then.
        Any other claim is left alone.
        """
        stage = claim.stage
        if not isinstance(stage, Draining):
            return
        if not self.health.in_flight(stage):
            self.finish(claim, now_s)
        else:
            self._state.schedule.plan_next(claim)

    def keeps_back(self, claim: LocalClaim) -> bool:
        """Return whether the log has committed, or is about to, messages that are not handed out (at most
        once): only a release gives those to the next owner.
        """
        stage = claim.stage
        return (
            self._settings.delivery is Delivery.AT_MOST_ONCE
            and isinstance(stage, Active | Draining)
            and (isinstance(stage.batch, Committing) or stage.work.handed < stage.work.tracker.current)
        )

    def stop(self, claim: LocalClaim) -> None:
        """Shut the gate for good, and say so if anything may have been handed out until now."""
        match claim.stage:
            case Active():
                self._state.shell.stop(claim)
            case Draining(stopped=False) as stage:
                self._state.shell.stop(claim)
                claim.stage = replace(stage, stopped=True)
            case _:
                pass
        claim.gate.shut()

    def finish(self, claim: LocalClaim, now_s: float) -> None:
        """Write to the log that a drained claim is free, again until the log shows it."""
        self.stop(claim)
        match claim.stage:
            case Draining(work=work, asks=False) as stage if (
                self._settings.delivery is Delivery.AT_MOST_ONCE and work.left is None
            ):
                # Messages committed and not handed out are given back; only the shell knows where they begin.
                soon_s = now_s + RETRY_INTERVALS * self._state.interval_s
                claim.stage = replace(stage, asks=True, until_s=soon_s)
                self._state.schedule.plan_next(claim)
            case Draining(work=work, asks=True) as stage if work.left is None and now_s < stage.until_s:
                pass  # the shell is about to answer
            case Draining() as stage:
                self.give_back(claim, stage, stage.reason, now_s, cooldown=cools(stage))
            case Releasing() | Declining() as stage:
                self._send_release(claim, stage, now_s)
            case _:
                raise AssertionError(f"{claim.place} is given back from {claim.stage}")

    def give_back(
        self,
        claim: LocalClaim,
        stage: Won | Active | Draining,
        reason: ReleaseReason,
        now_s: float,
        *,
        cooldown: bool,
        offset: int = 0,
    ) -> None:
        """Write to the log that a claim is free. The gate is shut before. *offset* is the next owner's start
        for a claim that was never started.
        """
        # A log that does not answer is not waited for beyond the lease; one that was silent for all of it
        # gets one chance.
        until_s = max(claim.lease_until_s, self._state.patience_s(now_s))
        given: Releasing | Declining
        if isinstance(stage, Won):
            given = Declining(offset=offset, reason=reason, cooldown=cooldown, until_s=until_s)
        else:
            given = Releasing(
                work=stage.work, batch=stage.batch, reason=reason, cooldown=cooldown, until_s=until_s
            )
        self._send_release(claim, given, now_s)

    def _send_release(self, claim: LocalClaim, stage: Releasing | Declining, now_s: float) -> None:
        claim.stage = replace(stage, releases=stage.releases + 1)
        self._plan_beat(claim, self._state.patience_s(now_s))
        work = work_of(stage)
        gives_back = work is not None and work.left is not None
        self._state.shell.send_release(claim, max(stage.offset, 0), now_s, gives_back=gives_back)

    def _give_back_unstarted(
        self, claim: LocalClaim, stage: Won, reason: ReleaseReason, now_s: float
    ) -> None:
        row, cooldown = self._state.row(claim), reason in COOLING
        if row is None or row.current_offset is None:
            # No offset is known, and a release must name one: others would start there. The claim lapses by
            # itself.
            self._state.shell.notify(Event.ABANDONED, claim, reason)
            self.forget(claim, now_s, cooldown=cooldown)
            return
        offset = max(row.current_offset, claim.offset_logged)
        self.give_back(claim, stage, reason, now_s, cooldown=cooldown, offset=offset)

    def _released(self, claim: LocalClaim, now_s: float) -> None:
        self._state.shell.notify(Event.RELEASED, claim, reason_of(claim.stage))
        self.forget(claim, now_s)

    def _fenced(self, claim: LocalClaim, text: str, now_s: float) -> None:
        """The claim is another's: not one more message."""
        self.stop(claim)
        self._state.shell.notify(Event.FENCED, claim, text=text)
        self.forget(claim, now_s)

    def forget(self, claim: LocalClaim, now_s: float, *, cooldown: bool = False) -> None:
        """The claim is not ours any more, as far as we are concerned."""
        stage, held = claim.stage, not isinstance(claim.stage, ATTEMPTS)
        claim.gate.shut()
        self._state.schedule.plan(claim, inf)
        if self._state.claims.get(claim.place) is not claim:
            return
        del self._state.claims[claim.place]
        # A repeated release may still be under way; appended after another claim of ours, it would give that
        # back.
        unsettled = isinstance(stage, GIVEN_BACK) and stage.releases > 1 and claim.unacknowledged
        if (cooldown or cools(stage) or unsettled) and self._state.topics.claimable(claim.place):
            self._state.pool.cool(claim.place, now_s + COOLDOWN_INTERVALS * self._state.interval_s)
        self._state.sort(claim.place, now_s)
        if self._settings.maximum_claims and len(self._state.pool):
            self._state.wake_loop(now_s)  # the limit may have kept the loop from free partitions
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
                isinstance(claim.stage, GIVEN_BACK)
                and released
                and own
                and isinstance(frame, ReleasingPartition)
            ):
                assert row is not None
                self._state.shell.commit_offset(claim, row.current_offset, row.topic_mark)
                self._released(claim, now_s)
            elif released:
                self._fenced(claim, "the log shows it released", now_s)
            elif row is not None:
                self._fenced(claim, f"{row.client_id} (instance {row.instance_id}) holds it", now_s)
            return
        assert row is not None
        if self._state.topics.logs[claim.coordination].replaced(claim.key, *self._state.me) and isinstance(
            stage := claim.stage, Won | Active | Draining
        ):
            # In a mixed fleet the other members follow the rival: stop, and free the claim in the view that
            # still names us.
            self.stop(claim)
            self._state.shell.notify(
                Event.FENCED, claim, text="members of the Go library hold another for its owner"
            )
            self.give_back(claim, stage, ReleaseReason.UNWANTED, now_s, cooldown=cools(stage))
            return
        if not own:
            return
        if isinstance(frame, Heartbeat):
            self._accepted(claim, frame, row, now_s)
            self._state.shell.commit_offset(claim, row.current_offset, row.topic_mark)
            self._commit_seen(claim, row)
            self.drained(claim, now_s)
        elif isinstance(frame, ClaimingMessages):
            claim.take_sent(frame)
            self._proposal_seen(claim, row, now_s)

    # -- work that is due

    def attend(self, claim: LocalClaim, now_s: float) -> None:
        """Do the work that is due for one claim."""
        stage = claim.stage
        match stage:
            case Active(batch=batch):
                if batch is not None and now_s >= batch.until_s:
                    self._batch_late(claim, stage, now_s)
                if now_s >= claim.beat_at_s:
                    self._beat(claim, now_s)
                elif claim.due_s == inf:
                    self._state.schedule.plan_next(claim)
            case Claiming() | Reclaiming():
                self._state.shell.notify(
                    Event.ATTEMPT_TIMED_OUT, claim, text="the log did not show the attempt in time"
                )
                self.forget(claim, now_s)
            case Won() if now_s >= stage.until_s:
                self._give_back_unstarted(claim, stage, ReleaseReason.UNREADABLE, now_s)
            case Won():
                self._state.shell.fetch_offsets(claim)
                self._plan_beat(claim, now_s + RETRY_INTERVALS * 5 * self._state.interval_s)
            case Draining() if now_s >= stage.until_s:
                self.finish(claim, now_s)
            case Draining():
                self.renew(claim, stage, now_s)
            case Releasing() | Declining() if now_s >= stage.until_s:
                self._state.shell.notify(
                    Event.ABANDONED, claim, stage.reason, "the log did not show the release in time"
                )
                self.forget(claim, now_s, cooldown=True)
            case Releasing() | Declining():
                self.finish(claim, now_s)
            case _ as never:
                assert_never(never)

    def retry(self, claim: LocalClaim, frame: Frame, now_s: float) -> None:
        """A frame did not reach the log, or may not have: retry soon, without waiting for the next
        occasion.
        """
        soon_s = now_s + RETRY_INTERVALS * self._state.interval_s
        match claim.stage:
            case Claiming() | Reclaiming():
                self._state.shell.notify(
                    Event.ATTEMPT_TIMED_OUT, claim, text="the broker did not take the frame"
                )
                self.forget(claim, now_s)
                self._state.pool.discard(claim.place)
                if self._state.topics.claimable(claim.place):
                    self._state.pool.busy(claim.place, soon_s)
            case Active() | Draining() if isinstance(frame, Heartbeat):
                if claim.beat_at_s > soon_s:
                    self._plan_beat(claim, soon_s)
            case Active(work=work, batch=Proposed(until_s=until_s, shown=False) as batch) if isinstance(
                frame, ClaimingMessages
            ):
                claim.stage = Active(work, replace(batch, until_s=min(until_s, soon_s)))
                self._state.schedule.plan_next(claim)
            case Releasing() | Declining() if isinstance(frame, ReleasingPartition):
                self._plan_beat(claim, min(claim.beat_at_s, soon_s))
            case _:
                pass

    # -- whole topics

    def topics_held(self) -> tuple[str, ...]:
        held = {
            claim.place.topic
            for claim in self._state.claims.values()
            if claim.place.partition == 0 and isinstance(claim.stage, Active)
        }
        return tuple(sorted(held))

    def announce_topics(self) -> None:
        """Notify of the topics held, once for each change."""
        if self._settings.whole_topic and (held := self.topics_held()) != self._topics_announced:
            self._topics_announced = held
            self._state.shell.notify_topics(held)
