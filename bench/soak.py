"""Claims under load for an hour: members at 3 s heartbeats on steady traffic, and every change of owner that
was no release counted.

    python -P -m bench.soak [--minutes 60] [--members 4] [--rate 1000]

Members are processes of their own. Beside them the coordination topic is folded: a claim taken from an owner
that had not released it is a takeover, and while nobody was killed a false one. Each member tells which
offsets it was handed: none twice, none never. At the end a member is killed, to see that its takeovers are
counted. Something else must make the load.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, cast

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.claim_consumer import BEAT_S, Place, claiming
from bench.processes import cpu_s
from bench.run import ROOT, load_average
from holdfast.core.claims.claim_keys import parse_claim_key
from holdfast.core.claims.claim_rows import Claim, GuardedRow
from holdfast.core.claims.frames import Heartbeat, decode
from holdfast.core.claims.guarded import fold_guarded
from holdfast.core.engine.state.rows import Rows
from holdfast.dev.broker.cluster import Cluster

PARTITIONS = 12
STALE_S = int(2 * BEAT_S)
REPORT_S = 10.0
SLICE_S = 0.05
BURST_S = 0.25
CALM: dict[str, Any] = {"follow_wait_ms": 200, "poll_s": 0.2}
"""So that members cost little: they are to suffer from others' load, not to make it."""


# -- a member


class Handed:
    """Which offsets of which partition were handed out, as ranges, and how many of them twice."""

    def __init__(self) -> None:
        self.ranges: dict[int, list[list[int]]] = {}
        self.messages = self.twice = 0

    def add(self, partition: int, begin: int, end: int) -> None:
        """Add the offsets from *begin* to before *end*."""
        found = self.ranges.setdefault(partition, [])
        self.messages += end - begin
        if found and found[-1][1] == begin:
            found[-1][1] = end
            return
        self.twice += sum(max(0, min(end, last) - max(begin, first)) for first, last in found)
        found.append([begin, end])


class Stalls(threading.Thread):
    """The longest time this process was late for a tick of 50 ms: what the machine did to it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest_s = 0.0
        self.start()

    def run(self) -> None:
        before_s = time.monotonic()
        while True:
            time.sleep(SLICE_S)
            now_s = time.monotonic()
            self.longest_s = max(self.longest_s, now_s - before_s - SLICE_S)
            before_s = now_s


async def member(bootstrap: str, coordination: str, topic: str, group: str, client: str) -> None:
    """Consume until a line, or the end, of stdin; print what was handed out."""
    loop, stop, handed, stalls, events = (
        asyncio.get_running_loop(),
        asyncio.Event(),
        Handed(),
        Stalls(),
        Counter[str](),
    )

    def read() -> None:
        sys.stdin.readline()
        loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=read, daemon=True).start()
    consumer = claiming(bootstrap, coordination, topic, group, client, greedy=True, maximum_claims=4, **CALM)

    async def work() -> None:
        async for message in consumer:
            handed.add(message.partition, message.offset, message.offset + 1)
            message.commit()

    async def hear() -> None:
        async for event in consumer.events():
            events[event.event.value + (f" ({event.reason.value})" if event.reason else "")] += 1

    def tell() -> None:
        told = {
            "events": dict(events),
            "stall_s": stalls.longest_s,
            "ranges": handed.ranges,
            "twice": handed.twice,
        }
        print(json.dumps(told), flush=True)

    async with consumer:
        tasks = [asyncio.create_task(work()), asyncio.create_task(hear())]
        waiting = asyncio.create_task(stop.wait())
        while not waiting.done():
            await asyncio.wait([waiting, tasks[0]], timeout=REPORT_S, return_when=asyncio.FIRST_COMPLETED)
            tell()
            if tasks[0].done():
                break
    await asyncio.gather(*tasks)  # they end with the consumer, or raise what it failed of
    tell()


class Child:
    """A member as its parent sees it: the last line it printed."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-P", "-m", "bench.soak", "--member", *arguments]
        self.client = arguments[-1]
        self.told: dict[str, Any] = {}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.told = json.loads(line)

    def stop(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def wait(self) -> int:
        code = self.process.wait(30)
        self._reading.join(10)
        return code


# -- what is watched


class Watch:
    """The coordination topic as a stranger folds it: who took what from whom, and how old a heartbeat
    grew.
    """

    def __init__(self, bootstrap: str, coordination: str) -> None:
        self._reader = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "soak", "enable.auto.commit": False}
        )
        self._reader.assign([TopicPartition(coordination, at, 0) for at in range(4)])
        self.rows: dict[str, GuardedRow] = {}
        self._beats_ms: dict[str, int] = {}
        self.takeovers: list[str] = []
        self.releases = self.heartbeats = 0
        self.longest_s = 0.0

    def read(self, timeout_s: float) -> None:
        """Fold what came within *timeout_s*."""
        for message in self._reader.consume(10_000, timeout_s):
            value = message.value()
            if message.error() is not None or value is None:
                continue
            self._fold(value, message.timestamp()[1])

    def _fold(self, value: bytes, at_ms: int) -> None:
        before, frame = dict(self.rows), decode(value)
        fold_guarded(cast(Rows[GuardedRow], self.rows), frame, at_ms, STALE_S)
        for key, row in self.rows.items():
            last = before.get(key)
            if row is last or not isinstance(row, Claim) or row.client_id != frame.client_id:
                continue  # untouched, or told off
            beat_ms = self._beats_ms.get(key)
            if isinstance(frame, Heartbeat):
                self.heartbeats += 1
            if beat_ms is not None:
                self.longest_s = max(self.longest_s, (at_ms - beat_ms) / 1000)
            if row.heartbeat_at_s is None:
                self.releases += 1
                self._beats_ms.pop(key, None)
            else:
                self._beats_ms[key] = at_ms
            if isinstance(last, Claim) and row.epoch > last.epoch and last.heartbeat_at_s is not None:
                age_s = (at_ms - (beat_ms or 0)) / 1000
                place = parse_claim_key(key)
                self.takeovers.append(
                    f"{place.partition}: {last.client_id} -> {row.client_id} after {age_s:.1f} s at {at_ms}"
                )

    def close(self) -> None:
        self._reader.close()


def write(bootstrap: str, topic: str, rate: int, stop: threading.Event) -> None:
    """Produce *rate* messages of 100 B a second, in slices."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "compression.type": "lz4"})
    sent, started_s = 0, time.monotonic()
    while not stop.wait(BURST_S):
        for _ in range(int((time.monotonic() - started_s) * rate) - sent):
            producer.produce(topic, b"%-100d" % sent, partition=sent % PARTITIONS)
            sent += 1
        producer.poll(0)
    assert producer.flush(30) == 0


def count(bootstrap: str, topic: str, children: list[Child]) -> tuple[int, int, int]:
    """Return how many messages there are, how many of them were handed out more than once, and how many
    not at all.
    """
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "soak"})
    total = twice = lost = 0
    for partition in range(PARTITIONS):
        end = reader.get_watermark_offsets(TopicPartition(topic, partition), 10)[1]
        ranges = sorted(
            (first, last)
            for child in children
            for first, last in child.told.get("ranges", {}).get(str(partition), [])
        )
        at = 0
        for first, last in ranges:
            lost += max(0, first - at)
            twice += max(0, min(at, last) - first)
            at = max(at, last)
        total, lost = total + end, lost + end - at
    reader.close()
    return total, twice, lost


def soak(cluster: Cluster, minutes: float, members: int, rate: int) -> bool:
    """Return whether nothing was taken from a live owner, nothing handed out twice and nothing lost."""
    place = Place(cluster.bootstrap)
    coordination, topic = place.coordination(), place.topic("work", PARTITIONS)
    watch, loads, stop, stalls = (
        Watch(cluster.bootstrap, coordination),
        [os.getloadavg()[0]],
        threading.Event(),
        Stalls(),
    )
    children = [Child(cluster.bootstrap, coordination, topic, "soak", f"m{at}") for at in range(members)]
    brokers = [each.pid for each in cluster.status() if each.pid is not None]
    writing = threading.Thread(target=write, args=(cluster.bootstrap, topic, rate, stop), daemon=True)
    try:
        writing.start()
        spent = {
            "members": [child.process.pid for child in children],
            "broker": brokers,
            "this": [os.getpid()],
        }
        started_s, cores, shares = time.monotonic(), {name: cpu_s(*pids) for name, pids in spent.items()}, ""
        told_s = started_s
        while (now_s := time.monotonic()) < started_s + minutes * 60:
            watch.read(0.5)
            assert all(child.process.poll() is None for child in children), "a member ended"
            if now_s - told_s >= 60:
                loads.append(os.getloadavg()[0])
                used, cores = cores, {name: cpu_s(*pids) for name, pids in spent.items()}
                shares = ", ".join(
                    f"{name} {(cores[name] - used[name]) / (now_s - told_s):.1%}" for name in cores
                )
                told_s = now_s
                print(
                    f"  {(now_s - started_s) / 60:5.1f} min: {len(watch.takeovers)} takeovers, oldest"
                    f" heartbeat {watch.longest_s:.1f} s, {load_average()}, of a core: {shares}",
                    flush=True,
                )
        took_s = time.monotonic() - started_s
        stop.set()
        writing.join(60)
        until_s = time.monotonic() + 60
        while (found := count(cluster.bootstrap, topic, children))[2] and time.monotonic() < until_s:
            watch.read(1.0)
        watch.read(1.0)
        total, twice, lost = found
        events = sum((Counter(child.told["events"]) for child in children), Counter[str]())
        print(
            f"  {took_s / 60:.1f} min, {members} members, {PARTITIONS} partitions, heartbeats of {BEAT_S:g}"
            f" s, load {min(loads):.1f} to {max(loads):.1f}: {len(watch.takeovers)} claims taken from an"
            f" owner that had not released them\n  {total:,} messages, {twice} handed out twice, {lost}"
            f" never; {watch.heartbeats:,} heartbeats, the oldest {watch.longest_s:.2f} s (free at {STALE_S}"
            f" s), {watch.releases} releases\n  longest stall of a process"
            f" {max([stalls.longest_s, *(c.told['stall_s'] for c in children)]):.2f} s; of a core at last:"
            f" {shares}\n  events: {dict(events)}",
            *watch.takeovers,
            sep="\n  ",
            flush=True,
        )
        good = (
            not watch.takeovers
            and not twice
            and not lost
            and not sum(child.told["twice"] for child in children)
        )
        return planted(watch, children) and good
    finally:
        stop.set()
        for child in children:
            child.process.kill()
            child.wait()
        watch.close()


def planted(watch: Watch, children: list[Child]) -> bool:
    """Kill a member that holds something; return whether each of its claims was counted as taken."""
    before = len(watch.takeovers)
    held = Counter(
        row.client_id
        for row in watch.rows.values()
        if isinstance(row, Claim) and row.heartbeat_at_s is not None
    )
    client, claims = held.most_common(1)[0]
    next(child for child in children if child.client == client).process.send_signal(signal.SIGKILL)
    killed_s = time.monotonic()
    while len(watch.takeovers) < before + claims and time.monotonic() < killed_s + 10 * BEAT_S:
        watch.read(0.2)
    taken = len(watch.takeovers) - before
    print(
        f"  then one that held {claims} was killed: {taken} takeovers counted, the last after"
        f" {time.monotonic() - killed_s:.1f} s",
        flush=True,
    )
    for child in children:
        child.stop()
    return taken == claims and all(child.wait() == 0 for child in children if child.client != client)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--member", nargs="+", metavar="ARGUMENT", help="be one of the members")
    given = parser.parse_args()
    if given.member:
        asyncio.run(member(*given.member))
        return
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-soak-") as folder,
        Cluster(Path(folder) / "kafka") as cluster,
    ):
        good = soak(cluster, given.minutes, given.members, given.rate)
    print(f"  {'good' if good else 'NOT good'}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
