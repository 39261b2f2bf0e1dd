"""Changelog records that no worker wrote, and the records that restore the last worker's state: on batches
made by hand.
"""

from __future__ import annotations

import re

import pytest

from holdfast.core.engine.fold.stepping import WATERMARKS
from holdfast.core.engine.merge.strays import Audit, ForeignRecords
from holdfast.core.engine.origins import StepClock
from holdfast.core.engine.positions import (
    Position,
    encode_position,
    format_of,
    plain_format,
)
from holdfast.core.engine.state.codec import APPLIED, encode_due, event_key, row_key, tick_key, wake_key
from holdfast.core.engine.state.evolution import ROW_TYPES, encode_row_types
from holdfast.core.engine.state.lost_heads import LOST_HEADS, encode_lost_heads
from holdfast.core.engine.state.passing_refusals import refusal_note
from holdfast.core.engine.state.row_schema import schema_of
from holdfast.core.engine.state.timers import NEVER
from holdfast.core.kafka.record_batch import TRANSACTIONAL_BIT, ControlType, Record, RecordBatch
from tests.support.marker_batches import marker_batch

A, B = row_key("a"), row_key("b")
OURS, THEIRS = 7, 8
Written = tuple[bytes | None, bytes | None]


def row(text: str) -> bytes:
    return b"\x01" + text.encode()


class Log:
    """A partition as it lies on a broker."""

    def __init__(self) -> None:
        self.batches: list[RecordBatch] = []
        self.end = 0

    def put(self, *records: Written, producer: int = -1) -> None:
        attributes = TRANSACTIONAL_BIT if producer >= 0 else 0
        made = tuple(Record(at, key, value) for at, (key, value) in enumerate(records))
        self.batches.append(
            RecordBatch(
                base_offset=self.end,
                attributes=attributes,
                last_offset_delta=len(made) - 1,
                producer_id=producer,
                producer_epoch=0,
                records=made,
            )
        )
        self.end += len(made)

    def finish(self, producer: int = OURS, kind: ControlType = ControlType.COMMIT) -> None:
        self.batches.append(
            marker_batch(
                kind,
                producer_id=producer,
                producer_epoch=0,
                coordinator_epoch=0,
                base_offset=self.end,
                timestamp_ms=0,
            )
        )
        self.end += 1

    def work(self, applied: int, *records: Written, producer: int = OURS) -> None:
        self.put(
            *records, (APPLIED, encode_position(Position((applied,), 10 * applied, 1))), producer=producer
        )
        self.finish(producer)

    def compacted(self) -> Log:
        """Return the log after compaction up to its end: the last record of each key is left."""
        last = {
            record.key: batch.base_offset + record.offset_delta
            for batch in self.batches
            for record in batch.records
            if not batch.is_control
        }
        out = Log()
        for batch in self.batches:
            kept = tuple(
                each
                for each in batch.records
                if batch.is_control or last[each.key] == batch.base_offset + each.offset_delta
            )
            if kept:
                out.batches.append(
                    RecordBatch(
                        base_offset=batch.base_offset,
                        attributes=batch.attributes,
                        last_offset_delta=batch.last_offset_delta,
                        producer_id=batch.producer_id,
                        producer_epoch=batch.producer_epoch,
                        records=kept,
                    )
                )
        return out

    def findings(self) -> ForeignRecords:
        audit = Audit(1)
        for batch in self.batches:
            audit.add(batch)
        return audit.findings()


def test_what_workers_write_is_no_stray_also_when_it_is_compacted_or_aborted() -> None:
    log = Log()
    log.work(1, (A, row("1")), (wake_key("a"), encode_due(5)))
    log.work(2, (A, row("2")), producer=THEIRS)
    log.put((A, row("3")), (APPLIED, encode_position(Position((3,), 30, 1))), producer=OURS)
    log.finish(kind=ControlType.ABORT)
    log.work(4, (wake_key("a"), None), (B, row("4")))
    log.work(-1, (A, None), (B, None))
    for each in (log, log.compacted()):
        found = each.findings()
        assert not found.strays
        assert found.mend().clean
        assert found.marker == Position((-1,), -10, 1)


@pytest.mark.parametrize(
    ("records", "producer", "why"),
    [
        ([(A, row("stray"))], -1, "not written in a transaction"),
        ([(A, row("stray"))], THEIRS, "no position marker ends its transaction"),
        (
            [(b"x", b"stray"), (APPLIED, encode_position(Position((2,), 20, 1)))],
            THEIRS,
            "a key of unknown kind 78",
        ),
        (
            [(A, b"stray"), (APPLIED, encode_position(Position((2,), 20, 1)))],
            THEIRS,
            "a row of unknown format 73",
        ),
        (
            [(wake_key("a"), b"1"), (APPLIED, encode_position(Position((2,), 20, 1)))],
            THEIRS,
            "a timer of 1 bytes",
        ),
        (
            [(b"\x02\xff", row("1")), (APPLIED, encode_position(Position((2,), 20, 1)))],
            THEIRS,
            "a key that is not text",
        ),
        (
            [(None, row("1")), (APPLIED, encode_position(Position((2,), 20, 1)))],
            THEIRS,
            "a record without a key",
        ),
        ([(A, row("stray")), (APPLIED, b"\xff")], THEIRS, "a position marker that cannot be read"),
        (
            [(A, row("stray")), (APPLIED, encode_position(Position((0,), 20, 1)))],
            THEIRS,
            "its position goes back from 1 to 0",
        ),
        (
            [(A, row("stray")), (APPLIED, encode_position(Position((9,), 20, 2)))],
            THEIRS,
            "its position marker is of version 2",
        ),
        (
            [(APPLIED, encode_position(Position((9,), 20, 1))), (A, row("stray"))],
            THEIRS,
            "a position marker that does not end its transaction",
        ),
        ([(APPLIED, encode_position(Position((9,), 20, 1)))], -1, "not written in a transaction"),
        ([(APPLIED, None)], -1, "not written in a transaction"),
    ],
)
@pytest.mark.parametrize("later", [False, True])
def test_a_stray_is_reported_and_the_rows_that_it_hid_are_written_again(
    records: list[Written], producer: int, why: str, later: bool
) -> None:
    """*later*: a worker that ran all the while has committed more since, and knows of nothing."""
    log = Log()
    log.work(1, (A, row("good")), (wake_key("a"), encode_due(5)))
    at = log.end
    log.put(*records, producer=producer)
    if producer >= 0:
        log.finish(producer)
    if later:
        log.work(2, (B, row("later")))
    found = log.findings()
    assert [(each.offset, each.why) for each in found.strays] == [
        (at + step, why) for step in range(len(records))
    ]
    mending = found.mend()
    assert not mending.unknown
    assert mending.marker == (Position((2,), 20, 1) if later else Position((1,), 10, 1))
    wanted: dict[bytes, bytes | None] = {A: row("good"), wake_key("a"): encode_due(5)}
    assert mending.puts == {key: wanted.get(key) for key, _ in records if key not in (None, APPLIED)}
    only_position = not mending.puts and later  # the worker's own position lags the stray's
    assert mending.clean == only_position
    marker = mending.marker
    assert marker is not None
    log.put(*mending.puts.items(), (APPLIED, encode_position(marker)), producer=9)
    log.finish(9)
    again = log.findings()
    assert again.mend().clean
    assert dict(again.state()) == {
        A: row("good"),
        wake_key("a"): encode_due(5),
        **({B: row("later")} if later else {}),
    }


def test_the_note_of_lost_heads_is_no_stray_and_goes_when_the_table_is_emptied() -> None:
    log = Log()
    log.work(7, (LOST_HEADS, encode_lost_heads({"in": 7})), (A, row("1")))
    found = log.findings()
    assert (found.strays, found.mend().clean) == ([], True)
    assert LOST_HEADS in found.row_keys()
    log.work(8, (LOST_HEADS, b"x"))
    assert {each.why for each in log.findings().strays} == {"a note of lost heads that cannot be read"}


def test_the_note_of_row_types_is_no_stray() -> None:
    log = Log()
    log.work(7, (ROW_TYPES, encode_row_types({"": [schema_of(int)]})), (A, row("1")))
    assert log.findings().strays == []
    log.work(8, (ROW_TYPES, b"x"))
    assert {each.why for each in log.findings().strays} == {"a note of row types that cannot be read"}


def test_the_note_of_a_refusal_is_no_stray() -> None:
    log, (key, value) = Log(), refusal_note("in", 8)
    log.work(7, (A, row("1")))
    log.work(8, (key, value))
    assert log.findings().strays == []
    log.work(9, (refusal_note("in", 9)[0] + b"x", value))
    assert {each.why for each in log.findings().strays} == {"a note of a refusal that cannot be read"}


def test_notes_are_those_of_the_last_worker() -> None:
    log, heads, (key, value) = Log(), encode_lost_heads({"in": 7}), refusal_note("in", 9)
    log.work(7, (LOST_HEADS, heads), (A, row("1")))
    log.put((LOST_HEADS, None), (key, value))
    found = log.findings()
    assert found.notes() == {LOST_HEADS: heads}
    wanted = {A: row("2"), **found.notes()}
    assert found.changes_to(wanted) == {A: row("2"), LOST_HEADS: heads, key: None}


def test_watermarks_that_compaction_has_dropped_after_a_stray_are_not_guessed() -> None:
    log = Log()
    clock = StepClock([lambda event: event])
    clock.told(0, 70, (), 0, 0)
    note = clock.encode()
    log.work(1, (WATERMARKS, note))
    log.put((WATERMARKS, b"stray"))
    assert log.findings().mend().puts == {WATERMARKS: note}
    log.work(2, (A, row("2")))
    mending = log.compacted().findings().mend()
    assert mending.unknown == (WATERMARKS,), "a replay of the source has them"


def test_what_a_worker_wrote_after_the_stray_counts() -> None:
    log = Log()
    log.work(1, (A, row("1")))
    log.put((A, row("stray")), (B, row("stray")))
    log.work(2, (A, row("2")))
    mending = log.findings().mend()
    assert mending.puts == {B: None}


def test_what_compaction_has_dropped_is_not_guessed() -> None:
    log = Log()
    log.work(1, (A, row("1")), (B, row("1")))
    log.put((A, row("stray")))
    log.work(2, (B, row("2")))
    found = log.compacted().findings()
    assert [each.offset for each in found.strays] == [4]
    mending = found.mend()
    assert mending.unknown == (A,)
    assert mending.marker == Position((2,), 20, 1)
    log.put((APPLIED, encode_position(Position((7,), 70, 1))))
    assert log.findings().mend().marker == Position((2,), 20, 1)
    assert log.compacted().findings().mend().marker is None


def test_an_open_transaction_and_a_log_that_was_disowned_are_reported() -> None:
    log = Log()
    log.work(1, (A, row("1")))
    log.put((APPLIED, None), producer=OURS)
    assert log.findings().open_at == 3
    log.finish()
    found = log.findings()
    assert (found.open_at, found.disowned_at, found.strays) == (None, 3, [])


def test_a_log_in_which_only_a_stray_lies_is_made_empty() -> None:
    log = Log()
    log.put((A, row("stray")))
    mending = log.findings().mend()
    assert (mending.puts, mending.marker) == ({A: None}, Position((-1,), -1, 0))


# -- of several sources


def position(north: int, east: int, choices: int = 0, version: int = 1) -> Position:
    return Position((north, east), 10, version, (10, 10), 1, -1, choices, 77)


SEVERAL = format_of(position(-1, -1))


def of_several(log: Log) -> ForeignRecords:
    audit = Audit(1, SEVERAL)
    for batch in log.batches:
        audit.add(batch)
    return audit.findings()


def work(log: Log, marker: Position, *records: Written, producer: int = OURS) -> None:
    log.put(*records, (APPLIED, encode_position(marker)), producer=producer)
    log.finish(producer)


def test_workers_of_several_sources_write_vectors_and_timers_of_ticks() -> None:
    log = Log()
    work(log, position(3, -1), (A, row("1")), (tick_key("a"), encode_due(5)))
    work(log, position(3, 4, 1), (tick_key("a"), None), (B, row("2")))
    work(log, position(-1, -1), (A, None), (B, None))  # made again
    for each in (log, log.compacted()):
        found = of_several(each)
        assert not found.strays
        assert found.marker == position(-1, -1)
        assert found.mend().clean


@pytest.mark.parametrize(
    ("marker", "why"),
    [
        (position(2, 9), r"its position goes back from 3, 4 to 2, 9"),
        (position(3, 4, 1), "its position goes back"),
        (position(5, 5, 2, version=2), "its position marker is of version 2"),
    ],
    ids=["a source", "the choices", "the version"],
)
def test_a_position_that_no_worker_of_several_sources_writes_is_a_stray(marker: Position, why: str) -> None:
    log = Log()
    work(log, position(3, 4, 2), (A, row("1")))
    work(log, marker, (A, row("stray")), producer=THEIRS)
    found = of_several(log)
    assert [re.match(why, each.why) is not None for each in found.strays] == [True, True]
    mending = found.mend()
    assert (mending.puts, mending.marker) == ({A: row("1")}, position(3, 4, 2))


def test_a_marker_of_one_source_and_a_broken_tick_timer_are_strays() -> None:
    log = Log()
    work(log, position(3, 4), (tick_key("a"), encode_due(5)))
    log.work(9, producer=THEIRS)
    work(log, position(4, 4), (tick_key("a"), b"1"), producer=THEIRS)
    found = of_several(log)
    assert {each.why for each in found.strays} == {
        "a position marker that cannot be read",
        "a timer of 1 bytes",
    }
    assert found.mend().puts == {tick_key("a"): encode_due(5)}


def test_a_tick_timer_that_compaction_has_dropped_is_not_guessed() -> None:
    log = Log()
    work(log, position(1, 0), (tick_key("a"), encode_due(5)))
    log.put((tick_key("a"), encode_due(9)))
    work(log, position(2, 0), (B, row("2")))
    assert of_several(log.compacted()).mend().unknown == (tick_key("a"),)


# -- with event time


@pytest.mark.parametrize("timed", [False, True])
def test_timers_of_event_time_are_written_where_the_position_has_it(timed: bool) -> None:
    start, said = Position((-1,), -1, 1, event_ms=-NEVER), Position((3,), 30, 1, event_ms=7)
    positions = format_of(start) if timed else plain_format(1)
    log, audit = Log(), Audit(1, positions)
    marker = encode_position(said if timed else Position((3,), 30, 1))
    log.put((event_key("a"), encode_due(5)), (event_key("b"), b"1"), (APPLIED, marker), producer=OURS)
    log.finish(OURS)
    for batch in log.batches:
        audit.add(batch)
    why = {each.why for each in audit.findings().strays}
    assert why == ({"a timer of 1 bytes"} if timed else {"a key of unknown kind 05"})
