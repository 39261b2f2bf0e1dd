"""The worker under measurement: holdfast's own worker, unchanged, with a clock on its first record and its
last commit.

    BENCH_FOLD=claims|count|books|clean|rekey BENCH_RECORDS=N python -P -m bench.worker worker -l warn

Clock: first record handed to an agent, to the last transaction committed in Kafka and written to RocksDB.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import Message
from rocksdict import WriteOptions

from bench.traffic import key_of
from holdfast.agents.app import create_app
from holdfast.agents.metrics import PartitionMetrics
from holdfast.agents.partitions.manager import PartitionManager
from holdfast.agents.services.bookkeeper import books, dedupe
from holdfast.agents.services.rationalizer import processors
from holdfast.config import Settings, settings_from_environment
from holdfast.core.engine.choices import Choice
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Bytes
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.state.rows import Rows
from holdfast.kafka.fetching.source_fetcher import Fetched, SourceFetcher
from holdfast.streams import Rekey
from holdfast.tables.replay import ChangelogReplay

RECORDS = int(os.environ.get("BENCH_RECORDS", "0"))
RESTORE_RECORDS = int(os.environ.get("BENCH_RESTORE_RECORDS", "0"))
FOLD = os.environ.get("BENCH_FOLD", "claims")


class Count(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What the plain loop keeps of a claim: time, offset, heartbeats seen, and who."""

    time_s: int = 0
    offset: int = 0
    seen: int = 0
    instance: bytes = b""
    client: bytes = b""


NOTHING = Count()


def decode(value: bytes) -> tuple[str, int, int, bytes, bytes]:
    kind, _, time_s, instance, client, rest = value.split(b"/", 5)
    key, _, offset = rest.rpartition(b"/")
    if kind != b"Heartbeat" or key.count(b"/") != 2:
        raise ValueError(value)
    return key.decode(), int(time_s), int(offset), instance, client


def fold(rows: Rows[Count], event: tuple[str, int, int, bytes, bytes], at_ms: int) -> None:
    key, time_s, offset, instance, client = event
    rows[key] = Count(time_s, offset, rows.get(key, NOTHING).seen + 1, instance, client)


class Clock:
    """Wall, CPU and the longest stall of the event loop between the first record and the last commit."""

    def __init__(self) -> None:
        self.started_s = self.cpu_s = 0.0
        self.records = self.rows = self.transactions = self.barriers = 0
        self.stall_s = 0.0

    def start(self) -> None:
        if not self.started_s:
            self.started_s, self.cpu_s = time.perf_counter(), time.process_time()
            if RECORDS:  # its 200 wake-ups a second are more than an idle worker's own
                self.watch = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while True:
            before_s = time.perf_counter()
            await asyncio.sleep(0.005)
            self.stall_s = max(self.stall_s, time.perf_counter() - before_s - 0.005)

    def committed(self, records: int, rows: int) -> None:
        self.records += records
        self.rows += rows
        self.transactions += 1
        if self.records >= RECORDS > 0:
            wall_s, cpu_s = time.perf_counter() - self.started_s, time.process_time() - self.cpu_s
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            print(
                f"RESULT holdfast-{FOLD} rate={self.records / wall_s:.0f} wall_s={wall_s:.2f}"
                f" cpu_us={cpu_s / self.records * 1e6:.2f} changelog={self.rows}"
                f" transactions={self.transactions} barriers={self.barriers}"
                f" stall_ms={self.stall_s * 1e3:.0f} rss_mb={rss}",
                flush=True,
            )
            os._exit(0)


def measure_restore() -> None:
    """Log the records and the time between the first and the last changelog batch of a restore, as Kafka
    Streams' own clock has it.
    """
    plain, first_s, read = ChangelogReplay.apply, 0.0, 0

    def timed(self: ChangelogReplay, messages: list[Message], options: WriteOptions) -> None:
        nonlocal first_s, read
        first_s = first_s or time.perf_counter()
        read += len(messages)
        plain(self, messages, options)
        if read >= RESTORE_RECORDS > 0:
            logging.getLogger(__name__).warning(
                "restored %d records in %.3f s", read, time.perf_counter() - first_s
            )

    ChangelogReplay.apply = timed  # type: ignore[method-assign]


def measure() -> None:
    """Put the clock on the worker's own calls."""
    clock = Clock()
    hand, committed, decided = PartitionManager.hand, PartitionMetrics.committed, PartitionMetrics.decided

    def timed_hand(self: PartitionManager, processor: str, event: Any) -> None:
        clock.start()
        hand(self, processor, event)

    def timed_committed(self: PartitionMetrics, *, records: int, rows: int, **others: Any) -> None:
        committed(self, records=records, rows=rows, **others)
        clock.committed(records, rows)

    def counted_decided(self: PartitionMetrics, choices: Collection[Choice]) -> None:
        decided(self, choices)
        clock.barriers += sum(each.tick_ms is None for each in choices)

    PartitionManager.hand = timed_hand  # type: ignore[method-assign]
    PartitionMetrics.committed = timed_committed  # type: ignore[method-assign]
    PartitionMetrics.decided = counted_decided  # type: ignore[method-assign]


def hold_until(gate: Path) -> None:
    """Fetch nothing before the file *gate* is there, so that a group can settle first."""
    fetch = SourceFetcher.fetch

    async def held(self: SourceFetcher, epoch: int, wait_s: float) -> list[Fetched]:
        if gate.exists():  # noqa: ASYNC240  a stat, and no part of what is measured
            return await fetch(self, epoch, wait_s)
        await asyncio.sleep(wait_s)
        return []

    SourceFetcher.fetch = held  # type: ignore[method-assign]


def counting_of(source: str) -> Processor[tuple[str, int, int, bytes, bytes], Count]:
    """Return the counting fold over *source*."""
    return Processor(name="count", source=source, decode=decode, fold=fold, row=Count)


def declared(fold: str, settings: Settings) -> list[Processor[Any, Any]]:
    """Return what a worker folds its one topic with: claims, a count, the books of stamped records, or the
    books with a clean topic.
    """
    topic = settings.coordination_topic
    match fold:
        case "claims":
            return processors(settings)
        case "books":
            return [books(topic)]
        case "clean":
            return [dedupe(topic, f"{settings.app}-clean")]
        case "rekey":
            return [
                Rekey(name=f"{settings.app}-rekey", source=Source(topic, Bytes()), by=key_of, key=Bytes())
            ]
    return [counting_of(topic)]


if __name__ == "__main__":
    measure()
    measure_restore()
    if "BENCH_GATE" in os.environ:
        hold_until(Path(os.environ["BENCH_GATE"]))
    settings = settings_from_environment()
    app = create_app(declared(FOLD, settings), settings)
    app.main()
