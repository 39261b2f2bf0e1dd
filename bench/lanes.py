"""Lanes: 32 members on 4 partitions beside 4 members with a partition each, 5 ms of work a message, and keys
in order all the while.

    python -P -m bench.lanes [--seconds 12] [--lanes 8] [--processes 4]

Work is a sleep, so what is measured is how much of it goes on at once. Rates are taken over a window in which
every member works; order is checked over all that was handled: the numbers of each key ascend by one in the
order in which they were handled, across members.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from bench.claim_consumer import Place
from bench.run import ROOT, load_average
from holdfast.clients.claims.consumer import ClaimConsumer
from holdfast.config import Settings
from holdfast.dev.broker.cluster import Cluster
from holdfast.errors import ClaimLostError, TerminatedError

PARTITIONS, KEYS, WORK_S, WANTED = 4, 4_000, 0.005, 7.0
DEADLINE_S = 60.0
QUIET = {"heartbeat_interval_s": 6.0, "follow_wait_ms": 200, "poll_s": 0.1}
"""Members that hold one claim for long need not hear of the others within milliseconds."""

Handled = tuple[float, int, int, str, int]
"""When (monotonic seconds), key, number of the key's message, member, lane (-1 without)."""


def fill(bootstrap: str, topic: str, records: int, draws: random.Random) -> None:
    """Write messages of random keys; the value is the key's own count."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "partitioner": "murmur2_random"})
    numbers = [0] * KEYS
    for _ in range(records):
        key = draws.randrange(KEYS)
        while True:
            try:
                producer.produce(topic, b"%d" % numbers[key], b"customer-%d" % key)
                break
            except BufferError:
                producer.poll(0.1)
        numbers[key] += 1
    assert producer.flush(60) == 0


# -- a process with some members


async def work(told: dict[str, Any]) -> list[Handled]:
    handled: list[Handled] = []

    async def one(consumer: ClaimConsumer) -> None:
        async for message in consumer:
            await asyncio.sleep(WORK_S)
            lane = -1 if message.lane is None else message.lane
            key = int((message.key or b"").partition(b"-")[2])
            handled.append(
                (
                    time.monotonic(),
                    key,
                    int(message.value or b""),
                    consumer.client,
                    message.partition << 16 | lane & 0xFFFF,
                )
            )
            with suppress(ClaimLostError, TerminatedError):  # the end came between
                message.commit()

    settings = Settings(
        kafka={"bootstrap.servers": told["bootstrap"]}, coordination_topic=told["coordination"]
    )
    async with AsyncExitStack() as stack:
        members = [
            ClaimConsumer(settings, topics=[told["topic"]], group=told["group"], client=name, **told["named"])
            for name in told["members"]
        ]
        await asyncio.gather(*(stack.enter_async_context(member) for member in members))
        tasks = [asyncio.create_task(one(member)) for member in members]
        until_s = time.monotonic() + DEADLINE_S
        while len({each[3] for each in handled}) < len(members):
            for task in tasks:
                if task.done():
                    task.result()
            told_of = [(member.client, dict(member.claims), member.recent_events[-5:]) for member in members]
            assert time.monotonic() < until_s, f"only {sorted({each[3] for each in handled})} work: {told_of}"
            await asyncio.sleep(0.05)
        print("works", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        await asyncio.gather(*(member.terminate(release=True) for member in members))
        await asyncio.gather(*tasks)
    return handled


# -- measuring


def measure(
    place: Place, members: int, lanes: int, processes: int, seconds: float, records: int, scratch: Path
) -> tuple[float, list[Handled]]:
    """Return the messages handled in a second while all members work, and all that was handled."""
    topic, coordination = place.topic("lanes", PARTITIONS), place.coordination()
    fill(place.bootstrap, topic, records, random.Random(11))
    group = uuid.uuid4().hex[:8]
    named = {"maximum_claims": 1, "lanes": lanes, "release_if_behind": False, **QUIET}
    shares = [[f"member-{at}" for at in range(members)][at::processes] for at in range(processes)]
    outs = [scratch / f"{group}-{at}.json" for at in range(processes)]
    children = []
    for share, out in zip(shares, outs, strict=True):
        told = {
            "bootstrap": place.bootstrap,
            "coordination": coordination,
            "topic": topic,
            "group": group,
            "named": named,
            "members": share,
        }
        children.append(
            subprocess.Popen(
                [sys.executable, "-P", "-m", "bench.lanes", "--work", json.dumps({**told, "out": str(out)})],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "works\n", "a process failed"
        started_s = time.monotonic()
        time.sleep(seconds)
        ended_s = time.monotonic()
        for child in children:
            child.communicate("\n", timeout=DEADLINE_S)
            assert child.returncode == 0
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait(10)
    handled: list[Handled] = sorted(tuple(each) for out in outs for each in json.loads(out.read_text()))
    assert len(handled) < records, "the backlog ran out: fill more"
    return sum(started_s <= each[0] < ended_s for each in handled) / (ended_s - started_s), handled


def inversions(handled: Sequence[Handled]) -> tuple[int, int]:
    """Return how often a key's message was handled out of order, and how many were handled again."""
    last: Counter[int] = Counter()
    wrong = again = 0
    for _, key, number, _, _ in handled:
        if number == last[key]:
            last[key] += 1
        elif number < last[key]:
            again += 1
        else:
            wrong += 1
            last[key] = number + 1
    return wrong, again


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        told = json.loads(given.work)
        Path(told["out"]).write_text(json.dumps(asyncio.run(work(told))))
        return
    assert inversions([(0.0, 1, 1, "", 0)]) == (1, 0), "the check of order sees nothing"
    print(
        f"lanes: {PARTITIONS} partitions, {WORK_S * 1e3:g} ms a message, heartbeats of"
        f" {QUIET['heartbeat_interval_s']:g} s; load {load_average()}"
    )
    with tempfile.TemporaryDirectory() as scratch, Cluster(Path(scratch) / "broker") as cluster:
        place, out = Place(cluster.bootstrap), Path(scratch)
        one, plain = measure(
            place, PARTITIONS, 0, PARTITIONS, given.seconds, int(1_000 * (given.seconds + 10)), out
        )
        members = PARTITIONS * given.lanes
        many, laned = measure(place, members, given.lanes, given.processes, given.seconds, given.records, out)
    for name, count, rate, handled in (
        ("a partition each", PARTITIONS, one, plain),
        (f"{given.lanes} lanes a partition", members, many, laned),
    ):
        wrong, again = inversions(handled)
        print(
            f"  {count} members, {name}: {rate:,.0f}/s; {len(handled):,} handled, {wrong} out of order,"
            f" {again} again"
        )
        assert not wrong, "keys out of order"
    ratio = many / one
    print(
        f"  {ratio:.2f} x (wanted {WANTED:g}): {'reached' if ratio >= WANTED else 'MISSED'}; load"
        f" {load_average()}"
    )


if __name__ == "__main__":
    main()
