"""Rules that hold at every step.

Each check has a name, and a planted fault in test_planted_faults.py that shows it firing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from holdfast.core.claims.claim_keys import RESET_INSTANCE, ClaimKey, pause_key
from holdfast.core.claims.claim_rows import Claim, Pause
from holdfast.core.claims.compat import CompatClaim
from holdfast.core.claims.frames import Frame, ReleaseGroup, ReleasingPartition, coordination_partition
from holdfast.core.claims.resets import Decisions, ResetCommit
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member.settings import Delivery, MemberSettings
from holdfast.errors import ClockSkewError, HoldfastError, InstanceConflictError
from tests.simulation.broker import Broker, Log, key_of
from tests.simulation.ledger import Ledger
from tests.simulation.timeline import BEGAN_S
from tests.simulation.trace import WHOLE, Trace
from tests.simulation.units import data_place, offsets_of

if TYPE_CHECKING:
    from tests.simulation.node import Node

OWNER = "one-owner"
OFFSET = "offset-back"
LOST = "lost"
TWICE = "at-most-once"
REDELIVERED = "redelivery"
ORDER = "key-order"
START = "start"
FREE = "free-partition"
PAUSED = "paused"
TWINS = "one-instance"
BALANCE = "balance"
RESET = "reset"
STOLEN = "stolen"
STALLED = "stalled"
WORKING = "at-work"
FIRST_MARK = 2
LIMIT_STALLED_AUDITS = 10
"""Looks in a row, two in an interval, at which an owner has something to hand out and has handed out
nothing since the last.
"""
DRIFT = 0.015
"""Greatest difference of the rates of clocks: members wait by their own."""
NAMES = (
    OWNER,
    OFFSET,
    LOST,
    TWICE,
    REDELIVERED,
    ORDER,
    START,
    FREE,
    PAUSED,
    TWINS,
    BALANCE,
    RESET,
    STOLEN,
    STALLED,
    WORKING,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Longest times of actions where no fault occurs, in seconds."""

    interval_s: float
    stale_s: float
    lease_s: float
    redelivery_s: float
    free_s: float
    pause_s: float
    twins_s: float
    settle_s: float
    crossing_s: float


def bounds(settings: MemberSettings, *, delay_s: float, partitions: int, skew_s: float) -> Bounds:
    """Return the bounds that the rules promise for a fleet with these settings.

    A redelivery reaches back one heartbeat: at most 0.75 intervals and its way. A free partition is found out
    by estimates of log time that lag by delays and, before the first record was written, by the skew a clock
    may have; then it takes its turn in a claim loop that takes one partition in up to 0.05 intervals, an
    attempt that may lose its race once, and the cooldown of the member that gave it up.
    """
    interval_s = settings.heartbeat_interval_s
    turn_s = 0.05 * interval_s + 6 * delay_s
    return Bounds(
        interval_s=interval_s,
        stale_s=settings.stale_after_s,
        lease_s=settings.lease_s,
        redelivery_s=0.75 * interval_s + 4 * delay_s + 0.05 * interval_s,
        free_s=1.0 + settings.skew_within_s + 1.5 * interval_s + partitions * turn_s + 10 * delay_s,
        pause_s=0.75 * interval_s + 4 * delay_s,
        twins_s=1.25 * interval_s + 1.0 + 10 * delay_s,
        settle_s=4 * interval_s + 2 * partitions * turn_s + settings.skew_within_s,
        crossing_s=0.5 * interval_s + 4 * delay_s,
    )


class Checks:
    """Watches everything. Raises Violation at the step that breaks a rule."""

    def __init__(
        self,
        broker: Broker,
        trace: Trace,
        limits: Bounds,
        delivery: Delivery,
        places: Sequence[TopicPartition],
    ) -> None:
        self.broker, self.trace, self.bounds, self.delivery = broker, trace, limits, delivery
        self.timeline = broker.timeline
        self.at_most_once = delivery is Delivery.AT_MOST_ONCE
        self.ledgers: dict[TopicPartition, Ledger] = {}
        self.highs: dict[TopicPartition, dict[int, int]] = {}
        self.nodes: dict[str, Node] = {}
        self.go_clients: set[str] = set()
        self.decisions = Decisions()
        self.pause_since_s: float | None = None
        self.pause_until_s = -inf
        self.whole_topic = self.balanced = False
        self.handed_out = self.redelivered = self.taken = self.conflicts = 0
        for place in places:
            self.add(place)

    def add(self, place: TopicPartition) -> Ledger:
        ledger = self.ledgers[place] = Ledger(
            place, coordination_partition(place.topic, len(self.broker.logs))
        )
        ledger.free_since_s = self.timeline.now_s
        ledger.high = self.highs.setdefault(
            data_place(place), ledger.high
        )  # lanes of one partition share its keys
        return ledger

    # -- the log

    def on_frame(
        self, log: Log, frame: Frame, before: Claim | None, after: Claim | None, compat: CompatClaim | None
    ) -> None:
        """A frame was appended."""
        assert not isinstance(frame, ReleaseGroup)
        place = TopicPartition(frame.topic, frame.partition)
        ledger = self.ledgers.get(place) or self.add(place)
        trace = self.trace
        if after is before or after is None:
            trace.note(place, frame.instance_id, "in vain in the log:", type(frame).__name__)
            return
        owner = after.instance_id if after.heartbeat_at_s is not None else None
        last = "-" if after.current_offset is None else after.current_offset
        trace.note(place, frame.instance_id, "in the log:", type(frame).__name__, "->", owner, "at", last)
        if owner != ledger.owner or (owner is not None and after.epoch != ledger.epoch):
            self._owner_changed(ledger, frame, owner, after, compat)
        self._offset_moved(ledger, frame, before, after)

    def _owner_changed(
        self, ledger: Ledger, frame: Frame, owner: str | None, after: Claim, compat: CompatClaim | None
    ) -> None:
        now_s = self.timeline.now_s
        if ledger.owner is not None:
            ledger.ended_s[ledger.owner, ledger.epoch] = now_s
        if owner is not None:
            self.taken += 1
            if self.broker.with_go:
                self._check_stolen(ledger, frame, owner, compat)
        ledger.owner, ledger.owner_since_s, ledger.epoch = owner, now_s, after.epoch
        ledger.owner_client = after.client_id if owner is not None else None

    def _check_stolen(self, ledger: Ledger, frame: Frame, owner: str, compat: CompatClaim | None) -> None:
        """No member of ours takes a partition that a Go member owns in the Go library's view, except for
        frames that cross.
        """
        if compat is not None and compat.client_id in self.go_clients and owner in self.nodes:
            age_s, now_s = BEGAN_S + self.timeline.now_s - compat.last_heartbeat_s, self.timeline.now_s
            if not self.nodes[owner].healthy(now_s - self.bounds.stale_s, now_s):
                # it may not have been able to see so, and gives its claim back before it hands anything out
                return
            if (
                compat.last_heartbeat_s
                and self.bounds.crossing_s < age_s < self.bounds.stale_s - self.bounds.crossing_s
            ):
                raise self.trace.fail(
                    STOLEN,
                    ledger.place,
                    f"{owner} takes it from {compat.client_id}, whose heartbeat is {age_s:.1f} s old",
                )

    def _offset_moved(self, ledger: Ledger, frame: Frame, before: Claim | None, after: Claim) -> None:
        old, new = None if before is None else before.current_offset, after.current_offset
        if isinstance(frame, ReleasingPartition) and frame.instance_id.startswith(RESET_INSTANCE):
            if after.heartbeat_at_s is not None or before is None or before.heartbeat_at_s is None:
                return  # too late: it was given back before
            self._reset_moved(ledger, frame, old, new, after.topic_mark)
            if after.topic_mark == ledger.made:
                ledger.verified_of = ledger.made
            else:
                ledger.expected = None  # the decision is of the topic that was deleted
            return
        before_mark, mark = None if before is None else before.topic_mark, after.topic_mark
        if before_mark is not None and mark is not None and mark != before_mark:
            if mark < before_mark:
                text = f"{frame.instance_id} moves it back to an offset of a topic that was deleted"
                raise self.trace.fail(OFFSET, ledger.place, text)
            old = None  # the first word about the topic that was made again
        if new == old:
            return
        if new is not None and self._is_given_back(ledger, frame, old, new):
            return
        if old is not None and (new is None or new < old):
            raise self.trace.fail(
                OFFSET,
                ledger.place,
                f"{frame.instance_id} moves the committed offset from {old} back to {new}",
            )
        assert new is not None
        if ledger.made != FIRST_MARK and after.topic_mark != ledger.made:
            return  # it is of the topic that was deleted, or of an unknown one
        ledger.verified_of = ledger.made
        if not self.at_most_once and new > ledger.verified:
            missing = [
                offset
                for offset in offsets_of(ledger.place, ledger.verified, new)
                if offset not in ledger.done
            ]
            if missing and not frame.instance_id.startswith(RESET_INSTANCE):
                raise self.trace.fail(
                    LOST, ledger.place, f"the log says {new}, but nobody was done with {missing[:5]}"
                )
            ledger.verified = new

    def _is_given_back(self, ledger: Ledger, frame: Frame, old: int | None, new: int) -> bool:
        """At most once: messages that the log has committed and the owner has not handed out go to the next
        one.
        """
        if old is None or new >= old or not (self.at_most_once and isinstance(frame, ReleasingPartition)):
            return False
        return not any(offset in ledger.handed for offset in range(new, old))

    def on_made_again(self, topic: str) -> None:
        """A topic was deleted and made again: nothing of it was handed out."""
        for place, ledger in self.ledgers.items():
            if data_place(place).topic == topic:
                ledger.rewind(0)
                ledger.made, ledger.expected = self.broker.mark(place), None
                ledger.stalled = ledger.position = 0

    def _reset_moved(
        self, ledger: Ledger, frame: ReleasingPartition, old: int | None, new: int | None, mark: int | None
    ) -> None:
        """A reset gives a partition back: where its decision says, once."""
        key = ClaimKey(frame.group_id, *ledger.place)
        decision = self.decisions[frame.instance_id.removeprefix(RESET_INSTANCE)]
        told = decision.new_offset(key) if isinstance(decision, ResetCommit) else None
        wanted = (old or 0) if told is None else told
        if new != wanted:
            raise self.trace.fail(
                RESET, ledger.place, f"{frame.instance_id} gives it back at {new}, decided is {wanted}"
            )
        if ledger.reset_by == frame.instance_id and new != old:
            raise self.trace.fail(
                OFFSET,
                ledger.place,
                f"{frame.instance_id} moves the offset a second time, from {old} to {new}",
            )
        ledger.reset_by, ledger.expected = frame.instance_id, new
        if new != old and (mark == ledger.made or (mark is None and ledger.made == FIRST_MARK)):
            ledger.rewind(new)

    def on_pause(self, log: Log, frame: ReleaseGroup) -> None:
        """A pause, or its end, was appended to one log."""
        now_s = self.timeline.now_s
        pause = log.rows.get(pause_key(frame.group_id))
        self.trace.note(
            WHOLE, frame.instance_id, f"pauses log {log.index} until", frame.msg_expire_time_s - int(BEGAN_S)
        )
        if isinstance(pause, Pause):
            if self.pause_since_s is None or self.broker.clock_high_s() >= self.pause_until_s:
                self.pause_since_s = now_s  # the last one may have ended since the last check
        elif not self.is_paused():
            self._resumed()
        self.pause_until_s = max((self._pause_end_s(log) for log in self.broker.logs), default=-inf)

    def is_paused(self) -> bool:
        """Return whether any log still pauses the group, by any clock that ticks as it may."""
        return any(self._pause_end_s(log) > self.broker.clock_high_s() for log in self.broker.logs)

    def _pause_end_s(self, log: Log) -> float:
        pause = log.rows.get(pause_key(self.broker.group))
        return (
            pause.expires_at_s - DRIFT * (pause.expires_at_s - pause.at_s)
            if isinstance(pause, Pause)
            else -inf
        )

    def _resumed(self) -> None:
        self.pause_since_s = None
        for ledger in self.ledgers.values():
            ledger.free_since_s = None

    # -- the members

    def on_start(self, node: Node, place: TopicPartition, offset: int) -> None:
        """A member begins to consume."""
        ledger = self.ledgers[place]
        row = self.broker.row(ledger.log, place)
        told = None if row is None else row.current_offset
        same = row is None or row.topic_mark in (None, ledger.made)
        if told is not None and offset < told and ledger.owner == node.name and same:
            raise self.trace.fail(START, place, f"{node.name} starts at {offset}, the log says {told}")
        if ledger.expected is not None and ledger.owner == node.name:
            if offset != ledger.expected:
                raise self.trace.fail(
                    RESET, place, f"{node.name} starts at {offset}, the reset said {ledger.expected}"
                )
            ledger.expected = None

    def on_hand_out(self, node: Node, place: TopicPartition, offsets: Sequence[int]) -> None:
        """A member hands messages out."""
        ledger, now_s = self.ledgers[place], self.timeline.now_s
        ledger.stalled = 0
        self.handed_out += len(offsets)
        if ledger.owner != node.name:
            self._check_owner(ledger, node, now_s)
        if self.pause_since_s is not None and self.is_paused():
            self._check_silent(ledger, node, now_s)
        handed, high, at_most_once, data = ledger.handed, ledger.high, self.at_most_once, data_place(place)
        for offset in offsets:
            key = key_of(data, offset)
            if offset in handed:
                if at_most_once:
                    raise self.trace.fail(TWICE, place, f"{node.name} hands out {offset} a second time")
                self.redelivered += 1
                passed = ledger.passed.pop(offset, None)  # being worked on again
                if passed is not None:
                    self._check_redelivery(ledger, node, offset, *passed)
            else:
                handed.add(offset)
                if high.get(key, -1) > offset:
                    raise self.trace.fail(
                        ORDER,
                        place,
                        f"{node.name} hands out {offset} first after {high[key]} of the same key",
                    )
                high[key] = offset

    def _check_owner(self, ledger: Ledger, node: Node, now_s: float) -> None:
        if self._is_twin_in_lease(ledger, node, now_s):
            return
        raise self.trace.fail(
            OWNER, ledger.place, f"{node.name} hands out while the log names {ledger.owner or 'nobody'}"
        )

    def _is_twin_in_lease(self, ledger: Ledger, node: Node, now_s: float) -> bool:
        """Return whether *node* is of the owner's client and may not know yet that the owner exists.

        A new process of the same client takes over at once: the old one cannot know before it reads so, and
        its lease ends by itself.
        """
        return ledger.owner_client == node.client and now_s - ledger.owner_since_s <= self.bounds.lease_s

    def _check_silent(self, ledger: Ledger, node: Node, now_s: float) -> None:
        """A member obeys a pause in whatever log it reads it; in the log of its claim it must have read it.

        One that was stopped, or whose other logs are down, may not have read those logs up to their ends.
        """
        assert self.pause_since_s is not None
        since_s = self.pause_since_s
        healthy = node.healthy(since_s, now_s)
        if not healthy and self._pause_end_s(self.broker.logs[ledger.log]) <= self.broker.clock_high_s():
            return
        limit_s = self.bounds.pause_s if healthy else self.bounds.stale_s
        if now_s - since_s > limit_s:
            raise self.trace.fail(
                PAUSED,
                ledger.place,
                f"{node.name} hands out {now_s - since_s:.2f} s after the pause of its group",
            )

    def _check_redelivery(
        self, ledger: Ledger, node: Node, offset: int, passed_s: float, by: str, epoch: int
    ) -> None:
        bound_s = self.bounds.redelivery_s
        before = self.nodes.get(by)
        still = (ledger.owner, ledger.epoch) == (by, epoch)
        ended_s = self.timeline.now_s if still else ledger.ended_s.get((by, epoch), -inf)
        if before is None or ended_s - passed_s <= bound_s:
            return
        if still and before is not node and self._is_twin_in_lease(ledger, node, self.timeline.now_s):
            return
        if before.was_healthy(passed_s, passed_s + bound_s):
            text = (
                f"{node.name} hands out {offset} again, which {by} was done with {ended_s - passed_s:.2f} s"
                " before it lost the claim"
            )
            raise self.trace.fail(REDELIVERED, ledger.place, text)

    def on_done(
        self, node: Node, place: TopicPartition, epoch: int, done: Sequence[int], begin: int, end: int
    ) -> None:
        """A user is done with messages; all from *begin* to below *end* are done by now."""
        ledger = self.ledgers[place]
        ledger.done.update(done)
        if end > begin:
            by = (self.timeline.now_s, node.name, epoch)
            for offset in range(begin, end):
                ledger.passed[offset] = by

    def on_undelivered(self, node: Node, place: TopicPartition, begin: int, end: int) -> None:
        """At most once: a member gives back a claim with an offset above the messages that it has handed
        out.
        """
        raise self.trace.fail(
            LOST,
            place,
            f"{node.name} gives it back at {end}, and {begin} to {end - 1} were never handed out",
        )

    def on_given_up_at_work(self, node: Node, place: TopicPartition, open_s: float, count: int) -> None:
        """A member calls a partition stuck, or its handler too slow, while its user has messages of it in
        hand.
        """
        raise self.trace.fail(
            WORKING,
            place,
            f"{node.name} gives it up while {count} messages are in hand, the last step {open_s:.2f} s ago",
        )

    def on_go_done(self, place: TopicPartition, done: Sequence[int]) -> None:
        """A user of the Go library is done with messages."""
        self.ledgers[place].done.update(done)

    def on_fail(self, node: Node, error: HoldfastError) -> None:
        """A member ended by itself."""
        self.trace.note(WHOLE, node.name, f"fails: {type(error).__name__}")
        if isinstance(error, InstanceConflictError):
            self.conflicts += 1
            since_s = self.timeline.now_s - self.bounds.twins_s
            others = [
                each
                for each in self.nodes.values()
                if each.client == node.client and each is not node and each.error is None
            ]
            if not any(each.died_s >= since_s for each in others):
                raise self.trace.fail(
                    TWINS, WHOLE, f"{node.name} ends for another instance of {node.client}, and there is none"
                )
        elif not isinstance(error, ClockSkewError):
            raise self.trace.fail(TWINS, WHOLE, f"{node.name} fails: {error}")
