"""A simulated fleet of claim members: their own machines (`core.member`, `core.groups`), a log in memory,
simulated time, no broker.

    python -P -m bench.fleet_claims [--only log,others,race,balanced] [--members 10,30,100]

What a member spends on the log is told for three sizes of the log. A race for partitions, ten to a member, is
run for three sizes of the group: until all are held, for two intervals in peace, and from a kill until
another has what was left. It ends by itself: one size takes (members x frames) folds, so a hundred members
are ten seconds of processor time.
"""

from __future__ import annotations

import argparse
import gc
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from math import inf
from random import Random
from typing import Any

from bench.run import load_average
from holdfast.core.claims.frames import Frame, Heartbeat, decode, encode
from holdfast.core.groups.announcements import Announce
from holdfast.core.groups.announcements import encode as encode_announcement
from holdfast.core.groups.assignors.types import NO_GENERATION, AssignorName
from holdfast.core.groups.balancer import Balancer, BalancerSettings
from holdfast.core.groups.membership import summary_of
from holdfast.core.kafka.record_batch import Record, RecordBatch, encode_batch
from holdfast.core.member.actions import Action, FetchOffsets, Send, Start
from holdfast.core.member.member import Member
from holdfast.core.member.settings import MemberSettings
from tests.simulation.timeline import BEGAN_S, Timeline

GROUP, TOPIC = "billing", "orders.placed"
INTERVAL_S, HOLD_S = 3.0, 0.2
"""Heartbeats as `bench.settle` has them, and how long the broker holds frames back for a reader
(`follow_wait_ms`).
"""
EACH, SPARE = 10, 2
"""Partitions for each member, and how many more it may take."""
DELAY_LOW_S, DELAY_HIGH_S = 0.001, 0.005
CLAIMS = (10_000, 30_000, 100_000)


def settings_of(name: str, limit: int = 0) -> MemberSettings:
    return MemberSettings(
        group_id=GROUP,
        client_id=name,
        instance_id=f"{name}.1a2b3c4d",
        topics=(TOPIC,),
        heartbeat_interval_s=INTERVAL_S,
        greedy=True,
        maximum_claims=limit,
    )


# -- one member and the log


def heartbeats(claims: int, group: str, beat: int) -> Iterable[bytes]:
    """Yield the heartbeats of all claims, as ten times fewer members write them."""
    for partition in range(claims):
        name = f"billing-{partition % max(1, claims // EACH):05d}"
        yield encode(
            Heartbeat(
                int(BEGAN_S) + beat, f"{name}.1a2b3c4d", name, group, TOPIC, partition, 1_000_000 + beat
            )
        )


def in_log(value: bytes) -> int:
    """Return what a frame takes in the log, alone in its batch: members seldom send two at once."""
    return len(encode_batch(RecordBatch(records=(Record(value=value),))))


def read_log(claims: int, group: str = GROUP) -> None:
    """Print what a member that holds nothing spends on the claims of others."""
    member = Member(
        settings_of("reader"), coordination_partitions=1, draws=Random(1), now_s=0.0, unix_s=BEGAN_S
    )
    member.partitions(TOPIC, claims, 0.0)
    rounds = [list(heartbeats(claims, group, beat)) for beat in range(2)]
    size = sum(map(in_log, rounds[0])) / claims
    gc.collect()
    tracemalloc.start()
    offset = observe(member, rounds[0], 0)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    member.caught_up(0, 1.0)
    began_s = time.process_time()
    offset = observe(member, rounds[1], offset)
    took_s = time.process_time() - began_s
    print(
        f"  {claims:>7,} claims {'of the own group' if group == GROUP else 'of other groups'}:"
        f" {took_s / claims * 1e6:.1f} us a frame, {held / claims:,.0f} B of memory a claim, {size:.0f} B of"
        " log a frame",
        flush=True,
    )


def observe(member: Member, values: list[bytes], offset: int) -> int:
    for value in values:
        member.observe(decode(value), 0, offset, int(BEGAN_S * 1000) + offset // 100, 1.0)
        offset += 1
    return offset


# -- a race


class Fleet:
    """The log, and who holds what by the members' own word."""

    def __init__(self, members: int) -> None:
        self.timeline, self.draws = Timeline(), Random(members)
        self.partitions = members * EACH
        self.records: list[tuple[Frame, int]] = []
        self.kinds: Counter[str] = Counter()
        self.owners: dict[int, str] = {}
        self.started_s: dict[int, float] = {}
        self.members = [FleetMember(self, f"billing-{at:05d}") for at in range(members)]

    def delay_s(self) -> float:
        return self.draws.uniform(DELAY_LOW_S, DELAY_HIGH_S)

    def append(self, frame: Frame) -> None:
        self.records.append((frame, int((BEGAN_S + self.timeline.now_s) * 1000)))
        self.kinds[type(frame).__name__] += 1

    def until(self, places: Iterable[int], since_s: float, limit_s: float) -> float:
        """Let time pass until all of *places* were started after *since_s*; return when the last was."""
        wanted = set(places)
        while missing := [each for each in wanted if self.started_s.get(each, -inf) <= since_s]:
            assert self.timeline.now_s < limit_s, f"{len(missing)} partitions are held by nobody"
            self.timeline.run(self.timeline.now_s + 0.25)
        return max(self.started_s[each] for each in wanted)


class FleetMember:
    """One member, its shell, and how it reads the log: what has come, at regular times."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.fleet, self.name, self.alive = fleet, name, True
        self._at, self._tick_at_s = 0, inf
        self._member = Member(
            settings_of(name, EACH + SPARE),
            coordination_partitions=1,
            draws=Random(fleet.draws.random()),
            now_s=0.0,
            unix_s=BEGAN_S,
        )
        self._do(self._member.partitions(TOPIC, fleet.partitions, 0.0))
        fleet.timeline.after(fleet.draws.random() * HOLD_S, self._begin)

    def _begin(self) -> None:
        self._read(self._member.caught_up(0, self.fleet.timeline.now_s))

    def _read(self, first: list[Action] | None = None) -> None:
        if not self.alive:
            return
        now_s, records = self.fleet.timeline.now_s, self.fleet.records
        for at in range(self._at, len(records)):
            frame, at_ms = records[at]
            if actions := self._member.observe(frame, 0, at, at_ms, now_s):
                self._do(actions)
        self._at = len(records)
        self._do(first or [])
        self._plan()
        self.fleet.timeline.after(HOLD_S, self._read)

    def _plan(self) -> None:
        wake_s = self._member.wake_at_s()
        if wake_s < self._tick_at_s:
            self._tick_at_s = wake_s
            self.fleet.timeline.at(wake_s, self._tick, wake_s)

    def _tick(self, at_s: float) -> None:
        if at_s != self._tick_at_s or not self.alive:
            return
        self._tick_at_s = inf
        self._do(self._member.tick(self.fleet.timeline.now_s))
        self._plan()

    def _do(self, actions: list[Action]) -> None:
        fleet = self.fleet
        for action in actions:
            if isinstance(action, Send):
                fleet.timeline.after(fleet.delay_s(), fleet.append, action.frame)
                fleet.timeline.after(2 * fleet.delay_s(), self._sent, action.send_id)
            elif isinstance(action, FetchOffsets):
                fleet.timeline.after(2 * fleet.delay_s(), self._looked, action.topic, action.partition)
            elif isinstance(action, Start):
                fleet.owners[action.partition] = self.name
                fleet.started_s[action.partition] = fleet.timeline.now_s

    def _sent(self, send_id: int) -> None:
        if self.alive:
            self._do(self._member.sent(send_id, True, self.fleet.timeline.now_s))

    def _looked(self, topic: str, partition: int) -> None:
        if self.alive:
            self._do(self._member.watermarks(topic, partition, 0, 0, None, self.fleet.timeline.now_s))
            self._plan()


def race(members: int) -> None:
    """Print how a group of *members* settles, what it says in peace, and how a killed one is replaced."""
    used_s = time.process_time()
    fleet = Fleet(members)
    everything = range(fleet.partitions)
    settled_s = fleet.until(everything, 0.0, 60 * INTERVAL_S)
    until_settled = Counter(fleet.kinds)
    rest_s = settled_s + INTERVAL_S
    fleet.timeline.run(rest_s)
    before = sum(fleet.kinds.values())
    fleet.timeline.run(rest_s + 2 * INTERVAL_S)
    in_peace = (sum(fleet.kinds.values()) - before) / fleet.partitions / 2
    killed = max(fleet.members, key=lambda each: sum(each.name == name for name in fleet.owners.values()))
    left = [partition for partition, name in fleet.owners.items() if name == killed.name]
    killed.alive, killed_s = False, fleet.timeline.now_s
    taken_s = fleet.until(left, killed_s, killed_s + 20 * INTERVAL_S) - killed_s
    asked = sum(until_settled.values()) / fleet.partitions
    print(
        f"  {members:>4} members, {fleet.partitions:>6,} partitions: settled after {settled_s:.1f} s with"
        f" {asked:.1f} frames a partition {dict(until_settled)}; {in_peace:.2f} frames a partition and"
        f" interval in peace; {len(left)} claims of a killed one are taken over after {taken_s:.1f} s;"
        f" {time.process_time() - used_s:.0f} s of processor",
        flush=True,
    )


# -- a balanced group


def balanced(members: int) -> None:
    """Print what one member of a balanced group spends while *members* join, and how large the group's
    summary is.
    """
    partitions = members * EACH
    balancer = Balancer(
        BalancerSettings(group_id=GROUP, client_id="reader", member_id="reader", topics=(TOPIC,)),
        draws=Random(1),
    )
    joined = [
        encode_announcement(
            Announce(
                group_id=GROUP,
                member_id=f"billing-{at:05d}.1a2b3c4d",
                client_id=f"billing-{at:05d}",
                static_id=None,
                topics=(TOPIC,),
                pattern=None,
                counts=((TOPIC, partitions),),
                owned=(),
                generation=NO_GENERATION,
                assignors=(AssignorName.COOPERATIVE_STICKY,),
                session_ms=6_000,
            )
        )
        for at in range(members)
    ]
    began_s = time.process_time()
    for offset, value in enumerate(joined):
        last_s = time.process_time()
        balancer.observe(offset, value, int(BEGAN_S * 1000) + offset, 1.0)
    ended_s = time.process_time()
    summary = summary_of(balancer.rows, GROUP)
    assert summary is not None
    size = len(encode_announcement(summary))
    print(
        f"  {members:>4} members, {partitions:>6,} partitions: the last one's join"
        f" {1e3 * (ended_s - last_s):.0f} ms, all joins {ended_s - began_s:.1f} s of processor in each"
        f" member; summary {size:,} B, {size / members:.0f} B a member",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="log,others,race,balanced")
    parser.add_argument("--members", default="10,30,100")
    given = parser.parse_args()
    sizes = [int(each) for each in given.members.split(",")]
    parts: dict[str, list[Any]] = {
        "log": [(read_log, (claims,)) for claims in CLAIMS],
        "others": [(read_log, (claims, "shipping")) for claims in CLAIMS],
        "race": [(race, (members,)) for members in sizes],
        "balanced": [(balanced, (members,)) for members in sizes],
    }
    for name in given.only.split(","):
        print(f"{name}; {load_average()}", flush=True)
        for part, arguments in parts[name]:
            part(*arguments)


if __name__ == "__main__":
    main()
