"""The constants of `holdfast size` and docs/capacity.md, measured: stores, decoded rows, transactions on the
log, whole workers.

    python -P -m bench.sizing [--only store,cache,log,worker]

The broker is the embedded Kafka, in a process of its own: sizes are those of Kafka's own formats. Each part
takes half a minute at most.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import resource
import tempfile
import time
import tracemalloc
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Producer

from bench.embedded import served
from bench.processes import Worker, worker
from bench.run import load_average
from bench.traffic import create
from bench.worker import Count, counting_of
from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.core.claims.frames import Heartbeat, encode
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.positions import Position, encode_position
from holdfast.core.engine.state.codec import APPLIED, ROW, RowCodec
from holdfast.core.kafka.record_batch import Record, RecordBatch, encode_batch
from holdfast.dev.ports import free_ports
from holdfast.kafka.requests.connections import connector
from holdfast.kafka.transactions.transactional_client import producers
from holdfast.tables.changelog import ChangelogPart, ChangelogWriter
from holdfast.tables.rocks import UNLOGGED, Budget
from holdfast.tables.store import PartitionStore, StoreStamp

KEY_BYTES, VALUE_BYTES, TRANSACTION = 20, 100, 10_000
ROWS = (100_000, 300_000, 1_000_000)
STORES = (25, 50, 100)
WORKER_PARTITIONS = (4, 16, 64)
TRANSACTIONS = 200
RATE, LIVE_S = 2_000, 5.0
RECORDS_TOTAL, TRANSACTIONS_TOTAL = "holdfast_records_folded_total", "holdfast_transactions_total"
STAMP = StoreStamp(app="bench", processor="sizing", version=1, partition=0, cluster_id="c", changelog_id="l")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def resident_mb(pid: int | str = "self") -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


# -- stores


def rows_of(numbers: list[int]) -> list[tuple[bytes, bytes | None]]:
    """Return rows of 20 and 100 bytes that nothing can pack."""
    return [(ROW + b"key-%016d" % number, random.randbytes(VALUE_BYTES)) for number in numbers]


def store(rows: int) -> None:
    """Print what a store of *rows* takes, filled in any order, and after each row was replaced once."""
    numbers = list(range(rows))
    with tempfile.TemporaryDirectory() as folder:
        before = descriptors()
        opened = PartitionStore(Path(folder) / "store", STAMP, Budget.of(64 << 20, 64 << 20))
        told = []
        for turn in range(2):
            random.Random(turn).shuffle(numbers)
            for first in range(0, rows, TRANSACTION):
                last = turn * rows + first
                opened.write(
                    rows_of(numbers[first : first + TRANSACTION]),
                    Position((last,), 1, 1),
                    last + 1,
                    options=UNLOGGED,
                )
            time.sleep(1.0)  # what is merged in the background
            files = list((Path(folder) / "store").iterdir())
            size = sum(each.stat().st_size for each in files)
            sorted_tables = sum(each.suffix == ".sst" for each in files)
            told.append(
                f"{size / rows:.0f} B a row ({size / rows / (KEY_BYTES + VALUE_BYTES + 1):.2f} of its own),"
                f" {sorted_tables} files, {descriptors() - before} open"
            )
        opened.close()
    print(
        f"  {rows:>9,} rows of {KEY_BYTES + VALUE_BYTES} B: {told[0]}; replaced once: {told[1]}", flush=True
    )


def stores(count: int) -> None:
    """Print what *count* stores of a hundred rows take beside their rows."""
    with tempfile.TemporaryDirectory() as folder:
        budget = Budget.of(64 << 20, 64 << 20)
        before, before_mb = descriptors(), resident_mb()
        opened = []
        for number in range(count):
            each = PartitionStore(Path(folder) / str(number), STAMP, budget)
            each.write(rows_of(list(range(100))), Position((1,), 1, 1), 2, options=UNLOGGED)
            opened.append(each)
        files = sum(each.stat().st_size for each in Path(folder).rglob("*") if each.is_file())
        print(
            f"  {count:>9,} stores: {(descriptors() - before) / count:.1f} open files,"
            f" {(resident_mb() - before_mb) / count:.2f} MB, {files / count / 1000:.0f} kB of disk each",
            flush=True,
        )
        for each in opened:
            each.close()


# -- decoded rows


class Named(msgspec.Struct, frozen=True, gc=False):
    """A row of two numbers and a text."""

    count: int
    cents: int
    text: str


def cache(text_bytes: int, rows: int = 100_000) -> None:
    """Print what a decoded row takes in memory, of so many bytes stored."""
    processor: Processor[Any, Any] = Processor(
        name="cached",
        source="in",
        decode=lambda value: value.decode(),
        row=Named,
        fold=lambda found, key, at_ms: found.__setitem__(key, Named(at_ms, at_ms + len(key), key[::-1])),
    )
    values = [b"%020d" % number + b"x" * max(0, text_bytes - 20) for number in range(rows)]
    with tempfile.TemporaryDirectory() as folder:
        opened = PartitionStore(Path(folder) / "store", STAMP, Budget.of(64 << 20, 64 << 20))
        folder_of: Folder[Any] = Folder(processor, opened, cache_rows=4 * rows)
        gc.collect()
        tracemalloc.start()
        for first in range(0, rows, TRANSACTION):
            part = values[first : first + TRANSACTION]
            batch = Batch(range(first, first + len(part)), [10**12 + first] * len(part), (part,))
            changes = folder_of.fold([batch])
            assert changes is not None
            assert len(changes.puts) == len(part)
            opened.write(changes.puts, changes.marker, changes.marker.applied[0] + 1, options=UNLOGGED)
            folder_of.commit()
            del changes, batch
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        stored = text_bytes + len(RowCodec[Named](Named).encode(Named(10**12, 10**12, "x" * text_bytes)))
        opened.close()
    print(f"  a row stored in {stored:>5,} B with its key: {held / rows:,.0f} B decoded", flush=True)


# -- the log


async def written(bootstrap: str, rows: int, name: str) -> float:
    """Write transactions of *rows* rows; return seconds of processor for each."""
    settings = Settings(app="sizing", kafka={"bootstrap.servers": bootstrap})
    connect = connector(settings, timeout_s=10)
    before = descriptors()
    writer = ChangelogWriter(producers(connect, transaction_timeout_s=10)(name), changelog=name, partition=0)
    await writer.fence(10)
    codec = RowCodec[Count](Count)
    used_s = time.process_time()
    for number in range(TRANSACTIONS):
        puts = [
            (ROW + b"key-%016d" % (number * rows + row), codec.encode(Count(1, 2, 3, b"", b"x" * 80)))
            for row in range(rows)
        ]
        closing = (APPLIED, encode_position(Position((number,), 1, 1)))
        part = ChangelogPart([*puts, closing], [])
        await writer.write_parts(partial(tuple, [part]), 10)
    used_s = time.process_time() - used_s
    print(f"    {descriptors() - before} connections of its writer", flush=True)
    await writer.close()
    return used_s / TRANSACTIONS


def log(rows: int) -> None:
    """Print what a transaction of *rows* rows leaves on the changelog and with the transaction's
    coordinator.
    """
    with tempfile.TemporaryDirectory() as folder, served("folder", folder) as kafka:
        name = f"sizing-{rows}"
        create(kafka.bootstrap, name, 1)
        took_s = asyncio.run(written(kafka.bootstrap, rows, name))
        size = sum(each.stat().st_size for each in Path(folder, f"{name}-0").glob("*.log"))
        coordinator = sum(
            each.stat().st_size
            for part in Path(folder).glob("__transaction_state-*")
            for each in part.glob("*.log")
        )
    own = 21 + len(RowCodec[Count](Count).encode(Count(1, 2, 3, b"", b"x" * 80)))
    print(
        f"  transactions of {rows:>5,} rows of {own} B: {size / TRANSACTIONS - rows * own:,.0f} B beside the"
        f" rows on the changelog, {coordinator / TRANSACTIONS:.0f} B with the coordinator, {took_s * 1e3:.2f}"
        " ms of processor",
        flush=True,
    )


def choice(sources: int) -> None:
    """Print what a choice takes, alone in its batch, with the marker of the transaction."""
    offsets = tuple(10**9 + each for each in range(sources))
    made = msgspec.msgpack.encode(Choice(number=10**6, sources=2**62, applied=offsets))
    marker = msgspec.msgpack.encode(
        Position(offsets, 1 << 40, 1, (1 << 40,) * sources, 0, 1 << 40, 10**6, 2**62)
    )
    size = len(encode_batch(RecordBatch(records=(Record(value=made),))))
    print(f"  a choice of {sources} sources: {size} B in its batch; marker {len(marker)} B", flush=True)


# -- whole workers


def whole(partitions: int) -> None:
    """Print what a worker that runs takes: a thousand rows in each partition, at rest and while records
    come.
    """
    with tempfile.TemporaryDirectory() as folder, served() as kafka:
        topic, app = f"heartbeats-{partitions}", f"sizing-{partitions}"
        create(kafka.bootstrap, topic, partitions)
        feed = Feed(kafka.bootstrap, topic, partitions)
        feed.send(partitions * 1_000)
        settings = Settings(app=app, kafka={"bootstrap.servers": kafka.bootstrap}, coordination_topic=topic)
        create_topics(settings, [counting_of(topic)], partitions=partitions)
        environment = {
            "HOLDFAST_APP": app,
            "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap,
            "HOLDFAST_COORDINATION_TOPIC": topic,
            "HOLDFAST_DATA_DIR": str(Path(folder) / app),
            "HOLDFAST_WEB_PORT": str(free_ports(1)[0]),
            "BENCH_FOLD": "count",
            "BENCH_RECORDS": "0",
        }
        with worker(environment, Path(folder)) as running:
            running.wait_ready()
            wait_folded(running, feed.sent)
            told = (
                f"{resident_mb(running.pid):.0f} MB, {open_files(running.pid)} open files,"
                f" {share(running, 3.0):.1%} of a core at rest"
            )
            print(f"  {partitions:>4} partitions: {told}; {live(running, feed)}", flush=True)


class Feed:
    """Records for all partitions of a topic in turn, with keys of a thousand rows each."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
        self._topic, self._partitions, self.sent = topic, partitions, 0

    def send(self, count: int) -> None:
        for _ in range(count):
            number, partition = divmod(self.sent, self._partitions)
            frame = Heartbeat(
                1_476_147_600, "3c5a0f1e", "worker-7", "g", f"t-{number % 1_000}", partition, number
            )
            self._producer.produce(self._topic, encode(frame), partition=partition)
            self.sent += 1
            self._producer.poll(0)
        assert self._producer.flush(30) == 0


def live(running: Worker, feed: Feed) -> str:
    """Send RATE records a second for a while; return what the worker made of them."""
    before, sent = counters(running), feed.sent
    used_s, began_s = running.cpu_s(), time.perf_counter()
    for beat in range(int(LIVE_S * 100)):
        feed.send(RATE // 100)
        time.sleep(max(0.0, began_s + (beat + 1) / 100 - time.perf_counter()))
    took_s, used_s = time.perf_counter() - began_s, running.cpu_s() - used_s
    wait_folded(running, feed.sent)
    done = counters(running)[TRANSACTIONS_TOTAL] - before[TRANSACTIONS_TOTAL]
    return (
        f"{(feed.sent - sent) / took_s:,.0f} records/s: {used_s / took_s:.0%} of a core, {done / took_s:,.0f}"
        f" transactions/s, {used_s / done * 1e3:.2f} ms of processor each"
    )


def share(running: Worker, seconds: float) -> float:
    used_s, began_s = running.cpu_s(), time.perf_counter()
    time.sleep(seconds)
    return (running.cpu_s() - used_s) / (time.perf_counter() - began_s)


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def counters(running: Worker) -> dict[str, float]:
    """Return the sum of each metric over all partitions."""
    found: dict[str, float] = defaultdict(float)
    with urllib.request.urlopen(f"{running.url}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                found[name.partition("{")[0]] += float(value)
    return found


def wait_folded(running: Worker, records: int) -> None:
    until_s = time.monotonic() + 60
    while counters(running)[RECORDS_TOTAL] < records:
        if time.monotonic() > until_s:
            raise SystemExit("the worker did not fold its records in time")
        time.sleep(0.2)


def parts() -> Iterator[tuple[str, Any, Any]]:
    yield from (("store", store, rows) for rows in ROWS)
    yield from (("store", stores, count) for count in STORES)
    yield from (("cache", cache, size) for size in (20, 200, 800))
    yield from (("log", log, rows) for rows in (1, 10, 100))
    yield from (("log", choice, sources) for sources in (2, 4))
    yield from (("worker", whole, partitions) for partitions in WORKER_PARTITIONS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="store,cache,log,worker")
    given = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(load_average(), flush=True)
    for name, part, size in parts():
        if name in given.only.split(","):
            part(size)


if __name__ == "__main__":
    main()
