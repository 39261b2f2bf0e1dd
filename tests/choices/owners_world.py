"""A table of several partitions, from a seed: owners that come and go, two of one partition at once, an
upgrade, and partitions that are added at the same time.

Each owner has a store of its own, as a worker has, restored from the committed state. A new owner fences the
one before, which continues all the same until an append of its own is refused. That may be while it folds, or
between its fold and its append.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from holdfast.core.engine.fold.folding import Changes
from holdfast.core.engine.positions import Position
from holdfast.core.engine.state.codec import combine_digests
from holdfast.errors import FencedError
from tests.choices.checks import DiffersError, check_replay
from tests.choices.world import Journal, Log, MemoryStore, Worker, written_log

LIMIT_PARTITIONS, LIMIT_OWNERS = 4, 3
VERSIONS = (1, 2)


@dataclass(slots=True)
class TablePartition:
    """One partition as on the broker: sources, the epoch of its transactional id, and the output of each
    version.

    The id and the choices are those of the processor, whatever the version.
    """

    logs: list[Log]
    epoch: int = 0
    choices: list[bytes] = field(default_factory=list)
    journals: dict[int, Journal] = field(default_factory=dict)

    def journal(self, version: int) -> Journal:
        return self.journals.setdefault(version, Journal(choices=self.choices))

    def fence(self) -> int:
        """Return an epoch; appends of all before it are refused from here on."""
        self.epoch += 1
        return self.epoch

    def append(self, epoch: int, version: int, changes: Changes) -> None:
        """Commit a transaction, as the broker does of the newest epoch alone."""
        if epoch < self.epoch:
            raise FencedError(f"epoch {epoch}, the newest is {self.epoch}")
        self.journal(version).commit(changes)

    def position(self, version: int) -> Position | None:
        return self.journal(version).position

    def whole(self, version: int) -> bool:
        """Return whether all records are in the table of *version*."""
        marker = self.position(version)
        applied = (-1,) * len(self.logs) if marker is None else marker.applied
        return all(
            not log.offsets or log.offsets[-1] == last for log, last in zip(self.logs, applied, strict=True)
        )


class Owner(Worker):
    """Owns a partition, or thinks so: *lost* once an append of it was refused, or it is dead."""

    def __init__(
        self, rng: Random, partition: TablePartition, version: int, meanwhile: Callable[[Owner], None]
    ) -> None:
        self.partition, self.version, self.meanwhile = partition, version, meanwhile
        self.lost, self.refused = False, 0
        super().__init__(rng, partition.logs, partition.journal(version), version)

    def restart(self) -> None:
        self.fence_and_restore()
        self.resume(self.store, self.restored)

    def fence_and_restore(self) -> None:
        self.epoch = self.partition.fence()
        self.meanwhile(self)  # an append of the old owner is refused from here on, so nothing is missed
        self.restore()

    def restore(self) -> None:
        self.store = MemoryStore(self.journal.store)
        self.restored = self.partition.position(self.version)

    def commit(self, changes: Changes) -> None:
        self.meanwhile(self)
        self.partition.append(self.epoch, self.version, changes)
        self.store.take(changes)

    def die(self) -> None:
        self.lost = True

    def act(self) -> None:
        """Fetch, fold and append once; be lost if that is refused."""
        try:
            self.turn()
        except FencedError:
            self.lost, self.refused = True, 1


class Table:
    """A table of one processor, and all that own or have owned a partition of it."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.version = rng, VERSIONS[0]
        self.width = rng.choice((1, 2, 2, 3))
        self.partitions: list[TablePartition] = []
        self.owners: list[Owner] = []
        self.refused = self.grown = 0
        self._busy = False
        for _ in range(rng.choice((1, 2))):
            self._add_partition()

    def _add_partition(self) -> None:
        self.partitions.append(TablePartition([written_log(self.rng) for _ in range(self.width)]))
        self.take_over(self.partitions[-1])

    def take_over(self, partition: TablePartition) -> Owner:
        """Make a new owner. The older ones do not know of it; the oldest dies if there are too many."""
        known = [each for each in self.owners if each.partition is partition and not each.lost]
        if len(known) == LIMIT_OWNERS:
            known[0].die()
        owner = Owner(self.rng, partition, self.version, self._meanwhile)
        self.owners.append(owner)
        return owner

    def grow(self) -> None:
        """Add a partition to all sources: the group assigns all of them again."""
        self.grown += 1
        self._add_partition()
        for partition in self.partitions[:-1]:
            self.take_over(partition)

    def upgrade(self) -> None:
        """Have the next version take up each partition; owners of the previous one continue until they are
        fenced.
        """
        self.version = VERSIONS[1]
        for partition in self.partitions:
            self.take_over(partition)

    def _meanwhile(self, owner: Owner) -> None:
        """Let others act while *owner* is between two steps: an older owner of its partition, or a newer
        one.
        """
        if self._busy or self.rng.random() < 0.7:
            return
        self._busy = True
        others = [each for each in self.owners if each.partition is owner.partition and each is not owner]
        if self.rng.random() < 0.3:
            others.append(self.take_over(owner.partition))
        for _ in range(self.rng.randrange(1, 4)):
            if left := [each for each in others if not each.lost]:
                self.rng.choice(left).act()
        self._busy = False

    def turn(self) -> None:
        rng, chance = self.rng, self.rng.random()
        if chance < 0.04 and len(self.partitions) < LIMIT_PARTITIONS:
            self.grow()
        elif chance < 0.06 and self.version == VERSIONS[0]:
            self.upgrade()
        elif chance < 0.14:
            self.take_over(rng.choice(self.partitions))
        else:
            partition = rng.choice(self.partitions)
            if left := [each for each in self.owners if each.partition is partition and not each.lost]:
                rng.choice(left).act()
        self._bury()

    def _bury(self) -> None:
        """Forget who is lost; a partition without an owner gets one."""
        self.refused += sum(each.refused for each in self.owners)
        self.owners = [each for each in self.owners if not each.lost]
        for partition in self.partitions:
            if not any(each.partition is partition for each in self.owners):
                self.take_over(partition)

    def run(self, turns: int = 1 << 20) -> None:
        while turns and not all(each.whole(self.version) for each in self.partitions):
            self.turn()
            turns -= 1

    def check(self) -> None:
        """Compare each version's commits in each partition with its replays, and with a new owner's store."""
        for version in VERSIONS[: VERSIONS.index(self.version) + 1]:
            live, restored = list[tuple[int, str]](), list[tuple[int, str]]()
            for number, partition in enumerate(self.partitions):
                journal = partition.journal(version)
                check_replay(self.rng, partition.logs, journal, version)
                live.append((number, journal.store.digest()))
                newest = [
                    each for each in self.owners if (each.partition, each.version) == (partition, version)
                ]
                stores = [each.store for each in newest if each.epoch == partition.epoch]
                restored.append((number, (stores or [journal.store])[0].digest()))
            if combine_digests(live) != combine_digests(restored):
                raise DiffersError("an owner's store is not what it has committed")


def check_owners(seed: int) -> tuple[int, int]:
    """Run the schedule of *seed* and compare it with its replays; return how many appends were refused, and
    how often partitions were added.
    """
    table = Table(Random(seed))
    for _ in range(table.rng.randrange(4)):
        table.run(table.rng.randrange(20))
        table.check()
    table.run()
    table.check()
    return table.refused, table.grown
