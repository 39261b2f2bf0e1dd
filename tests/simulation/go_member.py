"""A member that runs the original Go library, as its source says, faults included. docs/PROTOCOL.md,
"Where holdfast departs from upstream", lists them.

It reads the log by its own wall clock and in the compat view. It knows no lease: it hands out until it
notices a loss, and it notices by its own claims' health only. Its own repeated deliveries are not counted as
faults; those of our members in the same group are.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import cast

from holdfast.core.claims.compat import CompatClaim, fold_compat
from holdfast.core.claims.frames import (
    ClaimingPartition,
    Frame,
    Heartbeat,
    ReleasingPartition,
    coordination_partition,
)
from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member.claim.velocity import ClaimVerdict, Health, Sample
from tests.simulation.broker import Broker, Committed
from tests.simulation.checks import Checks
from tests.simulation.process import Process
from tests.simulation.trace import WHOLE, Trace
from tests.support.go_claims import partition_claim

LOOP_S = 3.0
INTERVAL_S = 60.0
JITTER_LOW_S, JITTER_HIGH_S = 15, 44


class GoClaim:
    """One claim of a Go member."""

    def __init__(self, place: TopicPartition, offset: int, now_s: float) -> None:
        self.place, self.current, self.position = place, offset, offset
        self.open_offsets: list[int] = []
        self.health = Health()
        self.last_heartbeat_s = self.last_message_s = now_s


class GoMember(Process):
    """One process of the original library with one consumer: partition mode, greedy off, fast reclaim on."""

    def __init__(
        self,
        broker: Broker,
        checks: Checks,
        trace: Trace,
        client: str,
        name: str,
        draws: Random,
        topics: dict[str, int],
        *,
        skew_s: float,
    ) -> None:
        super().__init__(broker, checks, trace, client, name, draws, rate=1.0, skew_s=skew_s)
        self.counts = dict(topics)
        self.view: dict[str, CompatClaim] = {}
        self.claims: dict[TopicPartition, GoClaim] = {}
        self.released_s: dict[TopicPartition, float] = {}
        self.waiting: TopicPartition | None = None
        self.ready: set[int] = set()
        trace.note(WHOLE, name, f"starts as {client}, of the Go library")
        for index in range(len(broker.logs)):
            self.follow(index)
        self.timeline.after(5.0 * draws.random(), self._work)

    # -- the log

    def observe(self, index: int, offset: int, records: list[tuple[Frame, int]]) -> None:
        wall_ms = int(self.wall_s() * 1000)
        for frame, _ in records:
            fold_compat(cast("Rows[CompatClaim]", self.view), frame, wall_ms)
            if isinstance(frame, ClaimingPartition) and self.waiting == TopicPartition(
                frame.topic, frame.partition
            ):
                self._race_ended(self.waiting)

    def caught_up(self, index: int) -> None:
        self.ready.add(index)
        if len(self.ready) == len(self.broker.logs):
            for topic, count in self.counts.items():
                for partition in range(count):
                    place = TopicPartition(topic, partition)
                    if self._owns(
                        place
                    ):  # fast reclaim: no claim is sent, the set-up heartbeat rewrites the instance
                        self._set_up(place)
            self._manage()

    def sent(self, send_id: int, ok: bool) -> None:
        """The library takes no notice."""

    def _state(self, place: TopicPartition) -> CompatClaim:
        return partition_claim(
            self.view.get(f"{self.broker.group}/{place.topic}/{place.partition}"), int(self.wall_s())
        )

    def _owns(self, place: TopicPartition) -> bool:
        state = self._state(place)
        return state.last_heartbeat_s > 0 and state.client_id == self.client

    def _send(self, frame: Frame, place: TopicPartition) -> None:
        self.trace.note(place, self.name, "sends", type(frame).__name__)
        self.wire.send(frame, coordination_partition(place.topic, len(self.broker.logs)), 0)

    def _ids(self, place: TopicPartition) -> tuple[int, str, str, str, str, int]:
        return int(self.wall_s()), self.name, self.client, self.broker.group, *place

    # -- claiming

    def _manage(self) -> None:
        if self.put_off(self._manage) or self.leaving:
            return
        places = [
            TopicPartition(topic, partition)
            for topic, count in self.counts.items()
            for partition in range(count)
        ]
        if self.waiting is None:
            begin = self.draws.randrange(len(places))
            for place in places[begin:] + places[:begin]:
                cooled = self.wall_s() - self.released_s.get(place, -inf) >= INTERVAL_S
                if place not in self.claims and self._state(place).last_heartbeat_s == 0 and cooled:
                    self.waiting = place
                    self._send(ClaimingPartition(*self._ids(place)), place)
                    break
        self.timeline.after(self.draws.random() * LOOP_S, self._manage)

    def _race_ended(self, place: TopicPartition) -> None:
        self.waiting = None
        if self._owns(place) and not self.leaving:
            self._set_up(place)

    def _set_up(self, place: TopicPartition) -> None:
        current = self._state(place).current_offset
        kept = self.broker.committed.get(place)
        committed = 0 if kept is None else kept.offset
        offset = current if current > 0 else max(0, committed)
        claim = self.claims[place] = GoClaim(place, offset, self.mono_s())
        self.trace.note(place, self.name, "starts at", offset)
        self._heartbeat(claim)
        self.timeline.after(self.draws.randint(JITTER_LOW_S, JITTER_HIGH_S), self._check, claim)

    # -- keeping

    def _heartbeat(self, claim: GoClaim) -> None:
        claim.last_heartbeat_s = self.mono_s()  # also when it fails (D14)
        if self._owns(claim.place):
            self.broker.committed[claim.place] = Committed(claim.current, None)
            self._send(Heartbeat(*self._ids(claim.place), claim.current), claim.place)

    def _check(self, claim: GoClaim) -> None:
        if self.put_off(self._check, claim) or self.claims.get(claim.place) is not claim:
            return
        latest = self.broker.latest.get(claim.place, 0)
        claim.health.note(claim.current, latest)
        sample = Sample(
            terminated=False,
            heartbeat_age_s=self.mono_s() - claim.last_heartbeat_s,
            group_paused=False,
            idle_s=self.mono_s() - claim.last_message_s,
            release_if_behind=True,
            whole_topic=False,
            current=claim.current,
            latest=latest,
        )
        if (
            claim.health.check(sample, expired_after_s=INTERVAL_S, idle_after_s=INTERVAL_S)
            is ClaimVerdict.KEEP
        ):
            self._heartbeat(claim)
            self.timeline.after(self.draws.randint(JITTER_LOW_S, JITTER_HIGH_S), self._check, claim)
        else:
            self._release(claim)

    def _release(self, claim: GoClaim) -> None:
        del self.claims[claim.place]
        self.released_s[claim.place] = self.wall_s()
        if self._owns(claim.place):
            self._send(ReleasingPartition(*self._ids(claim.place), claim.current), claim.place)

    # -- the user

    def _work(self) -> None:
        if self.put_off(self._work):
            return
        for claim in self.claims.values():
            if claim.open_offsets:
                done, claim.open_offsets = claim.open_offsets, []
                self.checks.on_go_done(claim.place, done)
                claim.current = done[-1] + 1
            end = min(self.broker.latest.get(claim.place, 0), claim.position + self.draws.randint(1, 8))
            if end > claim.position and self.deaf_until_s <= self.timeline.now_s:
                claim.open_offsets = list(range(claim.position, end))
                claim.position = end
                claim.last_message_s = self.mono_s()
                self.trace.note(claim.place, self.name, "hands out to", end - 1)
        self.timeline.after(5.0 + 10.0 * self.draws.random(), self._work)

    def terminate(self, release: bool) -> None:
        if self.put_off(self.terminate, release) or self.leaving:
            return
        self.leaving = True
        self.trace.note(WHOLE, self.name, "ends")
        for claim in list(self.claims.values()):
            if release:
                self._release(claim)
            else:
                self._heartbeat(claim)
        self.timeline.after(1.0, self.die)

    def grow(self, topic: str, count: int) -> None:
        self.counts[topic] = max(self.counts.get(topic, 0), count)
