"""A worker's copy of a global table, as queries, metrics and readiness see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from holdfast.agents.globals.copies import GlobalCopies
from holdfast.clock import system_clock
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.merge.global_copies import GlobalView, trimmed_at
from holdfast.errors import StoreError

T = TypeVar("T")


class ServedGlobal:
    """One global of this worker, which answers once its topic was read to the end that it had when the worker
    started.
    """

    def __init__(self, table: Global[Any], copies: GlobalCopies) -> None:
        self.table, self._copies = table, copies

    def unready(self) -> str | None:
        """Return why the copy may not be read, None when it may."""
        return self._copies.unready(self.table)

    @property
    def applied(self) -> Mapping[int, int]:
        """Return the last offset in the copy of each partition of the topic, -1 for none."""
        copy, count = self._copies.copies.get(self.table.name), self._copies.counts.get(self.table.topic, 0)
        vector = () if copy is None else copy.vector
        return {at: trimmed_at(vector, at) for at in range(max(count, len(vector)))}

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """Return Kafka's id of the topic by its name, where it is known."""
        return self._copies.topic_ids(self.table)

    @property
    def lags(self) -> Mapping[int, int]:
        """Return how many offsets of each partition are not in the copy, those of markers included, as far as
        it is known.
        """
        return self._copies.lags(self.table.topic)

    @property
    def failures(self) -> Mapping[int, int]:
        """Return how many records of each partition this copy has refused; they change nothing."""
        return self._copies.failures.get(self.table.name, {})

    def approximate_rows(self) -> int:
        return self._copies.approximate_rows(self.table.name)

    async def read(self, work: Callable[[GlobalView], T]) -> T:
        """Return the result of *work* on the copy as it is now, on a thread. Call it while the copy is ready;
        StoreError when the worker ends in the meantime.
        """
        copies = self._copies
        try:
            found: T = await copies.thread(lambda: work(copies.copies[self.table.name].view()))
        except Exception as error:
            if copies.closed:
                raise StoreError(f"the copy of global table {self.table.name} was closed") from error
            raise
        return found

    async def reached(self, wanted: Mapping[int, int], timeout_s: float) -> bool:
        """Wait until the copy holds the offsets *wanted* by partition; False when time ran out first."""
        until_s = system_clock.monotonic_s() + timeout_s
        while not self.has_reached(wanted):
            moved, left_s = self._copies.moved, until_s - system_clock.monotonic_s()
            if left_s <= 0:
                return False
            try:
                async with asyncio.timeout(left_s):
                    await moved.wait()
            except TimeoutError:
                return self.has_reached(wanted)
        return True

    def has_reached(self, wanted: Mapping[int, int]) -> bool:
        """Return whether the copy holds the offsets *wanted* by partition: what lies before them was read."""
        return self.unready() is None and all(
            self._copies.position(self.table.topic, partition) > offset
            for partition, offset in wanted.items()
        )
