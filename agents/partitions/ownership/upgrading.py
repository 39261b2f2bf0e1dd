"""Takes a table from one version to the next: keeps the earlier version readable while the one that runs here
is built, notices when that has caught up, and then makes it the current one. The rules are in
`core/engine/upgrades.py`.

While workers that run the earlier version have the partition, they fold it and answer. Afterwards it does not
move any more: the owner of the partition in the next version fences it, restores it from its changelog as an
owner would, and answers as of the last record that it folded.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.agents.partitions.batches.runner import Owned
from holdfast.agents.partitions.gate import FoldGate
from holdfast.agents.partitions.held.announcer import Announcer
from holdfast.agents.partitions.held.holdings import Holdings
from holdfast.agents.partitions.types import Held, RunInThread
from holdfast.clients.tables.directory import WorkersTopic
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.upgrades import (
    all_writers_of,
    current_version,
    first_switch,
    has_caught_up,
    is_complete,
    kept_version,
    next_switch,
)
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import BrokerError, HoldfastError
from holdfast.tables.partition import Partition
from holdfast.tables.restore import RestoreInterrupted, restore

logger = logging.getLogger(__name__)

STEP_S = 0.5
REFRESH_S, REFRESH_SETTLED_S = 1.0, 10.0
"""The time between reads of the workers topic while a table is on its way, and while no table is."""


@dataclass(frozen=True, slots=True)
class _EarlierPartition:
    """An earlier version of a partition, as long as its owner here is *owned*; None for one that cannot be
    read.
    """

    owned: Owned
    version: int
    part: Partition | None


class Upgrading:
    """Knows the current version of each table. *open_earlier* opens a partition in another version; *ends*
    returns the ends of sources; *announce* announces this worker's partitions to the others.
    """

    def __init__(
        self,
        settings: Settings,
        processors: Mapping[str, Processor[Any, Any]],
        thread: RunInThread,
        *,
        gate: FoldGate,
        holdings: Holdings,
        announcer: Announcer,
        announce: Callable[[], Awaitable[None]],
        open_earlier: Callable[[Held, int], Partition],
        ends: Callable[[], Mapping[Place, int]],
        is_folded: Callable[[Held, int], bool],
        clock: Clock = system_clock,
    ) -> None:
        self._settings, self._processors, self._thread, self._clock = settings, processors, thread, clock
        self._gate, self._holdings, self._ends, self._is_folded = gate, holdings, ends, is_folded
        self._ends_before: Mapping[Place, int] = {}
        self._announcer, self._announce, self._open_earlier = announcer, announce, open_earlier
        self._directory = WorkersTopic(settings, clock)
        self._known: Mapping[str, tuple[int, ...]] = {}
        self._kept: dict[Held, _EarlierPartition] = {}
        self._caught_up: dict[Held, Owned] = {}
        self._held_up: dict[Held, Owned] = {}
        """Partitions that have folded all records of their version, and wait for partitions that no worker of
        this version has.
        """
        self._began_s: dict[str, float] = {}
        self._interrupted, self._wanted = threading.Event(), asyncio.Event()
        self._stepping = asyncio.Lock()
        self._refreshed_s = float("-inf")

    async def open(self, known: Mapping[str, tuple[int, ...]]) -> None:
        """Learn which versions of each table have a changelog, and which of them is current."""
        self._known = known
        if self._several:
            await self._directory.refresh(self._settings.request_timeout_s)

    @property
    def _several(self) -> bool:
        return any(len(versions) > 1 for versions in self._known.values())

    # -- which version

    def current(self, table: str) -> int:
        """Return the current version of a table."""
        own = self._processors[table].version
        return current_version(own, self._known.get(table, ()), self._directory.workers.switch(table))

    def earlier_version(self, table: str) -> int | None:
        """Return the earlier version that is kept readable here, or is about to be; None for none."""
        if self._processors[table].stateless:
            return None
        return kept_version(
            self._processors[table].version,
            self._known.get(table, ()),
            self._directory.workers.switch(table),
            now_ms=self._clock.now_ms(),
            kept_ms=int(self._settings.earlier_version_s * 1000),
        )

    def earlier(self, table: str, partition: int) -> Partition | None:
        """Return a partition in the earlier version, if it is kept here and no other worker may fold it."""
        held = (table, partition)
        kept, owned = self._kept.get(held), self._holdings.owned.get(held)
        if kept is None or owned is not kept.owned or not owned.part.serving:
            return None
        return None if self._is_folded(held, kept.version) else kept.part

    def building(self, table: str, partition: int) -> str | None:
        """Return why the own version of a partition may not be read yet, None when it may."""
        if not self._is_building(table, partition):
            return None
        current, own = self.current(table), self._processors[table].version
        if self.waiting(table, partition):
            writers = ", ".join(name for name in self._writers(table) if not self._is_complete(name))
            return (
                f"version {own} of {table} has folded all there is, and waits for partitions of {writers}"
                f" that old workers have; version {current} is the current one"
            )
        return (
            f"version {own} of {table} is being built and has not caught up with version {current}, which is"
            " the current one"
        )

    def waiting(self, table: str, partition: int) -> bool:
        """Return whether a partition that is being built waits for partitions of its writers that no worker
        has in this version.
        """
        held = (table, partition)
        owned = self._holdings.owned.get(held)
        return owned is not None and self._held_up.get(held) is owned and self._is_building(table, partition)

    def _is_building(self, table: str, partition: int) -> bool:
        """Return whether a partition, owned or standby, is built while an earlier version is current."""
        if self.current(table) >= self._processors[table].version or self._is_overdue(table):
            return False
        held = (table, partition)
        owned = self._holdings.owned.get(held)
        return owned is None or self._caught_up.get(held) is not owned

    def _is_overdue(self, table: str) -> bool:
        limit_s = self._settings.build_limit_s
        began_s = self._began_s.setdefault(table, self._clock.monotonic_s())
        return limit_s > 0 and self._clock.monotonic_s() - began_s > limit_s

    def built(self, table: str) -> list[int]:
        """Return the owned partitions of a table that are being built."""
        return sorted(
            number
            for name, number in self._holdings.owned
            if name == table and self._is_building(name, number)
        )

    def causes(self) -> list[str]:
        """Return why this worker is not ready on account of tables that are being built. Partitions that wait
        for those of old workers are no reason, since they must not keep old workers from being replaced.
        """
        return [
            f"{self.building(table, built[0])}: partitions {', '.join(map(str, built))}"
            for table in self._processors
            if (built := [number for number in self.built(table) if not self.waiting(table, number)])
        ]

    def announced(self, table: str) -> dict[str, Any]:
        """Return the announcement of a table on its way; empty for other tables."""
        told: dict[str, Any] = {}
        if built := self.built(table):
            told["building"] = built
            if waiting := [number for number in built if self.waiting(table, number)]:
                told["waiting"] = waiting
        if (version := self.earlier_version(table)) is not None:
            told["earlier"] = {"version": version, "partitions": self._readable(table, version)}
        return told

    def _readable(self, table: str, version: int) -> list[int]:
        return sorted(
            number
            for (name, number), kept in self._kept.items()
            if name == table and kept.version == version and self.earlier(name, number) is not None
        )

    # -- on the way

    def adopted(self) -> None:
        """Look at once: an assignment was carried out."""
        self._ends_before = {}
        self._wanted.set()

    def interrupt(self) -> None:
        """Have a restore under way end early; does not wait for that."""
        self._interrupted.set()

    async def run(self) -> None:
        """Build, keep and switch versions until cancelled."""
        if not self._several:
            return
        while True:
            try:
                async with asyncio.timeout(STEP_S):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            async with self._stepping:
                if self._gate.open:
                    await self._step()

    async def _step(self) -> None:
        before = self._told()
        await self._refresh()
        await self._record_first()
        await self._drop()
        await self._keep()
        self._look()
        if self._gate.open and self._told() != before:
            await self._announce()
        await self._switch()

    def _told(self) -> dict[str, dict[str, Any]]:
        return {table: self.announced(table) for table in self._processors}

    async def _refresh(self) -> None:
        pending = any(self._told().values())
        now_s = self._clock.monotonic_s()
        if now_s - self._refreshed_s < (REFRESH_S if pending else REFRESH_SETTLED_S):
            return
        self._refreshed_s = now_s
        try:
            await self._directory.refresh(self._settings.request_timeout_s)
        except HoldfastError as error:
            logger.warning("cannot read which versions of tables are current: %(error)s", {"error": error})

    def _to_keep(self) -> dict[Held, tuple[Owned, int]]:
        return {
            held: (owned, version)
            for held, owned in self._holdings.owned.items()
            if (version := self.earlier_version(held[0])) is not None and not self._is_folded(held, version)
        }

    async def _drop(self) -> None:
        """Close the partitions that are no longer to be kept, or that another worker may have written to."""
        wanted = self._to_keep()
        for held, kept in [*self._kept.items()]:
            owned, version = wanted.get(held, (None, 0))
            is_rotten = kept.part is not None and kept.part.rotten is not None
            if owned is not kept.owned or version != kept.version or is_rotten:
                del self._kept[held]
                if kept.part is not None:
                    await self._thread(kept.part.close)

    async def _keep(self) -> None:
        """Open and restore the partitions that are to be kept."""
        self._interrupted.clear()
        if not self._gate.open:
            return
        epoch, missing = (
            self._gate.epoch,
            [(held, *wanted) for held, wanted in self._to_keep().items() if held not in self._kept],
        )
        for held, owned, version in sorted(missing, key=lambda each: each[0]):
            try:
                part = await self._restored(held, version)
            except BrokerError as error:
                logger.warning(
                    "the earlier version of %(table)s partition %(partition)d is restored again: %(error)s",
                    {"table": held[0], "partition": held[1], "error": error},
                )
                continue
            if self._interrupted.is_set() or self._gate.epoch != epoch:
                if part is not None:
                    await self._thread(part.close)
                return
            self._kept[held] = _EarlierPartition(owned, version, part)

    async def _restored(self, held: Held, version: int) -> Partition | None:
        """Return a partition in an earlier version, restored to the end of its changelog; None when that
        cannot be read, BrokerError when it cannot be read now.
        """
        part: Partition | None = None
        try:
            part = await self._thread(self._open_earlier, held, version)
            await self._bring_abreast(part)
        except RestoreInterrupted:
            pass
        except HoldfastError as error:
            if part is not None:
                await part.owner.close_writer()
                await self._thread(part.close)
            if isinstance(error, BrokerError):
                raise
            logger.error(
                "partition %(partition)d of %(table)s cannot be served in version %(version)d: %(error)s",
                {"partition": held[1], "table": held[0], "version": version, "error": error},
            )
            return None
        assert part is not None
        part.serving = True
        return part

    async def _bring_abreast(self, part: Partition) -> None:
        settings = self._settings
        if self._processors[part.processor.name].writes_alone:  # so it has not fenced the earlier one yet
            await part.owner.fence(settings.commit_timeout_s)
            await part.owner.close_writer()
        reading = ([part], settings.consumer(), settings.app, self._interrupted, settings.stall_timeout_s)
        await self._thread(restore, *reading)

    def _look(self) -> None:
        """Note which partitions have caught up."""
        # Where records come all the time, no partition reaches the present end, only that of the last look.
        ends, self._ends_before = self._ends_before, self._ends()
        before, self._held_up = self._held_up, {}
        for held, owned in self._holdings.owned.items():
            if not self._is_building(*held) or not self._has_all(held, owned, ends):
                continue
            missing = [each for each in self._writers(held[0]) if not self._is_complete(each)]
            if any(map(self._is_left_to_others, missing)):
                self._held_up[held] = owned
            if not missing or (held in self._held_up and held not in before):
                what = (
                    "has caught up"
                    if not missing
                    else f"waits for {', '.join(missing)}, partitions of which only old workers have,"
                )
                logger.info(
                    "partition %(partition)d of %(table)s %(what)s in version %(version)d",
                    {
                        "partition": held[1],
                        "table": held[0],
                        "what": what,
                        "version": owned.part.processor.version,
                    },
                )
            if not missing:
                self._caught_up[held] = owned

    def _writers(self, table: str) -> list[str]:
        return all_writers_of(self._processors[table], self._processors.values())

    def _is_left_to_others(self, table: str) -> bool:
        """Return whether a table has partitions that no worker has in this version."""
        workers, version = self._directory.workers, self._processors[table].version
        count = workers.partitions(table, version)
        return not count or any(workers.owning(table, version, number) is None for number in range(count))

    def _has_all(self, held: Held, owned: Owned, ends: Mapping[Place, int]) -> bool:
        number = held[1]
        kept = self._kept.get(held)
        before = None if kept is None or kept.part is None else _comparable(kept.part)
        here = {topic: end for (topic, partition), end in ends.items() if partition == number}
        return has_caught_up(owned.part.offsets, here, before)

    def _is_complete(self, table: str) -> bool:
        workers, version = self._directory.workers, self._processors[table].version
        if self.current(table) >= version:
            return True
        return is_complete(
            lambda partition: workers.owning(table, version, partition), workers.partitions(table, version)
        )

    async def _record_first(self) -> None:
        """Record which version of a table is current where no switch says so."""
        workers = self._directory.workers
        for table, processor in self._processors.items():
            known, served = self._known.get(table, ()), workers.versions(table)
            first = first_switch(
                table, processor.version, known, served, workers.switch(table), now_ms=self._clock.now_ms()
            )
            if first is not None:
                await self._announcer.switch(first)
                self._refreshed_s = float("-inf")

    async def _switch(self) -> None:
        """Make the own versions current: all of them at once, since chains move as a whole."""
        pending = [name for name, each in self._processors.items() if self.current(name) < each.version]
        if self._settings.switch_versions != "caught-up" or not all(map(self._is_complete, pending)):
            return
        for table in self._written_here(pending):
            switch = next_switch(
                table,
                self._processors[table].version,
                self.current(table),
                self._directory.workers.switch(table),
                complete=True,
                now_ms=self._clock.now_ms(),
            )
            if switch is not None:
                await self._announcer.switch(switch)
                self._refreshed_s = float("-inf")

    def _written_here(self, tables: Iterable[str]) -> list[str]:
        """Return those of *tables* whose switch is this worker's to write: that of the first partition."""
        owned = self._holdings.owned
        return [table for table in tables if (table, 0) in owned and owned[table, 0].part.serving]

    async def close(self) -> None:
        """Close every store and the reader of the workers topic; the gate is closed for good."""
        self.interrupt()
        async with self._stepping:
            kept, self._kept = self._kept, {}
            for each in kept.values():
                if each.part is not None:
                    await self._thread(each.part.close)
        await self._directory.close()


def _comparable(part: Partition) -> dict[str, int]:
    """Return the position of an earlier version in those of its sources that are the same topics in the
    next.
    """
    return {topic: offset for topic, offset in part.offsets.items() if topic not in part.processor.internal}
