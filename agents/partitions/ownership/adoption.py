"""Carries out an assignment: keeps, gives up, opens, fences and restores partitions."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Collection, Mapping
from typing import Any, Protocol, TypeAlias

from holdfast.agents.metrics import Metrics
from holdfast.agents.partitions.batches.runner import Owned, Runner
from holdfast.agents.partitions.gate import FoldGate
from holdfast.agents.partitions.held.committing import CommitNotes
from holdfast.agents.partitions.held.holdings import Holdings
from holdfast.agents.partitions.membership import Membership
from holdfast.agents.partitions.ownership.beginnings import all_of, begin
from holdfast.agents.partitions.ownership.handovers import learn_handovers
from holdfast.agents.partitions.ownership.recovering import recover, require_whole_vector
from holdfast.agents.partitions.ownership.source_logs import learn_sources
from holdfast.agents.partitions.readiness import Readiness
from holdfast.agents.partitions.types import NOT_IN_GROUP, AssignmentPlan, Held, RunInThread
from holdfast.agents.partitions.upkeep.skipping import Skipping
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.engine.commit_notes import CommitNote
from holdfast.core.kafka.topic_partition import Place
from holdfast.tables.partition import Partition
from holdfast.tables.recorded import read_choices
from holdfast.tables.restore import RestoreInterrupted, StandbyFollower, restore

logger = logging.getLogger(__name__)

Opened: TypeAlias = dict[Held, Partition]
"""Partitions that are neither owned nor standbys yet."""


class PartitionOpener(Protocol):
    """Makes the parts that an adoption puts into service."""

    def open_partition(self, held: Held) -> Partition:
        """Open the store of a partition. Blocks."""
        ...

    def runner_of(self, part: Partition) -> Runner:
        """Return a new runner of a partition that was restored."""
        ...

    def is_folded_earlier(self, part: Partition) -> bool:
        """Return whether a worker of the group folds the partition in an earlier version."""
        ...


class Adoption:
    """Makes this worker's partitions match the group's assignments, one at a time.

    `generation` is that of the assignment that was carried out last.
    """

    def __init__(
        self,
        settings: Settings,
        opener: PartitionOpener,
        thread: RunInThread,
        *,
        gate: FoldGate,
        holdings: Holdings,
        membership: Membership,
        readiness: Readiness,
        skipping: Skipping,
        notes: CommitNotes,
        metrics: Metrics,
        clock: Clock = system_clock,
    ) -> None:
        self._notes = notes
        self._settings, self._opener, self._thread, self._clock = settings, opener, thread, clock
        self._gate, self._holdings, self._membership = gate, holdings, membership
        self._readiness, self._skipping, self._metrics = readiness, skipping, metrics
        self._follower = StandbyFollower(settings.consumer(), settings.app)
        self._interrupted = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self.generation = NOT_IN_GROUP

    @property
    def under_way(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def standby_failure(self) -> Exception | None:
        """Return the error that ended the following of changelogs, None without one."""
        return self._follower.failure

    async def adopt(self, plan: AssignmentPlan) -> None:
        """Make this worker's partitions match *plan*; returns when every active one is fenced, restored and
        ready to fold.
        """
        if self._task is not None:  # its threads must end before the same stores are opened again
            await asyncio.wait([self._task])
        if plan.epoch != self._gate.epoch:
            raise RestoreInterrupted
        self._interrupted.clear()
        self._task = asyncio.ensure_future(self._adopt(plan))
        # The caller may be gone by the time it is interrupted.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._task)

    def interrupt(self) -> None:
        """Have an adoption under way end early with RestoreInterrupted; does not wait for that."""
        self._interrupted.set()

    async def settled(self) -> None:
        """Wait until an adoption that was interrupted has ended, up to `commit_timeout_s`. A member must not
        join the next generation before that.

        A fence still under way belongs to the generation that is over. Arriving at the broker after the fence
        of the partition's next owner, it would shut that owner out.
        """
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task], timeout=self._settings.commit_timeout_s)

    async def quiet(self) -> None:
        """Wait until no transaction is open; each ends by itself within the commit's deadline."""
        jobs = [owned.runner.job for owned in self._holdings.owned.values() if owned.runner.job is not None]
        if jobs:
            await asyncio.wait(jobs)

    async def close(self) -> None:
        """Give up all partitions: close every writer and every store."""
        await self._thread(self._follower.close)
        parts = self._holdings.give_up()
        await all_of(part.owner.close_writer() for part in parts)
        for part in parts:
            await self._thread(self._step_down, part)
            await self._thread(part.close)

    # -- one adoption

    async def _adopt(self, plan: AssignmentPlan) -> None:
        started_s, self._readiness.why = self._clock.monotonic_s(), "restoring"
        holdings = self._holdings
        for held, owned in holdings.owned.items():
            owned.part.serving = held in plan.active and owned.part.serving
        self._membership.adopt(plan.term)  # partitions that are not in the plan answer no more
        await self.quiet()
        kept = self._kept(plan)
        kept_names = sorted(kept)
        opened = await self._stepped_down(kept)
        await self._match(opened, plan, kept)
        fresh = [opened[held] for held in sorted(plan.active - set(kept))]
        records = await self._take_over(fresh)
        self._put_in_service(plan, fresh, opened)
        await self._thread(self._follower.follow, list(holdings.standby.values()))
        self.generation = plan.generation
        self._report(kept_names, fresh, records, self._clock.monotonic_s() - started_s)

    def _kept(self, plan: AssignmentPlan) -> dict[Held, Owned]:
        """Return the partitions that stay open as they are: owned in the generation just before this one, and
        with nothing unsettled.

        A generation that jumped by more means this worker was out of the group for a while; another may have
        written since, so it fences and restores again, though it may find the same partitions in its hands.
        """
        return {
            held: owned
            for held, owned in self._holdings.owned.items()
            if held in plan.active
            and owned.generation in (plan.generation - 1, plan.generation)
            and owned.part.owner.fenced_in
        }

    async def _stepped_down(self, kept: dict[Held, Owned]) -> Opened:
        """Take everything but *kept* out of service, and return it. It is `holdings.opening` from then on,
        whatever becomes of this adoption.
        """
        holdings = self._holdings
        await self._thread(self._follower.follow, [])
        opened: Opened = {
            **holdings.opening,
            **holdings.standby,
            **{held: owned.part for held, owned in holdings.owned.items() if held not in kept},
        }
        holdings.owned, holdings.standby, holdings.opening = kept, {}, opened
        for part in opened.values():
            part.serving = False
        await all_of(part.owner.close_writer() for part in opened.values())
        await asyncio.gather(*(self._thread(self._step_down, part) for part in opened.values()))
        return opened

    async def _match(self, opened: Opened, plan: AssignmentPlan, kept: Collection[Held]) -> None:
        """Close those of *opened* that are not in *plan*, and open those that are missing."""
        for held in [held for held in opened if held not in plan.active and held not in plan.standby]:
            # Taken out of view first: a closed store cannot be queried.
            await self._thread(opened.pop(held).close)
        wanted = sorted((plan.active | plan.standby) - set(kept) - set(opened))
        parts = await asyncio.gather(*(self._thread(self._opener.open_partition, held) for held in wanted))
        opened.update(zip(wanted, parts, strict=True))

    async def _take_over(self, fresh: list[Partition]) -> int:
        """Fence, restore and activate partitions; return how many changelog records that took."""
        settings = self._settings
        await all_of(
            part.owner.fence(settings.commit_timeout_s, by_common_id=not self._opener.is_folded_earlier(part))
            for part in fresh
        )
        records = await self._read(fresh)
        await self._thread(learn_sources, settings, fresh)
        notes = await self._group_notes(fresh)
        for part in fresh:
            require_whole_vector(part, notes)
        records += await recover(fresh, notes, self._read, self._thread, settings)
        records += await begin(fresh, self._read, settings.commit_timeout_s)
        await self._thread(read_choices, *self._reading(fresh))
        await self._thread(learn_handovers, settings, fresh)
        for part in fresh:
            part.owner.learn_recovery()
        await self._skipping.refresh()
        await asyncio.gather(*(self._thread(self._activate, part) for part in fresh))
        return records

    async def _group_notes(self, fresh: list[Partition]) -> Mapping[Place, CommitNote]:
        """Return the notes that the group has committed for the sources of *fresh*."""
        return await self._notes.read({place for part in fresh for place in part.places})

    async def _read(self, parts: list[Partition]) -> int:
        """Read the changelogs of *parts* to their ends; return how many records that took."""
        records: int = await self._thread(restore, *self._reading(parts))
        if self._interrupted.is_set():
            raise RestoreInterrupted
        return records

    def _reading(self, parts: list[Partition]) -> tuple[Any, ...]:
        settings = self._settings
        return parts, settings.consumer(), settings.app, self._interrupted, settings.stall_timeout_s

    def _put_in_service(self, plan: AssignmentPlan, fresh: list[Partition], opened: Opened) -> None:
        holdings = self._holdings
        for part in fresh:
            held = (part.processor.name, part.partition)
            holdings.owned[held] = Owned(part, self._opener.runner_of(part))
            del opened[held]
        for owned in holdings.owned.values():
            owned.generation, owned.part.serving = plan.generation, True
        holdings.standby, holdings.opening = {held: opened[held] for held in plan.standby}, {}
        for part in holdings.standby.values():
            part.serving = True

    def _report(self, kept: list[Held], fresh: list[Partition], records: int, restore_s: float) -> None:
        for part in fresh:
            counts = self._metrics.partition(part.processor.name, part.partition)
            counts.restored(records=part.replay.restored_records, seconds=restore_s)
        logger.info(
            "generation %(generation)d: kept %(kept)s, restored %(restored)s (%(records)d records "
            "in %(restore_s).2f s), standbys %(standbys)s",
            {
                "generation": self.generation,
                "kept": kept,
                "restored": [(part.processor.name, part.partition) for part in fresh],
                "records": records,
                "restore_s": restore_s,
                "standbys": sorted(self._holdings.standby),
            },
        )

    def _activate(self, part: Partition) -> None:
        part.activate()
        part.touch(self._clock.now_ms())

    def _step_down(self, part: Partition) -> None:
        part.touch(self._clock.now_ms())
        part.stand_by()
        part.mend()
