"""A stream-table join over two topics, in one step, beside Kafka Streams and the same join by way of a merged
topic.

python -P -m bench.joins [--rounds 3] [--orders 1000000] [--customers 100000] [--only
holdfast-join,streams-join] python -P -m bench.joins --live 10000 [--seconds 20]

All customers are written before the first order, so every order finds its customer, whoever joins; the
records that come out are counted. Then both topics are written at the same time, each by a producer of its
own: every customer changes once more while the orders come in. Values are JSON, which holdfast decodes,
checks and encodes; the rival joins their bytes. Rates are of all records of both topics.

With `--live` both forms of holdfast's join follow such traffic as it is written, so many orders a second:
told is of how many transactions one had to record a barrier, because a record came too late for its place in
the order.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from threading import Thread

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.join_worker import declared, out_of
from bench.run import ROOT, Part, Result, interleave, load_average, ratio
from bench.traffic import PARTITIONS, create
from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.ports import free_ports
from holdfast.jars import resolve

ORDERS, CUSTOMERS = "orders", "customers"
PER_CHANGE = 10
"""Orders to each change of a customer."""
SLOT_S = 0.002
SHARE = 0.01
"""Of how many transactions one may have to record a barrier."""

Record = tuple[str, bytes, bytes]
"""Topic, key and value."""


class Ground:
    """A broker with both topics filled, and what runs on it."""

    def __init__(
        self, bootstrap: str, folder: Path, orders: int, customers: int, *, filled: bool = True
    ) -> None:
        self.bootstrap, self._folder = bootstrap, folder
        self.orders, self.customers = orders, customers
        self._streams = ":".join(map(str, resolve(ROOT / "bench/rivals/streams.lock")))
        self.out: list[str] = []
        if not filled:
            return
        for topic in (ORDERS, CUSTOMERS):
            create(bootstrap, topic)
        send(bootstrap, each_customer(CUSTOMERS, customers))
        send(bootstrap, woven((ORDERS, orders), (CUSTOMERS, customers), customers))

    def holdfast(self, fold: str, records: int) -> Part:
        return lambda name: self._worker(name, fold, records, ORDERS, CUSTOMERS)

    def _worker(
        self, name: str, fold: str, records: int, orders: str, customers: str
    ) -> tuple[list[str], dict[str, str]]:
        settings = Settings(app=name, kafka={"bootstrap.servers": self.bootstrap})
        self.out.append(out_of(settings))
        for topic in (self.out[-1], f"{self.out[-1]}-merged"):
            create(self.bootstrap, topic)
        create_topics(settings, declared(fold, settings, orders, customers), partitions=PARTITIONS)
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
            "BENCH_ORDERS": orders,
            "BENCH_CUSTOMERS": customers,
        }

    def live(self, fold: str, rate: int, orders: int) -> Part:
        """Return a form of the join beside topics of its own, written while it runs: so many orders a
        second.
        """
        changes = orders // PER_CHANGE

        def part(name: str) -> tuple[list[str], dict[str, str]]:
            told = f"{name}-orders", f"{name}-customers"
            for topic in told:
                create(self.bootstrap, topic)
            send(self.bootstrap, each_customer(told[1], self.customers))
            records = (self.customers + orders + changes) * (1 if fold == "join" else 2)
            begun = self._worker(name, fold, records, *told)
            traffic = woven((told[0], orders), (told[1], changes), self.customers)
            both = rate + rate // PER_CHANGE
            Thread(target=send, args=(self.bootstrap, traffic, both), daemon=True).start()
            return begun

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


def each_customer(topic: str, customers: int) -> Iterator[Record]:
    return ((topic, b"c%d" % at, b'{"name":"Customer %d"}' % at) for at in range(customers))


def woven(orders: tuple[str, int], changes: tuple[str, int], customers: int) -> Iterator[Record]:
    """Yield so many records of two topics, the *changes* of customers spread evenly over the orders."""
    rng, changing = random.Random(7), each_customer(*changes)
    for at in range(orders[1]):
        yield orders[0], b"c%d" % rng.randrange(customers), b'{"id":%d,"cents":%d}' % (at, at % 99_991)
        if (at + 1) * changes[1] // orders[1] > at * changes[1] // orders[1]:
            yield next(changing)


def send(bootstrap: str, records: Iterable[Record], rate: int | None = None) -> None:
    """Send records where Java clients would put them, to each topic by a producer of its own; with *rate*, so
    many a second.
    """
    config = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "partitioner": "murmur2_random",
        "linger.ms": 20 if rate is None else 2,
        "batch.size": 1_000_000,
        "batch.num.messages": 10_000,
    }
    producers: dict[str, Producer] = {}
    began_s = time.perf_counter()
    for number, (topic, key, value) in enumerate(records):
        if rate is not None and (ahead_s := number / rate - (time.perf_counter() - began_s)) > SLOT_S:
            time.sleep(ahead_s)
        if (producer := producers.get(topic)) is None:
            producer = producers[topic] = Producer(config)
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.05)
    for producer in producers.values():
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
    parser.add_argument("--live", type=int, default=0, help="orders a second, written while they are joined")
    parser.add_argument("--seconds", type=int, default=20)
    given = parser.parse_args()
    if given.live:
        given.orders = given.live * given.seconds
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        Cluster(Path(folder) / "kafka") as cluster,
    ):
        if given.live:
            ground = Ground(cluster.bootstrap, Path(folder), given.orders, given.customers, filled=False)
            parts: dict[str, Part] = {
                f"holdfast-{fold}": ground.live(fold, given.live, given.orders) for fold in ("join", "hops")
            }
        else:
            ground = Ground(cluster.bootstrap, Path(folder), given.orders, given.customers)
            total = given.orders + 2 * given.customers
            parts = {
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
        print(load_average())
        barriers(results)
        if given.live:
            return
        for each in (each for found in results.values() for each in found):
            each["rate"] = total / each["wall_s"]  # of the two topics, however often a form reads a record
        for a, b, wanted in (("holdfast-join", "streams-join", 1.3), ("holdfast-join", "holdfast-hops", 2.0)):
            if a in chosen and b in chosen:
                ratio(results, a, b, wanted)


def barriers(results: Mapping[str, list[Result]]) -> None:
    """Print of how many transactions of each form one recorded a barrier."""
    for name, found in results.items():
        transactions = sum(each.get("transactions", 0) for each in found)
        if not transactions:
            continue
        recorded = sum(each["barriers"] for each in found)
        verdict = "reached" if recorded < SHARE * transactions else "NOT reached"
        print(
            f"  {name}: {recorded:,.0f} barriers in {transactions:,.0f} transactions,"
            f" {recorded / transactions:.2%}, wanted below {SHARE:.0%}: {verdict}"
        )


if __name__ == "__main__":
    main()
