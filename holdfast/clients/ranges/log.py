"""What a `RangeConsumer` says to the broker: wishes and what became of them, messages of a block, dead
letters. Used from one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from holdfast.clock import Clock
from holdfast.config import Settings
from holdfast.core.groups.java_order import coordinator_partition
from holdfast.core.kafka.topic_partition import Place
from holdfast.core.kafka.unreadable import Unreadable
from holdfast.core.ranges import (
    Base,
    Horizon,
    RangeRow,
    Ranges,
    Wish,
    decode_wish,
    encode_wish,
    fold_range,
    low_water,
    range_key,
)
from holdfast.errors import BrokerError, TopicError
from holdfast.kafka.clients import make_admin, make_reader, make_writer, reader_options
from holdfast.kafka.codes import COORDINATOR_MOVES, MISSING_TOPIC, code_of, is_end
from holdfast.kafka.leader_requests import delete_records
from holdfast.kafka.librdkafka_log import Quiet, impatient
from holdfast.kafka.reading.log_bounds import log_bounds
from holdfast.kafka.reading.log_reader import LogReader, raise_if_fatal
from holdfast.kafka.reading.skipper import Skipper

logger = logging.getLogger(__name__)
quiet: Any = Quiet(logger)

BASE_EVERY = 200
"""Wishes that count between two records at which reading can begin."""
SLACK_S = 1.0
"""A request ends by its own deadline; this is for the answer to reach us."""
TRIM_RECORDS = 1_000
"""Records at the beginning that nobody needs any more and that are worth a request to delete them."""
FETCH_S = 0.5
POLL_S = 0.02
READ_RECORDS = 1_000

_Dead = tuple[bytes | None, bytes | None, list[tuple[str, str | bytes | None]]]
"""Value, key and headers of a dead letter."""


class RangeLog:
    """The rows of one topic in one group, folded from *ranges_topic*; `wish` returns once the log has
    decided.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        topic: str,
        group: str,
        ranges_topic: str,
        dead_letters: str,
        lease_ms: int,
        timeout_s: float,
        clock: Clock,
    ) -> None:
        self._settings, self.topic, self._group, self._clock = settings, topic, group, clock
        self._ranges_topic, self._dead_letters, self._lease_ms, self._timeout_s = (
            ranges_topic,
            dead_letters,
            lease_ms,
            timeout_s,
        )
        self._keys: dict[str, int] = {}
        self._homes: dict[int, int] = {}
        self.rows: dict[int, RangeRow] = {}
        self._log_lead_ms: int | None = None
        self._watched, self._counted = (-1, -1), False
        self._reader: LogReader | None = None
        self._messages: Consumer | None = None
        self._watcher: Skipper | None = None
        self._unreadable: dict[int, Unreadable] = {}
        """Of each partition of the topic the batch that was last met and cannot be read."""
        self.noted = 0
        """How many such batches the dead letters have a note of."""
        self._producer: Producer | None = None
        self._admin: AdminClient | None = None
        self._horizons: dict[int, Horizon] = {}
        self._folded: dict[int, int] = {}
        """By partition of the ranges' log the offset before which all is folded, -1 where nothing is yet."""
        self._trimmed: dict[int, int] = {}
        self._short: set[int] = set()
        """Partitions that end before what is done of them, and were reported."""

    @property
    def partitions(self) -> list[int]:
        return sorted(self._homes)

    def open(self) -> None:
        """Connect, read all wishes there are, and begin the rows that nobody has begun."""
        # An open transaction of a stranger must not hide wishes: nobody writes transactionally there by rule.
        wishes, messages = (
            impatient(self._settings.consumer(**reader_options(self._group, committed=committed, wait_ms=20)))
            for committed in (False, True)
        )
        self._messages = make_reader(messages, logger=quiet)
        self._reader = LogReader(
            make_reader(wishes, logger=quiet),
            Skipper(self._settings, wishes, clock=self._clock),
            limit=READ_RECORDS,
            refuse=raise_if_fatal,
            clock=self._clock,
        )
        self._watcher = Skipper(self._settings, messages, stands=self._stands, clock=self._clock)
        writing: dict[str, str | int | bool] = {"enable.idempotence": True, "acks": "all", "linger.ms": 0}
        timeout_ms = max(1_000, int(self._timeout_s * 1_000))
        self._producer = make_writer(
            {**self._settings.producer(**writing), "message.timeout.ms": timeout_ms}, logger=quiet
        )
        homes = self._count(
            self._ranges_topic,
            "create it with `holdfast --set ranges=true topics create --partitions N`, or name another one by ranges_topic",
        )
        self._count(self._dead_letters, "create it, or name another one by dead_letters")
        for partition in range(self._count(self.topic, "create it, or correct its name")):
            key = range_key(self._group, self.topic, partition)
            self._keys[key], self._homes[partition] = partition, coordinator_partition(key, homes)
        self._trimmed = dict.fromkeys(self._homes.values(), 0)
        self._horizons = {home: Horizon() for home in self._trimmed}
        self._folded = dict.fromkeys(self._trimmed, -1)
        self._reader.assign({(self._ranges_topic, home): OFFSET_BEGINNING for home in self._trimmed})
        self.catch_up()

    def _count(self, topic: str, what: str) -> int:
        assert self._reader is not None
        try:
            listed = self._reader.consumer.list_topics(topic, timeout=self._timeout_s).topics[topic]
        except KafkaException as error:
            raise self._broken("looking for topics", error) from None
        if listed.error is not None or not listed.partitions:
            raise TopicError(f"topic {topic} does not exist at {self._settings.bootstrap_servers}: {what}")
        return len(listed.partitions)

    def _begin(self, partition: int) -> int:
        """Return where a partition without a row begins: where the group stands in Kafka's own book, else
        at its first message.
        """
        assert self._messages is not None
        place, until_s = TopicPartition(self.topic, partition), self._clock.monotonic_s() + self._timeout_s
        while True:
            try:
                earliest, _ = self._bounds(self._messages, (self.topic, partition))
                return max(earliest, self._messages.committed([place], self._timeout_s)[0].offset)
            except KafkaException as error:
                # A broker that has just started makes its book of offsets with the first question for it.
                if code_of(error) not in COORDINATOR_MOVES or self._clock.monotonic_s() > until_s:
                    raise self._broken(f"offsets of {self.topic}/{partition}", error) from None
            self._messages.poll(POLL_S)

    def _bounds(self, consumer: Consumer, place: Place) -> tuple[int, int]:
        return log_bounds(consumer, place, self._timeout_s, clock=self._clock)

    # -- wishes

    def now_ms(self) -> int:
        """Return what time it is in the log, estimated from below."""
        return int(self._clock.monotonic_s() * 1_000) + (self._log_lead_ms or 0)

    def catch_up(self) -> None:
        """Fold all that is in the log by now, and begin the rows that are not in it."""
        assert self._reader is not None
        try:
            ends = {place: self._bounds(self._reader.consumer, place)[1] for place in self._reader.next}
        except KafkaException as error:
            raise self._broken("the end of the ranges' log", error) from None
        self._read_to(ends)
        for partition in self._homes:
            if partition not in self.rows:
                self.wish(partition, Base(-1, Ranges(self._begin(partition))))

    def _read_to(self, ends: Mapping[Place, int]) -> None:
        assert self._reader is not None
        reader, deadline_s = self._reader, self._clock.monotonic_s() + self._timeout_s
        try:
            for message in reader.until(lambda: reader.has_read(ends), deadline_s=deadline_s):
                self._seen(message)
        except TimeoutError:
            raise BrokerError(
                f"{self._ranges_topic} was not read to its end within {self._timeout_s:g} s: check the broker"
            ) from None

    def _seen(self, message: Message) -> None:
        home, offset = message.partition() or 0, message.offset() or 0
        if 0 <= self._folded[home] < offset:
            self._pass_hole(home)
        self._folded[home] = offset + 1
        at_ms = message.timestamp()[1]
        lead_ms = at_ms - int(self._clock.monotonic_s() * 1_000)
        self._log_lead_ms = lead_ms if self._log_lead_ms is None else max(self._log_lead_ms, lead_ms)
        key, wish = (message.key() or b"").decode(errors="replace"), decode_wish(message.value() or b"")
        if wish is None:
            return
        previous = self._horizons[home].note(key, wish, offset, at_ms)
        partition = self._keys.get(key)
        if partition is None:
            return
        before = self.rows.get(partition)
        row = fold_range(before, wish, offset, at_ms, self._lease_ms, previous)
        if row is not None and row is not before:
            self.rows[partition] = row
            self._counted |= (home, offset) == self._watched

    def _pass_hole(self, home: int) -> None:
        """Forget rows whose records were deleted before they were read: what is left of the log begins them."""
        assert self._reader is not None
        try:
            earliest, _ = self._bounds(self._reader.consumer, (self._ranges_topic, home))
        except KafkaException as error:
            raise self._broken("the beginning of the ranges' log", error) from None
        if earliest <= self._folded[home]:  # a batch that nobody can read: all pass it alike
            return
        logger.info(
            "%(topic)s/%(partition)d was shortened to offset %(earliest)d while this member had read up to %(folded)d: "
            "it reads on from there, as a new member does",
            {
                "topic": self._ranges_topic,
                "partition": home,
                "earliest": earliest,
                "folded": self._folded[home],
            },
        )
        self._horizons[home] = Horizon()
        for partition in [each for each in self.rows if self._homes[each] == home]:
            del self.rows[partition]

    def wish(self, partition: int, wish: Wish) -> bool:
        """Write a wish, read the log up to it, and return whether it counted."""
        assert self._producer is not None
        acks: list[tuple[KafkaError | None, int]] = []
        home = self._homes[partition]
        self._producer.produce(
            self._ranges_topic,
            encode_wish(wish),
            range_key(self._group, self.topic, partition).encode(),
            partition=home,
            on_delivery=lambda error, message: acks.append((error, message.offset() or 0)),
        )
        self._producer.flush(self._timeout_s)
        if not acks or acks[0][0] is not None:
            raise BrokerError(
                f"{self._ranges_topic} took no record within {self._timeout_s:g} s: {acks[0][0] if acks else 'no answer'}"
            )
        offset = acks[0][1]
        self._watched, self._counted = (home, offset), False
        self._read_to({(self._ranges_topic, home): offset + 1})
        counted, row = self._counted, self.rows.get(partition)
        if (
            counted
            and row is not None
            and row.since_base >= BASE_EVERY
            and self.wish(partition, Base(row.offset, row.row))
        ):
            self._trim(home)
        return counted

    def _trim(self, home: int) -> None:
        """Have the broker delete the beginning of a log that nobody needs any more, best effort: it is
        asked again after the next Base.
        """
        assert self._reader is not None
        read = self._reader.next[self._ranges_topic, home]
        begin = self._horizons[home].begin(read, self.now_ms())
        if begin - self._trimmed[home] < TRIM_RECORDS:
            return
        self._trimmed[home] = begin
        if self._admin is None:
            self._admin = make_admin(self._settings.client(), logger=quiet)
        place = TopicPartition(self._ranges_topic, home, begin)
        (asked,) = delete_records(self._admin, [place], timeout_s=self._timeout_s).values()
        try:
            asked.result(self._timeout_s + SLACK_S)
        except (KafkaException, FutureTimeoutError) as error:
            logger.warning(
                "the beginning of %(topic)s/%(partition)d was not deleted, it grows: %(error)s",
                {"topic": self._ranges_topic, "partition": home, "error": error},
            )

    # -- messages

    def latest(self, partition: int) -> int:
        """Return the end of a partition."""
        assert self._messages is not None
        try:
            _, end = self._bounds(self._messages, (self.topic, partition))
        except KafkaException as error:
            raise self._broken(f"the end of {self.topic}/{partition}", error) from None
        self._compare(partition, end)
        return end

    def _compare(self, partition: int, end: int) -> None:
        """Report once that a log ends before what is done of it: it is not the log that the row is about."""
        low = self.rows[partition].row.low
        if low <= end:
            self._short.discard(partition)
        elif partition not in self._short:
            self._short.add(partition)
            logger.warning(
                "%(topic)s/%(partition)d ends at offset %(end)d, and group %(group)s has done all before "
                "%(low)d, so it hands out nothing before that: if the topic was made anew, give the group a new name",
                {
                    "topic": self.topic,
                    "partition": partition,
                    "end": end,
                    "group": self._group,
                    "low": low,
                },
            )

    def fetch(self, partition: int, start: int, end: int, limit: int) -> tuple[list[Message], int]:
        """Return messages from *start* to before *end*, at most *limit*, and the offset that they reach to.

        What cannot be read is passed once the dead letters have a note of it: it can be handed out to nobody.
        """
        consumer, watcher = self._messages, self._watcher
        assert consumer is not None
        assert watcher is not None
        place = (self.topic, partition)
        if (stands := self._unreadable.get(partition)) is not None and stands.first <= start <= stands.last:
            self._bury_unread(stands, start, min(end, stands.last + 1))
            return [], min(end, stands.last + 1)
        consumer.assign([TopicPartition(*place, start)])
        watcher.resume(*place, start)
        found: list[Message] = []
        reached, until_s = start, self._clock.monotonic_s() + FETCH_S
        while reached < end and len(found) < limit and self._clock.monotonic_s() < until_s:
            message = consumer.poll(POLL_S)
            came = watcher.sift(consumer, [] if message is None else [message])
            if message is None or not came:
                if partition in self._unreadable and self._unreadable[partition].first <= reached:
                    break
                continue
            error, offset = message.error(), message.offset() or 0
            if error is not None:
                if is_end(error):
                    reached = max(reached, min(end, offset))
                    break
                if error.fatal() or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise self._broken(f"reading {self.topic}/{partition}", KafkaException(error))
                continue
            if offset >= end:
                reached = end
                break
            found.append(message)
            reached = offset + 1
        consumer.unassign()
        return found, reached

    def _stands(self, found: Unreadable) -> None:
        self._unreadable[found.partition] = found
        logger.error(
            "%(found)s; it goes to %(dead_letters)s as a note of where it lies, other messages go on",
            {
                "found": found,
                "dead_letters": self._dead_letters,
                "topic": found.topic,
                "partition": found.partition,
                "offset": found.first,
            },
        )

    def _bury_unread(self, stands: Unreadable, first: int, end: int) -> None:
        """Write to the dead letters where lies what cannot be read, from *first* to before *end*, and why
        it cannot.
        """
        source = f"{self.topic}/{stands.partition}/{first}"
        headers = {
            "source": source,
            "last-offset": str(end - 1),
            "error": stands.error,
            "reason": stands.reason,
        }
        self._write_dead(
            [(None, None, [(f"holdfast-{name}", text.encode()) for name, text in headers.items()])]
        )
        self.noted += 1

    def bury(self, messages: Iterable[Message], deliveries: int) -> None:
        """Write *messages* to the dead letters, with where they come from in their headers."""
        dead: list[_Dead] = []
        for message in messages:
            source = f"{message.topic()}/{message.partition()}/{message.offset()}"
            had: Any = message.headers() or []
            headers = [
                *had,
                ("holdfast-source", source.encode()),
                ("holdfast-deliveries", str(deliveries).encode()),
            ]
            dead.append((message.value(), message.key(), headers))
        self._write_dead(dead)

    def _write_dead(self, dead: Iterable[_Dead]) -> None:
        assert self._producer is not None
        failed: list[str] = []

        def note_failure(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error.str())

        for value, key, headers in dead:
            self._producer.produce(self._dead_letters, value, key, headers=headers, on_delivery=note_failure)
        left = self._producer.flush(self._timeout_s)
        if left or failed:
            raise BrokerError(
                f"{self._dead_letters} did not take all dead letters: {failed[0] if failed else 'no answer'}; nothing is lost"
            )

    def commit(self, partition: int) -> None:
        """Have Kafka's own book of offsets follow the low-water offset, best effort."""
        assert self._messages is not None
        try:
            self._messages.commit(
                offsets=[TopicPartition(self.topic, partition, low_water(self.rows[partition].row))],
                asynchronous=True,
            )
        except KafkaException as error:
            logger.warning(
                "offsets were not committed to Kafka: %(error)s; %(topic)s has them",
                {"error": error.args[0].str(), "topic": self._ranges_topic},
            )

    def close(self) -> None:
        """Let go of the broker."""
        if self._producer is not None:
            self._producer.flush(self._timeout_s)
        for each in (self._watcher, self._reader, self._messages):
            if each is not None:
                each.close()

    def _broken(self, what: str, error: KafkaException) -> BrokerError | TopicError:
        if code_of(error) in MISSING_TOPIC:
            return TopicError(
                f"{what} at {self._settings.bootstrap_servers}: {error.args[0].str()}; the topic was deleted: "
                "create it, and give the group a new name, since it keeps its place in the old one"
            )
        return BrokerError(
            f"{what} at {self._settings.bootstrap_servers}: {error.args[0].str()}; check the broker"
        )
