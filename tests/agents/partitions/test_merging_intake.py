"""When records of one source wait for another, and when they no longer do. No broker is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agents.partitions.batches.merging_intake import MergingIntake
from holdfast.agents.partitions.types import FoldEvent
from holdfast.clock import ManualClock
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.fold.stepping import Refused, Stage
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import Rows
from tests.agents.partitions.fold_events import event_of

A, B = 0, 1
TOPICS = ("a", "b")
WAIT_S = 5.0


def meet(rows: Rows[str], event: str, at_ms: int) -> None:
    rows["all"] = rows.get("all", "") + event
    if event == "t":
        rows.wake_at("all", at_ms + 100, clock="tick")


def ring(rows: Rows[str], key: str, at_ms: int) -> None:
    rows[key] = rows.get(key, "") + "!"


JOINED: Processor[Any, str] = Processor(
    name="joined", on={Source(topic, Text()): meet for topic in TOPICS}, row=str, on_tick=ring
)


class AtEnds(Processor[Any, str]):
    @property
    def ticks_at_ends(self) -> bool:
        return True


class MergingHost:
    """The host that an intake needs, and a feed that has read up to the offsets in `read`."""

    share_bytes = 10

    def __init__(self) -> None:
        self.open, self.epoch = True, 0
        self.owned, self.acked, self.voided, self.parked = True, 0, 0, 0
        self.read: dict[tuple[str, int], int] = {}
        self.resting: set[tuple[str, int]] = set()

    @property
    def feed(self) -> MergingHost:
        return self

    def hold(self, place: tuple[str, int], held: bool) -> None:
        (self.resting.add if held else self.resting.discard)(place)

    def passed(self, place: tuple[str, int], following: int) -> int:
        return max(following, self.read.get(place, 0))

    def owns(self, part: object, epoch: int) -> bool:
        return self.owned and epoch == self.epoch

    def void(self, event: FoldEvent, *, counted: bool = True) -> None:
        self.voided += 1

    def done(self, event: FoldEvent, *, counted: bool = True) -> None:
        self.acked += 1

    def ask_ends(self) -> None:
        self.asked = True

    def park(self, event: FoldEvent) -> None:
        self.parked += 1


class Bench:
    """An intake with its folder; `turn` does what a runner does."""

    def __init__(self, clock: ManualClock) -> None:
        self.host = MergingHost()
        self.folder: Folder[str] = Folder(JOINED, DictStore())
        part: Any = SimpleNamespace(
            processor=JOINED,
            partition=0,
            places=[(topic, 0) for topic in TOPICS],
            owner=SimpleNamespace(folder=self.folder, recorded=[]),
            choices_topics=("app-joined-choices",),
        )
        self.intake = MergingIntake(self.host, part, clock=clock)
        self.following = [0, 0]
        self.choices = 0

    def fetch(self, source: int, at_ms: int, text: str = "x", size: int = 1) -> None:
        offset, values = self.following[source], [text.encode()]
        self.following[source] += 1
        self.intake.enqueue(
            event_of(
                offset,
                values,
                topic=TOPICS[source],
                epoch=self.host.epoch,
                at_ms=at_ms,
                size_bytes=size,
            )
        )

    def turn(self) -> str:
        """Fold while the next record is known; return the records met so far."""
        while self.intake.ready:
            if not self.intake.next_batch():
                continue
            changes = self.folder.fold(self.intake.records())
            if changes is not None:
                self.choices += len(changes.choices)
                self.folder.commit()
            self.intake.ack()
        return self.folder.rows.get("all", "")

    def answer(self, **ends: int) -> None:
        asked, _ = self.intake.asks()
        self.intake.answer(asked, {(topic, 0): end for topic, end in ends.items()}, WAIT_S)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_ms=1_000)


def test_records_wait_for_the_end_of_the_other_source(clock: ManualClock) -> None:
    bench = Bench(clock)
    bench.fetch(A, 10, "1")
    assert bench.turn() == ""
    assert bench.intake.asks()[1] == [("b", 0)]
    bench.answer(b=0)
    assert bench.turn() == "1"
    assert (bench.host.acked, bench.host.parked, bench.choices) == (1, 1, 0)


def test_records_are_folded_as_far_as_both_reach_without_asking(clock: ManualClock) -> None:
    bench = Bench(clock)
    bench.fetch(A, 10, "1")
    bench.fetch(B, 20, "2")
    assert bench.turn() == "1"
    bench.fetch(A, 30, "3")
    assert bench.turn() == "12"
    assert bench.intake.asks()[1] == [("b", 0)]


def test_a_source_that_is_known_to_continue_is_waited_for(clock: ManualClock) -> None:
    bench = Bench(clock)
    bench.fetch(A, 10, "1")
    bench.turn()
    clock.advance_ms(60_000)
    bench.answer(b=1)
    assert bench.turn() == ""
    bench.fetch(B, 5, "0")
    assert bench.turn() == "0"
    bench.answer(b=1)
    assert (bench.turn(), bench.choices) == ("01", 0)


def test_markers_at_the_end_of_a_log_count_as_read(clock: ManualClock) -> None:
    bench = Bench(clock)
    bench.host.read["b", 0] = 3
    bench.fetch(A, 10, "1")
    bench.turn()
    bench.answer(b=3)
    assert bench.turn() == "1"


def test_records_of_other_sources_that_come_while_one_is_waited_for_are_not_folded_on_the_answer(
    clock: ManualClock,
) -> None:
    bench = Bench(clock)
    bench.fetch(A, 10, "1")
    bench.turn()
    bench.fetch(A, 30, "3")
    bench.answer(b=0)
    bench.intake.next_batch()
    changes = bench.folder.fold(bench.intake.records())
    assert changes is not None
    assert changes.records == 1


def test_an_answer_to_an_earlier_question_is_not_taken(clock: ManualClock) -> None:
    bench = Bench(clock)
    bench.fetch(A, 10, "1")
    bench.turn()
    asked, _ = bench.intake.asks()
    bench.fetch(B, 20, "2")
    bench.turn()
    bench.fetch(A, 25, "3")
    bench.turn()
    bench.intake.answer(asked, {("a", 0): 0, ("b", 0): 0}, WAIT_S)
    assert bench.turn() == "12"


def test_an_unknown_end_is_waited_for_until_the_deadline_and_then_a_barrier_is_right(
    clock: ManualClock,
) -> None:
    bench = Bench(clock)
    bench.fetch(A, 10, "1")
    bench.turn()
    bench.answer()
    assert bench.turn() == ""
    clock.advance_ms(int(WAIT_S * 1000) + 1_000)
    bench.answer()
    assert bench.turn() == "1"
    bench.fetch(A, 12, "2")
    bench.turn()
    bench.answer()  # it has sent nothing since
    assert bench.turn() == "12"
    bench.fetch(B, 5, "0")
    assert (bench.turn(), bench.choices) == ("120", 1)


def test_a_source_with_its_share_in_hand_is_fetched_no_more_until_it_is_folded(clock: ManualClock) -> None:
    bench = Bench(clock)
    for at_ms in range(3):
        bench.fetch(A, at_ms, size=6)
    bench.turn()
    assert bench.host.resting == {("a", 0)}
    bench.answer(b=0)
    bench.turn()
    assert bench.host.resting == set()


def test_a_tick_is_recorded_when_the_clock_passes_a_timer(clock: ManualClock) -> None:
    bench = Bench(clock)
    bench.fetch(A, 1_000, "t")
    bench.turn()
    bench.answer(b=0)
    assert bench.turn() == "t"
    bench.intake.look()
    assert bench.turn() == "t"
    clock.advance_ms(200)
    bench.intake.look()
    assert (bench.turn(), bench.choices) == ("t", 0)
    bench.answer(a=1, b=0)
    assert (bench.turn(), bench.choices) == ("t!", 1)


def test_a_tick_waits_for_the_records_appended_while_the_worker_was_away(clock: ManualClock) -> None:
    bench = Bench(clock)
    bench.fetch(A, 1_000, "t")
    bench.turn()
    bench.answer(b=0)
    assert bench.turn() == "t"
    clock.advance_ms(60_000)
    bench.intake.look()
    bench.turn()
    assert bench.intake.asks()[1] == [("a", 0), ("b", 0)]
    bench.answer(a=3, b=0)
    assert (bench.turn(), bench.choices) == ("t", 0)
    bench.fetch(A, 1_050, "1")
    bench.turn()
    bench.answer(b=0)
    assert (bench.turn(), bench.choices) == ("t1", 0)
    bench.fetch(A, 1_070, "2")
    bench.turn()
    bench.answer(b=0)
    bench.turn()
    assert (bench.turn(), bench.choices) == ("t12!", 1)
    assert bench.folder.marker.tick_ms == 61_000, "when the ends were asked for"


def test_while_records_come_their_append_times_bound_the_ticks(clock: ManualClock) -> None:
    bench = Bench(clock)
    clock.advance_ms(60_000)
    bench.fetch(A, 1_000, "t")
    bench.fetch(B, 1_099, "1")
    bench.fetch(A, 1_099, "2")
    assert bench.turn() == "t2"
    bench.fetch(A, 1_105, "3")
    bench.fetch(B, 1_105, "4")
    bench.fetch(B, 1_120, "5")
    assert (bench.turn(), bench.choices) == ("t213!", 1)
    assert bench.folder.marker.tick_ms == 1_105


def test_a_tick_that_says_that_a_source_is_silent_comes_after_all_its_records(clock: ManualClock) -> None:
    bench = Bench(clock)
    bench.intake._part.processor = AtEnds(
        name="joined", on={Source(topic, Text()): meet for topic in TOPICS}, row=str, on_tick=ring
    )
    clock.advance_ms(60_000)
    bench.fetch(A, 10, "t")
    for offset in range(1, 9):
        bench.fetch(A, 500 * offset, "x")
    bench.turn()
    bench.answer(b=0)
    assert bench.turn() == "txxxxxxxx"
    bench.fetch(B, 5_000, "y")  # it was there all the while
    bench.answer(a=9, b=1)
    bench.turn()
    bench.answer(a=9, b=1)
    assert bench.turn() == "txxxxxxxxy!"


def test_a_tick_waits_for_an_unknown_end_no_longer_than_records_do(clock: ManualClock) -> None:
    bench = Bench(clock)
    bench.fetch(A, 1_000, "t")
    bench.turn()
    bench.answer(b=0)
    bench.turn()
    clock.advance_ms(200)
    bench.intake.look()
    bench.turn()
    bench.answer(a=1)
    assert (bench.turn(), bench.choices) == ("t", 0)
    clock.advance_ms(int(WAIT_S * 1000) + 1)
    bench.answer(a=1)
    assert (bench.turn(), bench.choices) == ("t!", 1)


def test_a_timer_set_in_the_past_at_a_tick_has_the_next_one(clock: ManualClock) -> None:
    bench = Bench(clock)
    bench.fetch(A, 1_000, "t")
    bench.turn()
    bench.answer(b=0)
    bench.turn()
    clock.advance_ms(10_000)
    rings = 3

    def ring_again(rows: Rows[str], key: str, at_ms: int) -> None:
        nonlocal rings
        ring(rows, key, at_ms)
        rings -= 1
        rows.wake_at(key, at_ms + 100 if rings else None, clock="tick")

    bench.folder._on_tick = ring_again
    for _ in range(5):
        bench.intake.look()
        bench.turn()
        bench.answer(a=1, b=0)
        clock.advance_ms(1)
    assert (bench.turn(), bench.choices) == ("t!!!", 3)


@pytest.mark.parametrize("stage", ["tick", "close"])
def test_a_failure_at_a_tick_is_reported_by_its_choice(clock: ManualClock, stage: Stage) -> None:
    bench = Bench(clock)
    bench.fetch(A, 1_000, "t")
    bench.turn()
    bench.answer(b=0)
    bench.turn()
    clock.advance_ms(10_000)
    bench.intake.look()
    bench.turn()
    bench.answer(a=1, b=0)
    while bench.folder.changes is None:
        assert bench.intake.next_batch()
        bench.folder.fold(bench.intake.records())
    topic, record = bench.intake.refused(Refused(offset=0, stage=stage, error="E", reason="r"))
    assert (topic, record.key, record.value) == ("app-joined-choices", None, None)


def test_a_revocation_voids_what_waits_and_the_next_epoch_begins_at_the_state(clock: ManualClock) -> None:
    bench = Bench(clock)
    bench.fetch(A, 10, "1")
    bench.turn()
    bench.host.epoch = 1
    bench.intake.revoked()
    assert bench.host.voided == 1
    bench.following = [0, 0]
    bench.fetch(A, 10, "1")
    bench.fetch(B, 20, "2")
    assert bench.turn() == "1"


def test_nothing_is_folded_while_the_worker_is_closed_or_does_not_own_it(clock: ManualClock) -> None:
    bench = Bench(clock)
    bench.host.open = False
    bench.fetch(A, 10, "1")
    bench.fetch(B, 20, "2")
    assert bench.turn() == ""
    bench.host.owned = False
    bench.intake.revoked()
    assert bench.host.voided == 2
