"""Where records come from: one confluent-kafka consumer per worker, assigned exact positions, pulled from the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from holdfast.agents.records import Records
from holdfast.core.unreadable import Unreadable
from holdfast.errors import BrokerError, TopicError
from holdfast.tables.messages import Place, by_place, only

logger = logging.getLogger(__name__)

HANDFUL = 2_000
"""Messages taken from librdkafka at once: 3 to 5 ms of the event loop, which others wait for meanwhile."""


@dataclass(slots=True)
class Fetched:
    """Records of one partition as one fetch brought them. *first* is the position before it: nothing between it and the records exists.

    Those that a processor folds are `records`; those of a topic that ordinary agents read are `messages`.
    """

    epoch: int
    topic: str
    partition: int
    first: int
    records: Records = field(default_factory=Records)
    messages: list[Message] = field(default_factory=list)
    last: int = -1
    size_bytes: int = 0

    def __len__(self) -> int:
        return len(self.messages) or len(self.records)


def size_of(messages: Sequence[Message]) -> int:
    """Return about how many bytes *messages* have, from some of them."""
    each = max(1, len(messages) // 64)
    return sum(map(len, messages[::each])) * each


class Feed:
    """Reads the source partitions this worker folds, from positions that come from the state, never from committed offsets.

    librdkafka's own threads fetch ahead, within *queue_bytes* over all partitions. `fetch` is called from the event loop only; it
    waits in a thread when nothing is queued. No record of an older assignment comes out after `assign`.
    """

    def __init__(
        self, client: Mapping[str, Any], group: str, executor: Executor, *, fetch_records: int, fetch_bytes: int, queue_bytes: int
    ) -> None:
        self._config = {
            **client,
            "group.id": f"{group}-feed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 100,
            "error_cb": self._on_error,
        }
        self._executor, self._queue_bytes = executor, queue_bytes
        self._fetch_records, self._fetch_bytes = fetch_records, fetch_bytes
        self._consumer: Consumer | None = None
        self._polling: asyncio.Future[Message | None] | None = None
        self._next: dict[Place, int] = {}
        self._advised: dict[Place, int] = {}
        self._only_topic: str | None = None
        self.broker_down = False
        self.unreadable: dict[Place, Unreadable] = {}
        """Partitions that stand before a batch that cannot be read; all before it was fetched."""

    def _on_error(self, error: KafkaError) -> None:
        if not self.broker_down:  # librdkafka repeats itself many times a second while a broker is away
            logger.warning("source consumer: %s", error.str())
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.broker_down = True

    async def assign(self, positions: Mapping[Place, int], advised: Mapping[Place, int] | None = None) -> None:
        """Read from *positions* (the next offset of each partition; 0 means from the beginning) and nothing else.

        *advised* are positions that no state depends on: one that the log no longer holds moves to the log's beginning.
        """
        self._advised = dict(advised or {})
        positions = {**positions, **self._advised}
        if self._polling is not None:
            # A poll begun before must end first: else it returns a record of the new position, which its caller throws away.
            await asyncio.wait([self._polling])
        old, self._consumer = self._consumer, None
        if old is not None:
            await asyncio.get_running_loop().run_in_executor(self._executor, old.close)
        self._next = dict(positions)
        self._only_topic = only(positions)
        if not positions:
            return
        # Memory of librdkafka's queues is a setting per partition; a new consumer is how to change it.
        per_partition_kib = max(512, (self._queue_bytes >> 10) // len(positions))
        self._consumer = Consumer(
            {
                **self._config,
                "queued.max.messages.kbytes": per_partition_kib,
                "queued.min.messages": 100_000,
                "fetch.message.max.bytes": min(4 << 20, per_partition_kib << 10),
            }
        )
        self._consumer.assign([TopicPartition(topic, number, offset or OFFSET_BEGINNING) for (topic, number), offset in positions.items()])

    async def fetch(self, epoch: int, wait_s: float) -> list[Fetched]:
        """Return what is there, one item per partition; waits up to *wait_s* for the first record.

        At most *fetch_records*, and no more of them once they have *fetch_bytes*.
        """
        consumer = self._consumer
        if consumer is None:
            await asyncio.sleep(wait_s)
            return []
        handful = min(HANDFUL, self._fetch_records)
        messages = consumer.consume(handful, 0)
        if not messages:
            first = await self._wait_first(consumer, wait_s)
            if first is None or consumer is not self._consumer:
                return []
            messages = [first, *consumer.consume(handful - 1, 0)]
        fetches: dict[Place, Fetched] = {}
        taken = taken_bytes = 0
        while messages:
            taken += len(messages)
            taken_bytes += self._take(fetches, epoch, messages)
            # After a handful that was not whole there is no more.
            if len(messages) < handful or taken >= self._fetch_records or taken_bytes >= self._fetch_bytes:
                break
            messages = []  # before the next are made
            await asyncio.sleep(0)
            if consumer is not self._consumer:
                return []
            handful = min(HANDFUL, self._fetch_records - taken)
            messages = consumer.consume(handful, 0)
        return list(fetches.values())

    async def _wait_first(self, consumer: Consumer, wait_s: float) -> Message | None:
        self._polling = asyncio.ensure_future(asyncio.get_running_loop().run_in_executor(self._executor, consumer.poll, wait_s))
        try:
            return await self._polling
        finally:
            self._polling = None

    def _take(self, fetches: dict[Place, Fetched], epoch: int, messages: list[Message]) -> int:
        """Add *messages* to *fetches*; return about how many bytes they have."""
        taken_bytes = 0
        for place, found in by_place(messages, self._only_topic, self._check).items():
            self.broker_down = False
            if (fetched := fetches.get(place)) is None:
                fetched = fetches[place] = Fetched(epoch, *place, self._next[place])
            if place in self._advised:
                fetched.messages += found
            else:
                fetched.records.take(found)
            fetched.last = found[-1].offset() or 0
            self._next[place] = fetched.last + 1
            size_bytes = size_of(found)
            fetched.size_bytes += size_bytes
            taken_bytes += size_bytes
        return taken_bytes

    def _check(self, message: Message, error: KafkaError) -> None:
        where = f"{message.topic()} partition {message.partition()}"
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            place = (message.topic() or "", message.partition() or 0)
            if place in self._advised and self._consumer is not None:
                logger.warning("%s: the committed offset is not in the log any more, reading from its beginning", where)
                self._next[place] = 0
                self._consumer.incremental_unassign([TopicPartition(*place)])
                self._consumer.incremental_assign([TopicPartition(*place, OFFSET_BEGINNING)])
                return
            raise TopicError(
                f"{where}: offset {self._next.get(place)} is not in the log any more (retention, or the topic was made again): records "
                f"between the state's position and the log's start are lost. Delete the table's changelog and stores to fold what is left"
            )
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED):
            raise TopicError(f"{where}: {error.str()}")
        if error.fatal():
            raise BrokerError(f"{where}: {error.str()}")
        logger.warning("source %s: %s", where, error.str())

    def skip(self, place: Place, last: int) -> None:
        """Go on after offset *last* of a partition that stands before an unreadable batch."""
        found = self.unreadable.get(place)
        if found is not None and self._consumer is not None and last >= found.last:
            del self.unreadable[place]
            self._next[place] = last + 1
            self._consumer.seek(TopicPartition(*place, last + 1))

    def ends(self) -> dict[Place, int]:
        """Return the end of each partition's log, as far as librdkafka knows without asking the broker."""
        out: dict[Place, int] = {}
        if self._consumer is not None:
            for place in self._next:
                _, high = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
                if high >= 0:
                    out[place] = high
        return out

    async def probe(self) -> None:
        """Ask whether the broker answers again, when the last word was that it does not."""
        consumer = self._consumer
        if consumer is not None:
            try:
                await asyncio.get_running_loop().run_in_executor(self._executor, lambda: consumer.list_topics(timeout=2))
                self.broker_down = False
            except KafkaException as error:
                logger.warning("broker still unreachable: %s", error.args[0].str())

    async def close(self) -> None:
        await self.assign({})
