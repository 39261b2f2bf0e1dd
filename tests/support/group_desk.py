"""A coordination topic of a test's own, members played frame by frame, and an administrator who can be
killed at any write.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.clients.claims.logs.claim_log import CAPABILITY_HEADER
from holdfast.clients.claims.logs.reset_log import ResetLog
from holdfast.clients.groups.admin import GroupAdmin
from holdfast.clients.groups.records import ResetProgress, ResetStep
from holdfast.clients.groups.reset import ClaimReset
from holdfast.clients.groups.view import GroupView
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.claims.claim_keys import ClaimKey
from holdfast.core.claims.claim_rows import Claim
from holdfast.core.claims.frames import (
    ClaimingPartition,
    Frame,
    Heartbeat,
    ReleaseGroup,
    ReleasingPartition,
    coordination_partition,
    encode,
)
from holdfast.core.claims.resets import Decision
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from tests.support.patience import DEADLINE_S

RESET_S = 60.0
"""Two settings: how long a reset waits for members, and so may pause their group; and the longest wait for
one reply of a broker.
"""
PARTITIONS = 4
Tell = Callable[[ResetProgress], None]


class LaterClock:
    """The machine's clock, *ahead_s* later: a reader with it sees the log as if that time had passed."""

    def __init__(self, ahead_s: int) -> None:
        self._ahead_ms = ahead_s * 1000

    def now_ms(self) -> int:
        return system_clock.now_ms() + self._ahead_ms

    def monotonic_s(self) -> float:
        return system_clock.monotonic_s()


class EndingClock:
    """The machine's clock, on which every deadline is over once *over* is set."""

    def __init__(self) -> None:
        self.over = False

    def now_ms(self) -> int:
        return system_clock.now_ms()

    def monotonic_s(self) -> float:
        return system_clock.monotonic_s() + (1e6 if self.over else 0.0)


class Killed(BaseException):
    """Simulates SIGKILL of an administrator: none of its code runs any more, only its records in the log
    remain.
    """


class GroupDesk:
    """Claims of group "shop" and others on a coordination topic of their own."""

    def __init__(
        self,
        broker: SessionBroker,
        fresh_topic: FreshTopic,
        *,
        interval_s: float = 20.0,
        request_timeout_s: float = RESET_S,
    ) -> None:
        self.broker, self._fresh = broker, fresh_topic
        self.coordination = fresh_topic(
            "marshal", partitions=PARTITIONS, config={"message.timestamp.type": "LogAppendTime"}
        )
        self.resets = f"{self.coordination}-resets"
        self.settings = Settings(
            app="desk",
            coordination_topic=self.coordination,
            claim_interval_s=interval_s,
            request_timeout_s=request_timeout_s,
            session_timeout_s=min(10.0, request_timeout_s),
            kafka={"bootstrap.servers": broker.bootstrap},
        )
        self._producer = Producer(broker.client_config(**{"linger.ms": 0}))
        self._open = ExitStack()
        self._looking: GroupView | None = None
        self._member: GroupAdmin | None = None

    def close(self) -> None:
        self._open.close()
        self.broker.delete_topics([self.resets])

    # -- topics and members

    def topic(self, name: str = "orders", *, partitions: int = 2, records: int = 50) -> str:
        """Make a topic with *records* in each partition."""
        topic = self._fresh(name, partitions=partitions)
        for partition in range(partitions):
            for _ in range(records):
                self._producer.produce(topic, value=b"x", partition=partition)
        assert self._producer.flush(DEADLINE_S) == 0
        return topic

    def put(self, *frames: Frame, capable: bool = True) -> None:
        """Append frames as a member does; one that is not *capable* is a Go member, or ours with interop."""
        headers: list[Any] = [CAPABILITY_HEADER] if capable else []
        for frame in frames:
            assert not isinstance(frame, ReleaseGroup), "members pause nobody"
            place = coordination_partition(frame.topic, PARTITIONS)
            self._producer.produce(self.coordination, value=encode(frame), partition=place, headers=headers)
        assert self._producer.flush(DEADLINE_S) == 0

    def hold(
        self,
        member: str,
        topic: str,
        offsets: Mapping[int, int],
        *,
        group: str = "shop",
        capable: bool = True,
    ) -> None:
        """Have *member* (client/instance) claim partitions and report its offsets."""
        client, instance = member.split("/")
        for partition, offset in offsets.items():
            self.put(
                ClaimingPartition(self.now_s, instance, client, group, topic, partition),
                Heartbeat(self.now_s, instance, client, group, topic, partition, offset),
                capable=capable,
            )

    def give_back(self, member: str, topic: str, offsets: Mapping[int, int], *, group: str = "shop") -> None:
        client, instance = member.split("/")
        for partition, offset in offsets.items():
            self.put(ReleasingPartition(self.now_s, instance, client, group, topic, partition, offset))

    def obeying(self, *releases: tuple[str, str, Mapping[int, int]], then: Tell | None = None) -> Tell:
        """Return a `tell` by which the members named obey the pause."""

        def tell(progress: ResetProgress) -> None:
            if progress.step is ResetStep.PAUSED:
                for member, topic, offsets in releases:
                    self.give_back(member, topic, offsets)
            if then is not None:
                then(progress)

        return tell

    @property
    def now_s(self) -> int:
        return system_clock.now_ms() // 1000

    # -- administrators and their records

    def admin(self, *, clock: Clock = system_clock, client: str = "holdfast-admin") -> GroupAdmin:
        return GroupAdmin(self.settings, resets_topic=self.resets, clock=clock, client=client)

    def view(self) -> GroupView:
        return GroupView(self.settings)

    @property
    def next_member(self) -> GroupAdmin:
        """Return an administrator that starts a minute later."""
        if self._member is None:
            self._member = self._open.enter_context(self.admin(clock=LaterClock(60), client="worker-8"))
        return self._member

    def claims(self, group: str = "shop") -> dict[ClaimKey, Claim]:
        if self._looking is None:
            self._looking = self._open.enter_context(self.view())
        self._looking.refresh()
        return self._looking.claims(group)

    def offsets(self, group: str = "shop") -> dict[tuple[str, int], int | None]:
        """Return the current offset of each unowned partition."""
        return {
            (key.topic, key.partition): claim.current_offset
            for key, claim in self.claims(group).items()
            if claim.heartbeat_at_s is None
        }

    def decisions(self) -> list[Decision]:
        found = ResetLog(self.settings, topic=self.resets, timeout_s=DEADLINE_S).decisions()
        return list(found._first.values())


def kill_at(monkeypatch: pytest.MonkeyPatch, write: int) -> list[str]:
    """Kill the administrator after *write* records, frames and decisions alike; returns a list that fills
    with its records.

    Every record of a send counts by itself: the broker may have some of them and not others.
    """
    written: list[str] = []
    send, append = GroupView.send, ResetLog._append

    def note(what: str) -> None:
        written.append(what)
        if len(written) == write:
            raise Killed(what)

    def sending(self: GroupView, frames: Sequence[Frame], to: Iterable[int] | None = None) -> None:
        for frame in frames:
            for place in sorted(to) if to is not None else [None]:
                send(self, [frame], None if place is None else [place])
                note(type(frame).__name__)

    def appending(self: ResetLog, decision: Decision) -> int:
        offset = append(self, decision)
        note(type(decision).__name__)
        return offset

    def dying(self: ClaimReset, error: BaseException) -> None:
        if not isinstance(error, Killed):
            give_up(self, error)

    give_up = ClaimReset._give_up
    monkeypatch.setattr(GroupView, "send", sending)
    monkeypatch.setattr(ResetLog, "_append", appending)
    monkeypatch.setattr(ClaimReset, "_give_up", dying)
    return written


CHILD = """
import os, signal, sys
from holdfast.clients.groups import reset
from holdfast.clients.groups.admin import GroupAdmin
from holdfast.config import Settings
from holdfast.core.claims.resets import Aim, Where
coordination, resets, bootstrap, group, step, interval_s, deadline_s, offset = sys.argv[1:]
reset.LIMIT_FRAMES = 1
settings = Settings(app="desk", coordination_topic=coordination, claim_interval_s=float(interval_s), kafka={"bootstrap.servers": bootstrap})

def tell(progress):
    if progress.step.value == step and (step != "moving" or 0 < progress.done < progress.total):
        os.kill(os.getpid(), signal.SIGKILL)

with GroupAdmin(settings, resets_topic=resets) as admin:
    admin.reset_offsets(admin.plan_reset(group, Aim(Where.OFFSET, int(offset))), deadline_s=float(deadline_s), tell=tell)
"""  # noqa: E501


def killed_administrator(
    coordination: str,
    resets: str,
    bootstrap: str,
    group: str,
    step: ResetStep,
    *,
    interval_s: float = 20.0,
    deadline_s: float = RESET_S,
    offset: int = 0,
) -> list[str]:
    """Return the command of an administrator that resets *group* to *offset* and is killed by the system
    at *step*.
    """
    told = [coordination, resets, bootstrap, group, step.value, str(interval_s), str(deadline_s), str(offset)]
    return [sys.executable, "-P", "-c", CHILD, *told]
