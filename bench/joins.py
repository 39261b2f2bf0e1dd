"""A stream-table join over two topics, in one step, beside Kafka Streams and the same join by way of a merged topic.

python -P -m bench.joins [--rounds 3] [--orders 1000000] [--customers 100000] [--only holdfast-join,streams-join]

All customers are written before the first order, so every order finds its customer, whoever joins; the records that
come out are counted. Values are JSON, which holdfast decodes, checks and encodes; the rival joins their bytes. Rates are of all records of both topics.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.join_worker import declared, out_of
from bench.run import ROOT, Part, interleave, load_average, ratio
from bench.traffic import PARTITIONS, create
from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.ports import free_ports
from holdfast.jars import resolve

ORDERS, CUSTOMERS = "orders", "customers"


class Ground:
    """A broker with both topics filled, and what runs on it."""

    def __init__(self, bootstrap: str, folder: Path, orders: int, customers: int) -> None:
        self.bootstrap, self._folder = bootstrap, folder
        self.orders, self.customers = orders, customers
        self._streams = ":".join(map(str, resolve(ROOT / "bench/rivals/streams.lock")))
        self.out: list[str] = []
        rng = random.Random(7)
        write(
            bootstrap, CUSTOMERS, ((b"c%d" % at, b'{"name":"Customer %d"}' % at) for at in range(customers))
        )
        write(
            bootstrap,
            ORDERS,
            (
                (b"c%d" % rng.randrange(customers), b'{"id":%d,"cents":%d}' % (at, at % 99_991))
                for at in range(orders)
            ),
        )

    def holdfast(self, fold: str, records: int) -> Part:
        def part(name: str) -> tuple[list[str], dict[str, str]]:
            settings = Settings(app=name, kafka={"bootstrap.servers": self.bootstrap})
            self.out.append(out_of(settings))
            for topic in (self.out[-1], f"{self.out[-1]}-merged"):
                create(self.bootstrap, topic)
            create_topics(settings, declared(fold, settings, ORDERS, CUSTOMERS), partitions=PARTITIONS)
            command = [sys.executable, "-P", "-m", "bench.join_worker"]
            return [*command, "--loop", "uvloop", "worker", "-l", "warn"], {
                "HOLDFAST_APP": name,
                "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap,
                "HOLDFAST_DATA_DIR": str(self._folder / name),
                "HOLDFAST_WEB_PORT": str(free_ports(1)[0]),
                "HOLDFAST_SESSION_TIMEOUT_S": "6",
                "HOLDFAST_HEARTBEAT_INTERVAL_S": "1",
                "BENCH_FOLD": fold,
                "BENCH_RECORDS": str(records),
                "BENCH_ORDERS": ORDERS,
                "BENCH_CUSTOMERS": CUSTOMERS,
            }

        return part

    def streams(self, name: str) -> tuple[list[str], dict[str, str]]:
        self.out.append(f"{name}-out")
        create(self.bootstrap, self.out[-1])
        given = {
            "bootstrap": self.bootstrap,
            "orders": ORDERS,
            "customers": CUSTOMERS,
            "out": self.out[-1],
            "id": name,
            "dir": str(self._folder / name),
        }
        command = ["java", "-Xmx2g", "-cp", self._streams, str(ROOT / "bench/rivals/Join.java")]
        return [*command, *(f"{key}={value}" for key, value in given.items())], {}

    def check(self) -> None:
        """Count what every run has sent: each order once."""
        for topic in self.out:
            found = committed(self.bootstrap, topic)
            if found != self.orders:
                raise SystemExit(f"{topic} holds {found:,} records of {self.orders:,} orders")


def write(bootstrap: str, topic: str, records: Iterable[tuple[bytes, bytes]]) -> None:
    """Make *topic* and fill it, each record where Java clients would put it."""
    create(bootstrap, topic)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "partitioner": "murmur2_random",
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "batch.num.messages": 10_000,
        }
    )
    for key, value in records:
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(120) == 0


def committed(bootstrap: str, topic: str) -> int:
    """Return how many committed records *topic* holds."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-joined",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, at, 0) for at in range(PARTITIONS)])
    found, ended = 0, set[int]()
    try:
        while len(ended) < PARTITIONS:
            for message in consumer.consume(50_000, 1.0):
                if message.error() is None:
                    found += 1
                else:
                    ended.add(message.partition() or 0)
    finally:
        consumer.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--orders", type=int, default=1_000_000)
    parser.add_argument("--customers", type=int, default=100_000)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        Cluster(Path(folder) / "kafka") as cluster,
    ):
        total = given.orders + given.customers
        ground = Ground(cluster.bootstrap, Path(folder), given.orders, given.customers)
        parts: dict[str, Part] = {
            "holdfast-join": ground.holdfast("join", total),
            "holdfast-hops": ground.holdfast("hops", 2 * total),
            "streams-join": ground.streams,
        }
        chosen = {
            name: part for name, part in parts.items() if not given.only or name in given.only.split(",")
        }
        print(f"{given.orders:,} orders, {given.customers:,} customers, {load_average()}", flush=True)
        results = interleave(chosen, given.rounds)
        ground.check()
        for each in (each for found in results.values() for each in found):
            each["rate"] = total / each["wall_s"]  # of the two topics, however often a form reads a record
        print(load_average())
        for a, b, wanted in (("holdfast-join", "streams-join", 1.3), ("holdfast-join", "holdfast-hops", 2.0)):
            if a in chosen and b in chosen:
                ratio(results, a, b, wanted)


if __name__ == "__main__":
    main()
