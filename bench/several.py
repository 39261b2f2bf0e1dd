"""The replay of a processor of two sources, beside its sources one by one: `python -P -m bench.several`. On
this machine, from the topics of a real broker, and from the lake's files with `--lake`.

A table of customers and a stream of orders, one in five a customer, in each partition as they were appended;
the processors of one source run the same fold over theirs. A choice stands behind each ten thousand records.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # the package does not declare what it re-exports

from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.core.engine.choices import Choice, encode_choice
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.declared.serdes import Msgpack
from holdfast.core.engine.declared.sources import Source, fingerprint
from holdfast.core.engine.state.rows import Rows
from holdfast.dev.broker.cluster import Cluster
from holdfast.pipeline.replay import ReplayOptions, replay

RECORDS, PARTITIONS, CUSTOMERS = 1_000_000, 2, 10_000
PER_CHOICE = 10_000
START_MS = 1_700_000_000_000


class Customer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    number: str
    revision: int


class PlacedOrder(msgspec.Struct, frozen=True, array_like=True, gc=False):
    number: int
    customer: str


class Known(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """As large whatever is known, so that a source alone makes as much work of its records."""

    revision: int = 0
    orders: int = 0


def keep(rows: Rows[Known], customer: Customer, at_ms: int) -> None:
    before = rows.get(customer.number)
    rows[customer.number] = Known(customer.revision, before.orders if before else 0)


def enrich(rows: Rows[Known], order: PlacedOrder, at_ms: int) -> tuple[Emit, ...]:
    who = rows.get(order.customer) or Known()
    rows[order.customer] = Known(who.revision, who.orders + 1)
    return (Emit("enriched", order.customer, b"%d" % who.revision),)


CUSTOMERS_OF, ORDERS_OF = Source("customers", Msgpack(Customer)), Source("orders", Msgpack(PlacedOrder))
JOINED: Processor[Any, Known] = Processor(
    name="enrich", on={CUSTOMERS_OF: keep, ORDERS_OF: enrich}, row=Known, emits=("enriched",)
)
ALONE: tuple[Processor[Any, Known], ...] = (
    Processor(name="keep", source="customers", decode=Msgpack(Customer).decode, fold=keep, row=Known),
    Processor(
        name="count",
        source="orders",
        decode=Msgpack(PlacedOrder).decode,
        fold=enrich,
        row=Known,
        emits=("enriched",),
    ),
)


@dataclass(frozen=True, slots=True)
class Took:
    """What a replay took: seconds, and seconds of all its threads on a processor."""

    s: float
    cpu_s: float

    def __add__(self, other: Took) -> Took:
        return Took(self.s + other.s, self.cpu_s + other.cpu_s)


def written(records: int) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield (source, partition, append time, value), five orders of a partition in each ms."""
    rng = Random(1)
    for number in range(records):
        who = f"customer-{rng.randrange(CUSTOMERS)}"
        event = PlacedOrder(number, who) if number % 5 else Customer(who, number)
        value = msgspec.msgpack.encode(event)
        yield int(number % 5 > 0), rng.randrange(PARTITIONS), START_MS + number // 10, value


def fill(settings: Settings, records: int) -> None:
    """Write the topics and the choices: a tick now and then, which says that all before it was folded."""
    more = {"linger.ms": 50, "queue.buffering.max.messages": 1_000_000, "enable.idempotence": True}
    producer = Producer({**settings.client(), **more})
    ends, numbers = [[-1, -1] for _ in range(PARTITIONS)], [0] * PARTITIONS
    topics, sources = JOINED.topics, fingerprint(JOINED.topics)
    for source, partition, at_ms, value in written(records):
        while True:
            try:
                producer.produce(topics[source], value, partition=partition, timestamp=at_ms)
                break
            except BufferError:
                producer.poll(0.1)
        ends[partition][source] += 1
        if sum(ends[partition]) % PER_CHOICE == PER_CHOICE - 1:
            choice = Choice(
                number=numbers[partition], sources=sources, applied=tuple(ends[partition]), tick_ms=at_ms
            )
            numbers[partition] += 1
            producer.produce(JOINED.choices(settings.app), encode_choice(choice), partition=partition)
    assert producer.flush(120) == 0


def timed(work: Callable[[], int], records: int) -> Took:
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    found = work()
    took = Took(time.perf_counter() - began_s, time.process_time() - began_cpu_s)
    assert found == records, f"{found} records, not {records}"
    return took


def rounds(
    settings: Settings, options: ReplayOptions, records: int, count: int
) -> Iterator[tuple[Took, Took]]:
    """Yield what both sources one by one took, and the join of them, in turns; nothing of the first round."""
    shares = [records // 5 + (records % 5 > 0), records - records // 5 - (records % 5 > 0)]
    for number in range(count + 1):
        one, other = (
            timed(lambda each=each: replay(each, settings, options).records, share)  # type: ignore[misc]
            for each, share in zip(ALONE, shares, strict=True)
        )
        both = timed(lambda: replay(JOINED, settings, options).records, records)
        if number:
            yield one + other, both


def tell(where: str, found: list[tuple[Took, Took]], records: int) -> None:
    ratios = sorted(both.s / alone.s for alone, both in found)
    of_cpu = sorted(both.cpu_s / alone.cpu_s for alone, both in found)
    rate = records / median(both.s for _, both in found)
    print(
        f"{where:8s} two sources / one by one: {median(ratios):.2f} [{ratios[0]:.2f}-{ratios[-1]:.2f}] of the"
        f" time, {median(of_cpu):.2f} [{of_cpu[0]:.2f}-{of_cpu[-1]:.2f}] of the processor's; {rate:,.0f}"
        " records/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lake", action="store_true", help="land both, and replay the lake's files too")
    given = parser.parse_args()
    with TemporaryDirectory() as folder, Cluster(Path(folder) / "kafka") as cluster:
        settings = Settings(app="bench", kafka={"bootstrap.servers": cluster.bootstrap})
        admin = AdminClient({**settings.client()})
        sources = [
            NewTopic(topic, PARTITIONS, config={"message.timestamp.type": "CreateTime", "retention.ms": "-1"})
            for topic in JOINED.topics
        ]
        for made in admin.create_topics(sources).values():
            made.result(30)
        create_topics(settings, [JOINED], partitions=PARTITIONS)
        fill(settings, given.records)
        local = ReplayOptions(engine="local", rows=False)
        tell("topics", list(rounds(settings, local, given.records, given.rounds)), given.records)
        if given.lake:
            from holdfast.pipeline.landing.land_several import land_processor

            lake = f"{folder}/lake"
            land_processor(settings, JOINED, lake)
            bronze = ReplayOptions(engine="local", rows=False, source="bronze", lake=lake)
            tell("lake", list(rounds(settings, bronze, given.records, given.rounds)), given.records)


if __name__ == "__main__":
    main()
