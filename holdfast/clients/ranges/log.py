"""The rows of a topic's partitions in a group, folded from the ranges' log, and the wishes that a
`RangeConsumer` writes to it. Used from one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from math import inf
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from holdfast.clients.ranges.broker import SAME_GROUP, SLACK_S, RangeBroker
from holdfast.clients.ranges.home import RangeHome
from holdfast.clients.ranges.messages import RangeMessages
from holdfast.core.groups.java_order import coordinator_partition
from holdfast.core.kafka.topic_partition import Place
from holdfast.core.ranges import (
    Base,
    OfTopic,
    Ranges,
    Wish,
    decode_wish,
    encode_wish,
    low_water,
    range_key,
    shows,
)
from holdfast.errors import BrokerError, HoldfastError, TopicError
from holdfast.kafka.clients import make_admin, make_reader, make_writer, reader_options
from holdfast.kafka.codes import NO_TOPIC
from holdfast.kafka.leader_requests import delete_records
from holdfast.kafka.librdkafka_log import Quiet, impatient
from holdfast.kafka.reading.log_reader import LogReader, raise_if_fatal
from holdfast.kafka.reading.record_times import credible_ms
from holdfast.kafka.reading.skipper import Skipper

logger = logging.getLogger(__name__)
quiet: Any = Quiet(logger)

BASE_EVERY = 200
"""Wishes that count between two records at which reading can begin."""
TRIM_RECORDS = 1_000
"""Unneeded records at the beginning that are worth a request to delete them."""
IDENTIFY_EVERY_S = 1.0
"""The interval at which the topic's id is looked up: so long may messages of a recreated topic be handed out
from the old offset on, which all come again.
"""
COUNT_EVERY_S = 30.0
"""The interval at which added partitions are looked for."""
READ_RECORDS = 1_000


class RangeLog:
    """The rows of one topic in one group, folded from *ranges_topic*; `wish` returns once the log has
    decided.
    """

    def __init__(
        self, broker: RangeBroker, messages: RangeMessages, *, group: str, ranges_topic: str, lease_ms: int
    ) -> None:
        self._broker, self._messages, self._group = broker, messages, group
        self._settings, self._clock = broker.settings, broker.clock
        self.topic, self._ranges_topic, self._lease_ms = messages.topic, ranges_topic, lease_ms
        self._home_of: dict[int, int] = {}
        """By partition of the topic the one of the ranges' log in which its row's records lie."""
        self._homes: dict[int, RangeHome] = {}
        self._homes_count, self._counted_s = 0, 0.0
        self._at_ms: dict[int, int] = {}
        """By home the time of the record that was read last."""
        self._mark: int | None = None
        self._identified_s = -inf
        self._lost: set[int] = set()
        """Homes that are to be read from their beginning again."""
        self._log_lead_ms: int | None = None
        self._watched, self._counted, self._forgot = (-1, -1), False, False
        """The record of the wish that is waited for, whether it counted, and whether its home was
        forgotten.
        """
        self._ends: dict[Place, int] = {}
        self._reader: LogReader | None = None
        self._producer: Producer | None = None
        self._admin: AdminClient | None = None

    @property
    def partitions(self) -> list[int]:
        return sorted(self._home_of)

    def row(self, partition: int) -> Ranges | None:
        """Return a partition's state, None until `catch_up` if the log was shortened since."""
        found = self._homes[self._home_of[partition]].rows.get(partition)
        return None if found is None else found.row

    def mark(self, partition: int) -> int:
        """Return the mark of the topic that a row counts offsets of, 0 where that is not known now."""
        found = self._homes[self._home_of[partition]].rows.get(partition)
        return 0 if found is None else found.mark

    def low(self, partition: int) -> int:
        """Return before which offset all of a partition is done; 0 where that is not known now."""
        row = self.row(partition)
        return 0 if row is None else row.low

    def open(self) -> None:
        """Connect, read all requests there are, and begin the rows that no member has begun."""
        # A stranger's open transaction must not hide requests: by rule no member writes transactionally
        # there.
        wishes = impatient(
            self._settings.consumer(**reader_options(self._group, committed=False, wait_ms=20))
        )
        self._reader = LogReader(
            make_reader(wishes, logger=quiet),
            Skipper(self._settings, wishes, clock=self._clock),
            limit=READ_RECORDS,
            refuse=raise_if_fatal,
            clock=self._clock,
        )
        writing: dict[str, str | int | bool] = {"enable.idempotence": True, "acks": "all", "linger.ms": 0}
        timeout_ms = max(1_000, int(self._broker.timeout_s * 1_000))
        self._producer = make_writer(
            {**self._settings.producer(**writing), "message.timeout.ms": timeout_ms}, logger=quiet
        )
        self._homes_count = self._broker.partitions(
            self._reader.consumer,
            self._ranges_topic,
            "create it with `holdfast --set ranges=true topics create --partitions N`, or name another one by"
            " ranges_topic",
        )
        self._messages.open(self._producer)
        self._add_partitions(self._messages.partitions())
        self._reader.assign({(self._ranges_topic, number): OFFSET_BEGINNING for number in self._homes})
        self._counted_s = self._clock.monotonic_s()
        self.catch_up()

    def _add_partitions(self, count: int) -> set[int]:
        """Have a row of each partition of the topic; return the homes whose rows are more by that."""
        grown = set()
        for partition in range(len(self._home_of), count):
            key = range_key(self._group, self.topic, partition)
            number = self._home_of[partition] = coordinator_partition(key, self._homes_count)
            self._homes.setdefault(number, RangeHome(self._lease_ms)).add(key, partition)
            grown.add(number)
        return grown

    def _see_partitions(self) -> None:
        """Look, now and then, for partitions that were added to the topic, and to the ranges' log."""
        assert self._reader is not None
        if self._clock.monotonic_s() < self._counted_s + COUNT_EVERY_S:
            return
        self._counted_s = self._clock.monotonic_s()
        homes = self._broker.partitions(self._reader.consumer, self._ranges_topic, SAME_GROUP)
        if homes != self._homes_count:
            raise TopicError(
                f"{self._ranges_topic} at {self._settings.bootstrap_servers} has {homes} partitions, and had"
                f" {self._homes_count}: members that start now have their rows in others; stop all members,"
                " and start them again: the group goes on where __consumer_offsets has it"
            )
        for number in self._add_partitions(self._messages.partitions()):
            if (self._ranges_topic, number) in self._reader.next:
                self._lose(number, *self._home_bounds(number))
            else:
                self._reader.follow({(self._ranges_topic, number): 0})

    # -- wishes

    def now_ms(self) -> int:
        """Return the log's time, estimated from below."""
        return int(self._clock.monotonic_s() * 1_000) + (self._log_lead_ms or 0)

    def catch_up(self) -> None:
        """Fold all that is in the log by now. Write the rows that are not in it, or that a newcomer would not
        find whole in it.
        """
        self._see_partitions()
        self._identify()
        begins, ends = dict[int, int](), dict[Place, int]()
        for number, home in self._homes.items():
            begins[number], end = self._home_bounds(number)
            ends[self._ranges_topic, number] = end
            # Nothing else shows it if no record follows the hole.
            if home.has_missed(begins[number], end):
                self._lose(number, begins[number], end)
        self._read_to(ends)
        for partition, number in self._home_of.items():
            home = self._homes[number]
            if partition not in home.rows:
                self.wish(partition, Base(-1, Ranges(self._messages.begin(partition, self._mark))))
            elif home.lacks(partition, begins[number]):
                # A newcomer finds no row, and begins one of its own. Members delete no record that a row
                # needs: so this is an administrator's doing, or the row was idle for FORGOTTEN_AFTER_MS.
                self._wish_base(partition, home.base(partition))
        self._tell_topic()

    def _wish_base(self, partition: int, base: Base) -> bool:
        """Write a row again, and after it the topic that it is about; return whether it counted."""
        mark = self.mark(partition)
        counted = self.wish(partition, base)
        if mark:
            self.wish(partition, OfTopic(mark))
        return counted

    def _identify(self) -> None:
        """Look, now and then, which topic there is; before the rows are read, so that none of them is of a
        topic that came after.
        """
        if self._clock.monotonic_s() >= self._identified_s + IDENTIFY_EVERY_S:
            self._mark = self._messages.mark()
            self._identified_s = self._clock.monotonic_s()

    def _tell_topic(self) -> None:
        """Have each row know the topic that it is about; if that was deleted and made again, the row begins
        again.
        """
        mark = self._mark
        if mark is None:
            return
        for partition, number in self._home_of.items():
            row = self._homes[number].rows.get(partition)
            if row is None or mark in (row.mark, *row.former):
                continue
            if not row.mark:
                self.wish(partition, OfTopic(mark))
                continue
            begin = self._messages.begin_again(partition)
            if self.wish(partition, OfTopic(mark, row.mark, begin)):
                logger.warning(
                    "%(topic)s/%(partition)d was deleted and made again: group %(group)s had done all before"
                    " offset %(low)d of the old topic, and begins the new one at its first message",
                    {
                        "topic": self.topic,
                        "partition": partition,
                        "group": self._group,
                        "low": row.row.low,
                    },
                )

    def _home_bounds(self, number: int) -> tuple[int, int]:
        assert self._reader is not None
        try:
            return self._broker.bounds(self._reader.consumer, (self._ranges_topic, number))
        except KafkaException as error:
            what = f"where {self._ranges_topic}/{number} begins and ends"
            raise self._broker.error(what, error, SAME_GROUP) from None

    def _read_to(self, ends: Mapping[Place, int]) -> None:
        assert self._reader is not None
        reader, deadline_s = self._reader, self._clock.monotonic_s() + self._broker.timeout_s
        self._ends = dict(ends)
        try:
            while True:
                self._begin_lost_anew(reader)
                for message in reader.until(
                    lambda: bool(self._lost) or reader.has_read(self._ends), deadline_s=deadline_s
                ):
                    self._seen(message)
                if not self._lost:
                    return
        except HoldfastError:
            # The records read together with the one that raised are not folded.
            for number, home in self._homes.items():
                home.forget()
                self._lost.add(number)
            raise
        except TimeoutError:
            raise BrokerError(
                f"{self._ranges_topic} was not read to its end within {self._broker.timeout_s:g} s: check the"
                " broker"
            ) from None

    def _begin_lost_anew(self, reader: LogReader) -> None:
        for number in self._lost:
            begin, end = self._home_bounds(number)
            reader.begin_anew((self._ranges_topic, number), begin)
            self._read_on_to(number, end)
        self._lost.clear()

    def _read_on_to(self, number: int, end: int) -> None:
        place = (self._ranges_topic, number)
        self._ends[place] = max(end, self._ends.get(place, 0))

    def _seen(self, message: Message) -> None:
        number, offset = message.partition() or 0, message.offset() or 0
        home = self._homes[number]
        if number in self._lost or self._is_torn(number, offset):
            return
        if home.next < 0:
            # The Base for which all before this was deleted lies before the end as it is now.
            self._read_on_to(number, self._home_bounds(number)[1])
        home.next = offset + 1
        at_ms = self._at_ms[number] = credible_ms(message, self._at_ms.get(number, -1), self._clock)
        lead_ms = at_ms - int(self._clock.monotonic_s() * 1_000)
        self._log_lead_ms = lead_ms if self._log_lead_ms is None else max(self._log_lead_ms, lead_ms)
        key, wish = (message.key() or b"").decode(errors="replace"), decode_wish(message.value() or b"")
        if wish is None:
            return
        is_begun = home.is_begun_by(key, wish)
        if home.fold(key, wish, offset, at_ms):
            self._counted |= (number, offset) == self._watched
        elif is_begun:
            self._ask_who_is_right(number, key)

    def _is_torn(self, number: int, offset: int) -> bool:
        """Return whether the record at *offset* does not follow the last one read: then all is read again."""
        home = self._homes[number]
        if home.next in (-1, offset):
            return False
        begin, end = self._home_bounds(number)
        if begin <= home.next < offset:  # an unreadable batch: all pass it alike
            return False
        self._lose(number, begin, end)
        return True

    def _ask_who_is_right(self, number: int, key: str) -> None:
        """See whether a member found no row where we have one since records of it were deleted: then its
        row counts, as for all who come later.
        """
        begin, end = self._home_bounds(number)
        if self._homes[number].horizon.lacks(key, begin):
            self._lose(number, begin, end)

    def _lose(self, number: int, begin: int, end: int) -> None:
        """Forget the rows of a home: the rest of the log begins them, as for a new member."""
        home = self._homes[number]
        logger.info(
            "%(topic)s/%(partition)d holds offsets %(begin)d to %(last)d, and this member had read up to "
            "%(next)d: it reads it from its beginning, as a new member does",
            {
                "topic": self._ranges_topic,
                "partition": number,
                "begin": begin,
                "last": end - 1,
                "next": home.next,
            },
        )
        home.forget()
        self._lost.add(number)
        if self._watched[0] == number:
            self._counted, self._forgot = False, True

    def wish(self, partition: int, wish: Wish) -> bool:
        """Write a wish, read the log up to it, and return whether it counted."""
        number = self._home_of[partition]
        home, offset = self._homes[number], self._write(partition, wish)
        self._watched, self._counted, self._forgot = (number, offset), False, False
        if offset < home.next:  # the log is another than that we have read
            self._lose(number, *self._home_bounds(number))
        self._read_to({(self._ranges_topic, number): offset + 1})
        row = home.rows.get(partition)
        # Its record may have been deleted before it was read: then the state that it led to decides.
        counted = self._counted or (self._forgot and row is not None and shows(row.row, wish))
        if (
            counted
            and row is not None
            and row.since_base >= BASE_EVERY
            and self._wish_base(partition, Base(row.offset, row.row))
        ):
            self._trim(number)
        return counted

    def _write(self, partition: int, wish: Wish) -> int:
        """Write a wish; return its offset."""
        assert self._producer is not None
        acks: list[tuple[KafkaError | None, int]] = []
        self._producer.produce(
            self._ranges_topic,
            encode_wish(wish),
            range_key(self._group, self.topic, partition).encode(),
            partition=self._home_of[partition],
            on_delivery=lambda error, message: acks.append((error, message.offset() or 0)),
        )
        self._producer.flush(self._broker.timeout_s)
        error, offset = acks[0] if acks else (None, -1)
        if error is not None and error.code() in NO_TOPIC:
            raise self._broker.error(f"writing to {self._ranges_topic}", KafkaException(error), SAME_GROUP)
        if error is not None or not acks:
            raise BrokerError(
                f"{self._ranges_topic} took no record within {self._broker.timeout_s:g} s:"
                f" {error or 'no answer'}"
            )
        return offset

    def _trim(self, number: int) -> None:
        """Have the broker delete the beginning of a log that is no longer needed, best effort: it is asked
        again after the next Base.
        """
        assert self._reader is not None
        home, read = self._homes[number], self._reader.next[self._ranges_topic, number]
        begin = home.horizon.begin(read, self.now_ms())
        if begin - home.trimmed < TRIM_RECORDS:
            return
        home.trimmed = begin
        if self._admin is None:
            self._admin = make_admin(self._settings.client(), logger=quiet)
        place = TopicPartition(self._ranges_topic, number, begin)
        (asked,) = delete_records(self._admin, [place], timeout_s=self._broker.timeout_s).values()
        try:
            asked.result(self._broker.timeout_s + SLACK_S)
        except (KafkaException, FutureTimeoutError) as error:
            logger.warning(
                "the beginning of %(topic)s/%(partition)d was not deleted, it grows: %(error)s",
                {"topic": self._ranges_topic, "partition": number, "error": error},
            )

    def commit(self, partition: int) -> None:
        """Commit the low-water offset to Kafka too, best effort."""
        if (row := self.row(partition)) is not None:
            self._messages.commit(partition, low_water(row), self.mark(partition))

    def close(self) -> None:
        """Let go of the broker."""
        if self._producer is not None:
            self._producer.flush(self._broker.timeout_s)
        if self._reader is not None:
            self._reader.close()
        self._messages.close()
