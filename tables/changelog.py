"""The transactional writer of one partition: fences older owners, then writes one Kafka transaction per batch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from holdfast.clock import system_clock
from holdfast.core.codec import APPLIED, encode_marker
from holdfast.core.folding import Changes
from holdfast.core.pace import Pace
from holdfast.core.processor import Emit
from holdfast.errors import BrokerError, FencedError

logger = logging.getLogger(__name__)

_FENCING = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_TXN_STATE)
"""What tells that this producer's epoch is over: a newer owner has begun, or the broker has ended a transaction that took too long."""
_REFUSALS = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.POLICY_VIOLATION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
)
"""What trying again does not cure. Anything else that keeps a record from its topic (a time-out, a purge) ends with the outage."""
_BACKOFF_S = 0.1
HANDED_ROWS = 512
"""Rows handed to the client at a time: as many as the processor's cache holds, and no other thread waits long."""

Heard = Callable[[KafkaError | None, Message], None]


class ChangelogWriter:
    """Owns the transactional producer of one processor and partition. All methods block; call them from one thread at a time."""

    def __init__(
        self, client: Mapping[str, Any], *, transactional_id: str, changelog: str, partition: int, transaction_timeout_s: float
    ) -> None:
        self._changelog, self._partition, self.transactional_id = changelog, partition, transactional_id
        self._pace = Pace()
        self._producer = Producer(
            {
                **client,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": int(transaction_timeout_s * 1000),
                "linger.ms": 1,
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": 2_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
                "batch.num.messages": 10_000,
                "batch.size": 900_000,
                "message.max.bytes": 8 << 20,  # the topic's own limit decides; the client's would refuse quarantine copies early
            }
        )

    def fence(self, timeout_s: float) -> None:
        """Raise this id's epoch. From here on the broker refuses every older owner, whose open transaction is aborted first."""
        deadline = system_clock.monotonic_s() + timeout_s
        while True:
            try:
                self._producer.init_transactions(max(0.1, deadline - system_clock.monotonic_s()))
                return
            except KafkaException as error:
                if not error.args[0].retriable() or system_clock.monotonic_s() >= deadline:
                    raise BrokerError(
                        f"cannot fence {self.transactional_id}: {error.args[0].str()}; check that the broker is reachable and that "
                        f"this principal may use transactional ids"
                    ) from error

    def write(self, changes: Changes, extra: Sequence[Emit], timeout_s: float) -> int:
        """Write rows, emits, *extra* (quarantined records) and the position marker in one transaction; return the changelog's next offset.

        Raises FencedError when a newer owner exists, UndeliverableError when a topic refuses a record, BrokerError when the outcome is
        not settled in time. A timed out commit is asked again, never repeated as a new transaction, so its outcome is known when this
        returns.
        """
        deadline = system_clock.monotonic_s() + timeout_s
        watched = False
        while True:
            try:
                return self._transact(changes, extra, deadline, watched=watched)
            except UndeliverableError:
                self._abort(deadline)
                raise
            except KafkaException as error:
                why: KafkaError = error.args[0]
                if why.code() in _FENCING:
                    raise self._fenced(why) from error
                if not why.txn_requires_abort() or system_clock.monotonic_s() >= deadline:
                    raise BrokerError(f"{self.transactional_id}: transaction failed: {why.name()}: {why.str()}") from error
                logger.warning("transaction of %s aborted, trying again: %s", self.transactional_id, why.str())
                self._abort(deadline)
                watched = True  # if a row is what the changelog refuses, say so next time
                time.sleep(_BACKOFF_S)

    def rest_s(self, records: int) -> float:
        """Return how long a transaction made of *records* had better wait for the broker to finish the one before."""
        return self._pace.rest_s(system_clock.monotonic_s(), records=records)

    def _fenced(self, why: KafkaError) -> FencedError:
        return FencedError(
            f"{self.transactional_id}: the broker refused this owner ({why.name()}): there is a newer one, or a transaction took longer "
            f"than transaction_timeout_s"
        )

    def _abort(self, deadline: float) -> None:
        try:
            self._producer.abort_transaction(max(0.1, deadline - system_clock.monotonic_s()))
        except KafkaException as error:
            if error.args[0].code() in _FENCING:
                raise self._fenced(error.args[0]) from error
            raise BrokerError(
                f"{self.transactional_id}: cannot abort a failed transaction in time: {error.args[0].str()}; is the broker reachable?"
            ) from error

    def _transact(self, changes: Changes, extra: Sequence[Emit], deadline: float, *, watched: bool) -> int:
        """Write one transaction; with *watched*, hear of each row's delivery, which costs time that a good transaction need not take."""
        producer, partition, changelog = self._producer, self._partition, self._changelog
        marked: list[Message] = []
        failed: list[tuple[str, KafkaError]] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None and error.code() in _REFUSALS:
                failed.append((message.topic() or "?", error))

        def closed(error: KafkaError | None, message: Message) -> None:
            marked.append(message)

        began_s = system_clock.monotonic_s()
        producer.begin_transaction()
        produce = producer.produce
        self._produce_rows(changes.puts, delivered if watched else None)
        for emit in (*changes.emits, *extra):
            emit_key = emit.key.encode() if isinstance(emit.key, str) else emit.key
            where = -1 if emit.partition is None else emit.partition
            try:
                produce(emit.topic, emit.value, emit_key, where, on_delivery=delivered, headers=list(emit.headers) or None)
            except KafkaException as error:
                raise UndeliverableError(emit.topic, error.args[0]) from error
        # The marker goes last: readers of the changelog apply a transaction when they meet it.
        produce(changelog, encode_marker(changes.marker), APPLIED, partition, on_delivery=closed)
        while True:
            try:
                producer.commit_transaction(max(0.1, deadline - system_clock.monotonic_s()))
                break
            except KafkaException as error:
                if failed and error.args[0].code() not in _FENCING:
                    topic, why = failed[0]
                    raise UndeliverableError(topic, why) from error
                if not error.args[0].retriable() or system_clock.monotonic_s() >= deadline:
                    raise
        self._pace.ended(began_s, system_clock.monotonic_s(), records=changes.records)
        return (marked[-1].offset() or 0) + 1

    def _produce_rows(self, puts: Sequence[tuple[bytes, bytes | None]], heard: Heard | None) -> None:
        """Hand rows over many at a time, at half the cost of one by one."""
        for start in range(0, len(puts), HANDED_ROWS):
            messages: list[dict[str, Any]] = [{"key": key, "value": value} for key, value in puts[start : start + HANDED_ROWS]]
            if self._producer.produce_batch(self._changelog, messages, self._partition, on_delivery=heard) < len(messages):
                raise KafkaException(next(message["_error"] for message in messages if "_error" in message))

    def disown(self, timeout_s: float) -> None:
        """Replace the position marker by a tombstone: what is on this changelog is not a state. Best effort."""
        producer = self._producer
        try:
            producer.begin_transaction()
            producer.produce(self._changelog, None, APPLIED, self._partition)
            producer.commit_transaction(timeout_s)
        except KafkaException as error:
            logger.error("cannot disown %s partition %d: %s", self._changelog, self._partition, error.args[0].str())

    def close(self) -> None:
        """Drop the producer. An open transaction is left to the next owner's fence or to its timeout."""
        self._producer.purge()
        del self._producer


class UndeliverableError(BrokerError):
    """A record could not be delivered for a reason that trying again does not cure: the topic is missing, or refuses its size."""

    def __init__(self, topic: str, why: KafkaError) -> None:
        super().__init__(f"topic {topic} refused a record: {why.name()}: {why.str()}; create the topic or raise its max.message.bytes")
        self.topic, self.why = topic, why
