"""A partition's log as it lies on the broker: whole record batches, control batches included, which consumers
never show.

It is fetched with aiokafka's client and its own requests; only the decoding of the bytes is ours
(holdfast/core/kafka/record_batch.py). One thing can be written here too: the end of a transaction that the
brokers have lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.structs import TopicPartition

from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.kafka.record_batch import HEADER_BYTES, BatchHeader, RecordBatch, decode_header, read_batch
from holdfast.errors import BrokerError, TopicError, WireError
from holdfast.kafka.codes import NO_LEADER, OUT_OF_LOG
from holdfast.kafka.requests.connections import connector
from holdfast.kafka.requests.markers import WriteTransactionMarker, code_of

T = TypeVar("T")

FETCH_BYTES = 1 << 20
LIMIT_BATCH_BYTES = 100 << 20
RETRY_S = 0.1
LEAST_FETCH_VERSION = 5
EARLIEST, LATEST = -2, -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFetch:
    """One answer of a partition's leader.

    *aborted* are (producer id, first offset) of aborted transactions that reach into *data*.
    """

    data: bytes
    log_start: int
    last_stable: int
    high_watermark: int
    aborted: tuple[tuple[int, int], ...]


class RawLog:
    """Reads partitions as they lie, from any offset, and ends transactions.

    Every call ends within *timeout_s*.
    """

    def __init__(self, settings: Settings, *, timeout_s: float = 30.0, clock: Clock = system_clock) -> None:
        self._settings, self._timeout_s, self._clock = settings, timeout_s, clock
        self._client: Any = None

    async def __aenter__(self) -> Self:
        settings = self._settings
        self._client = connector(settings, timeout_s=self._timeout_s)()
        try:
            await asyncio.wait_for(self._client.bootstrap(), self._timeout_s)
        except (KafkaError, TimeoutError, OSError) as error:
            await self._client.close()
            raise BrokerError(
                f"no broker at {settings.bootstrap_servers} within {self._timeout_s:g} s: {error}; check the"
                " address"
            ) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._client.close()

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        committed: bool = False,
        max_bytes: int = FETCH_BYTES,
    ) -> RawFetch:
        """Return the leader's batches from the one that holds *offset* on: at least one whole batch if there
        is any.

        With *committed* they end at the last stable offset, and the aborted transactions among them are
        listed.
        """
        code, fetched = await self._fetch(topic, partition, offset, committed, max_bytes)
        if code in OUT_OF_LOG:
            start, end = await self.bounds(topic, partition)
            held = f"holds {start} to {end - 1}" if start < end else "is empty"
            raise TopicError(
                f"{topic} partition {partition}: offset {offset} is not in the log, which {held}"
            )
        if code != 0:
            raise _refusal(topic, partition, "the fetch", code)
        return fetched

    async def end_transaction(
        self,
        topic: str,
        partition: int,
        *,
        producer_id: int,
        epoch: int,
        commit: bool,
        coordinator_epoch: int,
    ) -> None:
        """Write the marker that ends the open transaction of a producer in a partition, as its coordinator
        would.

        The caller decides whether that is right (holdfast/core/broker_logs/lost_ends.py). BrokerError when
        the leader refuses; the broker requires the permission to alter the cluster.
        """
        request = WriteTransactionMarker(topic, partition, producer_id, epoch, commit, coordinator_epoch)

        async def ask(leader: int) -> tuple[int, None]:
            try:
                return code_of(await self._client.send(leader, request)), None
            except (IncompatibleBrokerVersion, NotImplementedError) as error:
                raise BrokerError(
                    f"the broker cannot be asked to end a transaction; this needs Kafka 2.8 or newer: {error}"
                ) from error

        code, _ = await self._answer(topic, partition, ask)
        if code != 0:
            raise _refusal(topic, partition, f"a marker of producer {producer_id}", code)

    async def _answer(
        self, topic: str, partition: int, ask: Callable[[int], Awaitable[tuple[int, T]]]
    ) -> tuple[int, T]:
        """Return the answer of a partition's leader to *ask*, an error code and a value; an answer of a
        broker that is not the leader is retried with the next.
        """
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        why = "it has no leader"
        while self._clock.monotonic_s() < deadline_s:
            try:
                leader = await self._leader(topic, partition)
                if leader is not None:
                    code, answer = await ask(leader)
                    if code not in NO_LEADER:
                        return code, answer
                    why = f"error {code}"
            except (KafkaError, TimeoutError) as error:
                why = f"{type(error).__name__}: {error}"
            await asyncio.sleep(RETRY_S)
            self._client.force_metadata_update()
        raise BrokerError(
            f"{topic} partition {partition} did not answer within {self._timeout_s:g} s ({why}); check the"
            " broker"
        )

    async def _leader(self, topic: str, partition: int) -> int | None:
        await self._client.set_topics([topic])
        known = self._client.cluster.partitions_for_topic(topic)
        if known is None:
            await self._client.force_metadata_update()
            known = self._client.cluster.partitions_for_topic(topic)
        if not known:
            raise TopicError(f"topic {topic} does not exist; `holdfast topics list` shows those that do")
        if partition not in known:
            raise TopicError(f"topic {topic} has no partition {partition}, only 0 to {max(known)}")
        leader = self._client.cluster.leader_for_partition(TopicPartition(topic, partition))
        return None if leader is None or leader < 0 else int(leader)

    async def _fetch(
        self, topic: str, partition: int, offset: int, committed: bool, max_bytes: int
    ) -> tuple[int, RawFetch]:
        return await self._answer(
            topic, partition, lambda leader: self._ask(leader, topic, partition, offset, committed, max_bytes)
        )

    async def _ask(
        self, leader: int, topic: str, partition: int, offset: int, committed: bool, max_bytes: int
    ) -> tuple[int, RawFetch]:
        request = FetchRequest(
            max_wait_time=100,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=int(committed),
            topics=[(topic, [(partition, offset, max_bytes)])],
        )
        response = await self._client.send(leader, request)
        # By position and not by name: aiokafka cannot name the items of a null array, which means no aborted
        # transactions.
        if response.API_VERSION < LEAST_FETCH_VERSION:
            raise BrokerError(
                f"the broker speaks Fetch version {response.API_VERSION}; this needs Kafka 1.0 or newer"
            )
        _, code, high_watermark, last_stable, log_start, aborted, *_, data = response.topics[0][1][0]
        fetched = RawFetch(
            data=bytes(data or b""),
            log_start=log_start,
            last_stable=last_stable,
            high_watermark=high_watermark,
            aborted=tuple((pid, first) for pid, first in aborted or ()),
        )
        return int(code), fetched

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset of a partition and the one after its last."""
        return await self._offset(topic, partition, EARLIEST), await self._offset(topic, partition, LATEST)

    async def _offset(self, topic: str, partition: int, time: int) -> int:
        async def ask(leader: int) -> tuple[int, int]:
            response = await self._client.send(leader, OffsetRequest(-1, 0, [(topic, [(partition, time)])]))
            _, code, _, offset, *_ = response.topics[0][1][0]
            return int(code), int(offset)

        code, offset = await self._answer(topic, partition, ask)
        if code != 0:
            raise _refusal(topic, partition, "to tell offsets", code)
        return offset

    async def batches(
        self, topic: str, partition: int, offset: int, *, until: int | None = None
    ) -> AsyncIterator[tuple[BatchHeader, RecordBatch]]:
        """Yield whole batches from the one that holds *offset* on, up to the high watermark or *until*
        (exclusive).
        """
        async for _, data in self.raw_batches(topic, partition, offset, until=until):
            yield read_batch(data)

    async def raw_batches(
        self, topic: str, partition: int, offset: int, *, until: int | None = None
    ) -> AsyncIterator[tuple[BatchHeader, memoryview]]:
        """Yield the header and the bytes of each of `batches`: of them only the headers are read."""
        size = FETCH_BYTES
        while until is None or offset < until:
            fetched = await self.fetch(topic, partition, offset, max_bytes=size)
            found = False
            for header, data in _split(memoryview(fetched.data)):
                if header.last_offset < offset:
                    # a fetch begins with the batch that holds the offset, or with what compaction left before
                    # it
                    continue
                found = True
                offset = header.last_offset + 1
                yield header, data
                if until is not None and offset >= until:
                    return
            if found:
                continue
            if len(fetched.data) == 0 or offset >= fetched.high_watermark:
                return
            size = min(LIMIT_BATCH_BYTES, max(2 * size, decode_header(fetched.data).size_bytes))
            if size == LIMIT_BATCH_BYTES:
                raise WireError(
                    f"{topic} partition {partition}: a batch at offset {offset} of more than {size} bytes",
                    offset=0,
                )


def _split(data: memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the whole batches of a fetch; the last may be cut short, as brokers cut responses, and is left
    out.
    """
    at = 0
    while len(data) - at >= HEADER_BYTES:
        header = decode_header(data, at)
        end = at + header.size_bytes
        if end > len(data):
            return
        yield header, data[at:end]
        at = end


def _refusal(topic: str, partition: int, what: str, code: int) -> BrokerError:
    return BrokerError(
        f"{topic} partition {partition}: the leader refuses {what}: {for_code(code).__name__} ({code})"
    )
