"""Counts the rows that queries by key do not find: a table's `route` gives the partition of a key, and a
producer with another partitioner writes it to another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.agents.metrics import PartitionMetrics
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.codec import ROW_KINDS, place_of_row

FIRST_KEYS, KEYS_OF_EACH = 64, 2
"""The number of keys of a partition that are checked in any case, and of each transaction after them: a check
takes 5 us, and a transaction more than a millisecond.
"""


class Placing:
    """Checks some of the keys that a partition's transactions write, and counts those that the route of their
    table would look for in another partition. *partitions* returns the number of partitions.
    """

    def __init__(
        self,
        processor: Processor[Any, Any],
        partition: int,
        partitions: Callable[[], int],
        counts: PartitionMetrics,
    ) -> None:
        self._partition, self._partitions, self._counts = partition, partitions, counts
        routes = {name: processor.route_of(name) for name in ("", *processor.tables)}
        self._routes = {name: route for name, route in routes.items() if route is not None}
        self._left = FIRST_KEYS

    def look(self, puts: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Check a few of the rows of a transaction that is durable."""
        if not self._routes or (partitions := self._partitions()) < 2:
            return
        wanted = max(KEYS_OF_EACH, self._left)
        for key, value in puts:
            if value is None or key[:1] not in ROW_KINDS:
                continue
            if not wanted:
                return
            wanted -= 1
            self._left = max(0, self._left - 1)
            self._count(key, partitions)

    def _count(self, stored: bytes, partitions: int) -> None:
        table, key = place_of_row(stored)
        if (route := self._routes.get(table)) is None:
            return
        try:
            place = route(key, partitions)
        except Exception:  # noqa: BLE001  queries of such a key say what is wrong with it
            return
        if place is not None:
            self._counts.looked_at += 1
            self._counts.misplaced += int(place) != self._partition
