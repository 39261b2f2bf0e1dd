"""Members of a balanced group: a claim client that aims for its part of the group's target, and the topic
the group talks on.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from holdfast.core.groups.balancer import Balancer, BalancerSettings
from holdfast.core.kafka.topic_partition import TopicPartition
from tests.simulation.broker import Broker
from tests.simulation.node import Node
from tests.simulation.timeline import BEGAN_S
from tests.simulation.trace import WHOLE

LOOK_S, LOOK_INTERVALS = 0.1, 0.05
"""Interval of looks at the owned partitions: a little longer where heartbeats are rare, to allow many
schedules.
"""


class Talk:
    """The partition of `holdfast.groups` on which the group lives."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.records = broker, list[tuple[bytes, int]]()
        self.readers: list[Callable[[], None]] = []

    def append(self, value: bytes) -> None:
        self.records.append((value, int((BEGAN_S + self.broker.timeline.now_s) * 1000)))
        for told in self.readers:
            told()


class BalancedNode(Node):
    """A process of a balanced group."""

    def __init__(self, talk: Talk, *args: Any, **more: Any) -> None:
        self.talk, self._talk_cursor, self._talk_pending = talk, 0, False
        super().__init__(*args, **more)
        settings = self.settings
        self.balancer = Balancer(
            BalancerSettings(
                group_id=settings.group_id,
                client_id=settings.client_id,
                member_id=f"{settings.client_id}-{settings.instance_id}",
                topics=settings.topics,
                session_s=float(max(settings.stale_after_s, 2)),
            ),
            draws=Random(self.draws.random()),
        )
        self._look_s = max(LOOK_S, LOOK_INTERVALS * settings.heartbeat_interval_s)
        self._said_s = 0.0
        self._aimed: frozenset[tuple[str, int]] = frozenset()
        talk.readers.append(self._on_talk)
        self.timeline.after(self.broker.delay_s() * 4, self._join)

    def die(self) -> None:
        super().die()
        self.talk.readers.remove(self._on_talk)

    def terminate(self, release: bool) -> None:
        if not self.put_off(self.terminate, release) and self.member is not None and not self.leaving:
            self._say(self.balancer.leave(self.mono_s()))
            super().terminate(release)

    def grow(self, topic: str, count: int) -> None:
        super().grow(topic, count)
        if self.alive and self.paused_until_s <= self.timeline.now_s:
            self._say(self.balancer.counts(self.counts, self.mono_s()))

    def _join(self) -> None:
        if self.put_off(self._join) or self._cut(self._join):
            return
        self._hear(self.talk.records)
        self._say(self.balancer.counts(self.counts, self.mono_s()))
        self._say(self.balancer.caught_up(self.mono_s()))
        self._balance()

    def _cut(self, act: Callable[[], None]) -> bool:
        if self.deaf_until_s > self.timeline.now_s:
            self.timeline.at(self.deaf_until_s + self.broker.delay_s(), act)
            return True
        return False

    def _on_talk(self) -> None:
        if not self._talk_pending:
            self._talk_pending = True
            self.timeline.after(self.broker.delay_s(), self._read_talk)

    def _read_talk(self) -> None:
        if self.put_off(self._read_talk) or self._cut(self._read_talk):
            return
        self._talk_pending = False
        self._hear(self.talk.records)
        self._aim()

    def _hear(self, records: list[tuple[bytes, int]]) -> None:
        while self._talk_cursor < len(records):
            value, at_ms = records[self._talk_cursor]
            self._talk_cursor += 1
            self._say(self.balancer.observe(self._talk_cursor - 1, value, at_ms, self.mono_s()))

    def _say(self, values: list[bytes]) -> None:
        for value in values:
            self._said_s = (
                max(self._said_s, self.wire.blocked_until_s, self.timeline.now_s) + self.broker.delay_s()
            )
            if self._said_s - self.timeline.now_s < self.balancer.settings.session_s:
                self.timeline.at(self._said_s, self.talk.append, value)

    def _aim(self) -> None:
        member = self.member
        if member is None or self.leaving or not self.alive:
            return
        if self.balancer.failure is not None and self.error is None:
            self.trace.note(WHOLE, self.name, f"leaves: {self.balancer.failure}")
            self.error = self.balancer.failure
            super().terminate(True)
            return
        aim = self.balancer.aim(self.mono_s())
        if aim != self._aimed:
            self._aimed = aim
            self.trace.note(
                WHOLE, self.name, "aims for", *sorted(f"{topic}/{partition}" for topic, partition in aim)
            )
            self.aim(TopicPartition(*target) for target in aim)

    def _balance(self) -> None:
        """Simulate one round of the thread that runs along with the engine."""
        if self.put_off(self._balance) or self.leaving or self.error is not None:
            return
        now_s, member = self.mono_s(), self.member
        if member is not None:
            self._say(self.balancer.owned(member.claims.keys(), now_s))
            if now_s >= self.balancer.wake_at_s():
                self._say(self.balancer.tick(now_s))
            self._aim()
        self.timeline.after(self._look_s * (0.5 + self.draws.random() * 0.5), self._balance)
