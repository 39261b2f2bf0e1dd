"""What must hold at every step. Each check has a name, and a planted fault in test_planted_faults.py that shows it firing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from holdfast.core.claims import RESET_INSTANCE, Claim, ClaimKey, CompatClaim, Pause, compat_claimed, is_live, is_reserved, pause_key
from holdfast.core.frames import Frame, ReleaseGroup, ReleasingPartition, coordination_partition
from holdfast.core.member_actions import Place
from holdfast.core.member_settings import Delivery, MemberSettings
from holdfast.core.resets import Commit, Decisions
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
DRIFT = 0.015
"""How far rates of clocks may be apart: members wait by their own."""
NAMES = (OWNER, OFFSET, LOST, TWICE, REDELIVERED, ORDER, START, FREE, PAUSED, TWINS, BALANCE, RESET, STOLEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How long things may take where nothing is wrong, in seconds."""

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
    """Return what the rules promise for a fleet with these settings.

    A redelivery reaches back one heartbeat: at most 0.75 intervals and its way. A free partition is found out by estimates of log time
    that lag by delays and, before anything was written, by the skew a clock may have; then it takes its turn in a claim loop that takes
    one partition in up to 0.05 intervals, an attempt that may lose its race once, and the cooldown of whoever gave it up.
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

    def __init__(self, broker: Broker, trace: Trace, limits: Bounds, delivery: Delivery, places: Sequence[Place]) -> None:
        self.broker, self.trace, self.bounds, self.delivery = broker, trace, limits, delivery
        self.timeline = broker.timeline
        self.at_most_once = delivery is Delivery.AT_MOST_ONCE
        self.ledgers: dict[Place, Ledger] = {}
        self.highs: dict[Place, dict[int, int]] = {}
        self.nodes: dict[str, Node] = {}
        self.go_clients: set[str] = set()
        self.decisions = Decisions()
        self.pause_since_s: float | None = None
        self.whole_topic = self.balanced = False
        self.handed_out = self.redelivered = self.taken = self.conflicts = 0
        for place in places:
            self.add(place)

    def add(self, place: Place) -> Ledger:
        ledger = self.ledgers[place] = Ledger(place, coordination_partition(place.topic, len(self.broker.logs)))
        ledger.free_since_s = self.timeline.now_s
        ledger.high = self.highs.setdefault(data_place(place), ledger.high)  # lanes of one partition share its keys
        return ledger

    # -- the log

    def on_frame(self, log: Log, frame: Frame, before: Claim | None, after: Claim | None, compat: CompatClaim | None) -> None:
        """A frame was appended."""
        assert not isinstance(frame, ReleaseGroup)
        place = Place(frame.topic, frame.partition)
        ledger = self.ledgers.get(place) or self.add(place)
        trace = self.trace
        if after is before or after is None:
            trace.note(place, frame.instance_id, "in vain in the log:", type(frame).__name__)
            return
        owner = after.instance_id if after.heartbeat_at_s is not None else None
        last = "-" if after.current_offset is None else after.current_offset
        trace.note(place, frame.instance_id, "in the log:", type(frame).__name__, "->", owner, "at", last)
        if owner != ledger.owner:
            self._owner_changed(ledger, frame, owner, after, compat)
        self._offset_moved(ledger, frame, before, after)

    def _owner_changed(self, ledger: Ledger, frame: Frame, owner: str | None, after: Claim, compat: CompatClaim | None) -> None:
        now_s = self.timeline.now_s
        if ledger.owner is not None:
            ledger.ended_s[ledger.owner] = now_s
        if owner is not None:
            self.taken += 1
            if self.broker.with_go:
                self._check_stolen(ledger, frame, owner, compat)
        ledger.owner, ledger.owner_since_s = owner, now_s
        ledger.owner_client = after.client_id if owner is not None else None

    def _check_stolen(self, ledger: Ledger, frame: Frame, owner: str, compat: CompatClaim | None) -> None:
        """No member of ours takes what the Go library's view gives to a Go member, but for frames that cross."""
        if compat is not None and compat.client_id in self.go_clients and owner in self.nodes:
            age_s = BEGAN_S + self.timeline.now_s - compat.last_heartbeat_s
            if compat.last_heartbeat_s and self.bounds.crossing_s < age_s < self.bounds.stale_s - self.bounds.crossing_s:
                raise self.trace.fail(
                    STOLEN, ledger.place, f"{owner} takes it from {compat.client_id}, whose heartbeat is {age_s:.1f} s old"
                )

    def _offset_moved(self, ledger: Ledger, frame: Frame, before: Claim | None, after: Claim) -> None:
        old, new = None if before is None else before.current_offset, after.current_offset
        if isinstance(frame, ReleasingPartition) and frame.instance_id.startswith(RESET_INSTANCE):
            if after.heartbeat_at_s is not None or before is None or before.heartbeat_at_s is None:
                return  # too late: it was given back before
            self._reset_moved(ledger, frame, old, new)
            return
        if new == old:
            return
        if old is not None and (new is None or new < old):
            raise self.trace.fail(OFFSET, ledger.place, f"{frame.instance_id} moves the committed offset from {old} back to {new}")
        assert new is not None
        if not self.at_most_once and new > ledger.verified:
            missing = [offset for offset in offsets_of(ledger.place, ledger.verified, new) if offset not in ledger.done]
            if missing and not frame.instance_id.startswith(RESET_INSTANCE):
                raise self.trace.fail(LOST, ledger.place, f"the log says {new}, but nobody was done with {missing[:5]}")
            ledger.verified = new

    def _reset_moved(self, ledger: Ledger, frame: ReleasingPartition, old: int | None, new: int | None) -> None:
        """A reset gives a partition back: where its decision says, once."""
        key = ClaimKey(frame.group_id, *ledger.place)
        decision = self.decisions[frame.instance_id.removeprefix(RESET_INSTANCE)]
        told = decision.new_offset(key) if isinstance(decision, Commit) else None
        wanted = (old or 0) if told is None else told
        if new != wanted:
            raise self.trace.fail(RESET, ledger.place, f"{frame.instance_id} gives it back at {new}, decided is {wanted}")
        if ledger.reset_by == frame.instance_id and new != old:
            raise self.trace.fail(OFFSET, ledger.place, f"{frame.instance_id} moves the offset a second time, from {old} to {new}")
        ledger.reset_by, ledger.expected = frame.instance_id, new
        if new != old:
            ledger.rewind(new)

    def on_pause(self, log: Log, frame: ReleaseGroup) -> None:
        """A pause, or the end of one, was appended to one log."""
        now_s = self.timeline.now_s
        pause = log.rows.get(pause_key(frame.group_id))
        self.trace.note(WHOLE, frame.instance_id, f"pauses log {log.index} until", frame.msg_expire_time_s - int(BEGAN_S))
        if isinstance(pause, Pause):
            if self.pause_since_s is None or not self.is_paused():
                self.pause_since_s = now_s
        elif not self.is_paused():
            self._resumed()

    def is_paused(self) -> bool:
        """Return whether any log still pauses the group, by any clock that ticks as it may."""
        return any(
            isinstance(pause := log.rows.get(pause_key(self.broker.group)), Pause)
            and pause.expires_at_s - DRIFT * (pause.expires_at_s - pause.at_s) > self.broker.clock_high_s()
            for log in self.broker.logs
        )

    def _resumed(self) -> None:
        self.pause_since_s = None
        for ledger in self.ledgers.values():
            ledger.free_since_s = None

    # -- the members

    def on_start(self, node: Node, place: Place, offset: int) -> None:
        """A member begins to consume."""
        ledger = self.ledgers[place]
        row = self.broker.row(ledger.log, place)
        told = None if row is None else row.current_offset
        if told is not None and offset < told and ledger.owner == node.name:
            raise self.trace.fail(START, place, f"{node.name} starts at {offset}, the log says {told}")
        if ledger.expected is not None and ledger.owner == node.name:
            if offset != ledger.expected:
                raise self.trace.fail(RESET, place, f"{node.name} starts at {offset}, the reset said {ledger.expected}")
            ledger.expected = None

    def on_hand_out(self, node: Node, place: Place, offsets: Sequence[int]) -> None:
        """A member hands messages out."""
        ledger, now_s = self.ledgers[place], self.timeline.now_s
        self.handed_out += len(offsets)
        if ledger.owner != node.name:
            self._check_owner(ledger, node, now_s)
        if self.pause_since_s is not None and self.is_paused():
            self._check_silent(node, place, now_s)
        handed, high, at_most_once, data = ledger.handed, ledger.high, self.at_most_once, data_place(place)
        for offset in offsets:
            key = key_of(data, offset)
            if offset in handed:
                if at_most_once:
                    raise self.trace.fail(TWICE, place, f"{node.name} hands out {offset} a second time")
                self.redelivered += 1
                passed = ledger.passed.pop(offset, None)  # being worked on anew
                if passed is not None:
                    self._check_redelivery(ledger, node, offset, *passed)
            else:
                handed.add(offset)
                if high.get(key, -1) > offset:
                    raise self.trace.fail(ORDER, place, f"{node.name} hands out {offset} first after {high[key]} of the same key")
                high[key] = offset

    def _check_owner(self, ledger: Ledger, node: Node, now_s: float) -> None:
        # A new process of the same client takes over at once: the old one cannot know before it reads so, and its lease ends by itself.
        if ledger.owner_client == node.client and now_s - ledger.owner_since_s <= self.bounds.lease_s:
            return
        raise self.trace.fail(OWNER, ledger.place, f"{node.name} hands out while the log names {ledger.owner or 'nobody'}")

    def _check_silent(self, node: Node, place: Place, now_s: float) -> None:
        assert self.pause_since_s is not None
        since_s = self.pause_since_s
        limit_s = self.bounds.pause_s if node.healthy(since_s, now_s) else self.bounds.stale_s
        if now_s - since_s > limit_s:
            raise self.trace.fail(PAUSED, place, f"{node.name} hands out {now_s - since_s:.2f} s after the pause of its group")

    def _check_redelivery(self, ledger: Ledger, node: Node, offset: int, passed_s: float, by: str) -> None:
        bound_s = self.bounds.redelivery_s
        before = self.nodes.get(by)
        still = ledger.owner == by and ledger.owner_since_s <= passed_s
        ended_s = self.timeline.now_s if still else ledger.ended_s.get(by, -inf)
        if before is None or ended_s - passed_s <= bound_s:
            return
        if before.was_healthy(passed_s, passed_s + bound_s):
            text = f"{node.name} hands out {offset} again, which {by} was done with {ended_s - passed_s:.2f} s before it lost the claim"
            raise self.trace.fail(REDELIVERED, ledger.place, text)

    def on_done(self, node: Node, place: Place, done: Sequence[int], begin: int, end: int) -> None:
        """A user is done with messages; all from *begin* to below *end* are done by now."""
        ledger = self.ledgers[place]
        ledger.done.update(done)
        if end > begin:
            by = (self.timeline.now_s, node.name)
            for offset in range(begin, end):
                ledger.passed[offset] = by

    def on_go_done(self, place: Place, done: Sequence[int]) -> None:
        """A user of the Go library is done with messages."""
        self.ledgers[place].done.update(done)

    def on_fail(self, node: Node, error: HoldfastError) -> None:
        """A member ended by itself."""
        self.trace.note(WHOLE, node.name, f"fails: {type(error).__name__}")
        if isinstance(error, InstanceConflictError):
            self.conflicts += 1
            since_s = self.timeline.now_s - self.bounds.twins_s
            others = [each for each in self.nodes.values() if each.client == node.client and each is not node and each.error is None]
            if not any(each.died_s >= since_s for each in others):
                raise self.trace.fail(TWINS, WHOLE, f"{node.name} ends for another instance of {node.client}, and there is none")
        elif not isinstance(error, ClockSkewError):
            raise self.trace.fail(TWINS, WHOLE, f"{node.name} fails: {error}")

    # -- from time to time

    def audit(self) -> None:
        """Look at what takes time: everything that should have happened by now."""
        now_s = self.timeline.now_s
        paused = self.is_paused()
        if self.pause_since_s is not None and not paused:
            self._resumed()
        for node in self.nodes.values():
            limit = node.settings.maximum_claims
            if node.alive and limit and node.member is not None and node.member.load >= limit:
                node.full_at_s = now_s
        if self.balanced:
            self._audit_balance(now_s)
        else:
            for ledger in self.ledgers.values():
                self._audit_free(ledger, now_s, paused)
        if paused and self.pause_since_s is not None:
            self._audit_paused(now_s)
        self._audit_twins(now_s)

    def _is_free(self, ledger: Ledger) -> bool:
        log = self.broker.logs[ledger.log]
        row = self.broker.row(ledger.log, ledger.place)
        if self.broker.with_go:
            # Members of ours take what is free in both views; one of the Go library by its own clock.
            compat = log.compat.get(f"{self.broker.group}/{ledger.place.topic}/{ledger.place.partition}")
            now_s = int(BEGAN_S + self.timeline.now_s)
            if any(compat_claimed(compat, now_s + skew_s) for skew_s in (-10, 0, 10)):
                return False
        if row is None:
            return True
        return not is_reserved(row) and not is_live(row, int(self.broker.clock_s(log)), self.broker.stale_after_s)

    def _audit_free(self, ledger: Ledger, now_s: float, paused: bool) -> None:
        """A free partition is claimed within its bound, if somebody can."""
        if paused or not self._is_free(ledger):
            ledger.free_since_s = None
            return
        if ledger.free_since_s is None:
            ledger.free_since_s = now_s
        since_s = now_s - self.bounds.free_s
        if ledger.free_since_s > since_s:
            return
        able = [node for node in self.nodes.values() if node.can_claim(ledger.place, since_s, now_s)]
        if self.whole_topic and ledger.place.partition:
            key = self.ledgers[Place(ledger.place.topic, 0)]
            able = [node for node in able if node.name == key.owner and key.owner_since_s <= since_s]
        if able:
            free_s = now_s - ledger.free_since_s
            raise self.trace.fail(FREE, ledger.place, f"free for {free_s:.1f} s, and {able[0].name} does not claim it")

    def _audit_balance(self, now_s: float) -> None:
        """When nobody came or went and nothing was wrong for long enough, everything is claimed, and evenly."""
        since_s = now_s - self.bounds.settle_s
        alive = [node for node in self.nodes.values() if node.alive and node.error is None]
        if not alive or not all(node.healthy(since_s, now_s) and not node.leaving for node in alive):
            return
        if any(since_s < node.died_s <= now_s for node in self.nodes.values()):
            return
        held = dict.fromkeys((node.name for node in alive), 0)
        for ledger in self.ledgers.values():
            if ledger.owner not in held or self._is_free(ledger):
                raise self.trace.fail(
                    BALANCE, ledger.place, f"nobody of {', '.join(held)} holds it {self.bounds.settle_s:.1f} s after the last change"
                )
            held[ledger.owner] += 1
        if max(held.values()) - min(held.values()) > 1:
            raise self.trace.fail(BALANCE, WHOLE, f"the members hold {held}")

    def _audit_paused(self, now_s: float) -> None:
        """Nobody takes anything while its group is paused, but for an administrator."""
        assert self.pause_since_s is not None
        for ledger in self.ledgers.values():
            node = self.nodes.get(ledger.owner or "")
            if node is None:
                continue
            taken_s = ledger.owner_since_s - self.pause_since_s
            if taken_s > self.bounds.pause_s and node.was_healthy(self.pause_since_s, ledger.owner_since_s):
                raise self.trace.fail(PAUSED, ledger.place, f"{node.name} took it {taken_s:.2f} s after the pause of its group")
            held_s = now_s - self.pause_since_s
            if held_s > self.bounds.pause_s + self.bounds.interval_s and node.healthy(self.pause_since_s, now_s):
                raise self.trace.fail(PAUSED, ledger.place, f"{node.name} still holds it {held_s:.2f} s after the pause of its group")

    def _audit_twins(self, now_s: float) -> None:
        """Of two processes under one client id, one works."""
        since_s = now_s - self.bounds.twins_s
        holders: dict[str, tuple[str, float]] = {}
        for ledger in self.ledgers.values():
            node = self.nodes.get(ledger.owner or "")
            if node is None or ledger.owner_since_s > since_s or not node.healthy(since_s, now_s):
                continue
            other = holders.setdefault(node.client, (node.name, ledger.owner_since_s))
            if other[0] != node.name:
                raise self.trace.fail(TWINS, ledger.place, f"{other[0]} and {node.name} both hold claims as {node.client}")
