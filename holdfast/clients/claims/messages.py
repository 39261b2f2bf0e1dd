"""The messages of a claim consumer: one by one, or in batches of one partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from confluent_kafka import Message

from holdfast.clients.claims.claiming.queue import FetchedMessages, Lease
from holdfast.core.member.actions import DeliveryToken
from holdfast.tracing.spans import handling

if TYPE_CHECKING:
    from holdfast.clients.claims.claiming.engine import ClaimEngine

Headers = list[tuple[str, bytes | None]]


class ClaimedMessage:
    """One message of a claimed partition.

    Say `commit()` when it is done; in any order, from any thread, twice is once.
    """

    __slots__ = ("_engine", "_lease", "offset", "record")

    def __init__(self, engine: ClaimEngine, lease: Lease, record: Message) -> None:
        self._engine, self._lease, self.record = engine, lease, record
        self.offset: int = record.offset()  # type: ignore[assignment]  # a consumed record has one

    @property
    def topic(self) -> str:
        return self._lease.source

    @property
    def partition(self) -> int:
        return self._lease.partition

    @property
    def lane(self) -> int | None:
        """Return which lane of the partition the message is in; None without lanes."""
        return self._lease.lane

    @property
    def epoch(self) -> int:
        """Return how many owners the claim has had: a fencing token for what handling the message changes
        elsewhere.
        """
        return self._lease.epoch

    @property
    def key(self) -> bytes | None:
        return self.record.key()

    @property
    def value(self) -> bytes | None:
        return self.record.value()

    @property
    def headers(self) -> Headers:
        found: Any = self.record.headers() or ()
        return list(found)

    @property
    def timestamp_ms(self) -> int:
        """Return the record's time in ms, -1 where it has none."""
        return self.record.timestamp()[1]

    @property
    def token(self) -> DeliveryToken:
        """Return the token that names this message to `commit` later, when the message itself need not be
        kept.
        """
        lease = self._lease
        return DeliveryToken(lease.topic, lease.partition, self.offset, lease.epoch)

    @property
    def is_held(self) -> bool:
        """Return whether the claim is still safe to work under: to ask right before an effect that no
        `epoch` guards.
        """
        return self._engine.delivery.may_deliver(self._lease)

    def span(self) -> AbstractContextManager[Any]:
        """Return a span of OpenTelemetry to handle the message in, as a part of the trace that it carries:
        `with message.span(): ...`.

        It does nothing if the message carries no sampled trace, or this process does not use OpenTelemetry.
        """
        return _span_of(self.topic, self.partition, [self.record])

    def commit(self) -> None:
        """Note that the message is done.

        Raises ClaimLostError when its claim is not held any more: another member may get it too.
        """
        lease = self._lease
        self._engine.commit(DeliveryToken(lease.topic, lease.partition, self.offset, lease.epoch))

    def __repr__(self) -> str:
        return f"ClaimedMessage({self._lease.topic}/{self._lease.partition}@{self.offset})"


class ClaimedBatch:
    """Messages of one claimed partition in offset order:

    `records` are confluent-kafka's own, iterating gives `ClaimedMessage`s.
    """

    __slots__ = ("_engine", "_fetched")

    def __init__(self, engine: ClaimEngine, fetched: FetchedMessages) -> None:
        self._engine, self._fetched = engine, fetched

    @property
    def topic(self) -> str:
        return self._fetched.lease.source

    @property
    def partition(self) -> int:
        return self._fetched.lease.partition

    @property
    def lane(self) -> int | None:
        """Return which lane of the partition this is; None without lanes."""
        return self._fetched.lease.lane

    @property
    def epoch(self) -> int:
        """Return how many owners the claim has had: a fencing token for what handling the batch changes
        elsewhere.
        """
        return self._fetched.lease.epoch

    @property
    def first_offset(self) -> int:
        return self._fetched.first

    @property
    def next_offset(self) -> int:
        """Return the offset after the last message."""
        return self._fetched.end

    @property
    def records(self) -> list[Message]:
        return self._fetched.messages

    def __len__(self) -> int:
        return len(self._fetched.messages)

    def __iter__(self) -> Iterator[ClaimedMessage]:
        engine, lease = self._engine, self._fetched.lease
        return (ClaimedMessage(engine, lease, record) for record in self._fetched.messages)

    @property
    def is_held(self) -> bool:
        """Return whether the claim is still safe to work under: to ask between the messages of a long
        batch.
        """
        return self._engine.delivery.may_deliver(self._fetched.lease)

    def span(self) -> AbstractContextManager[Any]:
        """Return a span to handle the batch in, with links to the traces that its messages carry, see
        `ClaimedMessage.span`.
        """
        return _span_of(self.topic, self.partition, self.records)

    def commit(self) -> None:
        """Note that all of it is done.

        Raises ClaimLostError when the claim is not held any more, and then commits nothing.
        """
        lease = self._fetched.lease
        self._engine.commit_many(lease.topic, lease.partition, lease.epoch, self._fetched.offsets())

    def __repr__(self) -> str:
        fetched = self._fetched
        return f"ClaimedBatch({fetched.lease.topic}/{fetched.lease.partition}@{fetched.first}..{fetched.end - 1})"  # noqa: E501


def _span_of(topic: str, partition: int, records: Sequence[Message]) -> AbstractContextManager[Any]:
    attributes: dict[str, str | int] = {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(partition),
        "messaging.batch.message_count": len(records),
    }
    carriers: Any = (record.headers() or () for record in records)
    return handling(f"process {topic}", "CONSUMER", carriers, attributes)
