"""Restores partitions from their changelogs: once before they serve, continuously while they are standbys."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from rocksdict import WriteOptions

from holdfast.clock import system_clock
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import BrokerError, RottenStoreError
from holdfast.kafka.clients import CRITICAL, make_reader, reader_options
from holdfast.kafka.codes import ends_reading, is_end
from holdfast.tables.ends import EndsClient, LogEnds
from holdfast.tables.lived import Stopwatch
from holdfast.tables.messages import by_place, only
from holdfast.tables.partition import Partition
from holdfast.tables.rocks import LOGGED, UNLOGGED

logger = logging.getLogger(__name__)

READ_RECORDS = 40_000
STAND_BY_RECORDS = 5_000
DATE_EVERY_S = 1.0
_OLD_END_TIMEOUT_S = 30.0
_OPEN_TIMEOUT_S = 5.0


class RestoreInterrupted(Exception):
    """A newer assignment has come: the partitions being restored may not be wanted any more."""


def drain(consumer: Consumer, limit: int, timeout_s: float) -> list[Message]:
    """Return the queued messages, at most *limit*, waiting only for the first.

    `consume(n, t)` alone would wait out t.
    """
    messages: list[Message] = consumer.consume(limit, 0)
    if not messages and timeout_s:
        first = consumer.poll(timeout_s)
        if first is not None:
            messages = [first, *consumer.consume(limit - 1, 0)]
    return messages


def changelog_consumer(client: Mapping[str, Any], name: str, *, wait_ms: int) -> Consumer:
    """Return a consumer that reads committed changelog records to the partition's end and refuses to jump
    over a hole.

    PARTITION_EOF marks the end, since control records close the log and offsets alone cannot show it.
    *wait_ms* bounds how long an empty fetch waits.
    """
    return make_reader(
        {
            **client,
            **reader_options(f"{name}-changelog", committed=True, wait_ms=wait_ms, lost="error"),
            "queued.max.messages.kbytes": 16 << 10,
        },
        log_level=CRITICAL,
    )


class _Reader:
    """The shared part of restoring and standby reading: each partition's position, and the case of a log that
    does not reach back that far.
    """

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.parts: dict[Place, Partition] = {}
        self._ends: dict[Place, int] = {}
        self._asked: dict[Place, tuple[int, int]] = {}
        self._ended: list[Partition] = []
        self._only_topic: str | None = None

    def assign(self, parts: Iterable[Partition]) -> None:
        self.parts = {(part.changelog, part.partition): part for part in parts}
        self._only_topic = only(self.parts)
        self._ends.clear()
        self._asked.clear()
        for part in self.parts.values():
            part.replay.forget_torn()
        self.consumer.assign(
            [
                TopicPartition(part.changelog, part.partition, part.changelog_next)
                for part in self.parts.values()
            ]
        )

    def step(self, limit: int, timeout_s: float, options: WriteOptions) -> tuple[int, list[Partition]]:
        """Apply what has come; return (records, partitions that reached the end)."""
        self._ended = []
        found = by_place(drain(self.consumer, limit, timeout_s), self._only_topic, self._on_error)
        for place, messages in found.items():
            part = self.parts[place]
            try:
                part.replay.apply(messages, options)
            except RottenStoreError as error:
                self.rebuild(part, part.rotten or str(error))
            _, part.replay.changelog_end = self._known_ends(place)
        for part in self._ended:
            if part.replay.misplaced is not None:
                raise part.replay.misplaced
        return sum(map(len, found.values())), self._ended

    def _on_error(self, message: Message, error: KafkaError) -> None:
        place = (message.topic() or "", message.partition() or 0)
        if is_end(error):
            self._ended.append(self.parts[place])
            self._ends[place] = message.offset() or 0
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self.rebuild(self.parts[place], "its changelog offset is outside the changelog")
        elif ends_reading(error):
            raise BrokerError(f"changelog {place[0]} partition {place[1]}: {error.str()}")

    def is_whole(self, place: Place) -> bool:
        """Return whether everything that lies in the log up to its end was committed or aborted, by the last
        fetch.
        """
        _, end = self._known_ends(place)
        return self._ends[place] >= end

    def _known_ends(self, place: Place) -> tuple[int, int]:
        """Return the first and end offsets of a log by the last fetch."""
        return self.consumer.get_watermark_offsets(TopicPartition(*place), cached=True) or (-1, -1)

    def open_transaction(self, place: Place) -> str | None:
        """Return the open transaction that keeps a reader of committed records from the log's end; None
        without one.

        Asks the broker.
        """
        where = TopicPartition(*place)
        _, end = self._known_ends(place)
        _, stable = self.consumer.get_watermark_offsets(
            where, timeout=_OPEN_TIMEOUT_S
        )  # of this reader: where the open ones begin
        return (
            None
            if stable >= end
            else f"{place[0]} partition {place[1]} ends at {end}, but from {stable} on a transaction is open"
        )

    def places(self) -> list[Place]:
        """Return the partitions whose ends show how current these are: the changelogs', and the sources'."""
        return [*self.parts, *{place for part in self.parts.values() for place in part.places}]

    def date(self, news: LogEnds | None) -> None:
        """Note how current the partitions are: those that have read up to where their log ended when that was
        last asked.

        The end seen by a reader of committed records is before the log's while a transaction is open, so the
        end is kept until it is reached. Without *news*, the ends asked for before are looked at again.
        """
        for place, part in self.parts.items():
            if news is not None:
                part.note_source_ends(news.ends, news.asked_ms)
                if place in news.ends:
                    self._asked.setdefault(place, (news.asked_ms, news.ends[place]))
            asked = self._asked.get(place)
            if asked is not None and max(part.changelog_next, self._ends.get(place, 0)) >= asked[1]:
                part.current_ms = asked[0]
                del self._asked[place]

    def rebuild(self, part: Partition, cause: str) -> None:
        """Replace a store that the log does not continue: the store is ahead of the log, or the log no longer
        reaches back to it.
        """
        self._ends.pop((part.changelog, part.partition), None)
        self._asked.pop((part.changelog, part.partition), None)
        part.rebuild(cause)
        low, _ = self.consumer.get_watermark_offsets(
            TopicPartition(part.changelog, part.partition), timeout=_OLD_END_TIMEOUT_S
        )
        part.reads_from(low)
        place = TopicPartition(part.changelog, part.partition, low)
        self.consumer.incremental_unassign([TopicPartition(part.changelog, part.partition)])
        self.consumer.incremental_assign([place])


def restore(
    parts: Iterable[Partition],
    client: Mapping[str, Any],
    name: str,
    interrupted: threading.Event,
    stall_timeout_s: float,
) -> int:
    """Read the changelogs of *parts* to their ends; return the number of records read.

    Raises Interrupted after a stop, BrokerError when nothing has come for *stall_timeout_s*,
    ChangelogError when a log ends inside a transaction (no reader of committed records can ever see that).
    Earlier writers must be fenced: then no transaction is open, unless the brokers have lost its end. Its
    records would be missing.
    """
    todo = {(part.changelog, part.partition) for part in parts}
    if not todo:
        return 0
    reader = _Reader(changelog_consumer(client, name, wait_ms=10))
    idle, total = Stopwatch(), 0
    try:
        reader.assign(parts)
        while todo:
            if interrupted.is_set():
                raise RestoreInterrupted
            records, ended = reader.step(READ_RECORDS, 0.1, UNLOGGED)
            total += records
            for part in ended:
                place = part.changelog, part.partition
                if (objection := part.replay.objection()) is not None:
                    raise objection
                if part.whole:
                    if reader.is_whole(place):
                        todo.discard(place)
                else:
                    reader.rebuild(part, "it holds a part of a transaction that its changelog has lost")
            idle.tick()
            if records or ended:
                idle.reset()
            elif idle.s > stall_timeout_s:
                raise _stalled(reader, sorted(todo), stall_timeout_s)
    except KafkaException as error:
        raise BrokerError(f"restoring {sorted(todo)}: {error.args[0].str()}") from error
    finally:
        reader.consumer.close()
    return total


def _stalled(reader: _Reader, todo: list[Place], stall_timeout_s: float) -> BrokerError:
    if found := [text for place in todo if (text := reader.open_transaction(place)) is not None]:
        return BrokerError(
            f"changelog {'; '.join(found)}, for more than {stall_timeout_s:.0f} s and though its producer is"
            " fenced: the brokers have lost how it ended. Stop its producers and run `holdfast producers"
            ' hanging --end`; see docs/operating.md, "A transaction that never ends"'
        )
    return BrokerError(f"restoring {todo}: nothing read for {stall_timeout_s:.0f} s; check the broker")


class StandbyFollower(threading.Thread):
    """Keeps standby partitions abreast of their changelogs, in a thread of its own.

    `follow` replaces the set; when it returns, no partition outside the new set is touched any more. A
    failure ends the following and is kept in `failure` for the owner of the thread to act on.
    """

    def __init__(self, client: Mapping[str, Any], name: str) -> None:
        super().__init__(name="holdfast-standby", daemon=True)
        self._client, self._name = client, name
        self._lock, self._wanted, self._done = threading.Lock(), threading.Event(), threading.Event()
        self._reader: _Reader | None = None
        self._log_ends: EndsClient | None = None
        self.failure: Exception | None = None

    def follow(self, parts: Iterable[Partition]) -> None:
        parts = list(parts)
        with self._lock:
            if self._reader is None:
                if not parts:
                    return
                self._reader = _Reader(changelog_consumer(self._client, self._name, wait_ms=200))
                self._log_ends = EndsClient(self._client)
            self._reader.assign(parts)
            if parts:
                self._wanted.set()
                if not self.is_alive():
                    self.start()
            else:
                self._wanted.clear()

    def run(self) -> None:
        dated_s = 0.0
        while not self._done.is_set():
            if not self._wanted.wait(0.5):
                continue
            records, now_s = 0, system_clock.monotonic_s()
            try:
                with self._lock:
                    if self._reader is not None and self._log_ends is not None and self._reader.parts:
                        records, _ = self._reader.step(STAND_BY_RECORDS, 0, LOGGED)
                        if now_s - dated_s > DATE_EVERY_S:
                            self._log_ends.ask(self._reader.places())
                            dated_s = now_s
                        self._reader.date(self._log_ends.answer())
            except Exception as error:
                logger.exception("standby stopped following")
                self.failure = error
                return
            # Outside the lock, so that follow() gets it; standbys need not be abreast to the millisecond.
            self._done.wait(0.001 if records else 0.05)

    def close(self) -> None:
        self._done.set()
        self._wanted.set()
        if self.is_alive():
            self.join(10)
        with self._lock:
            if self._reader is not None:
                self._reader.consumer.close()
                self._reader = self._log_ends = None
