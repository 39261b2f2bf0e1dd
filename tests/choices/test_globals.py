"""Folds see the recorded state of globals, whatever the schedule; and each planted fault is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.fold.folding import Changes
from holdfast.core.engine.merge import global_copies
from holdfast.core.engine.merge.global_copies import GlobalCopy, GlobalView, WorkerGlobals
from holdfast.core.engine.merge.merging import Merger
from holdfast.core.engine.state import global_rows
from holdfast.core.engine.state.global_rows import GlobalRows, Vector
from holdfast.errors import ChoicesError, GlobalsError
from tests.choices.globals_world import DiffersError, check_schedule
from tests.choices.world import Journal
from tests.support.scale import scaled

QUICK, MANY, LIMIT_SCHEDULES = 150, 5_000, 60


def run(seeds: range) -> None:
    recorded = waited = 0
    for seed in seeds:
        try:
            found = check_schedule(seed)
        except BaseException as error:
            error.add_note(f"schedule {seed}: tests.choices.globals_world.check_schedule({seed})")
            raise
        recorded, waited = recorded + found[0], waited + found[1]
    assert recorded > 2 * len(seeds), "schedules that record nothing prove nothing"
    assert waited > len(seeds)


@pytest.mark.long
def test_live_and_replayed_folds_see_the_globals_that_were_recorded() -> None:
    run(range(scaled(QUICK)))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_they_do_in_many_schedules() -> None:
    run(range(QUICK, QUICK + scaled(MANY)))


def a_position_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds see where the copies are, and no choice says so."""

    def view(self: WorkerGlobals, number: int, vector: Vector) -> GlobalView:
        return self._pinned[number] if self._pinned else self._copies[number].view()

    monkeypatch.setattr(Merger, "_seen", lambda self: None)
    monkeypatch.setattr(WorkerGlobals, "view", view)


def positions_are_recorded_and_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Journal.commit

    def commit(self: Journal, changes: Changes) -> None:
        changes.choices = [each for each in changes.choices if not each.globals]
        original(self, changes)

    monkeypatch.setattr(Journal, "commit", commit)


def a_transaction_sees_what_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        GlobalView, "undone", property(lambda self: {}, lambda self, value: None), raising=False
    )


def a_scan_sees_what_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        global_copies, "_overlaid", lambda stored, undone, cut: ((k[cut:], v) for k, v in stored)
    )


def a_replay_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    original = global_copies._Cursor.upto

    def upto(self: Any, offset: int) -> Iterator[Batch]:
        return original(self, offset - 1)

    monkeypatch.setattr(global_copies._Cursor, "upto", upto)


def a_replay_runs_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    original = global_copies._Cursor.upto

    def upto(self: Any, offset: int) -> Iterator[Batch]:
        return original(self, offset + 1)

    monkeypatch.setattr(global_copies._Cursor, "upto", upto)


def a_new_owner_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerGlobals, "reach", lambda self, vectors: True)


def rows_are_remembered_when_the_position_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    def move(self: GlobalRows[Any], vector: Vector) -> None:
        self._view, self.vector = None, vector
        self._views.move(self._number, vector)

    monkeypatch.setattr(GlobalRows, "move", move)


def a_rollback_leaves_the_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is folded again with care sees the transaction's end state from its beginning."""

    def settle(self: GlobalRows[Any], vector: Vector) -> None:
        self._views.settle(self._number, vector)

    monkeypatch.setattr(GlobalRows, "settle", settle)


def partitions_share_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_copies, "_prefix", lambda partition: b"\0\0")


def refused_records_of_a_global_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that a fold sets before it fails stays."""
    original = GlobalCopy._put

    def put(self: GlobalCopy, partition: int, puts: Any, applied: int) -> None:
        original(
            self, partition, [*puts, (global_copies._prefix(partition) + b"\x02a", b"\x01\x07")], applied
        )

    monkeypatch.setattr(GlobalCopy, "_put", put)


def vectors_are_compared_in_their_first_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy counts as abreast although some of its partitions lag."""

    def covers(vector: Vector, other: Vector) -> bool:
        return not other or (bool(vector) and vector[0] >= other[0])

    for module in (global_copies, global_rows):
        monkeypatch.setattr(module, "covers", covers)


FAULTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    a_position_is_not_recorded,
    positions_are_recorded_and_not_written,
    a_transaction_sees_what_comes_later,
    a_scan_sees_what_comes_later,
    a_replay_stays_behind,
    a_replay_runs_ahead,
    a_new_owner_does_not_wait,
    rows_are_remembered_when_the_position_moves,
    a_rollback_leaves_the_position,
    partitions_share_their_rows,
    refused_records_of_a_global_change_it,
    vectors_are_compared_in_their_first_partition,
]


@pytest.mark.long
@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_each_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(LIMIT_SCHEDULES):
        try:
            check_schedule(seed)
        except (DiffersError, ChoicesError, GlobalsError, AssertionError):
            return
    pytest.fail(f"{LIMIT_SCHEDULES} schedules did not find it")
