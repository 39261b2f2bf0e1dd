"""A check that cannot fail is a defect: each fault planted in the merge, the choices or the folder is
found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice
from holdfast.core.engine.declared.sources import SourceFold
from holdfast.core.engine.fold.folding import Changes, Folder
from holdfast.core.engine.fold.ordering import MergeOrder
from holdfast.core.engine.fold.stretches import Stretch
from holdfast.core.engine.merge import merging
from holdfast.core.engine.merge.merging import LOWEST, SOURCE_BITS, Merger
from holdfast.core.engine.positions import Position
from holdfast.core.engine.state.timers import NEVER, TimerTable
from holdfast.errors import ChoicesError
from tests.choices import checks, world
from tests.choices.checks import DiffersError, check_schedule
from tests.choices.world import Journal

Plant = Callable[[pytest.MonkeyPatch], None]
LIMIT_SCHEDULES = 60


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is wrong on purpose, and how it is found."""

    plant: Plant
    found: type[BaseException] | tuple[type[BaseException], ...]


def losing(monkeypatch: pytest.MonkeyPatch, lost: Callable[[Choice], bool]) -> None:
    """Let replays read the choices without those that are *lost*, in numbers that show no gap."""
    recorded_of = world.recorded_of

    def read(journal: Journal) -> list[Choice]:
        left = [choice for choice in recorded_of(journal) if not lost(choice)]
        return [msgspec.structs.replace(choice, number=number) for number, choice in enumerate(left)]

    monkeypatch.setattr(checks, "recorded_of", read)


def a_choice_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded_of = world.recorded_of

    def read(journal: Journal) -> list[Choice]:
        recorded = recorded_of(journal)
        return recorded[1:] if len(recorded) > 2 else recorded

    monkeypatch.setattr(checks, "recorded_of", read)


def the_last_choice_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded_of = world.recorded_of
    monkeypatch.setattr(checks, "recorded_of", lambda journal: recorded_of(journal)[:-1])


def barriers_are_lost_and_nobody_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    losing(monkeypatch, lambda choice: choice.tick_ms is None)


def a_tick_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    losing(monkeypatch, lambda choice: choice.tick_ms is not None)


def what_is_decided_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Journal.commit

    def commit(self: Journal, changes: Changes) -> None:
        changes.choices.clear()
        original(self, changes)

    monkeypatch.setattr(Journal, "commit", commit)


def choices_of_aborted_transactions_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Folder.rollback

    def rollback(self: Folder[Any]) -> None:
        kept = list(self._choices)
        original(self)
        self._choices = kept

    monkeypatch.setattr(Folder, "rollback", rollback)


def records_are_merged_as_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each source in turn, as far as it is fetched, and no word of it."""

    def merged(self: Any, bound: int, limits: Sequence[int] | None) -> Stretch | None:
        for source in self._sources:
            keys, start, stop, _ = source.ready(limits[source.number] if limits else None)
            if stop > start:
                portions: list[Any] = [None] * len(self._sources)
                portions[source.number] = source.take(stop)
                times = [key >> SOURCE_BITS for key in keys[start:stop]]
                return Stretch(tuple(portions), bytes([source.number]) * (stop - start), times)
        return None

    monkeypatch.setattr(Merger, "_merged", merged)


def nothing_lies_below_what_was_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "last_key", lambda marker: LOWEST)


def clocks_that_go_back_are_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key has the record's own time, so a source is not in order by itself."""

    def own_times(times_ms: Iterable[int], *_: Any, initial: int | None = None) -> list[int]:
        return [*times_ms] if initial is None else [initial, *times_ms]

    monkeypatch.setattr(merging, "accumulate", own_times)


def ticks_are_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    original = TimerTable.due
    monkeypatch.setattr(TimerTable, "due", lambda self, now_ms: original(self, now_ms)[::-1])


def a_rollback_forgets_tick_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimerTable, "rollback", TimerTable.commit)


def a_refused_record_keeps_its_tick_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimerTable, "undo", TimerTable.keep)


def event_time_is_not_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new owner begins with the event time of the next record."""
    original = Folder.__init__

    def begin(self: Any, *told: Any, **more: Any) -> None:
        original(self, *told, **more)
        self.event_ms = self._before_event_ms = -NEVER

    monkeypatch.setattr(Folder, "__init__", begin)


def a_rollback_leaves_event_time(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Folder.rollback

    def rollback(self: Folder[Any]) -> None:
        event_ms = self.event_ms
        original(self)
        self.event_ms = event_ms

    monkeypatch.setattr(Folder, "rollback", rollback)


def each_source_tells_append_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SourceFold, "event_ms", lambda self, told, stream_ms: stream_ms)


def event_time_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The position has the last event time, not the highest."""
    original = SourceFold.event_ms
    told: list[int] = []

    def event_ms(self: SourceFold, event: Any, stream_ms: int) -> int:
        told[:] = [original(self, event, stream_ms)]
        return told[0]

    finished = Folder._finished

    def last(self: Any, *args: Any) -> Changes:
        self.event_ms = told[0] if told else self.event_ms
        return finished(self, *args)

    monkeypatch.setattr(SourceFold, "event_ms", event_ms)
    monkeypatch.setattr(Folder, "_finished", last)


def the_merger_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that were taken and not folded are not merged again."""
    original = Merger.settle
    calls: set[int] = set()

    def settle(self: Merger, marker: Position) -> None:
        if id(self._sources) not in calls:
            calls.add(id(self._sources))
            original(self, marker)

    monkeypatch.setattr(Merger, "settle", settle)


def a_new_version_decides_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It numbers its choices from 0 and passes over the recorded ones."""
    original = Merger.__init__

    def init(
        self: Merger, marker: Position, recorded: Iterable[Choice] = (), order: MergeOrder | None = None
    ) -> None:
        original(self, marker, () if marker.choices == 0 else recorded, order)

    monkeypatch.setattr(Merger, "__init__", init)
    monkeypatch.setattr(world, "replayed", merging.replayed)


def the_position_is_that_of_the_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Folder._finished

    def finished(self: Any, taken: list[Stretch], *args: Any) -> Changes:
        changes = original(self, taken, *args)
        applied = list(changes.marker.applied)
        for stretch in taken:
            for source, portion in enumerate(stretch.portions):
                if portion is not None:
                    applied[source] = portion.batch.offsets[-1]
        changes.marker = msgspec.structs.replace(changes.marker, applied=tuple(applied))
        return changes

    monkeypatch.setattr(Folder, "_finished", finished)


def a_batch_is_folded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batch, "after", lambda batch, applied: batch)


def what_was_merged_by_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choices are of the formats that say append time."""
    monkeypatch.setattr(merging, "Choice", lambda *told, by_event, **more: Choice(*told, **more))


def old_choices_are_read_as_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records merged by append time are merged by event time when they are folded again."""
    original = Merger._next_recorded

    def read(self: Any) -> Choice | None:
        found = original(self)
        return None if found is None else replace(found, by_event=0xFF)

    monkeypatch.setattr(Merger, "_next_recorded", read)


def no_barrier_parts_the_two_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker continues by event time where the one before had merged by append time."""

    def agree(self: Any, choice: Choice | None) -> None:
        wanted = self._wanted if choice is None else choice.by_event & self._readable
        if wanted != self._by_event:
            self._order_by(wanted)

    monkeypatch.setattr(Merger, "_agree", agree)


def a_choice_does_not_end_what_was_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new owner starts with the highest event times of before the last choice."""
    monkeypatch.setattr(merging._Fetched, "restart", lambda self: None)


def event_times_reached_are_not_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Position, "order_ms", property(lambda marker: (-1,) * len(marker.applied)))


FAULTS = [
    Fault(a_choice_is_lost, ChoicesError),
    Fault(the_last_choice_is_lost, (DiffersError, AssertionError)),
    Fault(barriers_are_lost_and_nobody_counts, DiffersError),
    Fault(a_tick_is_not_recorded, (DiffersError, AssertionError)),
    Fault(what_is_decided_is_not_written, (DiffersError, ChoicesError)),
    Fault(choices_of_aborted_transactions_stay, (DiffersError, ChoicesError, AssertionError)),
    Fault(records_are_merged_as_they_arrive, DiffersError),
    Fault(nothing_lies_below_what_was_folded, (DiffersError, AssertionError)),
    Fault(clocks_that_go_back_are_believed, (DiffersError, ChoicesError, AssertionError)),
    Fault(what_was_merged_by_is_not_recorded, (DiffersError, ChoicesError, AssertionError)),
    Fault(old_choices_are_read_as_new_ones, (DiffersError, ChoicesError, AssertionError)),
    Fault(no_barrier_parts_the_two_orders, (DiffersError, ChoicesError, AssertionError)),
    Fault(a_choice_does_not_end_what_was_reached, (DiffersError, ChoicesError, AssertionError)),
    Fault(event_times_reached_are_not_restored, (DiffersError, ChoicesError, AssertionError)),
    Fault(ticks_are_out_of_order, DiffersError),
    Fault(a_rollback_forgets_tick_timers, DiffersError),
    Fault(a_refused_record_keeps_its_tick_timer, DiffersError),
    Fault(event_time_is_not_restored, DiffersError),
    Fault(a_rollback_leaves_event_time, DiffersError),
    Fault(each_source_tells_append_time, DiffersError),
    Fault(event_time_goes_back, DiffersError),
    Fault(the_merger_goes_on_where_it_was, AssertionError),
    Fault(a_new_version_decides_anew, (ChoicesError, DiffersError, AssertionError)),
    Fault(the_position_is_that_of_the_fetches, (DiffersError, AssertionError)),
    Fault(a_batch_is_folded_twice, (DiffersError, AssertionError)),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.plant.__name__)
def test_each_planted_fault_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault.plant(monkeypatch)
    for seed in range(LIMIT_SCHEDULES):
        try:
            check_schedule(seed)
        except fault.found:
            return
    pytest.fail(f"{LIMIT_SCHEDULES} schedules did not find it")
