"""Earlier positions of globals, for a partition that obeys choices which another version recorded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.agents.globals.copies import GlobalCopies
from holdfast.agents.globals.feed import GlobalFeed, stalled
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.merge.global_copies import GlobalLog, GlobalReplay, folded_by
from holdfast.core.engine.state.global_rows import Vector
from holdfast.core.kafka.topic_partition import Place
from holdfast.tables.global_store import GlobalStore
from holdfast.tables.lived import Stopwatch


class _Buffer:
    """Batches of one partition that were fetched and not yet applied."""

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if not self.batches:
            raise StopIteration
        return self.batches.popleft()


class GlobalHistory:
    """Copies of one partition's own, which read the topics again and come to each recorded position in turn.

    `stage` positions while no transaction is open; then folds find them without waiting. Records are applied
    as they come, and a partition that has come to its position is fetched no more: a fetch or two are held.

    """

    def __init__(
        self, tables: GlobalCopies, processor: Processor[Any, Any], partition: int, feed: GlobalFeed
    ) -> None:
        self._tables, self._processor, self._partition, self._feed = tables, processor, partition, feed
        self._buffers: list[dict[int, tuple[_Buffer, GlobalLog]]] = []
        self._inputs = [folded_by(each).folds[0].inputs for each in processor.reads]
        self._stores: list[GlobalStore] = []
        self._working: asyncio.Future[Any] | None = None
        self.replay: GlobalReplay | None = None
        self.staged: tuple[Vector, ...] | None = None

    async def stage(self, vectors: tuple[Vector, ...], stall_timeout_s: float) -> None:
        """Have the copies come to *vectors*; raises GlobalsError when their logs do not."""
        if self.replay is None:
            await self._begin()
        idle = Stopwatch()
        while behind := self._behind(vectors):
            self._hold_what_is_there(vectors)
            lots = await self._feed.fetch()
            for each in lots:
                for number, table in enumerate(self._processor.reads):
                    if table.topic == each.topic:
                        batch = each.records.batch(each.partition, self._inputs[number])
                        self._buffers[number][each.partition][0].batches.append(batch)
            for number, parts in enumerate(self._buffers):
                for partition, (_, log) in parts.items():
                    log.end = self._feed.reached((self._processor.reads[number].topic, partition))
            idle.tick()
            if lots:
                idle.reset()
                await self._work(self._read, vectors)
            if idle.s > stall_timeout_s:
                table, vector = self._processor.reads[behind - 1], vectors[behind - 1]
                raise stalled(
                    table.name, idle.s, [log.end - 1 for _, log in self._buffers[behind - 1].values()], vector
                )
        await self._work(self._advance, vectors)
        self.staged = vectors

    async def _work(self, call: Any, *args: Any) -> None:
        names = ", ".join(each.name for each in self._processor.reads)
        self._working = self._tables.fold(names, call, *args)
        await asyncio.shield(self._working)

    async def _begin(self) -> None:
        await self._work(self._make)
        reads, starts = self._processor.reads, dict[Place, int]()
        for table in reads:
            count = self._tables.counts[table.topic]
            parts = {number: _Buffer() for number in range(count)}
            self._buffers.append({at: (buffer, GlobalLog(buffer, 0)) for at, buffer in parts.items()})
            starts |= {(table.topic, number): 0 for number in range(count)}
        await self._feed.assign(starts)
        self.replay = GlobalReplay(
            reads,
            lambda number: {at: log for at, (_, log) in self._buffers[number].items()},
            self._stores,
            self._tables.patience(),
        )

    def _make(self) -> None:
        for table in self._processor.reads:
            name = f"{table.name}.{self._processor.table}.{self._partition}"
            self._stores.append(self._tables.store(name))

    def _behind(self, vectors: Sequence[Vector]) -> int:
        """Return the number of a global, from 1, of which more must be read; 0 for none."""
        for number, vector in enumerate(vectors):
            parts = self._buffers[number]
            for partition, last in enumerate(vector):
                if last >= 0 and (partition not in parts or parts[partition][1].end <= last):
                    return number + 1
        return 0

    def _hold_what_is_there(self, vectors: Sequence[Vector]) -> None:
        """Fetch those partitions alone of which some global needs more."""
        needed: dict[Place, bool] = {}
        for table, parts, vector in zip(self._processor.reads, self._buffers, vectors, strict=True):
            for partition, (_, log) in parts.items():
                last = vector[partition] if partition < len(vector) else -1
                place = (table.topic, partition)
                needed[place] = needed.get(place, False) or log.end <= last
        for place, more in needed.items():
            self._feed.hold(place, not more)

    def _read(self, vectors: tuple[Vector, ...]) -> None:
        assert self.replay is not None, "begin first"
        for number, vector in enumerate(vectors):
            self.replay.read(number, vector)

    def _advance(self, vectors: tuple[Vector, ...]) -> None:
        assert self.replay is not None, "begin first"
        for number, vector in enumerate(vectors):
            if self.staged is None:
                self.replay.settle(number, vector)
            else:
                self.replay.move(number, vector)
            self.replay.view(number, vector)

    async def close(self) -> None:
        """Close the feed and remove the copies, once no thread works on them."""
        if self._working is not None and not self._working.done():
            await asyncio.wait([self._working])
        await self._feed.close()
        stores, self._stores = self._stores, []
        for store in stores:
            await self._tables.thread(store.destroy)
