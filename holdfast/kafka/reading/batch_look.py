"""Looks up the batch at which a librdkafka consumer is stuck, in the log itself and apart from the consumer.

librdkafka says little of a batch that it cannot read, and of some nothing at all: it fetches a record with a
key of -5 bytes, which brokers take, again for ever. Nor does it say which offsets a batch holds. So the batch
is fetched raw and decoded strictly, and if the consumer itself has not refused it, a second consumer tries to
read it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from holdfast.clock import Clock
from holdfast.config import Settings
from holdfast.core.kafka.record_batch import BatchHeader, check_batch, decode_header
from holdfast.core.kafka.unreadable import Unreadable
from holdfast.core.kafka.wire import WireReason
from holdfast.errors import HoldfastError, WireError
from holdfast.kafka.clients import make_reader
from holdfast.kafka.codes import OUT_OF_LOG, UNREADABLE, is_end
from holdfast.kafka.requests.raw_log import RawLog

logger = logging.getLogger(__name__)

LOOK_S = 10.0
"""The limit for one look; after that a new one begins."""
LIMIT_RUN = 64
"""So many batches that follow each other are looked at at once."""
PROBE_S, PROBE_POLL_S = 5.0, 0.05
SILENCE_S = 0.5
"""librdkafka reports the contents of an answer while it decodes it; a consumer that got an answer and is
silent for so long read nothing.
"""


@dataclass(frozen=True, slots=True)
class FoundBatch:
    """The first batch with records from an offset on; *is_readable* unless it is not as it should be, or
    unpacks to too much.
    """

    told: Unreadable
    is_readable: bool


async def batch_at(log: RawLog, topic: str, partition: int, at: int, *, committed: bool) -> FoundBatch | None:
    """Return the first batch from offset *at* on that holds records for a consumer, None where there is
    none now.
    """
    while True:
        fetched = await log.fetch(topic, partition, at, committed=committed)
        place, before = 0, at
        aborted, dropped = deque(sorted(fetched.aborted, key=lambda each: each[1])), set[int]()
        while len(fetched.data) > place:
            try:
                header = decode_header(fetched.data, place)
            except WireError as error:
                return (
                    None
                    if error.reason == WireReason.TRUNCATED
                    else FoundBatch(_told(topic, partition, at, None, error), False)
                )
            if len(fetched.data) - place < header.size_bytes:
                break  # brokers cut what they answer, but for the first batch
            while aborted and aborted[0][1] <= header.last_offset:
                dropped.add(aborted.popleft()[0])
            if header.is_control:
                dropped.discard(header.producer_id)
            elif (
                header.last_offset >= at
                and header.records_count
                and not (header.is_transactional and header.producer_id in dropped)
            ):
                return _judged(topic, partition, at, header, fetched.data[place : place + header.size_bytes])
            place += header.size_bytes
            at = max(at, header.last_offset + 1)
        if at == before or at >= fetched.high_watermark:
            return None


async def sound_until(log: RawLog, topic: str, partition: int, at: int) -> int:
    """Return the offset behind the last batch of those from *at* on that are as they should be; as many as
    come with one answer.
    """
    data = (await log.fetch(topic, partition, at)).data
    place = 0
    with suppress(WireError):  # the last one may be cut short
        while len(data) > place:
            header = check_batch(data, place)
            place, at = place + header.size_bytes, max(at, header.last_offset + 1)
    return at


def _judged(topic: str, partition: int, at: int, header: BatchHeader, data: bytes) -> FoundBatch:
    try:
        check_batch(data)
    except WireError as error:
        return FoundBatch(_told(topic, partition, at, header, error), False)
    return FoundBatch(_told(topic, partition, at, header, None), True)


def _told(
    topic: str, partition: int, at: int, header: BatchHeader | None, error: WireError | None
) -> Unreadable:
    kind = "Refused" if error is None else error.reason.title().replace(" ", "") or "Corrupt"
    if header is None:
        return Unreadable(topic, partition, at, at, str(error), f"{kind}Error", "unknown", -1, -1, -1, -1, -1)
    return Unreadable(
        topic,
        partition,
        max(at, header.base_offset),
        header.last_offset,
        str(error or ""),
        f"{kind}Error",
        header.compression.name.lower(),
        header.size_bytes,
        header.records_count,
        header.producer_id,
        header.producer_epoch,
        header.max_timestamp_ms,
    )


class BatchLook(threading.Thread):
    """One look at a partition from *at* on, in a thread of its own. Once `over`, `found` holds the batches
    that a consumer cannot read.

    *refused* is the consumer's error for the first, None if it raised none. With *insists* its error counts
    even if we can read the batch.
    """

    def __init__(
        self,
        settings: Settings,
        config: Mapping[str, Any],
        place: tuple[str, int],
        at: int,
        *,
        refused: str | None,
        insists: bool,
        committed: bool,
        clock: Clock,
    ) -> None:
        super().__init__(name="holdfast-batch-look", daemon=True)
        self._settings, self._config, self._clock = settings, config, clock
        self._refused, self._insists, self._committed = refused, insists, committed
        self.place, self.at = place, at
        self.found: list[Unreadable] = []
        self.log_start = -1
        """The first offset of the log; -1 while no leader has answered."""
        self.sound_until = -1
        """All batches before this offset are sound."""
        self._stopping = threading.Event()
        self._ended = threading.Event()

    @property
    def over(self) -> bool:
        return self._ended.is_set()

    def stop(self, timeout_s: float) -> None:
        """Have it end, and wait for that at most *timeout_s*."""
        self._stopping.set()
        self.join(timeout_s)

    def run(self) -> None:
        try:
            asyncio.run(self._look())
        except (HoldfastError, KafkaException, TimeoutError) as error:
            logger.info(
                "%(topic)s partition %(partition)d could not be looked at, will try again: %(error)s",
                {"topic": self.place[0], "partition": self.place[1], "error": error},
            )
        finally:
            self._ended.set()

    async def _look(self) -> None:
        looking = asyncio.create_task(self._run_of_batches())
        until_s = self._clock.monotonic_s() + LOOK_S
        while not looking.done() and not self._stopping.is_set() and self._clock.monotonic_s() < until_s:
            await asyncio.wait([looking], timeout=PROBE_POLL_S)
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking

    async def _run_of_batches(self) -> None:
        topic, partition = self.place
        at, refused = self.at, self._refused
        async with RawLog(self._settings, timeout_s=LOOK_S) as log:
            self.log_start, _ = await log.bounds(topic, partition)
            if self.log_start > at:  # the consumer refused the hole before it, and no batch
                at, refused, self._insists = self.log_start, None, False
            while len(self.found) < LIMIT_RUN:
                batch = await batch_at(log, topic, partition, at, committed=self._committed)
                if batch is None:
                    return
                if batch.is_readable and not self._insists:
                    self.sound_until = await sound_until(log, topic, partition, at)
                    return
                if refused is None:
                    refused = await asyncio.to_thread(self._refusal, at, batch.told.last)
                    if refused is None:
                        return
                self.found.append(replace(batch.told, reason=refused) if batch.is_readable else batch.told)
                at, refused, self._insists = batch.told.last + 1, None, False

    # -- what librdkafka makes of it

    def _refusal(self, at: int, last: int) -> str | None:
        """Return why a new consumer reads nothing of the batch from *at* to *last*; None if it reads it, or
        says nothing in time.
        """
        topic, partition = self.place
        consumer = make_reader(
            {
                **self._config,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.min.bytes": 1,
                "fetch.wait.max.ms": 10,
            },
            logger=logger,
        )
        try:
            consumer.list_topics(
                topic, timeout=PROBE_S
            )  # without knowing the leader an assignment takes half a second
            consumer.assign([TopicPartition(topic, partition, at)])
            return self._heard(consumer, last)
        finally:
            consumer.close()

    def _heard(self, consumer: Consumer, last: int) -> str | None:
        place, now_s = TopicPartition(*self.place), self._clock.monotonic_s
        until_s, answered_s = now_s() + PROBE_S, 0.0
        while now_s() < until_s and not self._stopping.is_set():
            message = consumer.poll(PROBE_POLL_S)
            if message is not None:
                error = message.error()
                if error is None or is_end(error) or error.code() in OUT_OF_LOG:
                    return None
                if error.code() in UNREADABLE:
                    return error.str()
            elif answered_s and now_s() - answered_s > SILENCE_S:
                return "librdkafka cannot take it apart"
            elif (
                not answered_s and (consumer.get_watermark_offsets(place, cached=True) or (-1, -1))[1] > last
            ):
                answered_s = now_s()
        return None
