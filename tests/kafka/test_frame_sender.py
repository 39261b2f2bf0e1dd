"""Frames go to the broker in order, one request a partition at a time; what waits for a slow broker costs
nothing.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.clients.claims.logs.claim_log import CoordinationLog
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.types import CreateTopic, TopicRole, TopicSpec
from holdfast.config import Settings
from holdfast.dev.broker.cluster import Cluster
from holdfast.kafka.frame_sender import GATHER_S, Ack, FrameSender
from tests.clients.claims.claiming import LOG_APPEND
from tests.support.patience import DEADLINE_S


class Wire:
    """A producer that keeps frames until the test gives their results."""

    def __init__(self) -> None:
        self.taken: list[tuple[bytes, int]] = []
        self.asked: list[Any] = []
        self.due: list[tuple[Any, Any]] = []

    def produce(self, topic: str, *, value: bytes, partition: int, on_delivery: Any, **same: Any) -> None:
        self.taken.append((value, partition))
        self.asked.append(on_delivery)

    def poll(self, timeout_s: float) -> int:
        due, self.due = self.due, []
        for told, error in due:
            told(error, None)
        return len(due)

    def answer(self, count: int) -> None:
        self.due += [(told, None) for told in self.asked[:count]]
        del self.asked[:count]


class Hands:
    """A clock moved by hand, and a sender with it."""

    def __init__(self) -> None:
        self.now_s, self.wire, self.acks = 0.0, Wire(), list[Ack]()
        writer: Any = self.wire
        self.bursts = FrameSender(
            writer, "marshal", self.acks.append, unsent_s=3.0, monotonic_s=lambda: self.now_s
        )
        self.sent = 0

    def send(self, count: int, *, apart_s: float, partition: int = 0) -> None:
        for _ in range(count):
            self.bursts.send(self.sent, b"%d" % self.sent, partition)
            self.sent += 1
            self.now_s += apart_s


def test_what_comes_together_goes_together_and_the_rest_of_its_partition_waits_for_the_answer() -> None:
    hands = Hands()
    hands.send(50, apart_s=0.0)
    assert len(hands.wire.taken) == 50, "one request"
    hands.now_s += GATHER_S
    hands.send(20, apart_s=GATHER_S)
    assert len(hands.wire.taken) == 50
    hands.wire.answer(49)
    hands.bursts.go_on()
    assert len(hands.wire.taken) == 50, "not all of it is answered"
    hands.wire.answer(1)
    hands.bursts.go_on()
    assert hands.wire.taken == [(b"%d" % number, 0) for number in range(70)], "the rest goes as one, in order"
    hands.wire.answer(20)
    hands.bursts.go_on()
    assert hands.acks == [Ack(number, None) for number in range(70)]


def test_partitions_do_not_wait_for_each_other() -> None:
    hands = Hands()
    for partition in range(3):
        hands.send(2, apart_s=GATHER_S, partition=partition)
    assert hands.wire.taken == [(b"0", 0), (b"2", 1), (b"4", 2)]


def test_a_frame_that_waited_too_long_is_reported_as_not_sent_and_never_goes() -> None:
    hands = Hands()
    hands.send(4, apart_s=GATHER_S)
    hands.now_s += 4.0
    hands.bursts.go_on()
    assert [ack.send_id for ack in hands.acks if ack.error] == [1, 2, 3]
    assert len(hands.wire.taken) == 1


def test_what_waits_at_the_end_is_sent_or_counted() -> None:
    hands = Hands()
    hands.send(6, apart_s=GATHER_S)
    assert hands.bursts.close(0.0) == 6


# -- on a broker that is frozen


@contextmanager
def frozen(cluster: Cluster) -> Iterator[None]:
    pids = [node.pid for node in cluster.status() if node.pid is not None]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def cpu_s() -> float:
    times = os.times()
    return times.user + times.system


@pytest.mark.kafka
@pytest.mark.slow
def test_a_member_with_much_to_say_to_a_frozen_broker_does_not_spin(tmp_path: Path) -> None:
    """An idempotent producer alone takes a core here. All frames arrive after the thaw, in order."""
    with Cluster(tmp_path / "kafka", short_lived=True) as cluster:
        settings = Settings(kafka={"bootstrap.servers": cluster.bootstrap}, coordination_topic="marshal")
        spec = TopicSpec(
            name="marshal", partitions=1, config=LOG_APPEND, replication_factor=1, role=TopicRole.SOURCE
        )
        Admin(settings).apply([CreateTopic(spec=spec, partitions=1)])
        log = CoordinationLog(settings, send_timeout_s=30.0)
        with closing(log):
            log.open(["orders"], DEADLINE_S)
            acks: list[Ack] = []
            log.send(0, b"0", 0)
            until_s = time.monotonic() + DEADLINE_S
            while not acks:
                assert time.monotonic() < until_s
                acks += log.acks()
                time.sleep(0.01)
            with frozen(cluster):
                for number in range(1, 101):
                    log.send(number, b"%d" % number, 0)
                    time.sleep(0.003)
                before_s, began_s = cpu_s(), time.monotonic()
                while time.monotonic() < began_s + 0.5:
                    acks += log.acks()
                    time.sleep(0.05)
                used = (cpu_s() - before_s) / (time.monotonic() - began_s)
            values: list[bytes | None] = []
            until_s = time.monotonic() + DEADLINE_S
            while len(values) < 101 or len(acks) < 101:
                assert time.monotonic() < until_s, (len(values), len(acks))
                values += [record.value for record in log.poll(0.05)]
                acks += log.acks()
        assert values == [b"%d" % number for number in range(101)]
        assert acks == [Ack(number, None) for number in range(101)]
        assert used < 0.3, f"{used:.0%} of a core while nothing could be sent"
