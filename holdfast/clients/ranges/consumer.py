"""`RangeConsumer`: more members than partitions, for work without order. Each takes blocks of offsets ahead
of the log's end.

async with RangeConsumer("127.0.0.1:9092", topic="orders", group="resize", client="resize-1") as consumer:
    async for block in consumer:
        for record in block.records:
            handle(record.value())
        await block.done()
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from confluent_kafka import Message

from holdfast.clients.ranges.broker import RangeBroker, TopicGoneError
from holdfast.clients.ranges.log import RangeLog
from holdfast.clients.ranges.messages import RangeMessages
from holdfast.clients.ranges.options import RangeOptions
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.member.settings import HANDLER_TIMEOUT_S, WARNED_AT
from holdfast.core.ranges import Block, Keep, next_take
from holdfast.errors import ClaimLostError, HoldfastError, TerminatedError

__all__ = ["RangeBlock", "RangeConsumer"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
KEEP_LEASES = 0.25
MARGIN_LEASES = 0.1
IDLE_S = 0.05
GONE_S = 1.0
"""The seconds between two looks for a topic that does not exist."""
JOIN_S = 10.0


@dataclass(slots=True)
class _Mine:
    """A block of this member in its present state. None of its messages is handed out at *until_s* or later.

    *begun*: its delivery by this member is counted in *deliveries*; offsets before *given* were in every
    delivery. *mark* is that of the topic whose offsets these are. *handed_s* is since when the user has it in
    hand, None while it is not handed out.
    """

    partition: int
    start: int
    end: int
    epoch: int
    progress: int
    deliveries: int
    given: int
    until_s: float
    mark: int
    begun: bool = False
    handed_s: float | None = None
    warned: bool = False


class RangeBlock:
    """Messages of one block that were there, in offset order; `records` are confluent-kafka's own."""

    def __init__(self, consumer: RangeConsumer, mine: _Mine, records: list[Message], reached: int) -> None:
        self._consumer, self._mine, self._reached = consumer, mine, reached
        self.partition, self.records, self.deliveries = mine.partition, records, mine.deliveries

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
        await self._consumer.finish(self._mine, self._reached)

    async def fail(self) -> None:
        """Give it back undone: another attempt follows, or after the last one the dead letters."""
        await self._consumer.give_back(self._mine)


class RangeConsumer:
    """Takes blocks of a topic's partitions. Use it in `async with`; `done` each block before the next is
    asked for.

    At most one block of each partition waits for messages; in addition, blocks that other members left are
    taken as it gets free. *lease_s* is how long a silent member keeps a block, the same in the whole group.
    Messages that were handed out *maximum_deliveries* times and got nowhere go to *dead_letters*. A block in
    hand is kept from a thread, also while its handler holds up the event loop, for no longer than
    *handler_timeout_s* (0: for ever); a warning comes at half of it. *ranges_topic* is that of the settings
    unless it is given here.
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
        handler_timeout_s: float = HANDLER_TIMEOUT_S,
        maximum_deliveries: int = 5,
        dead_letters: str | None = None,
        ranges_topic: str | None = None,
        request_timeout_s: float = 10.0,
        clock: Clock = system_clock,
    ) -> None:
        options = RangeOptions(
            topic=topic,
            group=group,
            client=client,
            block_messages=block_messages,
            lease_s=lease_s,
            handler_timeout_s=handler_timeout_s,
            maximum_deliveries=maximum_deliveries,
            dead_letters=dead_letters,
            ranges_topic=ranges_topic,
            request_timeout_s=request_timeout_s,
            clock=clock,
        )
        settings = options.settings(kafka)
        ranges_topic, dead_letters = options.topics(settings)
        broker = RangeBroker(settings, timeout_s=options.request_timeout_s, clock=clock)
        self._messages = RangeMessages(broker, topic=topic, group=group, dead_letters=dead_letters)
        self._log = RangeLog(
            broker,
            self._messages,
            group=group,
            ranges_topic=ranges_topic,
            lease_ms=int(options.lease_s * 1_000),
        )
        self.client, self.instance = client, uuid.uuid4().hex[:8]
        self._size, self._lease_s, self._limit, self._clock = (
            options.block_messages,
            options.lease_s,
            options.maximum_deliveries,
            clock,
        )
        self._handler_timeout_s = options.handler_timeout_s
        self._mine: dict[tuple[int, int], _Mine] = {}
        """By partition and start."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-ranges")
        self._renewer = threading.Thread(target=self._keep_all, name="holdfast-ranges-renewer", daemon=True)
        self._stopping, self._running = threading.Event(), False
        self._failure: Exception | None = None
        self._turn = 0
        self._is_gone = False
        """True once it was logged that the topic does not exist."""
        self.buried = 0

    async def __aenter__(self) -> Self:
        try:
            await self._do(self._log.open)
        except BaseException:
            await self._do(self._log.close)
            self._thread.shutdown(wait=False)
            raise
        self._running = True
        self._renewer.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._running = False
        self._stopping.set()
        try:
            try:
                # After a step that is still under way for an `anext` that was cancelled.
                await self._do(self._give_all_back)
            except HoldfastError as problem:
                if kind is None:
                    raise
                # The error on its way says more.
                logger.warning("blocks were not given back, and run out: %(problem)s", {"problem": problem})
            await asyncio.get_running_loop().run_in_executor(None, self._renewer.join, JOIN_S)
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
            if not self._running:
                raise TerminatedError("the range consumer is not running: use it inside `async with`")
            if self._failure is not None:
                raise self._failure
            found, wait_s = None, IDLE_S
            try:
                found = await self._do(self._next)
                self._is_gone = False
            except ClaimLostError:  # another has it: look again
                pass
            except TopicGoneError as gone:
                self._tell_gone(gone)
                wait_s = GONE_S
            if found is not None and found.is_held:
                return found
            await asyncio.sleep(wait_s)

    def _tell_gone(self, gone: TopicGoneError) -> None:
        """Say once that there is no topic; it may be deleted and about to be made again."""
        if not self._is_gone:
            self._is_gone = True
            logger.warning("%(gone)s; until then this member waits", {"gone": gone})

    def holds(self, mine: _Mine) -> bool:
        """Return whether *mine* is safe to work on at this moment."""
        return (
            self._mine.get((mine.partition, mine.start)) is mine and self._clock.monotonic_s() < mine.until_s
        )

    async def finish(self, mine: _Mine, reached: int) -> None:
        """Note progress of a block."""
        await self._do(lambda: self._keep(mine, reached))

    async def give_back(self, mine: _Mine) -> None:
        """Give a block back."""
        await self._do(lambda: self._keep(mine, mine.progress, free=True))

    # -- in the keeper's thread: a handler that holds up the event loop must not cost its block

    def _keep_all(self) -> None:
        while not self._stopping.wait(KEEP_LEASES * self._lease_s):
            try:
                self._thread.submit(self._keep_held).result()
            except TopicGoneError:
                continue  # as long as `anext` waits for it
            except Exception as error:  # noqa: BLE001  raised to the task that asks for the next block
                if not self._stopping.is_set():
                    self._failure = error
                return

    # -- in the thread

    def _keep_held(self) -> None:
        if self._mine:
            self._log.catch_up()  # also where the handler takes long: newcomers are to find the rows
            self._forget_deleted()
        for mine in list(self._mine.values()):
            if self._may_keep(mine):
                with suppress(ClaimLostError):  # the task that works on it gets the error from `done`
                    self._keep(mine, mine.progress)

    def _forget_deleted(self) -> None:
        """Let go of blocks of a topic that was deleted: nothing of the one that was made again is done by
        that.
        """
        for key, mine in list(self._mine.items()):
            if not self._of_this_topic(mine):
                del self._mine[key]

    def _of_this_topic(self, mine: _Mine) -> bool:
        mark = self._log.mark(mine.partition)
        return mine.mark in (0, mark) or mark == 0

    def _may_keep(self, mine: _Mine) -> bool:
        """Return whether a block is still kept for its handler; log one that takes too long."""
        if mine.handed_s is None or not self._handler_timeout_s:
            return True
        age_s = self._clock.monotonic_s() - mine.handed_s
        late = age_s > self._handler_timeout_s
        if late or (age_s > WARNED_AT * self._handler_timeout_s and not mine.warned):
            logger.warning(
                "the block from offset %(offset)d on of %(topic)s/%(partition)d has been in hand for "
                "%(age_s).0f s, and handler_timeout_s is %(handler_timeout_s)g: %(outcome)s; see what "
                "the handler does, or allow it more",
                {
                    "offset": mine.progress,
                    "topic": self._log.topic,
                    "partition": mine.partition,
                    "age_s": age_s,
                    "handler_timeout_s": self._handler_timeout_s,
                    "outcome": (
                        "it goes to another member" if late else "at that age it goes to another member"
                    ),
                },
            )
            mine.warned = True
        if late:  # its lease runs out by itself, and until then no other member works on it
            mine.until_s = min(mine.until_s, self._clock.monotonic_s())
            self._mine.pop((mine.partition, mine.start), None)
        return not late

    def _next(self) -> RangeBlock | None:
        """Return messages of a block of ours, partitions in turn; None when there are none now."""
        self._log.catch_up()
        self._forget_deleted()
        partitions = self._log.partitions
        for step in range(len(partitions)):
            partition = partitions[(self._turn + step) % len(partitions)]
            latest = self._messages.latest(partition, self._log.low(partition))
            mine = self._at_hand(partition, latest) or self._take(partition, latest)
            if mine is None or mine.progress >= latest:
                continue
            found = self._begin(mine)
            if found is not None:
                self._turn = (self._turn + step + 1) % len(partitions)
                return found
        return None

    def _at_hand(self, partition: int, latest: int) -> _Mine | None:
        """Return our lowest block with messages in it."""
        held = [
            mine for mine in self._mine.values() if mine.partition == partition and mine.progress < latest
        ]
        return min(held, key=lambda mine: mine.start, default=None)

    def _begin(self, mine: _Mine) -> RangeBlock | None:
        """Return the messages of a block, its delivery counted; None when it was put aside or has no
        messages.
        """
        worn = mine.deliveries >= self._limit and not mine.begun
        noted = self._messages.noted
        records, reached = self._messages.fetch(
            mine.partition, mine.progress, mine.given if worn else mine.end, self._size
        )
        self.buried += self._messages.noted - noted
        if records and not worn:
            if not mine.begun:
                self._keep(mine, mine.progress, given=reached)
            mine.handed_s, mine.warned = self._clock.monotonic_s(), False
            return RangeBlock(self, mine, records, reached)
        if records:
            self._messages.bury(records, mine.deliveries)
            self.buried += len(records)
        if reached > mine.progress:
            self._keep(mine, reached)
        return None

    def _take(self, partition: int, latest: int) -> _Mine | None:
        """Take a block with messages in it, or one that waits for them if none of ours does."""
        row = self._log.row(partition)
        if row is None:  # its log was shortened while another partition was looked at: see after `catch_up`
            return None
        waits = any(mine.partition == partition for mine in self._mine.values())
        wish = next_take(
            row,
            self.client,
            self.instance,
            now_ms=self._log.now_ms(),
            lease_ms=int(self._lease_s * 1_000),
            size=self._size,
            ahead_of=latest if waits else latest + self._size,
        )
        if wish is None:
            return None
        sent_s = self._clock.monotonic_s()
        if not self._log.wish(partition, wish):
            return None
        row = self._log.row(partition)
        block = None if row is None else row.block(wish.start)
        if block is None or not self._is_mine(block):
            return None
        mine = _Mine(
            partition,
            block.start,
            block.end,
            block.epoch,
            block.progress,
            block.deliveries,
            block.given,
            self._until(sent_s),
            self._log.mark(partition),
        )
        self._mine[partition, block.start] = mine
        return mine

    def _is_mine(self, block: Block) -> bool:
        return block.instance == self.instance and block.at_ms >= 0

    def _until(self, sent_s: float) -> float:
        return sent_s + (1 - MARGIN_LEASES) * self._lease_s

    def _keep(self, mine: _Mine, progress: int, *, free: bool = False, given: int = -1) -> None:
        """Say how far a block is; ClaimLostError when the log says that it is another's."""
        key = (mine.partition, mine.start)
        if self._mine.get(key) is not mine or not self._of_this_topic(mine):
            raise self._lost(mine)
        sent_s = self._clock.monotonic_s()
        if not self._log.wish(
            mine.partition, Keep(mine.start, mine.epoch, self.instance, progress, free, given)
        ):
            del self._mine[key]
            raise self._lost(mine)
        if given >= 0:
            mine.deliveries, mine.begun = mine.deliveries + 1, True
        if progress > mine.progress:
            mine.progress, mine.deliveries, mine.given, mine.begun = progress, 0, progress, False
            mine.handed_s = None
            self._log.commit(mine.partition)
        mine.until_s = self._until(sent_s)
        if free or progress >= mine.end:
            del self._mine[key]

    def _give_all_back(self) -> None:
        for mine in list(self._mine.values()):
            with suppress(ClaimLostError):
                self._keep(mine, mine.progress, free=True)

    def _lost(self, mine: _Mine) -> ClaimLostError:
        return ClaimLostError(
            f"{self._log.topic}/{mine.partition}: the block from {mine.start} to {mine.end - 1} (epoch"
            f" {mine.epoch}) is not held any more; what was not noted as done, from {mine.progress} on, goes"
            " to another member"
        )
