"""A ground for claim consumers on a real broker: topics of their own, members in this process or as
processes, and the log to judge them by.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from holdfast.clients.claims.consumer import ClaimConsumer, ClaimedMessage
from holdfast.clock import SystemClock
from holdfast.config import Settings
from holdfast.core.claims.claim_rows import Claim, GuardedRow
from holdfast.core.claims.frames import Frame, ReleaseGroup, coordination_partition, decode, encode
from holdfast.core.claims.guarded import fold_guarded
from holdfast.core.claims.staleness import is_live
from holdfast.dev import parent_death
from tests.support.patience import DEADLINE_S, SCENARIO_S
from tests.support.places import ROOT

PATIENT_S = 20.0
"""Between heartbeats where no claim may lapse, however slow the machine is."""
LAPSE_S = 3.0
"""Of a stall of this process after which claims with the ground's heartbeat may be others', and rightly."""
PATIENCE: dict[str, Any] = {
    "start_timeout_s": DEADLINE_S,
    "request_timeout_s": 60.0,
    "flush_timeout_s": DEADLINE_S,
}
"""Deadlines of a consumer that are not what a test is about; a request that is not answered is asked again.
"""
POLL_S = 0.01
LOG_APPEND = {"message.timestamp.type": "LogAppendTime"}

T = TypeVar("T")


def scenario(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test to its end, or to SCENARIO_S."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), SCENARIO_S))

    return run


async def until(what: str, condition: Callable[[], T | None], within_s: float = DEADLINE_S) -> T:
    """Return the first true value of *condition*."""
    deadline_s = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(POLL_S)
    return found


@dataclass(frozen=True, slots=True)
class Written:
    """One record of the coordination topic as it lies there."""

    partition: int
    offset: int
    at_ms: int
    key: bytes | None
    value: bytes
    headers: list[Any]

    @property
    def frame(self) -> Frame:
        return decode(self.value)


class Ground:
    """Topics of one test: *topic* with *partitions*, and a coordination topic."""

    def __init__(
        self,
        config: Mapping[str, Any],
        create: Callable[..., str],
        *,
        partitions: int = 1,
        coordination: int = 1,
    ) -> None:
        self.config, self.partitions = {name: str(value) for name, value in config.items()}, partitions
        self.topic = create("orders", partitions=partitions)
        self.coordination = create("marshal", partitions=coordination, config=LOG_APPEND)
        self.coordination_partitions = coordination
        self.group = f"billing-{uuid.uuid4().hex[:6]}"
        self.settings = Settings(kafka=self.config, coordination_topic=self.coordination)
        self.producer = Producer({**self.config, "linger.ms": 0})
        self._reader: Consumer | None = None
        self._written: list[Written] = []
        self._read = dict.fromkeys(range(coordination), 0)

    # -- members

    def consumer(self, client: str, **named: Any) -> ClaimConsumer:
        """Return a consumer of the ground's topic, not yet started; a heartbeat of 3 s by default."""
        topics = named.pop("topics", [self.topic])
        named = {"heartbeat_interval_s": 3.0, **PATIENCE, **named}
        return ClaimConsumer(
            self.settings, topics=topics, group=named.pop("group", self.group), client=client, **named
        )

    def process(self, client: str, **named: Any) -> Child:
        """Start a consumer in a process of its own."""
        return Child(self, client, {"heartbeat_interval_s": 3.0, **PATIENCE, **named})

    # -- messages

    def fill(
        self, count: int, *, partition: int | None = None, start: int = 0, topic: str | None = None
    ) -> None:
        """Write messages whose values are their numbers, to every partition unless one is given."""
        for number in range(start, start + count):
            for at in range(self.partitions) if partition is None else (partition,):
                self.producer.produce(topic or self.topic, value=str(number).encode(), partition=at)
        assert self.producer.flush(DEADLINE_S) == 0

    def write(self, frame: Frame, topic: str | None = None) -> None:
        """Append a frame to the coordination partition of *topic*."""
        partition = coordination_partition(topic or self.topic, self.coordination_partitions)
        self.producer.produce(self.coordination, value=encode(frame), partition=partition)
        assert self.producer.flush(DEADLINE_S) == 0

    def pause(self, for_s: float) -> None:
        """Pause the group, as an administrator does."""
        now_s = int(time.time())
        self.write(ReleaseGroup(now_s, "admin001", "admin", self.group, now_s + int(for_s)))

    # -- the log

    def written(self) -> list[Written]:
        """Return the coordination topic, partition by partition."""
        if self._reader is None:
            quick = {
                "fetch.wait.max.ms": 10,
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "group.id": "nobody",
            }
            self._reader = Consumer({**self.config, **quick})
            self._reader.assign(
                [
                    TopicPartition(self.coordination, at, OFFSET_BEGINNING)
                    for at in range(self.coordination_partitions)
                ]
            )
        ends = {
            at: self._reader.get_watermark_offsets(TopicPartition(self.coordination, at), DEADLINE_S)[1]
            for at in self._read
        }
        deadline_s = time.monotonic() + DEADLINE_S
        while any(self._read[at] < end for at, end in ends.items()):
            assert time.monotonic() < deadline_s
            message = self._reader.poll(0.1)
            if message is not None and message.error() is None:
                self._written.append(_written(message))
                self._read[self._written[-1].partition] = self._written[-1].offset + 1
        return sorted(self._written, key=lambda each: (each.partition, each.offset))

    def close(self) -> None:
        """Let go of the broker."""
        if self._reader is not None:
            self._reader.close()

    def frames(self, kind: type[T]) -> list[T]:
        """Return the frames of one type, oldest first."""
        return [frame for each in self.written() if isinstance(frame := each.frame, kind)]

    def rows(self, *, heartbeat_interval_s: float = 3.0) -> dict[str, GuardedRow]:
        """Return the guarded view of the whole log."""
        rows: dict[str, GuardedRow] = {}
        for each in self.written():
            fold_guarded(rows, each.frame, each.at_ms, int(2 * heartbeat_interval_s))  # type: ignore[arg-type]
        return rows


def _written(message: Message) -> Written:
    headers: Any = message.headers() or []
    return Written(
        message.partition() or 0,
        message.offset() or 0,
        message.timestamp()[1],
        message.key(),
        message.value() or b"",
        list(headers),
    )


class Ownership:
    """The owners of each claim over time, by the guarded view of the log: the judge of every delivery."""

    def __init__(self, log: list[Written], *, stale_after_s: int) -> None:
        self._log, self._stale_after_s = log, stale_after_s

    def owner(self, key: str, at_ms: int) -> str | None:
        """Return the instance that held the claim *key* at *at_ms* of the log's time."""
        rows: dict[str, GuardedRow] = {}
        for each in self._log:
            if each.at_ms <= at_ms:
                fold_guarded(rows, each.frame, each.at_ms, self._stale_after_s)  # type: ignore[arg-type]
        row = rows.get(key)
        return (
            row.instance_id
            if isinstance(row, Claim) and is_live(row, at_ms // 1000, self._stale_after_s)
            else None
        )


async def take(
    consumer: ClaimConsumer, count: int, within_s: float = DEADLINE_S, *, commit: bool = True
) -> list[ClaimedMessage]:
    """Return the next *count* messages, committed by default."""
    out = []
    async with asyncio.timeout(within_s):
        async for message in consumer:
            out.append(message)
            if commit:
                message.commit()
            if len(out) == count:
                break
    return out


async def drain(
    consumer: ClaimConsumer, out: list[tuple[float, ClaimedMessage]], pause_s: float = 0.0
) -> None:
    """Take and commit until cancelled or ended, noting when each message came."""
    async for message in consumer:
        out.append((time.monotonic(), message))
        message.commit()
        if pause_s:
            await asyncio.sleep(pause_s)


class Child:
    """A consumer in a process of its own that reports each message as soon as it has it; it dies with the
    test.
    """

    def __init__(self, ground: Ground, client: str, named: Mapping[str, Any]) -> None:
        told = {"settings": ground.config, "coordination": ground.coordination, "topic": ground.topic}
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                parent_death.__file__,
                str(os.getpid()),
                sys.executable,
                "-P",
                "-m",
                "tests.clients.claims.process",
            ],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "CLAIM_PROCESS": json.dumps(
                    {**told, "client": client, "named": {"group": ground.group, **named}}
                ),
            },
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.told: list[dict[str, Any]] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.told.append(json.loads(line))

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Return the printed messages: at_s (monotonic), gate_s (when its gate was asked), partition,
        offset.
        """
        return [each for each in list(self.told) if each["kind"] == "message"]

    def said(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in list(self.told) if each["kind"] == kind]

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def stopped(self) -> bool:
        """Return whether the process is stopped by SIGSTOP."""
        return Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> float:
        """End it by SIGKILL and return when, once it is gone and all its output is read."""
        at_s = time.monotonic()
        self._process.kill()
        self.wait()
        return at_s

    def wait(self, within_s: float = DEADLINE_S) -> int:
        """Return how it ended, once all its output is read."""
        code = self._process.wait(within_s)
        self._reading.join(within_s)
        return code

    def close(self) -> None:
        if self.running:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
        self.wait()


class GateClock(SystemClock):
    """Notes when each thread asked last: right after a message was handed out, that is when its gate was
    asked.

    A busy machine may stop a process between the gate and a note of its own, for longer than a lease's
    margin. The note is of before the reading that decides: who was stopped between the two has read a later
    time.
    """

    def __init__(self) -> None:
        self._asked_at_ms: dict[int, int] = {}
        self._asked_s: dict[int, float] = {}

    def monotonic_s(self) -> float:
        asking = threading.get_ident()
        self._asked_at_ms[asking], self._asked_s[asking] = self.now_ms(), super().monotonic_s()
        return super().monotonic_s()

    def asked_at_ms(self) -> int:
        return self._asked_at_ms[threading.get_ident()]

    def asked_s(self) -> float:
        return self._asked_s[threading.get_ident()]


async def flow(ground: Ground, every_s: float) -> AsyncIterator[None]:
    """Write messages, one to every partition each time, until closed."""
    number = 0
    while True:
        ground.fill(1, start=number)
        number += 1
        yield
        await asyncio.sleep(every_s)
