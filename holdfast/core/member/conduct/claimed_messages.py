"""The messages of claims that a member holds: handed out, skipped, withdrawn, committed
(PROTOCOL.md#the-member).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member.actions import Action, DeliveryToken
from holdfast.core.member.claim.local_claims import LocalClaim
from holdfast.core.member.claim.stages import STARTED, WORKING, Active, Draining, Releasing, work_of
from holdfast.core.member.conduct.renewal import Renewal
from holdfast.core.member.settings import Delivery
from holdfast.core.member.state import ClaimState
from holdfast.errors import ClaimLostError


class ClaimedMessages:
    """A part of `Member`: takes *now_s* and returns what to do, as the member's own inputs.

    *done* ends each input that may have changed more than the claim's own count.
    """

    def __init__(self, state: ClaimState, renewal: Renewal, done: Callable[[float], list[Action]]) -> None:
        self._state, self._renewal, self._done = state, renewal, done
        self._settings, self._claims = state.settings, state.claims

    def delivered(
        self, topic: str, partition: int, offsets: range | Sequence[int], now_s: float
    ) -> list[Action]:
        """Messages were handed out: ascending offsets, a `range` where they are contiguous (that is the fast
        way).

        Asserts that they follow the messages delivered before.
        """
        claim = self._claims.get(TopicPartition(topic, partition))
        if claim is None or (work := work_of(claim.stage)) is None or not offsets:
            return []
        work.message_s = now_s
        if self._settings.delivery is Delivery.AT_LEAST_ONCE:
            if not work.tracker.outstanding:
                work.work_s, work.warned = now_s, False
            work.tracker.deliver(offsets)
            return []
        work.handed = max(work.handed, offsets[-1] + 1)
        self._renewal.commit_if_due(claim, now_s)
        self._renewal.drained(claim, now_s)
        return self._done(now_s)

    def skipped(self, topic: str, partition: int, offset: int, now_s: float) -> list[Action]:
        """Nothing below *offset* that was not delivered concerns this claim: holes of compaction, control
        records, other lanes.
        """
        claim = self._claims.get(TopicPartition(topic, partition))
        if claim is None or not isinstance(stage := claim.stage, STARTED):
            return []
        work = stage.work
        work.handed = max(work.handed, offset)
        if stage.batch is None:
            if not work.tracker.outstanding and offset > work.tracker.position:
                work.message_s = now_s  # nothing to do is not the same as doing nothing
            work.tracker.skip_to(offset)
        if self._settings.delivery is Delivery.AT_MOST_ONCE:
            self._renewal.commit_if_due(claim, now_s)
            self._renewal.drained(claim, now_s)
            return self._done(now_s)
        return []

    def waiting(self, topic: str, partition: int, waits: bool, now_s: float) -> list[Action]:
        """Say whether messages are fetched (or not fetched for want of room) and wait for the user to take
        them: call a few times per interval.

        A partition that is held up by its user is not wedged; that has another deadline, `handler_timeout_s`.
        """
        claim = self._claims.get(TopicPartition(topic, partition))
        if (
            claim is not None
            and isinstance(stage := claim.stage, WORKING)
            and (work := stage.work).waits is not waits
        ):
            work.waits = waits
            if waits and not self._renewal.health.in_flight(stage):
                work.work_s, work.warned = now_s, False
        return []

    def withdrawn(self, topic: str, partition: int, offset: int, now_s: float) -> list[Action]:
        """Messages from *offset* on were reported as delivered but never handed out."""
        claim = self._claims.get(TopicPartition(topic, partition))
        if claim is None or self._settings.delivery is Delivery.AT_MOST_ONCE:
            return []
        if (work := work_of(claim.stage)) is None:
            return []
        work.tracker.withdraw(offset)
        self._renewal.drained(claim, now_s)
        return self._done(now_s)

    def kept_back(self, topic: str, partition: int, offset: int | None, now_s: float) -> list[Action] | None:
        """At most once, in answer to `Stop`: the first message that was committed and not handed out, and
        never will be; None where all were. Return None where nothing can give it to another owner any more:
        the claim is lost, and it with that.
        """
        claim = self._claims.get(TopicPartition(topic, partition))
        if claim is None or (work := work_of(claim.stage)) is None:
            return None
        work.left = work.tracker.current if offset is None else offset
        if isinstance(claim.stage, Draining) and claim.stage.asks:
            self._renewal.finish(claim, now_s)
        return self._done(now_s)

    def fetched(self, topic: str, partition: int, offset_end: int, now_s: float) -> list[Action]:
        """At most once: a batch that ends before *offset_end* waits to be handed out. `Deliver` follows when
        the log has committed it.

        One batch at a time per claim: the next after `Deliver`. Asserts delivery at most once.
        """
        assert self._settings.delivery is Delivery.AT_MOST_ONCE, "batches are announced at most once only"
        claim = self._claims.get(TopicPartition(topic, partition))
        if claim is None or not isinstance(stage := claim.stage, Active):
            return []
        if offset_end <= stage.work.tracker.current:
            return []
        assert stage.batch is None, f"{topic}/{partition}: a batch is under way already"
        self._renewal.propose(claim, stage.work, offset_end, now_s)
        return self._done(now_s)

    def commit(self, token: DeliveryToken, now_s: float) -> list[Action]:
        """The message is done.

        Twice is once. Raises CommitError when it was never delivered, ClaimLostError when its claim is gone.
        """
        claim, stage = self._holding(token.topic, token.partition, token.epoch)
        if self._settings.delivery is Delivery.AT_LEAST_ONCE:
            stage.work.tracker.commit(token.offset)
            if type(stage) is Draining:
                self._renewal.drained(claim, now_s)
                return self._done(now_s)
        return []

    def _holding(self, topic: str, partition: int, epoch: int) -> tuple[LocalClaim, Active | Draining]:
        """Return the claim that a message was delivered under, and its stage, or raise ClaimLostError."""
        claim: LocalClaim | None = self._claims.get((topic, partition))  # type: ignore[call-overload]  # equal to a Place, and cheaper
        if claim is None or claim.epoch != epoch or not isinstance(stage := claim.stage, WORKING):
            raise ClaimLostError(
                f"{topic}/{partition}: the claim (epoch {epoch}) is not held any more, so nothing was"
                " committed; the message goes to its next owner from the last offset committed"
            )
        return claim, stage

    def commit_many(
        self, topic: str, partition: int, epoch: int, offsets: range | Sequence[int], now_s: float
    ) -> list[Action]:
        """The messages are done: a `range`, or the list given to `delivered`, in one step.

        Raises as `commit`, and then commits none.
        """
        claim, stage = self._holding(topic, partition, epoch)
        if self._settings.delivery is Delivery.AT_LEAST_ONCE:
            stage.work.tracker.commit_many(offsets)
            if type(stage) is Draining:
                self._renewal.drained(claim, now_s)
                return self._done(now_s)
        return []

    def flush(self, now_s: float) -> list[Action]:
        """Write what has been committed to the log now; `flushing`, asked before, says when it is there."""
        for claim in list(self._claims.values()):
            if (
                isinstance(stage := claim.stage, WORKING)
                and self._renewal.offset(stage) > claim.offset_logged
            ):
                self._renewal.renew(claim, stage, now_s)
        return self._done(now_s)

    def flushing(self) -> Callable[[], bool]:
        """Return a function that says whether the log shows all offsets committed now.

        It raises ClaimLostError when a claim was lost before the log had its offset.
        """
        wanted = [
            (claim, offset, offset > stage.work.tracker.start)
            for claim in self._claims.values()
            if isinstance(stage := claim.stage, STARTED)
            for offset in [stage.offset if isinstance(stage, Releasing) else self._renewal.offset(stage)]
        ]

        def are_shown() -> bool:
            shown = [
                self._shows(*each) for each in wanted
            ]  # all of them: one that is lost is an error at once
            return all(shown)

        return are_shown

    def _shows(self, claim: LocalClaim, offset: int, has_moved: bool) -> bool:
        """Return whether the log has *offset* of a claim, or the claim is gone and nothing was done of it."""
        row = self._state.row(claim)
        if row is not None and row.current_offset is not None and row.current_offset >= offset:
            return True
        if self._claims.get(claim.place) is claim:
            return False
        if has_moved:
            raise ClaimLostError(
                f"{claim.place.topic}/{claim.place.partition}: the claim (epoch {claim.epoch}) was lost"
                f" before the log had its offset {offset}; messages that were committed may come again, to"
                " the next owner"
            )
        return True
