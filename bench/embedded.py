"""The embedded Kafka, in memory and in a folder, beside librdkafka's mock cluster, `python -P -m
bench.embedded`: start, memory, records a second and transactions a second, of one producer and of several at
once, through librdkafka on one core; and its start with a folder of 100 MB. Of Apache Kafka, start and
memory.

Broker and client are pinned to one core, for the mock cluster lives within the client; with `--apart` the
broker has that core to itself and the client another, which the mock cluster shares. Of what each took, the
seconds of processor are told too: on a machine that does other work they say more than those of the clock.
The mock cluster keeps no rules (it fences nobody, orders no sequences, has no isolation), so it is a bound of
speed, not a broker. Apache Kafka is not pinned: it starts as `holdfast dev up` starts it, on all cores, and
needs them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer

from bench.processes import cpu_s
from bench.run import Bench, interleave
from bench.traffic import load
from holdfast.dev.broker import archiving
from holdfast.dev.broker.cluster import Cluster

RECORD, TOPIC = b"x" * 100, "bench"
LINGER = {"linger.ms": 20, "queue.buffering.max.messages": 100_000, "acks": "all"}
DEADLINE_S = 30.0
PRODUCERS = (1, 4, 8)
"""That commit transactions at the same time."""
FOLDER_BYTES = 100_000_000
_SERVER = """
import os, sys, time
from pathlib import Path
from holdfast.embedded.kafka import EmbeddedKafka
how, folder, core = sys.argv[1:]
if core:
    os.sched_setaffinity(0, {int(core)})
began_s, used_s = time.perf_counter(), time.process_time()
with EmbeddedKafka(folder=folder or None, fsync=how == "fsync") as kafka:
    took_ms, used_ms = (time.perf_counter() - began_s) * 1000, (time.process_time() - used_s) * 1000
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
    if kafka.cluster.topics.get("bench") is None:
        kafka.create_topic("bench", partitions=1)
    print(kafka.bootstrap, took_ms, used_ms, resident, flush=True)
    used_s = time.process_time()
    while input():
        print(time.process_time() - used_s, flush=True)
        used_s = time.process_time()
"""


class Spent(NamedTuple):
    """What a measurement took: things done, seconds of the clock, seconds of processor of client and
    broker.
    """

    done: int
    clock_s: float
    client_s: float
    broker_s: float

    def __str__(self) -> str:
        used_s = self.client_s + self.broker_s
        told = (
            f"{self.done / self.clock_s:>10,.0f} a second, {self.done / used_s:>10,.0f} a second of processor"
        )
        client_us, broker_us = (each / self.done * 1e6 for each in (self.client_s, self.broker_s))
        return f"{told} (of each: client {client_us:.1f} us, broker {broker_us:.1f} us)"


class Served:
    """The embedded Kafka in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], began_s: float) -> None:
        self._process = process
        self.bootstrap, *told = self._line().split()
        self.whole_ms = (time.perf_counter() - began_s) * 1000
        self.took_ms, self.used_ms, self.resident_mb = map(float, told)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def used_s(self) -> float:
        """Return what the broker took of the processor since it was last asked."""
        assert self._process.stdin is not None
        self._process.stdin.write("used\n")
        self._process.stdin.flush()
        return float(self._line())


@contextmanager
def served(how: str = "memory", folder: str = "", core: int | None = None) -> Iterator[Served]:
    command = [sys.executable, "-P", "-c", _SERVER, how, folder, "" if core is None else str(core)]
    began_s = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Served(process, began_s)
        finally:
            process.kill()


def resident_mb(process: int | str = "self") -> float:
    """Return the memory that *process*, an id or this one, has in pages now, shared ones included."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def spent(do: Callable[[], int], broker_s: Callable[[], float]) -> Spent:
    broker_s()
    clock_s, client_s = time.perf_counter(), time.process_time()
    count = do()
    took_s = time.perf_counter() - clock_s
    return Spent(count, took_s, time.process_time() - client_s, broker_s())


def records(producer: Producer, count: int) -> int:
    """Send *count* records, and return how many were acknowledged."""
    acknowledged = 0

    def told(error: object, _: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    for _ in range(count):
        while True:
            try:
                producer.produce(TOPIC, RECORD, partition=0, on_delivery=told)
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    producer.flush(DEADLINE_S)
    assert acknowledged == count, f"{acknowledged} of {count} records were acknowledged"
    return acknowledged


def transactions(producers: Sequence[Producer], seconds: float) -> int:
    """Have each producer, in a thread of its own, commit transactions of one record, one after the other, for
    *seconds*.
    """
    until_s = time.perf_counter() + seconds

    def committed(producer: Producer) -> int:
        count = 0
        while time.perf_counter() < until_s:
            producer.begin_transaction()
            producer.produce(TOPIC, RECORD, partition=0)
            producer.commit_transaction(DEADLINE_S)
            count += 1
        return count

    with ThreadPoolExecutor(len(producers)) as threads:
        return sum(threads.map(committed, producers))


def measure(
    name: str, config: dict[str, str], count: int, seconds: float, broker_s: Callable[[], float]
) -> None:
    producer = Producer({**config, **LINGER})
    records(producer, 1000)
    print(f"{name:<9} records      {spent(lambda: records(producer, count), broker_s)}")
    for many in PRODUCERS:
        writers = [
            Producer({**config, "linger.ms": 0, "transactional.id": f"bench-{each}"}) for each in range(many)
        ]
        for each in writers:
            each.init_transactions(DEADLINE_S)
        transactions(writers, 0.2)
        took = spent(partial(transactions, writers, seconds), broker_s)
        print(f"{name:<9} transactions of {many} at once {took}", flush=True)


def start_with_records() -> None:
    """Kill a broker whose folder holds 100 MB, in large and in small batches, and start it again."""
    for batch_bytes in (16_384, 1_000):
        with tempfile.TemporaryDirectory() as folder:
            with served("folder", folder) as kafka:  # it is killed at the end
                limits = {"batch.size": batch_bytes, "linger.ms": 5, "log_level": 0}
                producer = Producer({"bootstrap.servers": kafka.bootstrap, **LINGER, **limits})
                records(producer, FOLDER_BYTES // len(RECORD))
            size_mb = sum(each.stat().st_size for each in Path(folder, f"{TOPIC}-0").iterdir()) / 1e6
            with served("folder", folder) as kafka:
                print(
                    f"folder    start with {size_mb:.0f} MB in batches of {batch_bytes:,} bytes, after"
                    f" SIGKILL: {kafka.took_ms:.0f} ms, {kafka.used_ms:.0f} ms of processor,"
                    f" {kafka.resident_mb:.0f} MB",
                    flush=True,
                )


def fold_claims(count: int) -> None:
    """Have a worker fold *count* heartbeats of 10,000 claims, exactly once, twice."""
    with tempfile.TemporaryDirectory() as folder, served() as kafka:
        load(kafka.bootstrap, "heartbeats", count, 10_000)
        kafka.used_s()
        bench = Bench(kafka.bootstrap, "heartbeats", count, Path(folder))
        interleave({"embedded claims": bench.holdfast("claims")}, 2)
        print(
            f"embedded  claims: of each, the broker takes {kafka.used_s() / (2 * count) * 1e6:.2f} us",
            flush=True,
        )


def start_kafka(name: str, *, short_lived: bool) -> None:
    """Start a node of Apache Kafka in an empty folder, until it answers for all that it leads; then end it.

    What is made once for a user (the archive of its classes, a formatted folder to copy) is made before.
    """
    archiving.prepare()
    busy = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.perf_counter()
        with Cluster(folder, short_lived=short_lived) as kafka:
            took_ms = (time.perf_counter() - began_s) * 1000
            (node,) = kafka.status()
            assert node.pid is not None
            print(
                f"{name:<9} start {took_ms:,.0f} ms to its first answer ({cpu_s(node.pid) * 1000:,.0f} of"
                f" processor), {resident_mb(node.pid):.0f} MB; load {busy:.1f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long transactions are measured")
    parser.add_argument("--claims", type=int, default=0, help="heartbeats that a worker folds; 0: none")
    parser.add_argument("--apart", action="store_true", help="give client and broker a core each")
    told = parser.parse_args()
    if told.claims:
        fold_claims(told.claims)  # before all is pinned to one core: the worker is a process of its own
    start_kafka("kafka", short_lived=False)
    start_kafka("in tests", short_lived=True)
    cores = os.sched_getaffinity(0)
    core = min(cores)
    os.sched_setaffinity(0, {max(cores) if told.apart else core})
    busy = os.getloadavg()[0]
    with served(core=core) as kafka:
        print(
            f"embedded  start {kafka.took_ms:.1f} ms after the import ({kafka.used_ms:.1f} of processor),"
            f" {kafka.whole_ms:.0f} ms with the process and the import, {kafka.resident_mb:.1f} MB; load"
            f" {busy:.1f}"
        )
        measure("embedded", {"bootstrap.servers": kafka.bootstrap}, told.records, told.seconds, kafka.used_s)
    for how in ("folder", "fsync"):
        with tempfile.TemporaryDirectory() as folder, served(how, folder, core) as kafka:
            config = {"bootstrap.servers": kafka.bootstrap}
            measure(how, config, told.records, told.seconds, kafka.used_s)
    start_with_records()
    began_s, before_mb = time.perf_counter(), resident_mb()
    mock = Producer({"test.mock.num.brokers": "1"})
    mock.list_topics(timeout=DEADLINE_S)
    took_ms = (time.perf_counter() - began_s) * 1000
    print(
        f"mock      start {took_ms:.1f} ms to its first answer, {resident_mb() - before_mb:.1f} MB more than"
        " before"
    )
    (broker,) = mock.list_topics(timeout=DEADLINE_S).brokers.values()
    config = {"bootstrap.servers": f"{broker.host}:{broker.port}"}  # one mock for all producers
    measure("mock", config, told.records, told.seconds, lambda: 0.0)


if __name__ == "__main__":
    main()
