"""Two owners at once, partitions that are added and versions that are raised change no table; each fault
planted in how they are handled is found.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.core.engine.fold.folding import Changes
from holdfast.core.engine.positions import Position
from holdfast.errors import ChangelogError, ChoicesError
from tests.choices import test_planted_faults as planted
from tests.choices.owners_world import Owner, Table, TablePartition, check_owners
from tests.choices.world import MemoryStore
from tests.support.scale import scaled

QUICK, MANY, LIMIT_SCHEDULES = 80, 2_000, 60


def run(seeds: range) -> None:
    refused = grown = 0
    for seed in seeds:
        try:
            found = check_owners(seed)
        except BaseException as error:
            error.add_note(f"schedule {seed}: tests.choices.owners_world.check_owners({seed})")
            raise
        refused, grown = refused + found[0], grown + found[1]
    assert refused > len(seeds), "schedules in which no zombie is refused prove nothing"
    assert grown > len(seeds) // 4


@pytest.mark.long
def test_zombies_and_added_partitions_change_no_table() -> None:
    run(range(scaled(QUICK)))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_they_change_none_in_many_schedules() -> None:
    run(range(QUICK, QUICK + scaled(MANY)))


def a_zombies_append_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    def append(self: TablePartition, epoch: int, version: int, changes: Changes) -> None:
        self.journal(version).commit(changes)

    monkeypatch.setattr(TablePartition, "append", append)


def a_zombies_choices_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a fenced transaction the choices stay: they were not written in it."""
    original = TablePartition.append

    def append(self: TablePartition, epoch: int, version: int, changes: Changes) -> None:
        if epoch < self.epoch:
            self.journal(version).commit(Changes(marker=changes.marker, records=0, choices=changes.choices))
        original(self, epoch, version, changes)

    monkeypatch.setattr(TablePartition, "append", append)


def a_restore_comes_before_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fence_and_restore(self: Owner) -> None:
        self.restore()
        self.meanwhile(self)
        self.epoch = self.partition.fence()

    monkeypatch.setattr(Owner, "fence_and_restore", fence_and_restore)


def versions_have_epochs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old version's owner is not fenced by the new one's, and both write choices."""
    append = TablePartition.append

    def of_version(self: TablePartition, epoch: int, version: int, changes: Changes) -> None:
        if version == 1 and 2 in self.journals:
            self.journal(version).commit(changes)
        else:
            append(self, epoch, version, changes)

    monkeypatch.setattr(TablePartition, "append", of_version)


def growth_loses_the_old_partitions_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owners that the group makes for the old partitions begin at the beginning, over the rows there
    are.
    """
    grow, position = Table.grow, TablePartition.position

    def forgetful(self: Table) -> None:
        old = [*self.partitions]

        def lost(partition: TablePartition, version: int) -> Position | None:
            return None if any(partition is each for each in old) else position(partition, version)

        monkeypatch.setattr(TablePartition, "position", lost)
        grow(self)
        monkeypatch.setattr(TablePartition, "position", position)

    monkeypatch.setattr(Table, "grow", forgetful)


def growth_loses_the_old_partitions_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    grow, restore = Table.grow, Owner.restore

    def emptied(self: Owner) -> None:
        restore(self)
        self.store = MemoryStore()

    def forgetful(self: Table) -> None:
        monkeypatch.setattr(Owner, "restore", emptied)
        grow(self)
        monkeypatch.setattr(Owner, "restore", restore)

    monkeypatch.setattr(Table, "grow", forgetful)


def an_added_partition_begins_where_another_is(monkeypatch: pytest.MonkeyPatch) -> None:
    position, take_over = TablePartition.position, Table.take_over

    def elsewhere(self: Table, partition: TablePartition) -> Owner:
        first = self.partitions[0]

        def taken(asked: TablePartition, version: int) -> Position | None:
            return position(asked, version) or position(first, version)

        monkeypatch.setattr(TablePartition, "position", taken)
        try:
            return take_over(self, partition)
        finally:
            monkeypatch.setattr(TablePartition, "position", position)

    monkeypatch.setattr(Table, "take_over", elsewhere)


FAULTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    a_zombies_append_is_accepted,
    a_zombies_choices_are_accepted,
    a_restore_comes_before_the_fence,
    versions_have_epochs_of_their_own,
    growth_loses_the_old_partitions_positions,
    growth_loses_the_old_partitions_rows,
    an_added_partition_begins_where_another_is,
    planted.a_choice_is_lost,
    planted.barriers_are_lost_and_nobody_counts,
    planted.a_tick_is_not_recorded,
    planted.what_is_decided_is_not_written,
    planted.records_are_merged_as_they_arrive,
    planted.event_time_is_not_restored,
    planted.event_time_goes_back,
]


@pytest.mark.long
@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_each_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(LIMIT_SCHEDULES):
        try:
            check_owners(seed)
        except (AssertionError, ChoicesError, ChangelogError):
            return
    pytest.fail(f"{LIMIT_SCHEDULES} schedules did not find it")
