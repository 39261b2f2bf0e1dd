"""`RangeConsumer`: more members than partitions, for work without order. Each takes blocks of offsets ahead of the log's end.

async with RangeConsumer("127.0.0.1:9092", topic="orders", group="resize", client="resize-1") as consumer:
    async for block in consumer:
        for record in block.records:
            handle(record.value())
        await block.done()
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from confluent_kafka import Message

from holdfast.clients.range_log import RangeLog
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.ranges import LIMIT_BLOCK_MESSAGES, RANGES_TOPIC, Block, Keep, next_take
from holdfast.errors import ClaimLostError, ConfigError, TerminatedError

__all__ = ["RangeBlock", "RangeConsumer"]

T = TypeVar("T")
KEEP_LEASES = 0.25
MARGIN_LEASES = 0.1
IDLE_S = 0.05


@dataclass(slots=True)
class _Mine:
    """A block of this member, as it stands. Nothing of it is handed out at *until_s* or later."""

    start: int
    end: int
    epoch: int
    progress: int
    deliveries: int
    until_s: float


class RangeBlock:
    """Messages of one block that were there, in offset order; `records` are confluent-kafka's own."""

    def __init__(self, consumer: RangeConsumer, partition: int, mine: _Mine, records: list[Message], reached: int) -> None:
        self._consumer, self._mine, self._reached = consumer, mine, reached
        self.partition, self.records, self.deliveries = partition, records, mine.deliveries

    @property
    def first_offset(self) -> int:
        return self._mine.progress

    @property
    def next_offset(self) -> int:
        return self._reached

    @property
    def is_held(self) -> bool:
        """Return whether the block is still safe to work on."""
        return self._consumer.holds(self._mine)

    async def done(self) -> None:
        """Note that all of it is done. Raises ClaimLostError when another member may have it by now."""
        await self._consumer.finish(self.partition, self._mine, self._reached)

    async def fail(self) -> None:
        """Give it back undone: another attempt follows, or after the last one the dead letters."""
        await self._consumer.give_back(self.partition, self._mine)


class RangeConsumer:
    """Takes blocks of a topic's partitions, one of each at a time. Use it in `async with`; `done` each block before the next is asked for.

    *lease_s* is how long a silent member keeps a block, the same in the whole group. A block that was begun *maximum_deliveries* times
    and got nowhere goes to *dead_letters*.
    """

    def __init__(
        self,
        kafka: Settings | str,
        *,
        topic: str,
        group: str,
        client: str,
        block_messages: int = 100,
        lease_s: float = 10.0,
        maximum_deliveries: int = 5,
        dead_letters: str | None = None,
        ranges_topic: str = RANGES_TOPIC,
        request_timeout_s: float = 10.0,
        clock: Clock = system_clock,
    ) -> None:
        if not 1 <= block_messages <= LIMIT_BLOCK_MESSAGES:
            raise ConfigError(f"block_messages is {block_messages}: use 1 to {LIMIT_BLOCK_MESSAGES}")
        if not 1.0 <= lease_s <= 3_600 or maximum_deliveries < 1 or not 0 < request_timeout_s <= 3_600:
            raise ConfigError("lease_s must be 1 to 3600, maximum_deliveries at least 1, request_timeout_s more than 0 and at most 3600")
        settings = kafka if isinstance(kafka, Settings) else Settings(kafka={"bootstrap.servers": kafka})
        self._log = RangeLog(
            settings,
            topic=topic,
            group=group,
            ranges_topic=ranges_topic,
            dead_letters=dead_letters or f"{topic}.dead-letters",
            lease_ms=int(lease_s * 1_000),
            timeout_s=request_timeout_s,
            clock=clock,
        )
        self.client, self.instance = client, uuid.uuid4().hex[:8]
        self._size, self._lease_s, self._limit, self._clock = block_messages, lease_s, maximum_deliveries, clock
        self._mine: dict[int, _Mine] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-ranges")
        self._keeping: asyncio.Task[None] | None = None
        self._turn = 0
        self.buried = 0

    async def __aenter__(self) -> Self:
        try:
            await self._do(self._log.open)
        except BaseException:
            await self._do(self._log.close)
            self._thread.shutdown(wait=False)
            raise
        self._keeping = asyncio.create_task(self._keep_all())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await keeping
        try:
            for partition, mine in list(self._mine.items()):
                with suppress(ClaimLostError):
                    await self._do(lambda at=partition, held=mine: self._keep(at, held, held.progress, free=True))  # type: ignore[misc]
        finally:
            await self._do(self._log.close)
            self._thread.shutdown(wait=False)

    async def _do(self, step: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, step)

    # -- blocks

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RangeBlock:
        while True:
            if self._keeping is None:
                raise TerminatedError("the range consumer is not running: use it inside `async with`")
            if self._keeping.done():
                self._keeping.result()
            found = None
            with suppress(ClaimLostError):  # another has it: look again
                found = await self._do(self._next)
            if found is not None and found.is_held:
                return found
            await asyncio.sleep(IDLE_S)

    def holds(self, mine: _Mine) -> bool:
        """Return whether *mine* is safe to work on at this moment."""
        return any(each is mine for each in self._mine.values()) and self._clock.monotonic_s() < mine.until_s

    async def finish(self, partition: int, mine: _Mine, reached: int) -> None:
        """Note progress of a block."""
        await self._do(lambda: self._keep(partition, mine, reached))

    async def give_back(self, partition: int, mine: _Mine) -> None:
        """Give a block back."""
        await self._do(lambda: self._keep(partition, mine, mine.progress, free=True))

    async def _keep_all(self) -> None:
        while True:
            await asyncio.sleep(KEEP_LEASES * self._lease_s)
            for partition, mine in list(self._mine.items()):
                with suppress(ClaimLostError):  # whoever works on it is told when it says that it is done
                    await self._do(lambda at=partition, held=mine: self._keep(at, held, held.progress))  # type: ignore[misc]

    # -- in the thread

    def _next(self) -> RangeBlock | None:
        """Return messages of a block of ours, partitions in turn; None when there are none now."""
        self._log.catch_up()
        partitions = self._log.partitions
        for step in range(len(partitions)):
            partition = partitions[(self._turn + step) % len(partitions)]
            latest = self._log.latest(partition)
            mine = self._mine.get(partition) or self._take(partition, latest)
            if mine is None or mine.progress >= latest:
                continue
            limit = self._size
            records, reached = self._log.fetch(partition, mine.progress, mine.end, limit)
            if mine.deliveries > self._limit and reached > mine.progress:
                self._log.bury(records, mine.deliveries - 1)
                self._keep(partition, mine, reached)
                self.buried += len(records)
            elif records:
                self._turn = (self._turn + step + 1) % len(partitions)
                return RangeBlock(self, partition, mine, records, reached)
            elif reached > mine.progress:
                self._keep(partition, mine, reached)
        return None

    def _take(self, partition: int, latest: int) -> _Mine | None:
        row = self._log.rows[partition].row
        wish = next_take(
            row,
            self.client,
            self.instance,
            now_ms=self._log.now_ms(),
            lease_ms=int(self._lease_s * 1_000),
            size=self._size,
            ahead_of=latest + self._size,
        )
        if wish is None:
            return None
        sent_s = self._clock.monotonic_s()
        if not self._log.wish(partition, wish):
            return None
        block = self._log.rows[partition].row.block(wish.start)
        if not self._is_mine(block) or block is None:
            return None
        mine = self._mine[partition] = _Mine(block.start, block.end, block.epoch, block.progress, block.deliveries, self._until(sent_s))
        return mine

    def _is_mine(self, block: Block | None) -> bool:
        return block is not None and block.instance == self.instance and block.at_ms >= 0

    def _until(self, sent_s: float) -> float:
        return sent_s + (1 - MARGIN_LEASES) * self._lease_s

    def _keep(self, partition: int, mine: _Mine, progress: int, *, free: bool = False) -> None:
        """Say how far a block is; ClaimLostError when the log says that it is another's."""
        if self._mine.get(partition) is not mine:
            raise self._lost(partition, mine)
        sent_s = self._clock.monotonic_s()
        if not self._log.wish(partition, Keep(mine.start, mine.epoch, self.instance, progress, free)):
            del self._mine[partition]
            raise self._lost(partition, mine)
        if progress > mine.progress:
            mine.progress, mine.deliveries = progress, 1
            self._log.commit(partition)
        mine.until_s = self._until(sent_s)
        if free or progress >= mine.end:
            del self._mine[partition]

    def _lost(self, partition: int, mine: _Mine) -> ClaimLostError:
        return ClaimLostError(
            f"{self._log.topic}/{partition}: the block from {mine.start} to {mine.end - 1} (epoch {mine.epoch}) is not held any more; "
            f"what was not noted as done, from {mine.progress} on, goes to another member"
        )
