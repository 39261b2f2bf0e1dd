"""A log of announcements in simulated time, and members that hold partitions as claims would let them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import cast

from holdfast.core.engine.state.rows import Rows
from holdfast.core.groups.announcements import Announce, Announcement, TopicBlock, encode
from holdfast.core.groups.balancer import Balancer, BalancerSettings
from holdfast.core.groups.codes import GroupCode
from holdfast.core.groups.membership import Group, GroupsRow, NumberedAnnouncement, apply
from holdfast.core.kafka.topic_partition import TopicPartition

STEP_S = 0.05


def announce(
    member: str,
    *,
    topics: Iterable[str] = ("t",),
    counts: Iterable[tuple[str, int]] = (("t", 6),),
    client: str | None = None,
    static: str | None = None,
    pattern: str | None = None,
    owned: tuple[TopicBlock, ...] = (),
    assignors: tuple[str, ...] = ("sticky",),
    session_ms: int = 6_000,
    generation: int = -1,
) -> Announce:
    return Announce(
        "g",
        member,
        client or f"client-{member}",
        static,
        tuple(topics),
        pattern,
        tuple(counts),
        owned,
        generation,
        assignors,
        session_ms,
    )


class Reader:
    """Rows of one reader of the log."""

    def __init__(self) -> None:
        self.rows: dict[str, GroupsRow] = {}

    def read(self, offset: int, said: Announcement, at_ms: int) -> GroupCode:
        return apply(cast("Rows[GroupsRow]", self.rows), NumberedAnnouncement(offset, said), at_ms)

    @property
    def group(self) -> Group:
        return cast(Group, self.rows["g"])

    def target(self) -> dict[str, set[str]]:
        return {
            each.member_id: {f"{topic}-{number}" for topic, numbers in each.target for number in numbers}
            for each in self.group.members
        }


class Log:
    """Appends in order and reads back; time is the caller's."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, int]] = []

    def append(self, value: bytes, at_ms: int) -> None:
        self.records.append((value, at_ms))


class Process:
    """A balancer, where it is in the log, and what it holds."""

    def __init__(self, world: World, name: str, settings: BalancerSettings, start: int) -> None:
        self.world, self.name = world, name
        self.balancer = Balancer(settings, draws=random.Random(name))
        self.at = start
        self.frozen = False

    def step(self) -> None:
        world = self.world
        if self.frozen:
            return
        now_s = world.now_s
        out = self.balancer.counts(world.counts, now_s)
        while (
            self.at < len(world.log.records)
            and world.log.records[self.at][1] <= (now_s - world.latency_s) * 1_000
        ):
            value, at_ms = world.log.records[self.at]
            out += self.balancer.observe(self.at, value, at_ms, now_s)
            self.at += 1
        if self.at >= world.caught_up_at[self.name]:
            out += self.balancer.caught_up(now_s)
        out += self.balancer.tick(now_s)
        if self.balancer.progress is not None and self.balancer.progress.complete:
            aim = self.balancer.aim(now_s)
            for place in [
                place for place, owner in world.holders.items() if owner == self.name and place not in aim
            ]:
                world.released(self.name, place)
            for place in aim:
                if place not in world.holders:
                    world.holders[place] = self.name
            out += self.balancer.owned(
                {place for place, owner in world.holders.items() if owner == self.name}, now_s
            )
        for value in out:
            world.log.append(value, int(now_s * 1_000))


class World:
    """One group over one log."""

    def __init__(self, *, latency_s: float = 0.01, **counts: int) -> None:
        self.log, self.now_s, self.latency_s = Log(), 100.0, latency_s
        self.counts: dict[str, int] = counts
        self.processes: dict[str, Process] = {}
        self.holders: dict[TopicPartition, str] = {}
        self.caught_up_at: dict[str, int] = {}
        self.releases: list[tuple[str, TopicPartition]] = []

    def start(self, name: str, *, lookback: int | None = None, **settings: object) -> Process:
        named = {
            "group_id": "g",
            "client_id": name,
            "member_id": f"{name}-{len(self.log.records)}",
            "topics": ("t",),
            **settings,
        }
        start = 0 if lookback is None else max(0, len(self.log.records) - lookback)
        self.caught_up_at[name] = len(self.log.records)
        self.processes[name] = Process(self, name, BalancerSettings(**named), start)  # type: ignore[arg-type]
        return self.processes[name]

    def leave(self, name: str) -> None:
        process = self.processes.pop(name)
        for value in process.balancer.leave(self.now_s):
            self.log.append(value, int(self.now_s * 1_000))
        self.drop_claims(name)

    def kill(self, name: str) -> None:
        self.processes.pop(name)

    def drop_claims(self, name: str) -> None:
        for place in [place for place, owner in self.holders.items() if owner == name]:
            del self.holders[place]

    def released(self, name: str, place: TopicPartition) -> None:
        self.releases.append((name, place))
        del self.holders[place]

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            for process in list(self.processes.values()):
                process.step()

    def loads(self) -> dict[str, int]:
        return {name: sum(owner == name for owner in self.holders.values()) for name in self.processes}

    def groups(self) -> list[Group | None]:
        return [process.balancer.group for process in self.processes.values()]


def appended(said: Announcement) -> bytes:
    return encode(said)


def reader_of(*said: tuple[int, Announcement]) -> Reader:
    """Return a reader that has read these announcements, each at its time in ms, from offset 0 on."""
    reader = Reader()
    for offset, (at_ms, each) in enumerate(said):
        reader.read(offset, each, at_ms)
    return reader
