"""The topic's side of landing and replaying: where its log begins and ends, and its records without a JVM."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from holdfast.clients.topics.admin import Admin
from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Input
from holdfast.core.engine.fold.folding import Batch
from holdfast.core.engine.fold.skips import OffsetRanges
from holdfast.core.kafka.topic_partition import Place
from holdfast.core.kafka.unreadable import Unreadable
from holdfast.errors import (
    BrokerError,
    LostRecordsError,
    NotReadyError,
    OutOfRangeError,
    TopicError,
    UnreadableError,
)
from holdfast.kafka.clients import CRITICAL, make_admin
from holdfast.kafka.codes import CLOSED_TOPIC, NO_LEADER, code_of
from holdfast.kafka.fetching.records import Records
from holdfast.kafka.fetching.source_fetcher import SourceFetcher
from holdfast.kafka.leader_requests import list_offsets
from holdfast.kafka.requests.connections import connector
from holdfast.loop_thread import LoopThread

T = TypeVar("T")

FETCH_RECORDS, FETCH_BYTES = 20_000, 8 << 20
QUEUE_BYTES = 16 << 20
POLL_S = 0.5
RETRY_S = 0.1
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Offsets of one partition: *first* included, *end* not."""

    first: int
    end: int

    def __post_init__(self) -> None:
        assert 0 <= self.first <= self.end, self


@contextlib.contextmanager
def _as_broker_error(what: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        why: KafkaError = error.args[0]
        if why.code() in CLOSED_TOPIC:
            raise TopicError(f"{what}: {why.str()}") from error
        raise BrokerError(
            f"{what}: {why.str()}; check that the brokers of bootstrap.servers are reachable"
        ) from error
    except FutureTimeoutError as error:
        raise BrokerError(
            f"{what}: no answer in time; check that the brokers of bootstrap.servers are reachable"
        ) from error


class TopicLog:
    """Knows the bounds of one topic's partitions; holds one admin client.

    Close it, or use it as a context manager.
    """

    def __init__(self, settings: Settings, topic: str) -> None:
        self.topic, self._settings = str(topic), settings  # a name may carry a declaration, and is stored
        self._admin = make_admin(settings.client(), log_level=CRITICAL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        del self._admin

    def partitions(self) -> list[int]:
        """Return the partition numbers; TopicError when there is no such topic."""
        with _as_broker_error(f"topic {self.topic}"):
            found = self._admin.list_topics(self.topic, timeout=self._settings.request_timeout_s).topics[
                self.topic
            ]
        if found.error is not None:
            raise TopicError(
                f"topic {self.topic}: {found.error.str()}; check its name (`holdfast topics list`), or make"
                " what the application needs (`holdfast topics create`)"
            )
        return sorted(found.partitions)

    def identity(self) -> str:
        """Return the topic's id: one deleted and made again has another."""
        with _as_broker_error(f"topic {self.topic}"):
            described = self._admin.describe_topics(
                TopicCollection([self.topic]), request_timeout=self._settings.request_timeout_s
            )
            return str(described[self.topic].result(self._settings.request_timeout_s + 5).topic_id)

    def spans(self) -> dict[int, Span]:
        """Return each partition's present extent: from the first kept record to the end of committed ones.

        The end is the last stable offset: records of open transactions are beyond it, those of aborted ones
        before it.
        """
        partitions = self.partitions()
        first = self.firsts(partitions)
        end = self.ends(partitions)
        return {
            partition: Span(first=first[partition], end=max(first[partition], end[partition]))
            for partition in partitions
        }

    def firsts(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the offset of the first record kept, by partition."""
        return self._offsets(partitions, _EARLIEST)

    def ends(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the last stable offset by partition."""
        return self._offsets(partitions, _LATEST)

    def written(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the end offset of each partition's log, records of open transactions included."""
        return self._offsets(partitions, _LATEST, IsolationLevel.READ_UNCOMMITTED)

    def _offsets(
        self,
        partitions: Sequence[int],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[int, int]:
        asked = {TopicPartition(self.topic, partition): spec for partition in partitions}
        if not asked:
            return {}
        deadline_s = system_clock.monotonic_s() + self._settings.request_timeout_s
        with _as_broker_error(f"offsets of {self.topic}"):
            while True:
                try:
                    return self._ask_offsets(asked, isolation)
                except KafkaException as error:
                    # The admin client gives up on a leader that has just moved, or is not yet known, where a
                    # consumer would retry.
                    if (
                        not (error.args[0].retriable() or code_of(error) in NO_LEADER)
                        or system_clock.monotonic_s() > deadline_s
                    ):
                        raise
                time.sleep(RETRY_S)

    def _ask_offsets(
        self, asked: dict[TopicPartition, OffsetSpec], isolation: IsolationLevel
    ) -> dict[int, int]:
        timeout_s = self._settings.request_timeout_s
        futures = list_offsets(self._admin, asked, isolation=isolation, timeout_s=timeout_s)
        # The future's own wait has a deadline as well, past that of the request.
        return {place.partition: future.result(timeout_s + 5).offset for place, future in futures.items()}


def settle(settings: Settings, topic: str, timeout_s: float) -> None:
    """Wait until all that is written in *topic* now is committed or aborted; BrokerError where that takes
    longer than *timeout_s*.
    """
    with TopicLog(settings, topic) as log:
        if not settled(log, timeout_s):
            raise BrokerError(
                f"topic {topic}: a transaction is open for more than {timeout_s:g} s, and records after it"
                " cannot be read. Wait until its producer or the broker has ended it, or look for one that"
                " hangs (`holdfast producers hanging`)"
            )


def settled(log: TopicLog, timeout_s: float) -> bool:
    """Wait until all that is written now is committed or aborted, and return whether it is: the markers that
    end one transaction are written to each of its partitions in its own time.
    """
    partitions = log.partitions()
    written, until_s = log.written(partitions), system_clock.monotonic_s() + timeout_s
    while any(end < written[partition] for partition, end in log.ends(partitions).items()):
        if system_clock.monotonic_s() > until_s:
            return False
        time.sleep(RETRY_S)
    return True


def is_compacted(settings: Settings, topic: str) -> bool:
    """Return whether records of *topic* may be gone since later ones have their keys."""
    found = Admin(settings).cluster([topic]).topics.get(topic)
    return found is not None and "compact" in found.config.get("cleanup.policy", "")


class TopicReader:
    """Reads committed records of one topic, one partition after another, as workers do: the same fetcher,
    limits and skips.

    Its feed lives on an event loop in a thread of its own, which fetches ahead while records are folded.
    Close it, or use it as a context manager.
    """

    def __init__(
        self, settings: Settings, topic: str, skips: Mapping[int, OffsetRanges] | None = None
    ) -> None:
        self.topic, self._settings, self._skips = topic, settings, skips or {}
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="holdfast-unpack")
        self._thread = LoopThread("holdfast-reader")
        self._thread.start()
        self._feed: SourceFetcher | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return self._thread.closed

    def close(self) -> None:
        """Close the connections and end the thread; once is enough."""
        if self._thread.closed:
            return
        try:
            self._thread.stop(self._end(), self._settings.stall_timeout_s)
        finally:
            self._executor.shutdown()

    async def _end(self) -> None:
        if self._feed is not None:
            await self._feed.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of *work*; no wait here takes longer than a stall."""
        try:
            return self._thread.wait(work, self._settings.stall_timeout_s)
        except NotReadyError as error:
            raise BrokerError(
                f"topic {self.topic}: nothing read for {self._settings.stall_timeout_s:.0f} s; check the"
                " brokers"
            ) from error

    async def _begin(self, place: Place, first: int) -> SourceFetcher:
        settings = self._settings
        if self._feed is None:
            self._feed = SourceFetcher(
                connector(settings, timeout_s=settings.request_timeout_s),
                self._executor,
                fetch_records=FETCH_RECORDS,
                fetch_bytes=FETCH_BYTES,
                queue_bytes=QUEUE_BYTES,
                unpacked_batch_bytes=settings.unpacked_batch_bytes,
                timeout_s=settings.request_timeout_s,
                exact=True,
            )
        await self._feed.assign({place: first}, None, lambda _, partition: self._skips.get(partition, ()))
        return self._feed

    def records(self, partition: int, span: Span) -> Iterator[tuple[Records, int]]:
        """Yield the records in *span*, in order, each lot with its size in bytes.

        LostRecordsError when some were deleted before they came, UnreadableError for a batch that cannot be
        read and is not skipped, BrokerError when nothing comes for `stall_timeout_s`.
        """
        if span.first == span.end:
            return
        place = (self.topic, partition)
        feed = self._wait(self._begin(place, span.first))
        position, moved_s = span.first, system_clock.monotonic_s()
        while position < span.end:
            with _as_pipeline_error(place, span):
                lots = self._wait(feed.fetch(0, POLL_S))
            for each in lots:
                if records := each.records.before(span.end):
                    yield records, each.size_bytes * len(records) // len(each.records)
            reached, now_s = feed.position(place), system_clock.monotonic_s()
            if reached > position:
                position, moved_s = reached, now_s
            elif (found := feed.unreadable.get(place)) is not None:
                if found.first < span.end:
                    raise UnreadableError(_unreadable(found))
                return
            elif now_s - moved_s > self._settings.stall_timeout_s:
                why = f"nothing read for {self._settings.stall_timeout_s:.0f} s before offset {span.end}"
                raise BrokerError(f"{self.topic} partition {partition}: {why}; check the brokers")

    def batches(self, partition: int, span: Span, inputs: Sequence[Input]) -> Iterator[tuple[Batch, int]]:
        """Yield the records in *span* as a folder takes them, each batch with its size in bytes."""
        for records, size_bytes in self.records(partition, span):
            yield records.batch(partition, inputs), size_bytes


def _unreadable(found: Unreadable) -> str:
    where = f"offset {found.first}" if found.first == found.last else f"offsets {found.first} to {found.last}"
    return (
        f"{found.topic} partition {found.partition}: {where} cannot be read: {found.reason} ({found.codec},"
        f" {found.size_bytes} bytes). Where a worker has read it, raise unpacked_batch_bytes; else skip it"
        f" for good: `holdfast quarantine skip {found.topic} {found.partition} {found.first}`"
    )


@contextlib.contextmanager
def _as_pipeline_error(place: Place, span: Span) -> Iterator[None]:
    try:
        yield
    except OutOfRangeError as error:
        raise LostRecordsError(
            f"{place[0]} partition {place[1]}: records from offset {span.first} on were deleted (retention,"
            " or the topic was made again); give the lake that holds them (--lake DIR)"
        ) from error
