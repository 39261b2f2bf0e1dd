"""A log is read to its end: what an end is, how long it is waited for, and what ends the reading."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message

from holdfast.clock import ManualClock
from holdfast.kafka.reading.log_reader import POLL_S, LogReader, raise_if_fatal
from holdfast.kafka.reading.skipper import Skipper

PLACE = ("log", 0)
END = KafkaError._PARTITION_EOF


class Told:
    """A message as a consumer gives it; *code* is that of an error."""

    def __init__(self, offset: int, partition: int = 0, code: int | None = None) -> None:
        self._offset, self._partition = offset, partition
        self._error = None if code is None else KafkaError(code)

    def topic(self) -> str:
        return PLACE[0]

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._error


class ScriptedConsumer:
    """Gives the scripted messages; a wait for more takes its time on *clock*."""

    def __init__(self, clock: ManualClock, *told: Told | None) -> None:
        self._clock, self._told = clock, list(told)
        self.assigned: list[tuple[str, int, int]] = []

    def assign(self, places: Iterable[Any]) -> None:
        self.assigned = [(each.topic, each.partition, each.offset) for each in places]

    def incremental_assign(self, places: Iterable[Any]) -> None:
        self.assigned += [(each.topic, each.partition, each.offset) for each in places]

    def incremental_unassign(self, places: Iterable[Any]) -> None:
        gone = {(each.topic, each.partition) for each in places}
        self.assigned = [each for each in self.assigned if each[:2] not in gone]

    def poll(self, timeout_s: float) -> Message | None:
        found = self._told.pop(0) if self._told else None
        if found is None:
            self._clock.advance_ms(ceil(timeout_s * 1000))
        return cast(Message, found)

    def consume(self, limit: int, timeout_s: float) -> list[Message]:
        assert timeout_s == 0
        found = [each for each in self._told[:limit] if each is not None]
        del self._told[: len(found)]
        return cast(list[Message], found)


def reader_of(*told: Told | None, clock: ManualClock | None = None, **options: Any) -> LogReader:
    clock = clock or ManualClock()
    reader = LogReader(cast(Consumer, ScriptedConsumer(clock, *told)), clock=clock, **options)
    reader.assign({PLACE: 0})
    return reader


def offsets(found: Iterable[Message]) -> list[int | None]:
    return [message.offset() for message in found]


@pytest.mark.parametrize("limit", [1, 100])
def test_an_end_after_control_records_is_reported_and_counts(limit: int) -> None:
    reader = reader_of(Told(0), Told(1), Told(3, code=END), limit=limit)
    assert offsets(reader.until(lambda: reader.has_read({PLACE: 3}), deadline_s=1)) == [0, 1]
    assert (reader.next, reader.ended) == ({PLACE: 3}, {PLACE: 3})


def test_the_last_record_is_an_end_that_was_asked_for_without_an_end_report() -> None:
    reader = reader_of(Told(0), Told(1), Told(2))
    assert offsets(reader.until(lambda: reader.has_read({PLACE: 2}))) == [0, 1]
    assert offsets(reader.read(0)) == [2]


def test_an_end_that_was_reported_early_takes_nothing_back() -> None:
    reader = reader_of(Told(4), Told(3, code=END), limit=2)
    reader.read(0)
    assert (reader.next, reader.ended) == ({PLACE: 5}, {PLACE: 3})


def test_each_partition_has_its_own_end() -> None:
    reader = reader_of(Told(1, 1, END), Told(7), Told(8, 0, END))
    reader.assign({PLACE: 0, ("log", 1): 0})
    assert offsets(reader.until(lambda: reader.ended.keys() == reader.next.keys())) == [7]


def test_reading_from_the_beginning_begins_at_offset_0() -> None:
    reader = reader_of()
    reader.assign({PLACE: -2})
    assert reader.next == {PLACE: 0}
    assert cast(ScriptedConsumer, reader.consumer).assigned == [("log", 0, -2)]


def test_a_deadline_ends_the_wait_though_records_come() -> None:
    clock = ManualClock()
    reader = reader_of(*(each for at in range(100) for each in (Told(at), None)), clock=clock)
    began_s = clock.monotonic_s()
    with pytest.raises(TimeoutError, match="not read to its end in time"):
        list(reader.until(lambda: False, deadline_s=began_s + 3.5 * POLL_S))
    assert 3.5 * POLL_S <= clock.monotonic_s() - began_s < 4 * POLL_S


def test_only_silence_counts_where_no_deadline_is_given() -> None:
    clock = ManualClock()
    reader = reader_of(*(each for at in range(50) for each in (Told(at), None)), clock=clock)
    found: list[Message] = []
    with pytest.raises(TimeoutError, match=r"nothing came for 0\.3 s"):
        found.extend(message for message in reader.until(lambda: False, idle_s=0.3))
    assert clock.monotonic_s() > 50 * POLL_S


def test_an_error_ends_the_reading_unless_the_client_tries_again_by_itself() -> None:
    reader = reader_of(Told(-1, code=KafkaError.GROUP_AUTHORIZATION_FAILED), Told(0))
    assert offsets(reader.read(0)) == []
    assert offsets(reader.read(0)) == [0]
    with pytest.raises(KafkaException):
        reader_of(Told(-1, code=KafkaError.TOPIC_AUTHORIZATION_FAILED)).read(0)


def test_who_waits_for_better_times_hears_of_errors_only_when_they_are_fatal() -> None:
    code = KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert reader_of(Told(-1, code=code), refuse=raise_if_fatal).read(0) == []
    with pytest.raises(KafkaException):
        raise_if_fatal(KafkaError(KafkaError._FATAL, "over", fatal=True))


class NotingSkipper:
    """Notes where reading begins."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int, int]] = []

    def begin(self, topic: str, partition: int, offset: int) -> None:
        self.begun.append((topic, partition, offset))


def test_partitions_may_be_followed_later_while_others_continue() -> None:
    reader = reader_of(Told(5), Told(0, partition=1))
    reader.assign({PLACE: 5})
    reader.follow({("log", 1): 0})
    assert cast(ScriptedConsumer, reader.consumer).assigned == [("log", 0, 5), ("log", 1, 0)]
    assert offsets([*reader.read(0), *reader.read(0)]) == [5, 0]
    assert reader.next == {PLACE: 6, ("log", 1): 1}


def test_where_reading_begins_at_the_end_is_not_known_before_a_first_report() -> None:
    """A skipper that took 0 for the position would look for a batch that cannot be read there."""
    skipper, consumer = NotingSkipper(), ScriptedConsumer(ManualClock(), Told(7, code=END))
    reader = LogReader(cast(Consumer, consumer), clock=ManualClock())
    reader._skipper = cast(Skipper, skipper)
    reader.assign({PLACE: OFFSET_END, ("log", 1): OFFSET_BEGINNING, ("log", 2): 4})
    assert skipper.begun == [("log", 0, -1), ("log", 1, 0), ("log", 2, 4)]
    assert reader.next == {PLACE: 0, ("log", 1): 0, ("log", 2): 4}
    reader._skipper = None
    reader.read(0)
    assert reader.next[PLACE] == 7


def test_a_partition_is_read_from_its_beginning_again_while_others_continue() -> None:
    skipper = NotingSkipper()
    reader = reader_of(skipper=cast(Skipper, skipper))
    reader.assign({PLACE: 7, ("log", 1): 9})
    reader.ended |= {PLACE: 7, ("log", 1): 9}
    reader.begin_anew(PLACE, 30)
    assert sorted(cast(ScriptedConsumer, reader.consumer).assigned) == [("log", 0, 30), ("log", 1, 9)]
    assert (reader.next, reader.ended) == ({PLACE: 30, ("log", 1): 9}, {("log", 1): 9})
    assert skipper.begun[-1] == (*PLACE, 0), "no hole before what it finds is to be looked at"
