"""The stream-table join of `bench.joins` without a broker: `python -P -m bench.join_folds [--orders 200000]
[--rounds 5]`.

Processor time of what a worker does between a fetch and a Produce request: records are merged and folded, and
what is sent is placed and packed. In one step, and by way of a merged topic; the least of rounds that take
turns, in us for each record of the two topics.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from bench.join_worker import declared
from bench.joins import CUSTOMERS, ORDERS, Record, each_customer, woven
from holdfast.config import Settings
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.partitioners import of_key
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.merge.merging import Merger
from holdfast.core.engine.positions import start_of
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.kafka.topic_partition import Place
from holdfast.kafka.transactions.transactional_client import BATCH_BYTES, SentBatch, _Lot
from holdfast.kafka.transactions.transactional_producer import Written
from holdfast.tables.changelog import ChangelogPart, ChangelogWriter

PARTITIONS, FETCHED, EMITS = 4, 4_000, 10_000
START_MS = 1_700_000_000_000
Log = list[tuple[int, str | bytes | None, bytes | None]]
"""Append time, key and value of the records of one partition."""


class Packing:
    """A producer without a broker: it packs batches, and lets go of them."""

    transactional_id = "bench"
    why: object = None

    async def fence(self) -> None: ...

    async def partitions(self, topic: str, *, more_than: int = 0) -> int:
        return PARTITIONS

    async def append(self, records: Mapping[Place, Sequence[Written]]) -> dict[Place, int]:
        for each in records.values():
            lot = _Lot(each)
            while lot.at < len(each):
                builder = DefaultRecordBatchBuilder(2, 0, 1, 7, 0, 0, BATCH_BYTES)
                assert isinstance(lot.batch(builder, START_MS), SentBatch)
        return {}

    async def end(self, *, commit: bool) -> None: ...

    async def close(self) -> None: ...


def batches_of(processor: Processor[Any, Any], number: int, log: Log) -> Iterator[Batch]:
    """Yield the batches in which source *number* of a processor is fetched."""
    inputs = processor.columns if processor.on is None else processor.folds[number].inputs
    for at in range(0, len(log), FETCHED):
        part = log[at : at + FETCHED]
        columns: dict[str, Sequence[Any]] = {
            "key": [key for _, key, _ in part],
            "value": [value for *_, value in part],
            "headers": [()] * len(part),
            "partition": [0] * len(part),
        }
        times = [at_ms for at_ms, *_ in part]
        yield Batch(range(at, at + len(part)), times, tuple(columns[name] for name in inputs))


class Source(Protocol):
    """Where a fold's input comes from."""

    def given(self) -> Iterator[Any]:
        """Yield what is to be folded next: what was not folded to its end first."""

    def settle(self) -> None:
        """Take it that what was folded is committed."""


class OneLog:
    """The batches of one log."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches, self._left = batches, list[Batch]()

    def given(self) -> Iterator[Batch]:
        if self._left:
            yield self._left[0]
        for batch in self._batches:
            self._left = [batch]
            yield batch

    def settle(self) -> None:
        pass


class MergedLogs:
    """The batches of several logs, merged as *folder* wants them."""

    def __init__(
        self, processor: Processor[Any, Any], folder: Folder[Any], logs: Sequence[Iterator[Batch]]
    ) -> None:
        self._folder, self._logs = folder, logs
        self._merger, self._ends = Merger(start_of(processor)), [1 << 62] * len(logs)

    def given(self) -> Iterator[Any]:
        while True:
            while (stretch := self._merger.take(self._ends)) is not None:
                yield stretch
            source = self._merger.waits_for(self._ends)
            if source is None:
                return
            batch = next(self._logs[source], None)
            if batch is None:
                self._ends[source] = 0
            else:
                self._merger.offer(source, batch)

    def settle(self) -> None:
        self._merger.settle(self._folder.marker)


class Work:
    """One partition of one processor, from fold to commit; *took* has the seconds of each of its steps."""

    def __init__(
        self,
        folder: Folder[Any],
        source: Source,
        store: DictStore,
        took: dict[str, float],
        hop: str = "",
    ) -> None:
        self._folder, self._source, self._store = folder, source, store
        self._took, self._hop, self.sent = took, hop, list[Emit]()
        self._writer = ChangelogWriter(Packing(), changelog="c", partition=0)

    @classmethod
    def of_one(cls, processor: Processor[Any, Any], log: Log, took: dict[str, float], hop: str = "") -> Work:
        store = DictStore()
        return cls(Folder(processor, store), OneLog(batches_of(processor, 0, log)), store, took, hop)

    @classmethod
    def of_several(cls, processor: Processor[Any, Any], logs: Sequence[Log], took: dict[str, float]) -> Work:
        store = DictStore()
        folder: Folder[Any] = Folder(processor, store)
        batches = [batches_of(processor, number, log) for number, log in enumerate(logs)]
        return cls(folder, MergedLogs(processor, folder, batches), store, took)

    def run(self) -> None:
        while self._timed("fold", self._fold):
            self._timed("place and pack", self._write)
            self._timed("commit", self._commit)
        self._folder.rollback()

    def _timed(self, what: str, work: Callable[[], Any]) -> Any:
        began_s = time.process_time()
        found = work()
        what = self._hop + what
        self._took[what] = self._took.get(what, 0.0) + time.process_time() - began_s
        return found

    def _fold(self) -> Any:
        for _ in self._folder.steps(self._source.given()):
            if self._folder.emitted >= EMITS:
                self._folder.close_early()
        return self._folder.changes

    def _write(self) -> None:
        changes = self._folder.changes
        assert changes is not None
        part = ChangelogPart([*changes.puts, changes.closing()], changes.emits)
        asyncio.run(self._writer.write_parts(lambda: (part,), 60))
        self.sent += changes.emits

    def _commit(self) -> None:
        assert self._folder.changes is not None
        self._store.apply(self._folder.changes.puts)
        self._folder.commit()
        self._source.settle()


def logs_of(records: Iterator[Record]) -> list[list[Log]]:
    """Return the logs of orders and customers of each partition."""
    out: list[list[Log]] = [[[], []] for _ in range(PARTITIONS)]
    for number, (topic, key, value) in enumerate(records):
        out[of_key(key, PARTITIONS)][topic == CUSTOMERS].append((START_MS + number // 200, key, value))
    return out


def in_turn(orders: int, customers: int, fold: str) -> dict[str, float]:
    """Return the seconds of each step of one form of the join."""
    records = [
        *each_customer(CUSTOMERS, customers),
        *woven((ORDERS, orders), (CUSTOMERS, customers), customers),
    ]
    parts, took = logs_of(iter(records)), dict[str, float]()
    processors = declared(fold, Settings(app="bench"), ORDERS, CUSTOMERS)
    sent = 0
    for of_orders, of_customers in parts:
        first = Work.of_several(processors[0], [of_customers, of_orders], took)
        first.run()
        if len(processors) == 1:
            sent += len(first.sent)
            continue
        merged = [(START_MS, each.key, each.value) for each in first.sent]
        second = Work.of_one(processors[1], merged, took, "2nd ")
        second.run()
        sent += len(second.sent)
    assert sent == orders, f"{sent} of {orders}"
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=200_000)
    parser.add_argument("--customers", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    records, least = given.orders + 2 * given.customers, dict[str, dict[str, float]]()
    for _ in range(given.rounds):
        for fold in ("join", "hops"):
            took, best = in_turn(given.orders, given.customers, fold), least.setdefault(fold, {})
            for name, seconds in {**took, "all": sum(took.values())}.items():
                best[name] = min(best.get(name, seconds), seconds)
    for fold, best in least.items():
        told = ", ".join(f"{name} {seconds / records * 1e6:.2f}" for name, seconds in best.items())
        print(f"{fold}: {told}")
    print(f"two hops / one step: {least['hops']['all'] / least['join']['all']:.2f}")


if __name__ == "__main__":
    main()
