"""Administrators that pause and reset the group, die at any step, and members that free what a dead reset
holds.
"""

from __future__ import annotations

from enum import StrEnum
from random import Random

from holdfast.core.claims.claim_keys import RESET_INSTANCE, ClaimKey
from holdfast.core.claims.claim_rows import Claim
from holdfast.core.claims.frames import (
    UNMARKED,
    ClaimingPartition,
    Frame,
    Heartbeat,
    ReleaseGroup,
    coordination_partition,
)
from holdfast.core.claims.resets import (
    Decision,
    Decisions,
    ResetAbort,
    ResetCommit,
    final_mark,
    final_offset,
    held_by_reset,
    release,
)
from holdfast.core.claims.staleness import is_live, is_reserved
from holdfast.core.kafka.topic_partition import TopicPartition
from tests.simulation.broker import Broker
from tests.simulation.checks import Checks
from tests.simulation.node import Node
from tests.simulation.timeline import BEGAN_S
from tests.simulation.trace import WHOLE, Trace
from tests.simulation.units import data_place

LOOK_INTERVALS = 0.1
RENEW_INTERVALS = 0.25
SETTLE_LOW_INTERVALS, SETTLE_HIGH_INTERVALS = 0.1, 0.5


class Step(StrEnum):
    """Progress of a reset."""

    PAUSING = "pausing"
    WAITING = "waiting"
    CLAIMING = "claiming"
    DECIDING = "deciding"
    MOVING = "moving"
    OVER = "over"


class Administrator:
    """One reset of the whole group, or with *targets* None a mere pause.

    Dies when it reaches *dies_at*, half through it.
    """

    def __init__(
        self,
        broker: Broker,
        checks: Checks,
        trace: Trace,
        decisions: Decisions,
        draws: Random,
        *,
        reset_id: str,
        interval_s: float,
        deadline_s: float,
        moves: bool,
        dies_at: Step | None,
    ) -> None:
        self.broker, self.checks, self.trace, self.decisions, self.draws = (
            broker,
            checks,
            trace,
            decisions,
            draws,
        )
        self.reset_id, self.name = reset_id, RESET_INSTANCE + reset_id
        self.interval_s, self.deadline_s, self.moves, self.dies_at = interval_s, deadline_s, moves, dies_at
        self.timeline = broker.timeline
        self.until_s = self.timeline.now_s + deadline_s
        self.places = list(checks.ledgers)
        self.logs = sorted({self._log(place) for place in self.places})
        self.new: dict[TopicPartition, int] = {}
        self.marks: dict[str, int] = {}
        self.renewed_s = 0.0
        self.step = Step.PAUSING
        self._last_s: dict[int, float] = {}
        self._enter(Step.PAUSING)

    # -- frames

    def _send(self, frame: Frame, log: int) -> None:
        at_s = max(self.timeline.now_s + self.broker.delay_s(), self._last_s.get(log, 0.0))
        self._last_s[log] = at_s
        self.timeline.at(at_s, self._arrive, frame, log)
        if self.draws.random() < self.broker.weather.repeat:
            self.timeline.at(
                at_s + self.draws.random() * self.broker.weather.repeat_within_s, self._arrive, frame, log
            )

    def _arrive(self, frame: Frame, log: int) -> None:
        down_until_s = self.broker.logs[log].down_until_s
        if down_until_s > self.timeline.now_s:
            self.timeline.at(down_until_s, self._arrive, frame, log)
        else:
            self.broker.append(log, frame)

    def _now(self) -> int:
        return int(BEGAN_S + self.timeline.now_s)

    def _log(self, place: TopicPartition) -> int:
        return coordination_partition(place.topic, len(self.broker.logs))

    def _row(self, place: TopicPartition) -> Claim | None:
        return self.broker.row(self._log(place), place)

    def _mine(self, row: Claim | None) -> bool:
        return row is not None and row.heartbeat_at_s is not None and row.instance_id == self.name

    def _key(self, place: TopicPartition) -> ClaimKey:
        return ClaimKey(self.broker.group, place.topic, place.partition)

    # -- the steps

    def _enter(self, step: Step) -> None:
        self.step = step
        self.trace.note(WHOLE, self.name, f"is {step.value}")
        if step is not Step.OVER:
            self.timeline.after(self.broker.delay_s(), self._go_on)

    def _dies(self, step: Step) -> bool:
        """Return whether it is dead by now: at its step, with even odds at each frame or look."""
        if self.dies_at is step and self.draws.random() < 0.5:
            self.trace.note(WHOLE, self.name, f"dies while {step.value}")
            self.step = Step.OVER
            self.dies_at = None
        return self.step is Step.OVER

    def _go_on(self) -> None:
        step = self.step
        if self._dies(step):
            return
        if step in (Step.WAITING, Step.CLAIMING) and self.timeline.now_s > self.until_s:
            self._give_up()
            return
        getattr(self, f"_do_{step.value}")()

    def _do_pausing(self) -> None:
        lasts_s = self.deadline_s + 2 * self.interval_s
        until_s = self._now() + int(lasts_s) + 1
        for log in self.logs:
            if self._dies(Step.PAUSING):
                return
            self._send(ReleaseGroup(self._now(), self.name, "admin", self.broker.group, until_s), log)
        if self.moves:
            self._enter(Step.WAITING)
        else:
            early = self.draws.random() < 0.7
            self._enter(Step.OVER)
            if early:
                self.timeline.after(self.draws.random() * lasts_s, self._resume)

    def _live(self, place: TopicPartition) -> bool:
        row = self._row(place)
        log = self.broker.logs[self._log(place)]
        return row is not None and (
            is_reserved(row) or is_live(row, int(self.broker.clock_s(log)), self.broker.stale_after_s)
        )

    def _again(self) -> None:
        self.timeline.after(LOOK_INTERVALS * self.interval_s, self._go_on)

    def _do_waiting(self) -> None:
        if any(self._live(place) for place in self.places):
            self._again()
        else:
            self._enter(Step.CLAIMING)

    def _do_claiming(self) -> None:
        others = [place for place in self.places if not self._mine(self._row(place))]
        if not others:
            self._renew()
            self._enter(Step.DECIDING)
            return
        self._renew()
        for place in others:
            if self._dies(Step.CLAIMING):
                return
            if not self._live(place):
                self._send(
                    ClaimingPartition(self._now(), self.name, "admin", *self._key(place)), self._log(place)
                )
        self._again()

    def _old(self, place: TopicPartition) -> int:
        row = self._row(place)
        return 0 if row is None or row.current_offset is None else row.current_offset

    def _renew(self) -> None:
        if self.timeline.now_s - self.renewed_s < RENEW_INTERVALS * self.interval_s and self.renewed_s:
            return
        self.renewed_s = self.timeline.now_s
        for place in self.places:
            row = self._row(place)
            if row is not None and self._mine(row):
                self._send(
                    Heartbeat(
                        self._now(),
                        self.name,
                        "admin",
                        *self._key(place),
                        self._old(place),
                        (row.topic_mark or UNMARKED),
                    ),
                    self._log(place),
                )

    def _do_deciding(self) -> None:
        offsets: dict[str, list[tuple[int, int, int]]] = {}
        for place in self.places:
            self.marks[data_place(place).topic] = self.broker.mark(place)
            latest = self.broker.latest.get(data_place(place), 0)
            self.new[place] = self.draws.choice((0, self.draws.randint(0, latest), latest))
            offsets.setdefault(place.topic, []).append((place.partition, self._old(place), self.new[place]))
        moves = {topic: tuple(each) for topic, each in offsets.items()}
        commit = ResetCommit(
            reset_id=self.reset_id,
            group=self.broker.group,
            client="admin",
            at_s=self._now(),
            offsets=moves,
            topic_marks=self.marks,
        )
        self.timeline.after(self.broker.delay_s() * 2, self._decided, commit)

    def _decided(self, commit: ResetCommit) -> None:
        self.decisions.add(commit)
        if self._dies(Step.DECIDING):
            return
        if self.decisions[self.reset_id] is not commit:
            self._give_up()
            return
        self._enter(Step.MOVING)

    def _do_moving(self) -> None:
        mine = [place for place in self.places if self._mine(self._row(place))]
        for place in mine:
            if self._dies(Step.MOVING):
                return
            row = self._row(place)
            assert row is not None
            self._send(
                release(
                    self._key(place),
                    row,
                    self.new[place],
                    self._now(),
                    self.marks.get(data_place(place).topic),
                ),
                self._log(place),
            )
        if mine:
            self._again()
        else:
            self._resume()
            self._enter(Step.OVER)

    def _give_up(self) -> None:
        for place in self.places:
            row = self._row(place)
            if row is not None and self._mine(row):
                self._send(
                    release(self._key(place), row, self._old(place), self._now(), row.topic_mark),
                    self._log(place),
                )
        self._resume()
        self._enter(Step.OVER)

    def _resume(self) -> None:
        for log in self.logs:
            self._send(ReleaseGroup(self._now(), self.name, "admin", self.broker.group, 0), log)


class Settler:
    """A member's part in resets: the claims of an administrator that fell silent are released as its decision
    says, the first one in the log.
    """

    def __init__(self, node: Node, decisions: Decisions, interval_s: float) -> None:
        self.node, self.decisions, self.interval_s = node, decisions, interval_s
        self._wait()

    def _wait(self) -> None:
        wait_s = self.node.draws.uniform(SETTLE_LOW_INTERVALS, SETTLE_HIGH_INTERVALS) * self.interval_s
        self.node.timeline.after(wait_s, self._look)

    def _look(self) -> None:
        node = self.node
        if node.put_off(self._look) or node.member is None or node.leaving:
            return
        now_s = int(node.wall_s())
        stale_s = node.settings.stale_after_s
        held = {
            key: row
            for key, row in node.member.reserved().items()
            if now_s - (row.heartbeat_at_s or 0) >= stale_s
        }
        if held:
            node.timeline.after(node.broker.delay_s() * 4, self._settle, held)
        self._wait()

    def _settle(self, held: dict[ClaimKey, Claim]) -> None:
        node = self.node
        if node.put_off(self._settle, held):
            return
        for key, row in sorted(held.items()):
            reset_id = held_by_reset(row)
            assert reset_id is not None
            if self.decisions[reset_id] is None:
                self.decisions.add(
                    ResetAbort(
                        reset_id=reset_id, group=key.group_id, client=node.client, at_s=1, reason="silent"
                    )
                )
            decision: Decision | None = self.decisions[reset_id]
            assert decision is not None
            offset = final_offset(decision, key, row)
            mark = None if offset is None else final_mark(decision, key, row)
            frame = release(key, row, 0 if offset is None else offset, int(node.wall_s()), mark)
            node.wire.send(frame, coordination_partition(key.topic, len(node.broker.logs)), -1)
