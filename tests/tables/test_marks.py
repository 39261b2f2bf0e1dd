"""Marks: the partitions that get them, how often, and again after a new owner took over."""

from __future__ import annotations

import pytest

from holdfast import Json, Source
from holdfast.core.engine.origins import Mark, StepReached, is_mark, mark_of, record_header
from holdfast.kafka.transactions.transactional_producer import Written
from holdfast.streams import Filter, Rekey
from holdfast.tables.marks import StepMarks

NUMBERS = Source("numbers", Json(int), time=lambda number: number)
STEP: Rekey[int, int] = Rekey(name="step", source=NUMBERS, by=str)


class Clock:
    """A clock whose time is set."""

    now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


def transaction(
    marks: StepMarks, watermark_ms: int, *into: int, ended: bool = False, targets: int = 4
) -> dict[int, Mark]:
    """Send a record into each partition of *into*; return the marks after them."""
    sent: list[list[Written]] = [[] for _ in range(targets)]
    for at in into:
        sent[at].append((b"k", b"v", [record_header(1, watermark_ms - 1, watermark_ms)]))
    marks.begin(StepReached(watermark_ms, ended))
    marks.add(marks.topics[0], sent, 3)
    marks.committed()
    return {
        at: mark_of(tuple(records[-1][2]))
        for at, records in enumerate(sent)
        if records and is_mark(tuple(records[-1][2]))
    }


def marks_of(clock: Clock) -> StepMarks:
    return StepMarks(STEP, 1, clock=clock)  # type: ignore[arg-type]


def test_a_new_owner_marks_all_and_then_those_that_get_no_record_now_and_then() -> None:
    clock = Clock()
    marks = marks_of(clock)
    assert transaction(marks, 10, 0) == dict.fromkeys(range(4), Mark(1, 10, False, 3))
    assert transaction(marks, 20, 0) == {}, "too soon"
    clock.now_s += 0.2
    assert transaction(marks, 30, 0) == dict.fromkeys((1, 2, 3), Mark(1, 30, False, 3))
    assert transaction(marks_of(clock), 30) == dict.fromkeys(range(4), Mark(1, 30, False, 3))


def test_that_an_origin_lets_go_and_resumes_is_marked_at_once() -> None:
    marks = marks_of(Clock())
    transaction(marks, 10, 0)
    assert not marks.has_told(StepReached(10, True))
    assert transaction(marks, 10, ended=True) == dict.fromkeys(range(4), Mark(1, 10, True, 3))
    assert marks.has_told(StepReached(10, True))
    assert transaction(marks, 11, 2) == dict.fromkeys((0, 1, 3), Mark(1, 11, False, 3)), "the record tells 2"


def test_a_partition_is_marked_again_after_a_while_though_records_carry_it_all() -> None:
    clock = Clock()
    marks = marks_of(clock)
    transaction(marks, 10, *range(4))
    clock.now_s += 9.9
    assert transaction(marks, 11, *range(4)) == {}
    clock.now_s += 0.1
    assert transaction(marks, 12, *range(4)) == dict.fromkeys(range(4), Mark(1, 12, False, 3))


@pytest.mark.parametrize(("targets", "most"), [(4, 10 * 4), (64, 64)])
def test_marks_are_bounded_however_many_transactions_there_are(targets: int, most: int) -> None:
    clock = Clock()
    marks = marks_of(clock)
    transaction(marks, 0, targets=targets)
    count = 0
    for number in range(1, 101):
        clock.now_s += 0.01
        count += len(transaction(marks, number, number % targets, targets=targets))
    assert 0 < count <= most


def test_a_step_that_keeps_partitions_marks_its_own_that_it_receives_no_other() -> None:
    kept = Filter(name="kept", source=NUMBERS, keep=bool)
    assert transaction(StepMarks(kept, 1), 10, 1) == {1: Mark(1, 10, False, 0)}
