"""The check of a claim before each heartbeat (PROTOCOL.md#health)."""

from __future__ import annotations

from holdfast.core.member.actions import Event
from holdfast.core.member.claim.local_claims import LocalClaim
from holdfast.core.member.claim.stages import Active, ClaimWork, Committing, Draining, Proposed, hands_out
from holdfast.core.member.claim.velocity import ClaimVerdict, Sample
from holdfast.core.member.settings import EXPIRED_INTERVALS, IDLE_INTERVALS, WARNED_AT, Delivery
from holdfast.core.member.state import ClaimState


class HealthCheck:
    """Measures claims, and distinguishes a user at work from a partition that is stuck."""

    def __init__(self, state: ClaimState) -> None:
        self._state, self._settings = state, state.settings

    def check(self, claim: LocalClaim, stage: Active, now_s: float) -> ClaimVerdict:
        settings, work = self._settings, stage.work
        current, latest = work.tracker.current, work.latest
        work.health.note(current, latest)
        if current >= latest and not settings.interop:
            work.message_s = now_s  # nothing to do is not the same as doing nothing
        at_work_s = self._at_work_s(stage, now_s)
        sample = Sample(
            terminated=False,
            heartbeat_age_s=now_s - claim.heartbeat_s,
            group_paused=self._state.paused,
            idle_s=now_s - work.message_s,
            # A balanced group assigns partitions by its target; no other member would take one that is given
            # back for being slow.
            release_if_behind=settings.release_if_behind and not settings.balanced,
            whole_topic=settings.whole_topic,
            current=current,
            latest=latest,
            at_work_s=at_work_s,
        )
        verdict = work.health.check(
            sample,
            expired_after_s=EXPIRED_INTERVALS * self._state.interval_s,
            idle_after_s=IDLE_INTERVALS * self._state.interval_s,
            overdue_after_s=settings.overdue_after_s,
        )
        if at_work_s is not None and verdict in (ClaimVerdict.KEEP, ClaimVerdict.OVERDUE):
            self._warn_of_work(claim, stage, at_work_s, given_up=verdict is ClaimVerdict.OVERDUE)
        return verdict

    def _at_work_s(self, stage: Active, now_s: float) -> float | None:
        """Return how long the user has been at work on the first unfinished message; None if no message is in
        hand, or that is not measured.

        Once per check it is seen whether that message is still the same, so commits cost nothing here.
        """
        work, first = stage.work, self._first_in_hand(stage.work)
        if first != work.checked:
            work.checked, work.work_s, work.warned = first, max(work.work_s, now_s), False
        if self._settings.interop:
            return None
        if not (work.waits or isinstance(stage.batch, Proposed) or self.in_flight(stage)):
            work.work_s, work.warned = now_s, False
            return None
        return now_s - work.work_s

    def _first_in_hand(self, work: ClaimWork) -> int:
        return work.handed if self._settings.delivery is Delivery.AT_MOST_ONCE else work.tracker.current

    def in_flight(self, stage: Active | Draining) -> bool:
        """Return whether a release has to wait for messages that are handed out, or at most once may still
        be.
        """
        work = stage.work
        if self._settings.delivery is Delivery.AT_MOST_ONCE:
            return hands_out(stage) and (
                isinstance(stage.batch, Committing) or work.handed < work.tracker.current
            )
        return work.tracker.outstanding > 0

    def _warn_of_work(self, claim: LocalClaim, stage: Active, at_work_s: float, *, given_up: bool) -> None:
        """Log a handler that takes too long: once before the claim is given up, and once when it is."""
        settings, work = self._settings, stage.work
        if not given_up and (work.warned or at_work_s <= WARNED_AT * settings.overdue_after_s):
            return
        work.warned = True
        taken = settings.delivery is not Delivery.AT_MOST_ONCE and self.in_flight(stage)
        what = (
            "the message at offset {} has been in hand"
            if taken
            else "messages from offset {} on have waited to be taken"
        )
        if given_up:
            then = "the claim is given up, and the message goes to its next owner"
        elif settings.release_if_behind and not settings.balanced:
            then = "at that age the claim is given up, and the message goes to another member"
        else:
            then = "the claim is kept all the same"
        self._state.shell.notify(
            Event.HANDLER_SLOW,
            claim,
            text=(
                f"{what.format(self._first_in_hand(work))} for {at_work_s:.0f} s, and handler_timeout_s is"
                f" {settings.handler_timeout_s:g}: {then}; see what the handler does, or allow it more"
            ),
        )
