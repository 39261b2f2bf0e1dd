"""A coordination topic and members on it, in simulated time: every frame takes *delay_s* to be appended
and *delay_s* to be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from random import Random
from typing import Any

from holdfast.core.claims.claim_rows import Claim, GuardedRow
from holdfast.core.claims.frames import (
    ClaimingMessages,
    ClaimingPartition,
    Frame,
    Heartbeat,
    ReleaseGroup,
    ReleasingPartition,
    coordination_partition,
    decode,
    encode,
)
from holdfast.core.claims.guarded import fold_guarded
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member.actions import (
    Action,
    CommitOffset,
    Deliver,
    DeliveryToken,
    Event,
    Fail,
    FetchOffsets,
    Identify,
    Notify,
    ReleaseReason,
    Send,
    Start,
    Stop,
)
from holdfast.core.member.claim.stages import work_of
from holdfast.core.member.member import Member
from holdfast.core.member.settings import Delivery, MemberSettings

ORDERS = TopicPartition("orders", 0)
BEGAN_S = 1_700_000_000.0
"""The broker's clock when simulated time is 0."""


@dataclass(slots=True, kw_only=True)
class Node:
    """One process: a member, where it has read to, and all its actions."""

    member: Member
    skew_s: float = 0.0
    alive: bool = True
    deaf: bool = False
    mute: bool = False
    blind: bool = False
    cursors: dict[int, int] = field(default_factory=dict)
    done: list[tuple[float, Action]] = field(default_factory=list)
    started: dict[TopicPartition, Start] = field(default_factory=dict)
    batches: list[Deliver] = field(default_factory=list)
    kafka: dict[TopicPartition, int] = field(default_factory=dict)

    def all(self, kind: type[Any]) -> list[Any]:
        return [action for _, action in self.done if isinstance(action, kind)]

    def frames(self, kind: type[Any] | None = None) -> list[Any]:
        return [action.frame for action in self.all(Send) if kind is None or isinstance(action.frame, kind)]

    def events(self, event: Event) -> list[Notify]:
        return [told for told in self.all(Notify) if told.event is event]

    @property
    def error(self) -> Exception | None:
        failures = self.all(Fail)
        return failures[0].error if failures else None

    @property
    def held(self) -> set[tuple[str, int]]:
        return {tuple(place) for place in self.started}  # type: ignore[misc]


class World:
    """The log, the nodes, the clock."""

    def __init__(
        self,
        topics: dict[str, int] | None = None,
        *,
        logs: int = 1,
        delay_s: float = 0.002,
        interval_s: float = 60.0,
    ) -> None:
        self.topics = {"orders": 1} if topics is None else topics
        self.logs, self.delay_s, self.interval_s = logs, delay_s, interval_s
        self.now_s = 0.0
        self.log: dict[int, list[tuple[float, Frame]]] = {log: [] for log in range(logs)}
        self.rows: dict[int, dict[str, GuardedRow]] = {log: {} for log in range(logs)}
        self.nodes: list[Node] = []
        self.marks: dict[TopicPartition, tuple[int, int]] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.topic_marks: dict[str, int] = {}
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0

    # -- the log

    def append(self, frame: Frame, log: int | None = None) -> None:
        """Append *frame* now, by default at the time of the broker's clock."""
        assert decode(encode(frame)) == frame
        if log is None:
            assert not isinstance(frame, ReleaseGroup)
            log = coordination_partition(frame.topic, self.logs)
        self.log[log].append((self.now_s, frame))
        fold_guarded(self.rows[log], frame, self.at_ms(self.now_s), int(2 * self.interval_s))  # type: ignore[arg-type]

    @staticmethod
    def at_ms(now_s: float) -> int:
        return int((BEGAN_S + now_s) * 1000)

    def row(self, topic: str, partition: int, group: str = "g") -> Claim | None:
        return self.rows[coordination_partition(topic, self.logs)].get(f"{group}/{topic}/{partition}")  # type: ignore[return-value]

    def owner(self, topic: str, partition: int) -> str | None:
        row = self.row(topic, partition)
        return None if row is None or row.heartbeat_at_s is None else row.client_id

    # frames of a client that is not simulated

    def _ids(self, client: str) -> tuple[int, str, str, str]:
        return int(BEGAN_S + self.now_s), "reset-1" if client == "admin" else f"{client}-i", client, "g"

    def heartbeat(self, client: str, topic: str, partition: int, offset: int) -> None:
        self.append(Heartbeat(*self._ids(client), topic, partition, offset))

    def claiming(self, client: str, topic: str, partition: int) -> None:
        self.append(ClaimingPartition(*self._ids(client), topic, partition))

    def releasing(self, client: str, topic: str, partition: int, offset: int) -> None:
        self.append(ReleasingPartition(*self._ids(client), topic, partition, offset))

    def pause(self, for_s: float) -> None:
        for log in range(self.logs):
            self.append(ReleaseGroup(*self._ids("admin"), int(BEGAN_S + self.now_s + for_s)), log)

    # -- nodes

    def add(
        self,
        client: str = "a",
        instance: str | None = None,
        *,
        skew_s: float = 0.0,
        seed: int = 1,
        **settings: Any,
    ) -> Node:
        """Start a process: it knows the topics, reads all logs to their end, and continues from there."""
        settings.setdefault("topics", tuple(self.topics))
        settings.setdefault("heartbeat_interval_s", self.interval_s)
        chosen = MemberSettings(
            group_id="g", client_id=client, instance_id=instance or f"{client}{len(self.nodes)}", **settings
        )
        member = Member(
            chosen,
            coordination_partitions=self.logs,
            draws=Random(seed),
            now_s=self.now_s,
            unix_s=BEGAN_S + self.now_s + skew_s,
        )
        node = Node(member=member, skew_s=skew_s)
        self.nodes.append(node)
        for topic, count in self.topics.items():
            self.do(node, member.partitions(topic, count, self.now_s))
        for log in sorted(member.coordination):
            self._read(node, log)
            self.do(node, member.caught_up(log, self.now_s))
        return node

    def do(self, node: Node, actions: Iterable[Action]) -> None:
        """Carry out what a member asks for."""
        for action in actions:
            node.done.append((self.now_s, action))
            match action:
                case Send():
                    self.later(self.delay_s, self._arrival(node, action))
                case FetchOffsets():
                    self.later(
                        self.delay_s, partial(self.look, node, TopicPartition(action.topic, action.partition))
                    )
                case Start():
                    node.started[TopicPartition(action.topic, action.partition)] = action
                case Stop():
                    place = TopicPartition(action.topic, action.partition)
                    del node.started[place]
                    if node.member.settings.delivery is Delivery.AT_MOST_ONCE:
                        claim = node.member._claims.get(place)
                        work = None if claim is None else work_of(claim.stage)
                        left = None if work is None else work.handed
                        self.do(node, node.member.messages.kept_back(*place, left, self.now_s) or [])
                case Identify():
                    self.later(self.delay_s, partial(self._identify, node, action, self.now_s))
                case Deliver():
                    node.batches.append(action)
                case CommitOffset():
                    node.kafka[TopicPartition(action.topic, action.partition)] = action.offset
                case Notify() | Fail():
                    pass

    def _arrival(self, node: Node, send: Send) -> Callable[[], None]:
        def arrive() -> None:
            if node.mute:
                if node.alive:
                    self.do(node, node.member.sent(send.send_id, False, self.now_s))
                return
            self.append(send.frame, send.coordination_partition)
            if node.alive:
                self.do(node, node.member.sent(send.send_id, True, self.now_s))

        return arrive

    def look(self, node: Node, place: TopicPartition) -> None:
        """Give a node the watermarks of *place*."""
        if node.alive and not node.blind:
            earliest, latest = self.marks.get(place, (0, 0))
            committed = self.committed.get(place)
            mark = self.topic_marks.get(place.topic)
            self.do(node, node.member.watermarks(*place, earliest, latest, committed, self.now_s, mark))

    def _identify(self, node: Node, asked: Identify, asked_s: float) -> None:
        if node.alive and not node.blind:
            mark = self.topic_marks.get(asked.topic)
            self.do(node, node.member.identity(asked.topic, asked.partition, mark, asked_s, self.now_s))

    def _read(self, node: Node, log: int, until_s: float = inf) -> None:
        records = self.log[log]
        at = node.cursors.get(log, 0)
        while at < len(records) and records[at][0] + self.delay_s <= until_s:
            appended_s, frame = records[at]
            self.do(node, node.member.observe(frame, log, at, self.at_ms(appended_s), self.now_s))
            at += 1
        node.cursors[log] = at

    def later(self, wait_s: float, act: Callable[[], None]) -> None:
        self._order += 1
        self._later.append((self.now_s + wait_s, self._order, act))

    # -- time

    def _next_s(self) -> float:
        times = [at_s for at_s, _, _ in self._later]
        for node in self.nodes:
            if node.alive:
                times.append(node.member.wake_at_s())
                if not node.deaf:
                    for log in node.member.coordination:
                        at = node.cursors.get(log, 0)
                        if at < len(self.log[log]):
                            times.append(self.log[log][at][0] + self.delay_s)
        return max(min(times, default=inf), self.now_s)

    def run(self, for_s: float) -> None:
        """Let *for_s* seconds pass."""
        end_s = self.now_s + for_s
        while (next_s := self._next_s()) <= end_s:
            self.now_s = next_s
            due = sorted(each for each in self._later if each[0] <= self.now_s)
            self._later = [each for each in self._later if each[0] > self.now_s]
            for _, _, act in due:
                act()
            for node in self.nodes:
                if node.alive:
                    if not node.deaf:
                        for log in sorted(node.member.coordination):
                            self._read(node, log, self.now_s)
                    if node.member.wake_at_s() <= self.now_s:
                        self.do(node, node.member.clock(BEGAN_S + self.now_s + node.skew_s, self.now_s))
                        self.do(node, node.member.tick(self.now_s))
        self.now_s = end_s

    # -- what users do

    def deliver(self, node: Node, topic: str, partition: int, offsets: Iterable[int]) -> list[DeliveryToken]:
        """Hand messages out, and return their tokens."""
        start = node.started[TopicPartition(topic, partition)]
        taken = list(offsets)
        self.do(node, node.member.messages.delivered(topic, partition, taken, self.now_s))
        return [DeliveryToken(topic, partition, offset, start.epoch) for offset in taken]

    def commit(self, node: Node, *tokens: DeliveryToken) -> None:
        for token in tokens:
            self.do(node, node.member.messages.commit(token, self.now_s))

    def kill(self, node: Node) -> None:
        node.alive = False


__all__ = ["BEGAN_S", "ClaimingMessages", "Delivery", "Node", "World"]


def held_by(world: World, *nodes: Node) -> list[set[int]]:
    """Return the partitions each node consumes."""
    return [{partition for _, partition in node.held} for node in nodes]


def working(**settings: object) -> tuple[World, Node]:
    """Return a world of one partition of 1,000 messages, and its owner."""
    world = World()
    world.marks[ORDERS] = (0, 1000)
    node = world.add(**settings)  # type: ignore[arg-type]
    world.run(5)
    assert node.held
    return world, node


def reasons(node: Node) -> list[ReleaseReason | None]:
    """Return why the node gave claims back."""
    return [told.reason for told in node.events(Event.RELEASING)]


def row_offset(world: World) -> int | None:
    """Return the offset that the log shows for ORDERS."""
    row = world.row("orders", 0)
    return None if row is None else row.current_offset
