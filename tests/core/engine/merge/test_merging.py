"""A merger, by example; tests/choices runs it by the thousand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import pytest

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice
from holdfast.core.engine.fold.stretches import Stretch
from holdfast.core.engine.merge.merging import Merger, replayed
from holdfast.core.engine.positions import Position, ordered_start
from holdfast.errors import ChoicesError

SOURCES = 77
AT_ENDS = (0, 0)


def start(width: int = 2) -> Position:
    return ordered_start(SOURCES, width, 1)


def batch(*times_ms: int, first: int = 0) -> Batch:
    return Batch(range(first, first + len(times_ms)), times_ms, (times_ms,))


def choice(number: int, *applied: int, tick_ms: int | None = None) -> Choice:
    return Choice(number=number, sources=SOURCES, applied=applied, tick_ms=tick_ms)


def named(stretch: Stretch) -> list[str]:
    """Return the records of a stretch as letter of the source and offset, or its choice."""
    if stretch.choice is not None:
        what = "barrier" if stretch.choice.tick_ms is None else f"tick {stretch.choice.tick_ms}"
        return [f"{what} at {list(stretch.choice.applied)}" + ("" if stretch.decided else " as recorded")]
    each = [iter(portion.batch.offsets) if portion else iter(()) for portion in stretch.portions]
    return [f"{'abc'[source]}{next(each[source])}" for source in stretch.order]


def taken(merger: Merger, ends: Sequence[int | None] | None = None) -> str:
    out: list[str] = []
    while (stretch := merger.take(ends)) is not None:
        out += named(stretch)
    return " ".join(out)


def offered(*logs: Batch, marker: Position | None = None, recorded: Sequence[Choice] = ()) -> Merger:
    merger = Merger(marker or start(len(logs)), recorded)
    for source, log in enumerate(logs):
        merger.offer(source, log)
    return merger


# -- the order


def test_records_come_by_append_time_and_then_by_source() -> None:
    assert taken(offered(batch(1, 3, 5), batch(1, 2, 5)), AT_ENDS) == "a0 b0 b1 a1 a2 b2"


def test_a_clock_that_goes_back_does_not_take_a_source_back() -> None:
    assert taken(offered(batch(9, 2, 3), batch(4, 9, 10)), AT_ENDS) == "b0 a0 a1 a2 b1 b2"


def test_a_clock_that_goes_back_between_fetches_does_not_take_a_source_back() -> None:
    merger = offered(batch(9), batch(4, 9, 10))
    merger.offer(0, batch(2, 3, first=1))
    assert taken(merger, AT_ENDS) == "b0 a0 a1 a2 b1 b2"


def test_records_without_append_time_come_first() -> None:
    assert taken(offered(batch(-1, 5, -1), batch(0, 1)), AT_ENDS) == "a0 b0 b1 a1 a2"


def test_times_that_no_clock_shows_are_folded_in_their_order() -> None:
    last = (1 << 63) - 1
    merger = offered(batch(5, last), batch(1 << 60, last))
    assert taken(merger, AT_ENDS) == "a0 b0 a1 b1"
    assert merger.waits_for(AT_ENDS) is None


def test_a_stretch_can_be_cut_anywhere() -> None:
    stretch = offered(batch(1, 3, 5), batch(1, 2, 5)).take(AT_ENDS)
    assert stretch is not None
    for cut in range(7):
        assert named(stretch.slice(0, cut)) + named(stretch.slice(cut, 6)) == named(stretch)
    assert list(stretch.slice(2, 5).reached_ms) == [2, 3, 5]


# -- how far it goes


def test_it_goes_no_further_than_all_sources_reach() -> None:
    merger = offered(batch(1, 3, 5), batch(1, 2))
    assert taken(merger) == "a0 b0 b1"
    assert merger.waits_for() == 1
    merger.offer(1, batch(4, first=2))
    assert taken(merger) == "a1 b2"


def test_of_a_time_that_is_reached_more_may_come() -> None:
    assert taken(offered(batch(7), batch(7))) == "a0", "another of source a at 7 would come before b0"
    assert taken(offered(batch(7, 8), batch(7))) == "a0 b0"


def test_a_source_at_its_end_holds_none_back() -> None:
    merger = offered(batch(1, 3, 5), batch(1, 2))
    assert taken(merger, (None, 3)) == "a0 b0 b1"
    assert taken(merger, (None, 2)) == "a1 a2"
    assert merger.waits_for((None, 2)) == 0
    assert merger.waits_for((3, 2)) is None


def test_an_end_may_lie_after_the_last_record_that_readers_get() -> None:
    merger = offered(batch(1, 3), batch(1))
    assert taken(merger, (None, 3)) == "a0 b0"
    merger.offer(1, Batch((), (), ()), offset_next=3)
    assert taken(merger, (None, 3)) == "a1"


def test_an_empty_source_is_waited_for_until_its_end_is_known() -> None:
    merger = offered(batch(1, 3), batch())
    assert taken(merger) == ""
    assert merger.waits_for() == 1
    assert taken(merger, (None, 0)) == "a0 a1"


@pytest.mark.long
def test_ends_asked_for_after_the_fetches_cost_no_barrier() -> None:
    """Records are appended one a ms to any source, fetched late, and folded as far as the ends allow."""
    for seed in range(100):
        rng, logs = Random(seed), [list[int](), list[int](), list[int]()]
        merger, fetched, folded = Merger(start(3)), [0, 0, 0], 0
        for now_ms in range(200):
            rng.choice(logs[: rng.choice((1, 3))]).append(now_ms)
            for source, log in enumerate(logs):
                stop = rng.choice((fetched[source], len(log)))
                merger.offer(source, batch(*log[fetched[source] : stop], first=fetched[source]))
                fetched[source] = stop
            while (stretch := merger.take([len(log) for log in logs])) is not None:
                assert stretch.choice is None
                folded += stretch.records
        assert folded > 150


def test_records_that_are_offered_again_are_passed_over() -> None:
    merger = offered(batch(1, 3))
    merger.offer(0, batch(1, 3, 4))
    assert taken(merger) == "a0 a1 a2"


def test_held_records_are_reported_until_they_are_settled() -> None:
    merger = offered(batch(1, 3, 5), batch(1))
    assert merger.pending == (3, 1)
    assert taken(merger) == "a0 b0"
    assert merger.pending == (3, 1)
    merger.settle(Position((0, 0), 1, 1, (1, 1), 1, -1, 0, SOURCES))
    assert merger.pending == (3, 0), "a batch is let go whole"


# -- choices


def test_a_record_that_comes_too_late_is_taken_at_once_after_a_barrier() -> None:
    merger = offered(batch(1, 5), batch(2))
    assert taken(merger, AT_ENDS) == "a0 b0 a1"
    merger.offer(1, batch(3, 9, first=1))
    assert taken(merger, AT_ENDS) == "barrier at [1, 0] b1 b2"


def test_choices_are_numbered_on() -> None:
    merger = offered(batch(5), batch(1))
    assert taken(merger, AT_ENDS) == "b0 a0"
    merger.offer(1, batch(2, first=1))
    found = merger.take(AT_ENDS)
    assert found is not None
    assert (found.choice, found.decided, found.records) == (choice(0, 0, 0), True, 0)
    merger.take(AT_ENDS)
    merger.tick(100)
    found = merger.take(AT_ENDS)
    assert found is not None
    assert found.choice == choice(1, 0, 1, tick_ms=100)


def test_after_a_tick_any_record_may_come_and_ticks_go_forward_only() -> None:
    merger = offered(batch(5), batch(1))
    assert taken(merger, AT_ENDS) == "b0 a0"
    merger.tick(100)
    merger.offer(1, batch(2, first=1))
    assert taken(merger, AT_ENDS) == "tick 100 at [0, 0] b1"
    merger.tick(100)
    assert taken(merger, AT_ENDS) == ""
    merger.tick(101)
    assert taken(merger, AT_ENDS) == "tick 101 at [0, 1]"


def test_records_that_were_not_folded_are_merged_again_with_later_ones() -> None:
    merger = offered(batch(1, 5), batch(2))
    assert taken(merger, AT_ENDS) == "a0 b0 a1"
    merger.offer(1, batch(3, first=1))
    merger.settle(start())
    assert taken(merger, AT_ENDS) == "a0 b0 b1 a1", "no barrier: the transaction was aborted"
    merger.settle(Position((0, 0), 2, 1, (1, 2), 1, -1, 0, SOURCES))
    assert taken(merger, AT_ENDS) == "b1 a1"


def test_recorded_choices_are_obeyed_before_any_is_made() -> None:
    recorded = [choice(0, 1, 0), choice(1, 1, 1, tick_ms=50)]
    merger = offered(batch(1, 5, 6), batch(2, 3, 4), recorded=recorded)
    merger.tick(70)
    assert (
        taken(merger, AT_ENDS)
        == "a0 b0 a1 barrier at [1, 0] as recorded b1 tick 50 at [1, 1] as recorded tick 70 at [1, 1] b2 a2"
    )


def test_a_recorded_choice_is_waited_for_whatever_the_ends_are_said_to_be() -> None:
    merger = offered(batch(1, 5, 6), batch(2), recorded=[choice(0, 1, 1)])
    assert taken(merger, AT_ENDS) == "a0 b0"
    assert merger.waits_for(AT_ENDS) == 1
    merger.offer(1, batch(3, first=1))
    assert taken(merger, AT_ENDS) == "b1 a1 barrier at [1, 1] as recorded a2"


def test_a_record_that_a_choice_names_may_be_gone() -> None:
    log = Batch((0, 7), (1, 9), ((1, 9),))
    merger = offered(log, batch(2, 3), recorded=[choice(0, 5, 0)])
    assert taken(merger, AT_ENDS) == "a0 b0 barrier at [5, 0] as recorded b1 a7"
    merger.tick(1)
    assert taken(merger, AT_ENDS) == "tick 1 at [7, 1]"


def test_choices_before_the_marker_are_passed_over() -> None:
    marker = Position((1, 0), 5, 1, (5, 2), -1, -1, 1, SOURCES)
    recorded = [choice(0, 1, 0), choice(1, 1, 1)]
    merger = offered(batch(1, 5, 6), batch(2, 3, 4), marker=marker, recorded=recorded)
    assert taken(merger, AT_ENDS) == "b1 barrier at [1, 1] as recorded b2 a2"


@pytest.mark.parametrize(
    ("recorded", "why"),
    [
        ([choice(1, 0, 0)], "choice 0 is missing, 1 comes next"),
        ([choice(0, 0, 0), choice(2, 0, 0)], "choice 1 is missing, 2 comes next"),
        ([choice(0, 0)], "of other sources"),
        ([Choice(number=0, sources=1, applied=(0, 0))], "of other sources, or of the same in another order"),
        ([choice(0, 1, 0), choice(1, 0, 1)], r"stands at \[0, 1\], behind what is folded: \[1, 0\]"),
    ],
)
def test_choices_that_cannot_be_obeyed_stop_the_fold(recorded: list[Choice], why: str) -> None:
    with pytest.raises(ChoicesError, match=why):
        taken(offered(batch(1, 5), batch(2, 3), recorded=recorded), AT_ENDS)


def test_a_table_that_folded_past_what_another_version_decided_is_not_folded_on() -> None:
    marker = Position((1, 0), 5, 1, (5, 2), 0, -1, 0, SOURCES)
    merger = offered(batch(1, 5, 6), batch(2, 3, 4), marker=marker, recorded=[choice(0, 2, 1)])
    with pytest.raises(ChoicesError, match="choice 0 stands behind records that lie below what is folded"):
        taken(merger, AT_ENDS)


# -- replay


def test_a_replay_holds_one_batch_of_each_source() -> None:
    given = 0

    def log(source: int) -> Iterator[Batch]:
        nonlocal given
        for at in range(0, 100, 10):
            given += 1
            yield batch(*range(at + source, at + source + 10), first=at)

    folded, most = 0, 0
    for stretch in replayed(start(), [log(0), log(1)]):
        most = max(most, given - folded // 10)
        folded += stretch.records
    assert folded == 200
    assert most <= 4


def test_a_replay_that_ends_before_a_choice_says_which() -> None:
    with pytest.raises(
        ChoicesError, match="choice 0 stands at offset 5 of source 1, whose records end before"
    ):
        list(replayed(start(), [[batch(1, 5)], [batch(2)]], [choice(0, 1, 5)]))


def test_a_log_may_be_read_further_than_its_last_record() -> None:
    stretches = replayed(start(), [[batch(1, 5)], [batch(2)]], [choice(0, 0, 5)], ends=[2, 6])
    assert [each for stretch in stretches for each in named(stretch)] == [
        "a0",
        "b0",
        "barrier at [0, 5] as recorded",
        "a1",
    ]
