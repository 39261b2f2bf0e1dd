"""A large group: how long 50 members need until each has its part of 1,000 partitions, by the race and
balanced.

    python -P -m bench.settle [--only race,balanced] [--members 50] [--partitions 1000] [--processes 5]

Members share a few processes, since the machine has two cores; each has its own connections and threads. They
heartbeat every 3 s and hear of frames within a fifth of a second, as large fleets should (`follow_wait_ms`):
with one topic, every member reads every frame.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from bench.claim_consumer import BEAT_S, Place, claiming, handovers
from bench.run import ROOT, load_average
from holdfast.core.claims.frames import ClaimingPartition, Heartbeat
from holdfast.core.groups.announcements import GROUPS_TOPIC
from holdfast.dev.broker.cluster import Cluster

WANTED_S, DEADLINE_S = 10.0, 100.0
QUIET: dict[str, Any] = {
    "follow_wait_ms": 200,
    "poll_s": 0.1,
    "request_timeout_s": 60.0,
    "start_timeout_s": 60.0,
}


async def fleet(told: dict[str, Any]) -> None:
    """Be some of the members, until killed: tell when all have started, and when all have their part."""
    logging.disable(logging.WARNING)
    each, named = (
        told["each"],
        {"balanced": True} if told["balanced"] else {"greedy": True, "maximum_claims": told["each"]},
    )
    consumers = [
        claiming(
            told["bootstrap"], told["coordination"], told["topic"], told["group"], name, **QUIET, **named
        )
        for name in told["members"]
    ]
    await asyncio.gather(*(consumer.__aenter__() for consumer in consumers))
    print(json.dumps({"started": time.time()}), flush=True)
    until_s = time.monotonic() + DEADLINE_S
    while not all(consumer.load == each for consumer in consumers):
        assert time.monotonic() < until_s, (
            f"not settled: {Counter(consumer.load for consumer in consumers)} claims held by so many"
        )
        await asyncio.sleep(0.05)
    print(json.dumps({"settled": time.time()}), flush=True)
    await asyncio.sleep(3_600)


def measure(place: Place, members: int, partitions: int, processes: int, *, balanced: bool) -> None:
    coordination, topic, group = place.coordination(), place.topic("fleet", partitions), uuid.uuid4().hex
    told = {
        "bootstrap": place.bootstrap,
        "coordination": coordination,
        "topic": topic,
        "group": group,
        "balanced": balanced,
    }
    names = [f"m{at}" for at in range(members)]
    command = [sys.executable, "-P", "-m", "bench.settle", "--part"]
    began_s = time.time()
    running = [
        subprocess.Popen(
            [*command, json.dumps({**told, "each": partitions // members, "members": names[at::processes]})],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for at in range(processes)
    ]
    try:
        lines = [[each.stdout.readline() for _ in range(2)] for each in running if each.stdout is not None]
        assert all(line[1] for line in lines), "a process of the fleet failed"
        started_s, settled_s = (
            max(json.loads(line[at])[name] for line in lines)
            for at, name in enumerate(("started", "settled"))
        )
        frames = place.frames(coordination)
        first_s = min(at_ms for at_ms, frame in frames if isinstance(frame, ClaimingPartition)) / 1000
        owners = {frame.partition: frame.client_id for _, frame in frames if isinstance(frame, Heartbeat)}
        spread = Counter(owners.values()).values()
        assert len(owners) == partitions
        kinds = Counter(type(frame).__name__ for at_ms, frame in frames if at_ms / 1000 <= settled_s)
        took_s = settled_s - first_s
        print(
            f"  {'balanced' if balanced else 'race'}: {members} members, {partitions:,} partitions,"
            f" {min(spread)} to {max(spread)} each: settled {took_s:.1f} s after the first claim was asked"
            f" for (wanted < {WANTED_S:g}: {'reached' if took_s < WANTED_S else 'NOT reached'}),"
            f" {settled_s - started_s:.1f} s after the last member had started, {settled_s - began_s:.1f} s"
            f" after {processes} processes were\n    {dict(kinds)}, {load_average()}",
            flush=True,
        )
    finally:
        for each in running:
            each.kill()
            each.wait(10)
            if each.stdout is not None:
                each.stdout.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="race,balanced")
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--part", metavar="JSON", help="be one of the processes")
    given = parser.parse_args()
    if given.part:
        asyncio.run(fleet(json.loads(given.part)))
        return
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        Cluster(Path(folder) / "kafka") as cluster,
    ):
        place = Place(cluster.bootstrap)
        place.create(GROUPS_TOPIC, 4, **{"message.timestamp.type": "LogAppendTime"})
        asyncio.run(
            handovers(place, 1)
        )  # the broker makes its topic of committed offsets for the first group: this is not measured
        print(f"  heartbeats of {BEAT_S:g} s", flush=True)
        for only in given.only.split(","):
            measure(place, given.members, given.partitions, given.processes, balanced=only == "balanced")


if __name__ == "__main__":
    main()
