"""The topic's side of landing and replaying: where its log begins and ends, and its records without a JVM."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.folding import Batch
from holdfast.errors import BrokerError, LostRecordsError, TopicError

FETCH_RECORDS = 20_000
QUEUE_KIB = 64 << 10
POLL_S = 0.5
RETRY_S = 0.1
_MOVING = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError._UNKNOWN_PARTITION)
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
        if why.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError.TOPIC_AUTHORIZATION_FAILED):
            raise TopicError(f"{what}: {why.str()}") from error
        raise BrokerError(f"{what}: {why.str()}; check that the brokers of bootstrap.servers are reachable") from error


class TopicLog:
    """Knows the bounds of one topic's partitions; holds one admin client. Close it, or use it as a context manager."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self.topic, self._settings = topic, settings
        self._admin = AdminClient({"log_level": 4, **settings.client()})  # quiet about events nobody waits for at its end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        del self._admin

    def partitions(self) -> list[int]:
        """Return the partition numbers; TopicError when there is no such topic."""
        with _as_broker_error(f"topic {self.topic}"):
            found = self._admin.list_topics(self.topic, timeout=self._settings.request_timeout_s).topics[self.topic]
        if found.error is not None:
            raise TopicError(f"topic {self.topic}: {found.error.str()}; check its name and `holdfast topics list`")
        return sorted(found.partitions)

    def identity(self) -> str:
        """Return the topic's id: one deleted and made again has another."""
        with _as_broker_error(f"topic {self.topic}"):
            described = self._admin.describe_topics(TopicCollection([self.topic]), request_timeout=self._settings.request_timeout_s)
            return str(described[self.topic].result(self._settings.request_timeout_s + 5).topic_id)

    def spans(self) -> dict[int, Span]:
        """Return what each partition holds now: from the first record kept to the end of what is committed.

        The end is the last stable offset: records of open transactions are beyond it, those of aborted ones before it.
        """
        partitions = self.partitions()
        first = self.firsts(partitions)
        end = self.ends(partitions)
        return {partition: Span(first=first[partition], end=max(first[partition], end[partition])) for partition in partitions}

    def firsts(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the offset of the first record kept, by partition."""
        return self._offsets(partitions, _EARLIEST)

    def ends(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the last stable offset by partition."""
        return self._offsets(partitions, _LATEST)

    def written(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return where each partition's log ends, records of open transactions included."""
        return self._offsets(partitions, _LATEST, IsolationLevel.READ_UNCOMMITTED)

    def first_after(self, at_ms: int, partitions: Sequence[int]) -> dict[int, int | None]:
        """Return the offset of the first record appended later than *at_ms*, by partition; None when there is none."""
        found = self._offsets(partitions, OffsetSpec.for_timestamp(at_ms + 1))
        return {partition: None if offset < 0 else offset for partition, offset in found.items()}

    def _offsets(
        self, partitions: Sequence[int], spec: OffsetSpec, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
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
                    # The admin client gives up on a leader that has just moved, or is not yet known, where a consumer would go on.
                    if not (error.args[0].retriable() or error.args[0].code() in _MOVING) or system_clock.monotonic_s() > deadline_s:
                        raise
                time.sleep(RETRY_S)

    def _ask_offsets(self, asked: dict[TopicPartition, OffsetSpec], isolation: IsolationLevel) -> dict[int, int]:
        timeout_s = self._settings.request_timeout_s
        futures = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=timeout_s)
        # The future's own wait has a deadline as well, past that of the request.
        return {place.partition: future.result(timeout_s + 5).offset for place, future in futures.items()}


_INPUT: dict[str, Any] = {
    "value": Message.value,
    "key": Message.key,
    "headers": lambda message: tuple(message.headers() or ()),
    "offset": Message.offset,
    "partition": Message.partition,
}


class TopicReader:
    """Reads committed records of one topic, one partition after another, without a JVM. Close it, or use it as a context manager."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self.topic, self._stall_s = topic, settings.stall_timeout_s
        own: dict[str, str | int | bool] = {
            "group.id": f"{settings.app}-replay",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": QUEUE_KIB,
            "queued.min.messages": 100_000,
        }
        self._consumer = Consumer(settings.consumer(**own))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._consumer.close()

    def messages(self, partition: int, span: Span) -> Iterator[list[Message]]:
        """Yield the records in *span*, in order. LostRecordsError when some were deleted before they came."""
        if span.first == span.end:
            return
        where = f"{self.topic} partition {partition}"
        with _as_broker_error(where):
            self._consumer.assign([TopicPartition(self.topic, partition, span.first)])
        heard_s = system_clock.monotonic_s()
        while True:
            found, ended = self._some(where, span)
            if found:
                yield found
            if ended:
                return
            if found:
                heard_s = system_clock.monotonic_s()
            elif system_clock.monotonic_s() - heard_s > self._stall_s:
                raise BrokerError(f"{where}: nothing read for {self._stall_s:.0f} s before offset {span.end}; check the brokers")

    def _some(self, where: str, span: Span) -> tuple[list[Message], bool]:
        """Return what has come of *span*, and whether that was all of it."""
        with _as_broker_error(where):
            fetched: list[Message] = self._consumer.consume(FETCH_RECORDS, 0)
            if not fetched:
                first = self._consumer.poll(POLL_S)
                fetched = [] if first is None else [first, *self._consumer.consume(FETCH_RECORDS - 1, 0)]
        if not fetched:
            return [], False
        good: list[Message] = []
        for message in fetched:
            error = message.error()
            if error is None:
                good.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                # Control records close a log of transactions: the offset before its end is never delivered, the end itself is told.
                if cast(int, message.offset()) >= span.end:
                    return self._before(good, span.end), True
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                raise LostRecordsError(
                    f"{where}: records from offset {span.first} on were deleted (retention, or the topic was made again); replay from bronze"
                )
            elif error.fatal() or not (error.retriable() or error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED):
                raise BrokerError(f"{where}: {error.str()}")
        if not good:
            return [], False
        return self._before(good, span.end), cast(int, good[-1].offset()) + 1 >= span.end

    @staticmethod
    def _before(messages: list[Message], end: int) -> list[Message]:
        if messages and cast(int, messages[-1].offset()) >= end:
            return [message for message in messages if cast(int, message.offset()) < end]
        return messages

    def batches(self, partition: int, span: Span, inputs: Sequence[str]) -> Iterator[tuple[Batch, int]]:
        """Yield the records in *span* as a folder takes them, each batch with its size in bytes."""
        columns = [_INPUT[name] for name in inputs]
        for messages in self.messages(partition, span):
            offsets = [cast(int, message.offset()) for message in messages]
            times_ms = [at_ms if kind else -1 for kind, at_ms in map(Message.timestamp, messages)]
            size = sum(map(len, messages[::64])) * 64
            yield Batch(offsets, times_ms, tuple(list(map(column, messages)) for column in columns)), size
