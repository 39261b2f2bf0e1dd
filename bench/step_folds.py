"""A re-key and windows behind it without a broker: `python -P -m bench.step_folds [--records 200000]
[--rounds 5]`.

Processor time of what workers do between a fetch and a Produce request, for each record: the step parses
what it fetched, folds it, places and packs what it sends; the windows parse and fold that. The step has
as many partitions as its topic, each with records in order, and their transactions take turns. The least of
rounds, in us a record.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import Mapping, Sequence
from struct import pack_into
from typing import Any

import msgspec
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from holdfast import Json, Source
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.kafka.topic_partition import Place
from holdfast.kafka.fetching.batch_reader import BatchReader
from holdfast.kafka.fetching.records import Records
from holdfast.kafka.transactions.transactional_client import BATCH_BYTES, _Lot
from holdfast.kafka.transactions.transactional_producer import Written
from holdfast.streams import Map, Rekey, Session, Tumbling, Windowed, final
from holdfast.tables.changelog import ChangelogPart, ChangelogWriter

PARTITIONS, TRANSACTION, HANDFUL = 4, 1_000, 500
START_MS, DAY_MS, KEYS = 1_700_006_400_000, 86_400_000, 1_000
CHANGELOG = "c"


class View(msgspec.Struct, frozen=True, gc=False):
    page: str
    user: str
    at: int


VIEWS = Source("views", Json(View), time=lambda view: view.at)


def add(count: int | None, view: View) -> int:
    return 1 if count is None else count + 1


def steps() -> dict[str, Any]:
    """Return the steps that are measured, by name."""
    return {
        "re-key": Rekey(name="by-user", source=VIEWS, by=lambda view: view.user),
        "map": Map(
            name="views-again", source=VIEWS, each=lambda view: view, serde=Json(View), time=VIEWS.time
        ),
    }


def folds(topic: Any) -> dict[str, Processor[Any, Any]]:
    """Return what folds the topic of a step, by name."""
    source = Source(topic, Json(View), time=VIEWS.time)
    common: dict[str, Any] = {"source": source, "by": lambda view: view.user, "fold": add, "row": int}
    return {
        "windows": Windowed(
            name="hours", window=Tumbling("1h", grace="1h"), emit=final("hourly"), retention="1h", **common
        ),
        "sessions": Windowed(
            name="sessions",
            window=Session("10m", grace="1h"),
            merge=int.__add__,
            emit=final("visits"),
            retention="1h",
            **common,
        ),
    }


class Packing:
    """A producer without a broker: it packs batches, and keeps those of topics."""

    transactional_id = "bench"
    why: object = None

    def __init__(self) -> None:
        self.logs = [bytearray() for _ in range(PARTITIONS)]
        self.records = [0] * PARTITIONS

    async def fence(self) -> None: ...

    async def partitions(self, topic: str, *, more_than: int = 0) -> int:
        return PARTITIONS

    async def append(self, records: Mapping[Place, Sequence[Written]]) -> dict[Place, int]:
        for (topic, partition), each in records.items():
            lot = _Lot(each)
            while lot.at < len(each):
                batch = lot.batch(DefaultRecordBatchBuilder(2, 0, 1, 7, 0, 0, BATCH_BYTES), START_MS)
                if topic != CHANGELOG:
                    data = bytearray(batch.data)
                    pack_into(">q", data, 0, self.records[partition])
                    self.logs[partition] += data
                    self.records[partition] += batch.records
        return {}

    async def end(self, *, commit: bool) -> None: ...

    async def close(self) -> None: ...


class Work:
    """One partition of one processor, from what was fetched to the commit."""

    def __init__(self, processor: Processor[Any, Any], partition: int, log: bytes, producer: Packing) -> None:
        self._processor, self._partition = processor, partition
        self._store = DictStore()
        self._folder: Folder[Any] = Folder(processor, self._store)
        self._reader = BatchReader(memoryview(log), (), 0, limit_bytes=1 << 30)
        self._writer = ChangelogWriter(producer, changelog=CHANGELOG, partition=partition)
        self._marks: dict[str, Any] = {}
        self.emitted = 0
        if processor.stateless and hasattr(self._folder, "clock"):
            from holdfast.tables.marks import StepMarks

            self._marks["marks"] = StepMarks(processor, partition)

    @property
    def done(self) -> bool:
        return self._reader.done

    def transaction(self) -> None:
        folder, processor = self._folder, self._processor
        inputs, batches, taken = processor.columns, [], 0
        while taken < TRANSACTION and not self._reader.done:
            records = Records()
            self._reader.take(records, HANDFUL)
            if len(records):
                batches.append(records.batch(self._partition, inputs))
                taken += len(records)
        changes = folder.fold(batches)
        if changes is None:
            return
        assert not changes.refused, changes.refused
        marks = self._marks
        if marks:
            assert changes.reached is not None
            marks["marks"].begin(changes.reached)
        if processor.stateless:
            part = ChangelogPart([*changes.puts, changes.closing()], changes.emits, **marks)
            asyncio.run(self._writer.write_parts(lambda: (part,), 60))
        if marks:
            marks["marks"].committed()
        self._store.apply(changes.puts)
        folder.commit()
        self.emitted += len(changes.emits)


def views(records: int) -> list[bytes]:
    """Return the log of each partition of the source."""
    logs: list[list[Written]] = [[] for _ in range(PARTITIONS)]
    for number in range(records):
        user, page = f"user-{number * 7919 % KEYS}", f"page-{number * 31 % 997}"
        at = START_MS + number * DAY_MS // records
        logs[number % PARTITIONS].append((user.encode(), msgspec.json.encode(View(page, user, at)), []))
    packing = Packing()
    for partition, each in enumerate(logs):
        asyncio.run(packing.append({("views", partition): each}))
    return [bytes(each) for each in packing.logs]


def run(
    processor: Processor[Any, Any], logs: Sequence[bytes], records: int
) -> tuple[float, list[bytes], int]:
    """Return the us that a record takes, the logs of what is sent, and how many records were emitted."""
    gc.collect()
    gc.freeze()  # as workers do, and as seldom after that
    gc.set_threshold(50_000, 4, 2_000)
    packing = Packing()
    works = [Work(processor, partition, log, packing) for partition, log in enumerate(logs)]
    began_s = time.process_time()
    while not all(work.done for work in works):
        for work in works:
            if not work.done:
                work.transaction()
    took_us = (time.process_time() - began_s) / records * 1e6
    return took_us, [bytes(each) for each in packing.logs], sum(work.emitted for work in works)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    source, least, sizes = views(given.records), dict[str, float](), dict[str, str]()
    for _ in range(given.rounds):
        for name, step in steps().items():
            took_us, sent, _ = run(step, source, given.records)
            least[name] = min(took_us, least.get(name, took_us))
            sizes[name] = f"{sum(map(len, sent)) / given.records:.1f} bytes a record"
            for fold, processor in folds(step.to).items():
                told = f"{fold} behind {name}"
                took_us, _, emitted = run(processor, sent, given.records)
                least[told] = min(took_us, least.get(told, took_us))
                sizes[told] = f"{emitted:,} emitted"
    if given.json:
        print(msgspec.json.encode(least).decode())
        return
    for name, took_us in least.items():
        print(f"{name:28s} {took_us:6.2f} us  {sizes[name]}", flush=True)


if __name__ == "__main__":
    main()
