"""The transactional producer of one shard's leader: fences the leaders before it, then publishes rows and
progress together.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from holdfast.clock import Clock, system_clock
from holdfast.core.kafka.topic_partition import Place
from holdfast.core.outbox.created_times import created_header
from holdfast.core.outbox.harvest import SEQUENCE_HEADER, Destination, ProducerProgress, rows_key
from holdfast.core.outbox.pacing import TransactionPacing
from holdfast.core.outbox.row_marks import Known
from holdfast.core.producers.row_digests import RowDigests
from holdfast.core.producers.stamps import DIGEST
from holdfast.errors import BrokerError, FencedError, HoldfastError
from holdfast.kafka.clients import forget_frames, make_reader, make_writer, reader_options
from holdfast.kafka.codes import MISSING_TOPIC, UNAUTHORIZED, fences, refuses_record
from holdfast.kafka.librdkafka_log import Quiet
from holdfast.kafka.reading.log_reader import LogReader
from holdfast.outbox.harvest.publishing.destinations import Destinations
from holdfast.outbox.harvest.publishing.limits import Rounds, TopicLimits
from holdfast.outbox.schema.layouts import OutboxRow, marks_of
from holdfast.outbox.troubles import RIGHTS

logger = logging.getLogger(__name__)

SLICE_S = 0.5
"""Longest single wait inside the client; between two, `stop` takes effect."""
FLUSH_S = 0.05
"""The delay after which an undelivered record is noticed: the client's flush continues to wait for the
records after it.
"""
PROGRESS_RECORDS = 5_000
LIMIT_MESSAGE_BYTES = 64 << 20
LIMIT_ROUNDS = 64
STAMP_BYTES = len(SEQUENCE_HEADER) + 20 + len(DIGEST) + 40


class RowsRefused(HoldfastError):
    """Kafka will not have some of the rows, whenever they are tried: those at *indexes*, for
    *destinations*; one batch at least.
    """

    def __init__(self, why: KafkaError, destinations: frozenset[Destination], indexes: Sequence[int]) -> None:
        super().__init__(f"{why.name()}: {why.str()}")
        self.why, self.destinations, self.indexes = why, destinations, indexes


class Aborted(HoldfastError):
    """The transaction came to nothing, for a reason that passes: the same rows may be published again."""


class PublishStopped(Exception):
    """The wait was stopped; the transaction was left to its successor's fence."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """A record that Kafka refused. The client does not say which of the rows it was, only what it held."""

    why: KafkaError
    destination: Destination
    key: Any
    value: Any


class Publisher:
    """Owns one transactional producer. All methods block, in slices; call them from one thread."""

    def __init__(
        self,
        client: Mapping[str, Any],
        *,
        transactional_id: str,
        progress: TopicPartition,
        producer_progress: ProducerProgress,
        transaction_timeout_s: float,
        commit_timeout_s: float,
        uses_buckets: bool,
        stopping: Callable[[], bool],
        limits: TopicLimits,
        clock: Clock = system_clock,
        make_producer: Callable[[dict[str, Any]], Any] = make_writer,
    ) -> None:
        self.transactional_id, self._producer_progress = transactional_id, producer_progress
        self._limits = limits
        self._progress, self._commit_timeout_s = progress, commit_timeout_s
        self._stopping, self._clock, self._pacing = stopping, clock, TransactionPacing()
        self.marks: Mapping[int, Known] = {}
        """Of the rows of the last transaction, by number."""
        self._failed: list[_Failed] = []
        self._undelivered = False
        self._has_begun = True
        """True if the broker has the progress of the transaction, or no transaction is open."""
        self._producer = make_producer(
            {
                **client,
                "logger": Quiet(logger),  # every refusal is logged, once
                "transactional.id": transactional_id,
                "transaction.timeout.ms": int(transaction_timeout_s * 1000),
                "linger.ms": 5,  # a commit flushes at once; this only gathers what one transaction produces
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
                "batch.num.messages": 10_000,
                "message.max.bytes": LIMIT_MESSAGE_BYTES,  # the topic's own limit decides
                "delivery.report.only.error": True,
                "on_delivery": self._delivered,
            }
        )
        self.destinations = Destinations(
            self._producer, uses_buckets=uses_buckets, may_write=limits.may_write, clock=clock
        )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            return
        self._undelivered = True
        if refuses_record(error.code()):
            destination = message.topic() or "", message.partition() or 0
            self._failed.append(_Failed(error, destination, message.key(), message.value()))

    # -- fencing

    def fence(self, stopping: Callable[[], bool]) -> None:
        """Raise the id's epoch: from here on the broker refuses every leader before this one, and what
        they left open is aborted.
        """
        self._wait(
            self._producer.init_transactions, self._commit_timeout_s, "fence the leaders before it", stopping
        )

    def _wait(
        self,
        call: Callable[[float], Any],
        timeout_s: float,
        what: str,
        stopping: Callable[[], bool] | None = None,
    ) -> None:
        """Call *call* with short timeouts until it returns; a call that timed out continues in the client,
        and the next call resumes it.
        """
        deadline_s, stopping = self._clock.monotonic_s() + timeout_s, stopping or self._stopping
        while True:
            try:
                call(SLICE_S)
                return
            except KafkaException as error:
                why: KafkaError = error.args[0]
                if fences(why.code()):
                    raise self._fenced(why) from error
                if not why.retriable():
                    raise
                if stopping():
                    raise PublishStopped from error
                if self._clock.monotonic_s() >= deadline_s:
                    raise BrokerError(
                        f"{self.transactional_id} could not {what} within {timeout_s:.0f} s: {why.str()};"
                        " check that the broker is reachable and that this principal may use"
                        " transactional ids"
                    ) from error

    def _fenced(self, why: KafkaError) -> HoldfastError:
        """Return the error for a broker that takes no more of this leader's transaction."""
        if why.code() == KafkaError.INVALID_TXN_STATE and not self._has_begun:
            return BrokerError(
                f"progress topic {self._progress.topic} takes nothing: it is not there, or this principal may"
                f" not write to it; {RIGHTS}"
            )
        return FencedError(
            f"{self.transactional_id}: the broker refused this leader ({why.name()}): there is a newer one,"
            " or a transaction took longer than its timeout"
        )

    # -- publishing

    def publish(self, rows: Sequence[OutboxRow], meanwhile: Callable[[], None] | None = None) -> int:
        """Publish *rows* in one transaction, or the first of them where more would take it too long, and
        return how many.

        *meanwhile* is called once they are on their way, before their commit is waited for.

        Raises Refused or Aborted when the transaction came to nothing and may be tried otherwise or again,
        FencedError when there is another leader, PublishStopped after `stop`, BrokerError when the outcome is
        not known in time. After any but the first two this publisher is of no use: a new one learns the
        outcome from the progress records.
        """
        progress, producer = self._producer_progress, self._producer
        destinations: Sequence[Destination] = self.destinations.of(rows)
        cut = self._limits.cut({topic for topic, _ in destinations})
        if cut:
            rows, destinations = _of_few_rounds(rows, destinations, Rounds(cut, self._stamps_bytes))
        sequences, ahead = progress.number(destinations)
        self.marks = marks = marks_of(rows)
        fixed = progress.headers()
        self._failed.clear()
        self._undelivered = False
        try:
            self._rest(len(rows))
            began_s = self._clock.monotonic_s()
            producer.begin_transaction()
            self._has_begun = False
            self._begin_on_progress(rows, ahead, marks)
            self._produce(
                rows, destinations, sequences, fixed, Rounds(cut, self._stamps_bytes) if cut else None
            )
            if meanwhile is not None:
                meanwhile()
            self._flush()  # a commit that waits for a record that was refused waits its whole slice
            if self._failed:
                self._abort()
                raise self._refused(rows, destinations)
            self._wait(producer.commit_transaction, self._commit_timeout_s, "commit")
        except KafkaException as error:
            self._give_up(error, rows, destinations)
        self._pacing.ended(began_s, self._clock.monotonic_s(), records=len(rows))
        progress.commit(marks, ahead, marks)
        return len(rows)

    @property
    def _stamps_bytes(self) -> int:
        return (
            sum(len(name) + len(value or b"") for name, value in self._producer_progress.headers())
            + STAMP_BYTES
        )

    def _rest(self, records: int) -> None:
        """Let the broker finish the transaction before."""
        if rest_s := self._pacing.rest_s(self._clock.monotonic_s(), records=records):
            time.sleep(rest_s)

    def _begin_on_progress(
        self, rows: Sequence[OutboxRow], ahead: Mapping[Destination, int], marks: Mapping[int, Known]
    ) -> None:
        """Return when the broker has the progress of the transaction, before it gets the first row.

        A lone broker that dies and comes back later than the transaction's timeout may forget to end it. The
        next leader looks for open transactions on the progress topic: rows that were there alone would be
        published again. Raises BrokerError when the topic refuses it, Aborted when it did not arrive.
        """
        progress = self._producer_progress
        told = [created_header(row.created_ms for row in rows), progress.marks_header(marks)]
        about_rows = [each for each in told if each is not None]
        for key, value in progress.records(marks, ahead):
            self._produce_progress(key, value, about_rows if key == rows_key(progress.producer) else [])
        if self._flush():
            self._has_begun = True
            return
        self._abort()
        if self._failed:
            raise self._refused(rows, [])
        raise Aborted(
            f"{self.transactional_id}: what it publishes did not reach progress topic {self._progress.topic}"
        )

    def _produce(
        self,
        rows: Sequence[OutboxRow],
        destinations: Sequence[Destination],
        sequences: Sequence[bytes],
        fixed: tuple[tuple[str, bytes | None], ...],
        rounds: Rounds | None,
    ) -> None:
        produce, among = self._producer.produce, self.destinations.among()
        digest = RowDigests(fixed[0][1] or b"", fixed[1][1] or b"").header
        for index, (row, (topic, partition), sequence) in enumerate(
            zip(rows, destinations, sequences, strict=True)
        ):
            if rounds is not None and rounds.ends_before(row, (topic, partition)):
                self._flush()
                if self._failed:
                    return
            count = among[topic] if row.partition is None and row.key is not None else 0
            digested = digest(sequence, partition, count, row.key, row.value, row.headers)
            headers = [*row.headers, (DIGEST, digested), *fixed, (SEQUENCE_HEADER, sequence)]
            while True:
                try:
                    produce(
                        topic, row.value, row.key, partition, timestamp=row.timestamp_ms or 0, headers=headers
                    )
                    break
                except BufferError:
                    self._make_room()
                except (KafkaException, TypeError, ValueError, OverflowError) as error:
                    why = (
                        error.args[0]
                        if isinstance(error, KafkaException)
                        else KafkaError(KafkaError._INVALID_ARG, str(error))
                    )
                    if not refuses_record(why.code()):
                        raise
                    self._abort()
                    raise RowsRefused(why, frozenset([(topic, partition)]), [index]) from error

    def _flush(self) -> bool:
        """Return once all that was produced is with the broker, then true; or some was not delivered, or a
        commit will say what the matter is.

        One that was not delivered ends the transaction, and the client sends nothing more of it: there is
        nothing left to wait for.
        """
        deadline_s = self._clock.monotonic_s() + self._commit_timeout_s
        while self._clock.monotonic_s() < deadline_s and not self._undelivered:
            try:
                if not self._producer.flush(FLUSH_S):
                    return not self._undelivered
            except (KafkaException, SystemError) as error:
                # The client raises what ended its producer while it is calling back (a SystemError, now and
                # then); the commit says it whole.
                logger.info("%(producer)s: %(error)s", {"producer": self.transactional_id, "error": error})
                forget_frames(error)
                return False
            if self._stopping():
                raise PublishStopped
        return False

    def _produce_progress(self, key: bytes, value: bytes, headers: list[tuple[str, bytes]]) -> None:
        topic, partition = self._progress.topic, self._progress.partition
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers)
                return
            except BufferError:
                self._make_room()

    def _make_room(self) -> None:
        """Let the client send some of what fills its queue."""
        self._producer.poll(SLICE_S)
        if self._stopping():
            raise PublishStopped

    def _refused(self, rows: Sequence[OutboxRow], destinations: Sequence[Destination]) -> HoldfastError:
        """Return the error for the refused records: the progress, or some of *rows*, which go to
        *destinations*.
        """
        for each in self._failed:
            if each.destination[0] == self._progress.topic:
                return BrokerError(
                    f"progress topic {self._progress.topic} refuses what a transaction publishes:"
                    f" {each.why.str()}; check its configuration, and what this principal may do"
                )
        failed = {(each.destination, each.key, each.value) for each in self._failed}
        indexes = [
            index
            for index, (row, destination) in enumerate(zip(rows, destinations, strict=True))
            if (destination, row.key, row.value) in failed
        ]
        return RowsRefused(self._failed[0].why, frozenset(each.destination for each in self._failed), indexes)

    def _give_up(
        self, error: KafkaException, rows: Sequence[OutboxRow], destinations: Sequence[Destination]
    ) -> None:
        """Abort, and raise what the failure means."""
        why: KafkaError = error.args[0]
        if fences(why.code()):
            raise self._fenced(why) from error
        # A record that failed while others were still being handed over makes the client refuse those:
        # _STATE, or _FATAL after a fence. The abort then says whether it was a fence.
        if why.code() not in (KafkaError._STATE, KafkaError._FATAL) and (
            why.fatal() or not (why.txn_requires_abort() or why.retriable())
        ):
            raise BrokerError(f"{self.transactional_id}: {why.name()}: {why.str()}") from error
        self._abort()
        if self._failed:
            raise self._refused(rows, destinations) from error
        raise Aborted(f"{self.transactional_id}: transaction aborted: {why.name()}: {why.str()}") from error

    def _abort(self) -> None:
        try:
            self._wait(self._producer.abort_transaction, self._commit_timeout_s, "abort")
        except KafkaException as error:
            raise BrokerError(f"{self.transactional_id}: cannot abort: {error.args[0].str()}") from error

    def close(self) -> None:
        """Drop the producer. An open transaction is left to the next leader's fence or to its timeout."""
        self._producer.purge()
        del self._producer, self.destinations


def _of_few_rounds(
    rows: Sequence[OutboxRow], destinations: Sequence[Destination], rounds: Rounds
) -> tuple[Sequence[OutboxRow], Sequence[Destination]]:
    """Return the first of *rows*, and where they go: as many as take few rounds, for a transaction must
    end before its timeout.
    """
    ended = 0
    for index, (row, destination) in enumerate(zip(rows, destinations, strict=True)):
        ended += rounds.ends_before(row, destination)
        if ended == LIMIT_ROUNDS:
            return rows[:index], destinations[:index]
    return rows, destinations


def read_progress(
    client: Mapping[str, Any],
    topic: str,
    progress: ProducerProgress,
    *,
    stopping: Callable[[], bool],
    timeout_s: float,
) -> int:
    """Read all partitions of the progress topic to their ends into *progress*, and return how many records
    there were.

    Call it after the fence: then everything that any leader before this one committed is there, and nothing
    more will come. Raises BrokerError when nothing has come for *timeout_s*, also where a transaction stays
    open: for readers of committed records its beginning is the end. DecodeError when a record is
    not a progress record of this version.
    """
    consumer = make_reader({**client, **reader_options(f"{topic}-reader", committed=True, wait_ms=10)})
    reader, records = LogReader(consumer, limit=PROGRESS_RECORDS), 0
    todo: set[Place] = set()

    def done() -> bool:
        if stopping():
            raise PublishStopped
        todo.difference_update(
            [
                place
                for place in todo & reader.ended.keys()
                if reader.ended[place] >= _log_end(consumer, place)
            ]
        )
        return not todo

    try:
        found = consumer.list_topics(topic, timeout=timeout_s).topics[topic]
        if found.error is not None:
            raise BrokerError(f"progress topic {topic}: {found.error.str()}. {_cure_of(found.error)}")
        todo.update((topic, partition) for partition in found.partitions)
        reader.assign(dict.fromkeys(todo, 0))
        for message in reader.until(done, idle_s=timeout_s):
            headers: Any = tuple(message.headers() or ())
            progress.restore(message.key(), message.value(), headers, message.timestamp()[1])
            records += 1
    except TimeoutError:
        raise _unread(topic, todo, reader.ended, timeout_s) from None
    except KafkaException as error:
        why: KafkaError = error.args[0]
        raise BrokerError(f"progress topic {topic}: {why.str()}. {_cure_of(why)}") from error
    finally:
        reader.close()
    return records


def _cure_of(why: KafkaError) -> str:
    if why.code() in UNAUTHORIZED:
        return f"Grant this principal Describe and Read: {RIGHTS}"
    if why.code() in MISSING_TOPIC:
        return (
            "Harvesters make it when they start; where it was deleted, sequences begin again, and readers"
            " that drop duplicates drop what comes"
        )
    return "Check that the broker is reachable"


def _log_end(consumer: Consumer, place: Place) -> int:
    """Return the next offset of a partition, open transactions included, by the last fetch; -1 before the
    first.
    """
    _, end = consumer.get_watermark_offsets(TopicPartition(*place), cached=True) or (-1, -1)
    return int(end)


def _unread(topic: str, todo: set[Place], reached: Mapping[Place, int], timeout_s: float) -> BrokerError:
    if begun := sorted(todo & reached.keys()):
        return BrokerError(
            f"progress topic {topic} partition {begun[0][1]}: from {reached[begun[0]]} on a transaction is"
            f" open, for more than {timeout_s:.0f} s and though every leader before is fenced: the brokers"
            " have lost how it ended. Stop the harvesters and run `holdfast producers hanging --end`; see"
            ' docs/operating.md, "A transaction that never ends"'
        )
    return BrokerError(f"progress topic {topic}: nothing read for {timeout_s:.0f} s; check the broker")
