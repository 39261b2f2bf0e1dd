"""A member joins a balanced group and leaves it: what partitions that stay with their owner feel of it.

    python -P -m bench.keeping [--rounds 3] [--seconds 4]

Four members on 24 partitions, 50 messages a second to each. It prints how long messages of partitions that
stay take from the broker's append to the hand-out, while nothing happens and while a member joins and leaves,
and how many were handed out by another stay: a stop and a start between them, however short.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
import time
import uuid
from contextlib import AsyncExitStack
from pathlib import Path

from confluent_kafka import Producer

from bench.claim_consumer import Place, claiming, handovers
from bench.processes import quantiles
from bench.run import load_average
from holdfast.clients.claims.consumer import ClaimConsumer
from holdfast.core.groups.announcements import GROUPS_TOPIC
from holdfast.dev.broker.cluster import Cluster

MEMBERS, PARTITIONS, EVERY_S = 4, 24, 0.02
DEADLINE_S = 40.0
Taken = list[tuple[float, str, int, int, float]]
"""When (wall clock, seconds), by whom, partition, epoch, and how long after the append."""


def write(place: Place, topic: str, stop: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": place.bootstrap, "linger.ms": 0})
    while not stop.wait(EVERY_S):
        for partition in range(PARTITIONS):
            producer.produce(topic, b"x" * 100, partition=partition)
        producer.poll(0)
    producer.flush(10)


async def work(consumer: ClaimConsumer, taken: Taken) -> None:
    async for message in consumer:
        now_s = time.time()
        taken.append(
            (now_s, consumer.client, message.partition, message.epoch, now_s - message.timestamp_ms / 1000)
        )
        message.commit()


async def settled(members: list[ClaimConsumer]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        loads = [0]
        while sum(loads) != PARTITIONS or max(loads) - min(loads) > 1:
            await asyncio.sleep(0.01)
            loads = [member.load for member in members]


async def measure(place: Place, rounds: int, seconds: float) -> None:
    coordination, topic, group = (
        place.coordination(),
        place.topic("kept", PARTITIONS, **{"message.timestamp.type": "LogAppendTime"}),
        uuid.uuid4().hex,
    )
    stop, taken = threading.Event(), Taken()
    writing = threading.Thread(target=write, args=(place, topic, stop))
    quiet: list[float] = []
    moving: list[float] = []
    others = kept = 0
    async with AsyncExitStack() as stack:
        members = [
            claiming(place.bootstrap, coordination, topic, group, f"m{at}", balanced=True)
            for at in range(MEMBERS)
        ]
        await asyncio.gather(*(stack.enter_async_context(member) for member in members))
        tasks = [asyncio.create_task(work(member, taken)) for member in members]
        await settled(members)
        writing.start()
        try:
            for turn in range(rounds):
                await asyncio.sleep(1.0)
                taken.clear()
                await asyncio.sleep(seconds)
                began_s = time.time()
                owners = {partition: (client, epoch) for _, client, partition, epoch, _ in taken}
                assert len(owners) == PARTITIONS
                async with claiming(
                    place.bootstrap, coordination, topic, group, f"new{turn}", balanced=True
                ) as newcomer:
                    task = asyncio.create_task(work(newcomer, taken))
                    await settled([*members, newcomer])
                    moved = {held.partition for held in newcomer.claims.values()}
                await task
                await settled(members)
                await asyncio.sleep(0.5)
                ended_s = time.time()
                stayed = [each for each in taken if each[2] not in moved and each[0] <= ended_s]
                quiet += [each[4] for each in stayed if each[0] < began_s]
                moving += [each[4] for each in stayed if each[0] >= began_s]
                others += sum(each[1:2] + each[3:4] != owners[each[2]] for each in stayed)
                kept += PARTITIONS - len(moved)
        finally:
            stop.set()
            writing.join(20)
    await asyncio.gather(*tasks)
    print(
        f"  {rounds} joins and leaves, {kept // rounds} of {PARTITIONS} partitions stay; from the append to"
        " the hand-out on those:"
    )
    print(f"    while nothing happens    {quantiles(quiet)}")
    print(f"    during joins and leaves  {quantiles(moving)}")
    print(f"    handed out by another stay: {others} (wanted 0); {load_average()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        Cluster(Path(folder) / "kafka") as cluster,
    ):
        place = Place(cluster.bootstrap)
        place.create(GROUPS_TOPIC, 4, **{"message.timestamp.type": "LogAppendTime"})
        asyncio.run(handovers(place, 1))
        asyncio.run(measure(place, given.rounds, given.seconds))


if __name__ == "__main__":
    main()
