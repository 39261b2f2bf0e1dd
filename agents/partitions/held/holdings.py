"""A worker's partitions: those that it owns, keeps as standbys, or is opening."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.agents.partitions.batches.runner import Owned
from holdfast.agents.partitions.held.announcer import announcement_of
from holdfast.agents.partitions.types import Held
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.kafka.topic_partition import Place
from holdfast.tables.partition import Partition


class Holdings:
    """The partitions of each processor by what they are to this worker. Adoptions alone replace them."""

    def __init__(self, processors: Mapping[str, Processor[Any, Any]]) -> None:
        self._processors = processors
        self.owned: dict[Held, Owned] = {}
        self.standby: dict[Held, Partition] = {}
        self.opening: dict[Held, Partition] = {}

    def positions(self) -> dict[Place, int]:
        """Return where to read each source partition from: the lowest position of the processors that fold
        it.
        """
        out: dict[Place, int] = {}
        for (_, number), owned in self.owned.items():
            for topic, applied in owned.part.offsets.items():
                place = (topic, number)
                out[place] = min(out.get(place, applied + 1), applied + 1)
        return out

    def owners(self, place: Place) -> list[Owned]:
        """Return the owned partitions of the tables that fold a source partition."""
        topic, number = place
        return [
            owned
            for (name, each), owned in self.owned.items()
            if each == number and topic in self._processors[name].topics
        ]

    def ordered(self) -> list[Owned]:
        """Return the owned partitions of tables whose order of records is recorded in choices."""
        return [owned for owned in self.owned.values() if owned.part.choices_topics]

    def lookup(self, table: str, partition: int) -> Partition | None:
        """Return the partition of a table, whatever it is to this worker; None when it holds none."""
        held, owned = (table, partition), self.owned.get((table, partition))
        return owned.part if owned is not None else self.standby.get(held) or self.opening.get(held)

    def served(self) -> list[Partition]:
        """Return every partition held, active and standby, for metrics."""
        return [*(owned.part for owned in self.owned.values()), *self.standby.values()]

    def partial(self) -> list[Partition]:
        """Return the partitions held that began after a gap in a source."""
        return [part for part in self.served() if part.partial]

    def unserved(self) -> list[Held]:
        """Return the owned partitions that answer no query: a newer owner has written, or the store is
        rotten.
        """
        return [held for held, owned in self.owned.items() if not owned.part.serving]

    def restored_records(self) -> int:
        """Return how many changelog records were read for partitions that are not yet ready: a restore whose
        count grows is not stuck.
        """
        return sum(part.replay.restored_records for part in self.opening.values())

    def announced(self, counts: Mapping[str, int]) -> dict[str, dict[str, Any]]:
        """Return the announcement of each table; *counts* are the tables' numbers of partitions."""
        return {
            name: announcement_of(
                processor,
                counts[name],
                _numbers(self.owned, name),
                _numbers(self.standby, name),
                [part.partition for part in self.partial() if part.processor.name == name],
            )
            for name, processor in self._processors.items()
        }

    def give_up(self) -> list[Partition]:
        """Give up all partitions, and return them."""
        parts = [*self.served(), *self.opening.values()]
        self.owned, self.standby, self.opening = {}, {}, {}
        return parts


def _numbers(held: Iterable[Held], table: str) -> list[int]:
    """Return the partitions of *table* among those held."""
    return [number for name, number in held if name == table]
