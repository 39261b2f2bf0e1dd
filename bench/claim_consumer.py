"""ClaimConsumer: consumption beside a plain loop, how fast claims are won, given back and taken over.

    python -P -m bench.claim_consumer [--only rates,claims,takeover] [--rounds 3] [--records 1000000]

Every part is a process of its own. The plain loop is confluent-kafka at its fastest: batches of 2,000,
`fetch.queue.backoff.ms=5`, the offset of each message noted. The group that is killed beside ours has the
shortest session the broker allows.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from bench.processes import quantiles
from bench.run import ROOT, interleave, load_average, median, ratio
from holdfast.clients.claims.consumer import ClaimConsumer
from holdfast.config import Settings
from holdfast.core.claims.frames import ClaimingPartition, Frame, Heartbeat, ReleasingPartition, decode
from holdfast.core.groups.announcements import GROUPS_TOPIC
from holdfast.dev.broker.cluster import Cluster

BEAT_S = 3.0
SESSION_MS = 6_000
DEADLINE_S = 60.0


_NOT_READY = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._NOENT,  # no leaders known yet
    KafkaError._TIMED_OUT,
)


class Place:
    """A broker and the topics made on it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def topic(self, name: str, partitions: int, **config: str) -> str:
        return self.create(f"{name}-{uuid.uuid4().hex[:6]}", partitions, **config)

    def create(self, topic: str, partitions: int, **config: str) -> str:
        self._admin.create_topics([NewTopic(topic, partitions, config=config)])[topic].result(30)
        until_s = time.monotonic() + DEADLINE_S
        while not self._answers(topic, partitions):
            assert time.monotonic() < until_s, f"{topic} is not ready"
            time.sleep(0.1)
        return topic

    def _answers(self, topic: str, partitions: int) -> bool:
        """Return whether every partition has its log: a broker names itself the leader of all at once, and
        makes a thousand logs later.
        """
        last = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = self._admin.list_offsets(
            {TopicPartition(topic, at): last for at in range(partitions)}, request_timeout=10
        )
        errors = [error for future in asked.values() if (error := future.exception(15)) is not None]
        for error in errors:
            if error.args[0].code() not in _NOT_READY:
                raise error
        if any(error.args[0].code() == KafkaError._NOENT for error in errors):
            # Asked before the broker knew of any leader, librdkafka would say so for ever: this has it look
            # again.
            self._admin.list_topics(topic, timeout=10)
        return not errors

    def coordination(self) -> str:
        return self.topic("marshal", 4, **{"message.timestamp.type": "LogAppendTime"})

    def frames(self, coordination: str) -> list[tuple[int, Frame]]:
        """Return (append time in ms, frame) of the whole coordination topic, in order of time."""
        reader = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "bench", "enable.auto.commit": False}
        )
        places = [TopicPartition(coordination, at, OFFSET_BEGINNING) for at in range(4)]
        left = sum(reader.get_watermark_offsets(place, 10)[1] for place in places)
        reader.assign(places)
        found = []
        while left > 0:  # a fleet goes on writing
            for message in reader.consume(1_000, 0.2):
                found.append((message.timestamp()[1], decode(message.value())))
                left -= 1
        reader.close()
        return sorted(found, key=lambda each: each[0])


def fill(bootstrap: str, topic: str, records: int, partitions: int = 4) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 50, "batch.size": 900_000, "batch.num.messages": 10_000}
    )
    value = b"x" * 100
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0


# -- rates: parts that run in processes of their own


def plain(bootstrap: str, topic: str, records: int) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "plain",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 5,
        }
    )
    consumer.assign([TopicPartition(topic, at, 0) for at in range(4)])
    consumer.consume(1, 10)
    count, size, done = 1, 0, [0] * 4
    started_s, cpu_s = time.perf_counter(), time.process_time()
    while count < records:
        batch = consumer.consume(min(2_000, records - count), 5.0)
        for message in batch:
            size += len(message.value())  # type: ignore[arg-type]
            done[message.partition()] = message.offset() + 1  # type: ignore[index, operator]
        count += len(batch)
    result("plain", records, started_s, cpu_s)
    consumer.close()


def result(name: str, records: int, started_s: float, cpu_s: float) -> None:
    took_s, cpu = time.perf_counter() - started_s, time.process_time() - cpu_s
    print(f"RESULT {name} rate={records / took_s:.0f} cpu_us={cpu / records * 1e6:.2f}", flush=True)


def claiming(
    bootstrap: str, coordination: str, topic: str, group: str, client: str, **named: Any
) -> ClaimConsumer:
    settings = Settings(kafka={"bootstrap.servers": bootstrap}, coordination_topic=coordination)
    return ClaimConsumer(
        settings, topics=[topic], group=group, client=client, heartbeat_interval_s=BEAT_S, **named
    )


async def by_batch(bootstrap: str, coordination: str, topic: str, records: int) -> None:
    async with claiming(bootstrap, coordination, topic, uuid.uuid4().hex, "bench", greedy=True) as consumer:
        count = size = 0
        started_s = cpu_s = 0.0
        async for batch in consumer.batches():
            if not started_s:
                started_s, cpu_s = time.perf_counter(), time.process_time()
            for record in batch.records:
                size += len(record.value() or b"")
            count += len(batch)
            batch.commit()
            if count == records:
                break
        result("batch", records, started_s, cpu_s)
        await consumer.flush()
        assert sum(held.offset for held in consumer.claims.values()) == records


async def one_by_one(bootstrap: str, coordination: str, topic: str, records: int) -> None:
    async with claiming(bootstrap, coordination, topic, uuid.uuid4().hex, "bench", greedy=True) as consumer:
        count = size = 0
        started_s = cpu_s = 0.0
        async for message in consumer:
            if not started_s:
                started_s, cpu_s = time.perf_counter(), time.process_time()
            size += len(message.value or b"")
            message.commit()
            count += 1
            if count == records:
                break
        result("one-by-one", records, started_s, cpu_s)
        await consumer.flush()
        assert sum(held.offset for held in consumer.claims.values()) == records


def rates(place: Place, records: int, rounds: int) -> None:
    topic, coordination = place.topic("rates", 4), place.coordination()
    fill(place.bootstrap, topic, records)
    part = [sys.executable, "-P", "-m", "bench.claim_consumer", "--records", str(records), "--part"]
    found = interleave(
        {
            "plain": lambda _: ([*part, "plain", place.bootstrap, coordination, topic], {}),
            "batch": lambda _: ([*part, "batch", place.bootstrap, coordination, topic], {}),
            "one-by-one": lambda _: ([*part, "one", place.bootstrap, coordination, topic], {}),
        },
        rounds,
    )
    print(
        f"  plain {median(found, 'plain'):,.0f}/s, batches {median(found, 'batch'):,.0f}/s, one by one"
        f" {median(found, 'one-by-one'):,.0f}/s"
    )
    ratio(found, "batch", "plain", 0.6)
    ratio(found, "one-by-one", "plain", 0.12)


# -- claims: acquisition and clean release


async def claims(place: Place) -> None:
    coordination, topic, group = place.coordination(), place.topic("claims", 100), uuid.uuid4().hex
    fill(place.bootstrap, topic, 100, 100)
    first: dict[int, float] = {}
    async with claiming(place.bootstrap, coordination, topic, group, "first", greedy=True) as consumer:
        async with asyncio.timeout(DEADLINE_S):
            async for message in consumer:
                first[message.partition] = time.time()
                if len(first) == 100:
                    break
    frames = place.frames(coordination)
    asked = {frame.partition: at_ms / 1000 for at_ms, frame in frames if isinstance(frame, ClaimingPartition)}
    held: dict[int, float] = {}
    for at_ms, frame in frames:
        if isinstance(frame, Heartbeat):
            held.setdefault(frame.partition, at_ms / 1000)
    print(
        f"  claim to heartbeat, 100 at once: {quantiles([held[each] - asked[each] for each in asked])}"
        " (wanted p99 < 500)"
    )
    print(
        f"  claim to first message, 100 at once: {quantiles([first[each] - asked[each] for each in asked])}"
    )
    await handovers(place, 15)


async def handovers(place: Place, turns: int) -> None:
    coordination, topic, group = place.coordination(), place.topic("handover", 1), uuid.uuid4().hex
    producer = Producer({"bootstrap.servers": place.bootstrap, "linger.ms": 0})
    owner = claiming(place.bootstrap, coordination, topic, group, "c0")
    await owner.__aenter__()
    took = []
    for turn in range(turns):
        producer.produce(topic, b"x", partition=0)
        producer.flush(10)
        message = await owner.get(DEADLINE_S)
        assert message is not None
        message.commit()
        heir = claiming(place.bootstrap, coordination, topic, group, f"c{turn + 1}")
        await heir.__aenter__()
        producer.produce(topic, b"x", partition=0)
        producer.flush(10)
        leaving = asyncio.create_task(owner.terminate(release=True))
        message = await heir.get(DEADLINE_S)
        assert message is not None
        seen_s = time.time()
        message.commit()
        await leaving
        released = [
            at_ms for at_ms, frame in place.frames(coordination) if isinstance(frame, ReleasingPartition)
        ]
        took.append(seen_s - released[-1] / 1000)
        owner = heir
    await owner.terminate(release=True)
    print(f"  clean release to the next owner's first message: {quantiles(took)} (wanted < 1000)")


# -- takeover after SIGKILL


@contextmanager
def flowing(place: Place, topic: str, partitions: int) -> Iterator[None]:
    """Write a message to each partition every 10 ms."""
    stop = threading.Event()

    def write() -> None:
        producer = Producer({"bootstrap.servers": place.bootstrap, "linger.ms": 0})
        while not stop.wait(0.01):
            for at in range(partitions):
                producer.produce(topic, b"%.6f" % time.monotonic(), partition=at)
            producer.poll(0)
        producer.flush(10)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(20)


@contextmanager
def victim(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a part until killed; it prints a line when it works."""
    command = [sys.executable, "-P", "-m", "bench.claim_consumer", "--part", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline(), "the victim failed before it worked"
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        process.stdout.close()


async def work(bootstrap: str, coordination: str, topic: str, group: str, manner: str) -> None:
    async with claiming(bootstrap, coordination, topic, group, "victim", **{manner: True}) as consumer:
        async for message in consumer:
            message.commit()
            if consumer.load == 4:
                print("works", flush=True)
                break
        async for message in consumer:
            message.commit()


async def ours(place: Place, wait_s: float, manner: str) -> float:
    """Return the time from SIGKILL to a message, written after it, of every partition: one has all of
    four, or each of two has half.
    """
    coordination, topic, group = place.coordination(), place.topic("takeover", 4), uuid.uuid4().hex
    with (
        flowing(place, topic, 4),
        victim("work", place.bootstrap, coordination, topic, group, manner) as process,
    ):
        async with claiming(
            place.bootstrap, coordination, topic, group, "survivor", **{manner: True}
        ) as consumer:
            if manner == "balanced":
                async with asyncio.timeout(DEADLINE_S):
                    async for message in consumer:
                        message.commit()
                        if consumer.load == 2:
                            break
            await asyncio.sleep(wait_s)
            process.send_signal(signal.SIGKILL)
            killed_s = time.monotonic()
            left = set(range(4))
            async with asyncio.timeout(DEADLINE_S):
                async for message in consumer:
                    message.commit()
                    if float(message.value or b"0") > killed_s:
                        left.discard(message.partition)
                        if not left:
                            break
            return time.monotonic() - killed_s


def group_config(bootstrap: str, group: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": SESSION_MS // 3,
    }


def join(bootstrap: str, topic: str, group: str) -> None:
    consumer = Consumer(group_config(bootstrap, group))
    consumer.subscribe([topic])
    told = False
    while True:
        if consumer.poll(0.2) is not None and not told and len(consumer.assignment()) == 2:
            told = True
            print("works", flush=True)


def theirs(place: Place, wait_s: float) -> float:
    """Return the same of a consumer group: two members, one killed, until every partition brings messages
    written after that.
    """
    topic, group = place.topic("takeover", 4), uuid.uuid4().hex
    consumer = Consumer(group_config(place.bootstrap, group))
    consumer.subscribe([topic])
    stop = threading.Event()
    seen: dict[int, float] = {}

    def survive() -> None:
        while not stop.is_set():
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                seen[message.partition() or 0] = float(message.value() or b"0")
        consumer.close()

    surviving = threading.Thread(target=survive)
    surviving.start()
    try:
        with flowing(place, topic, 4), victim("join", place.bootstrap, topic, group) as process:
            time.sleep(wait_s)
            process.send_signal(signal.SIGKILL)
            killed_s = time.monotonic()
            while not (len(seen) == 4 and min(seen.values()) > killed_s):
                assert time.monotonic() < killed_s + DEADLINE_S
                time.sleep(0.01)
            return time.monotonic() - killed_s
    finally:
        stop.set()
        surviving.join(20)


def takeover(place: Place, rounds: int) -> None:
    place.create(GROUPS_TOPIC, 4, **{"message.timestamp.type": "LogAppendTime"})
    draw = random.Random(3)
    took: dict[str, list[float]] = {"claims": [], "balanced": [], "consumer group": []}
    for _ in range(rounds):
        wait_s = draw.uniform(2.5, 5.0)  # any moment between two heartbeats of any of them
        took["claims"].append(asyncio.run(ours(place, wait_s, "greedy")))
        took["balanced"].append(asyncio.run(ours(place, wait_s, "balanced")))
        took["consumer group"].append(theirs(place, wait_s))
        print(
            "  SIGKILL to messages of all 4 partitions:",
            ", ".join(f"{name} {each[-1]:.2f} s" for name, each in took.items()),
            flush=True,
        )
    print(f"  heartbeats of {BEAT_S:g} s, the group's session 6 s; wanted of claims <= {2 * BEAT_S + 1:g} s")
    for name, each in took.items():
        print(f"  {name}: median {statistics.median(each):.2f} s, max {max(each):.2f} s")


def part(name: str, arguments: Sequence[str], records: int) -> None:
    match name:
        case "plain":
            plain(arguments[0], arguments[2], records)
        case "batch":
            asyncio.run(by_batch(arguments[0], arguments[1], arguments[2], records))
        case "one":
            asyncio.run(one_by_one(arguments[0], arguments[1], arguments[2], records))
        case "work":
            asyncio.run(work(*arguments))
        case "join":
            join(*arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="rates,claims,takeover")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", nargs="+", metavar="ARGUMENT", help="be one of the processes")
    given = parser.parse_args()
    if given.part:
        part(given.part[0], given.part[1:], given.records)
        return
    only = given.only.split(",")
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        Cluster(Path(folder) / "kafka") as cluster,
    ):
        place = Place(cluster.bootstrap)
        if "rates" in only:
            rates(place, given.records, given.rounds)
        if "claims" in only:
            asyncio.run(claims(place))
        if "takeover" in only:
            takeover(place, given.rounds)
        print(f"  {load_average()}")


if __name__ == "__main__":
    main()
