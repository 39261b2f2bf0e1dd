"""What this worker owns: adopts partitions when Faust assigns them, gives them up when it revokes them,
and serves their state.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.agents.cluster import Survey, survey
from holdfast.agents.metrics import Metrics
from holdfast.agents.partitions.announcer import Announcer
from holdfast.agents.partitions.flow import FlowControl
from holdfast.agents.partitions.global_tables import GlobalCopies
from holdfast.agents.partitions.holdings import Holdings
from holdfast.agents.partitions.losses import Losses
from holdfast.agents.partitions.membership import Membership
from holdfast.agents.partitions.readiness import Readiness
from holdfast.agents.partitions.runner import Owned, Runner
from holdfast.agents.partitions.skipping import Skipping
from holdfast.agents.partitions.source_ends import SourceEnds
from holdfast.agents.partitions.trimming import Trimming
from holdfast.agents.partitions.types import NOT_IN_GROUP, AssignmentPlan, GroupClient, Held
from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.engine.processor import Processor
from holdfast.core.outbox.pacing import AdaptiveLinger
from holdfast.errors import FencedError
from holdfast.kafka.connections import connector
from holdfast.kafka.feed import Feed, Fetched
from holdfast.tables.partition import Partition
from holdfast.tables.recorded import read_choices
from holdfast.tables.restore import RestoreInterrupted, StandbyFollower, restore

logger = logging.getLogger(__name__)

THREADS = 64


class PartitionManager:
    """Owns partitions, their runners, the feed and the standbys' follower. Lives on the event loop; blocking
    work goes to threads.

    `epoch` counts revocations: whatever was fetched before one is void, since the position it came from may
    no longer be ours.
    """

    def __init__(
        self,
        settings: Settings,
        processors: Mapping[str, Processor[Any, Any]],
        metrics: Metrics,
        group: GroupClient,
    ) -> None:
        self._group, self.settings, self.processors, self.metrics = group, settings, dict(processors), metrics
        self._cluster: Survey | None = None
        self.trickle = AdaptiveLinger(settings.linger_ms / 1000)
        self.commit_timeout_s = settings.commit_timeout_s
        self.transaction_bytes = settings.inflight_bytes
        self.app = settings.app
        self.quarantine_topic, self.quarantine_limit = settings.quarantine_topic, settings.quarantine_limit
        self.url = settings.advertised_url
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast")
        self.holdings = Holdings(self.processors)
        self.epoch, self.generation, self.open = 0, NOT_IN_GROUP, False
        self._interrupted = threading.Event()
        self._adopting: asyncio.Task[None] | None = None
        self._follower = StandbyFollower(settings.consumer(), settings.app)
        self.announcer = Announcer(settings, self.thread)
        self._crashed = False
        self._watches: set[asyncio.Task[None]] = set()
        self.long_folds = asyncio.Lock()
        """Held by the partition that has a long turn; who waits for it has the next, in order."""
        self.flow = FlowControl(
            settings.inflight_bytes,
            (topic for processor in self.processors.values() for topic in processor.topics),
        )
        self.sources = {topic for processor in self.processors.values() for topic in processor.topics}
        self.feed = Feed(
            connector(settings, timeout_s=settings.request_timeout_s),
            self._pool,
            fetch_records=settings.fetch_records,
            fetch_bytes=settings.fetch_bytes,
            queue_bytes=2 * settings.fetch_bytes,
            unpacked_batch_bytes=settings.unpacked_batch_bytes,
            timeout_s=settings.request_timeout_s,
        )
        self.skipping = Skipping(self)
        self.source_ends = SourceEnds(self)
        self.globals = GlobalCopies(self)
        self.trimming = Trimming(self)
        metrics.unreadable = lambda: list(self.feed.standing)
        self.membership = Membership(
            session_s=settings.session_timeout_s, rebalance_s=settings.rebalance_timeout_s
        )
        self.readiness = Readiness(self.membership, self.feed, self.skipping.why)
        self.held = self.readiness.held
        self.losses = Losses(self, group, session_s=settings.session_timeout_s)

    async def start(self) -> None:
        """Read what the cluster says of this application's topics; raises TopicError when state on them
        would be wrong.
        """
        self._cluster = await self.thread(survey, self.settings, list(self.processors.values()))
        await self.globals.open(self.cluster.environment)

    @property
    def cluster(self) -> Survey:
        assert self._cluster is not None, "start first"
        return self._cluster

    @property
    def pool(self) -> ThreadPoolExecutor:
        """Return the threads that blocking work goes to."""
        return self._pool

    def thread(self, call: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return self._loop.run_in_executor(self._pool, call, *args)

    def crash(self, error: BaseException) -> None:
        """End the worker: something is wrong that only a restart (and perhaps a person) can cure."""
        if self._crashed:
            return  # what fails because of the first failure is not worth another
        self._crashed = True
        self.readiness.why = f"stopping: {error}"
        self.open = False
        self.watch(self._group.leave(error))

    def crash_soon(self, error: BaseException) -> None:
        """End the worker, from any thread."""
        self._loop.call_soon_threadsafe(self.crash, error)

    def watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work* beside all else, until the end."""
        task = asyncio.ensure_future(work)
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    # -- ownership

    def revoke(self) -> None:
        """Void what was fetched and not yet begun.

        Called first of all when a rebalance starts, and on a stop; must not wait.
        """
        self.open = False
        self.epoch += 1
        self.flow.void()
        for owned in self.holdings.owned.values():
            owned.runner.revoked()
        self._interrupted.set()
        self.readiness.why = "rebalancing"
        self.metrics.rebalances += 1

    async def adopt(self, plan: AssignmentPlan) -> None:
        """Make what this worker holds match *plan*; returns when every active partition is fenced,
        restored and ready to fold.
        """
        if self._adopting is not None:  # its threads must end before the same stores are opened again
            await asyncio.wait([self._adopting])
        if plan.epoch != self.epoch:
            raise RestoreInterrupted
        self._interrupted.clear()
        self._adopting = asyncio.ensure_future(self._adopt(plan))
        # Whoever waits for it may be gone by the time it is interrupted.
        self._adopting.add_done_callback(lambda adopting: adopting.cancelled() or adopting.exception())
        await asyncio.shield(self._adopting)

    @property
    def adopting(self) -> bool:
        return self._adopting is not None and not self._adopting.done()

    async def settled(self) -> None:
        """Wait until an adoption that was interrupted has ended. A member must not join the next generation
        before that.

        A fence still under way belongs to the generation that is over. Arriving at the broker after the fence
        of the partition's next owner, it would shut that owner out.
        """
        if self._adopting is not None and not self._adopting.done():
            await asyncio.wait([self._adopting], timeout=self.commit_timeout_s)

    async def _adopt(self, plan: AssignmentPlan) -> None:
        started_s, self.readiness.why = system_clock.monotonic_s(), "restoring"
        holdings = self.holdings
        for held, owned in holdings.owned.items():
            owned.part.serving = held in plan.active and owned.part.serving
        self.membership.adopt(plan.term)  # what is not in the plan does not answer any more
        await self._quiet()
        kept = self._kept(plan)
        kept_names = sorted(kept)
        await self.thread(self._follower.follow, [])
        pool: dict[Held, Partition] = {
            **holdings.opening,
            **holdings.standby,
            **{k: v.part for k, v in holdings.owned.items() if k not in kept},
        }
        holdings.owned, holdings.standby, holdings.opening = kept, {}, pool
        for part in pool.values():
            part.serving = False
        await _all(part.close_writer() for part in pool.values())
        await asyncio.gather(*(self.thread(self._step_down, part) for part in pool.values()))
        for held in [held for held in pool if held not in plan.active and held not in plan.standby]:
            await self.thread(
                pool.pop(held).close
            )  # gone from view first: a closed store cannot be asked anything
        wanted = sorted((plan.active | plan.standby) - set(kept) - set(pool))
        for held, part in zip(
            wanted, await asyncio.gather(*(self.thread(self._open, held) for held in wanted)), strict=True
        ):
            pool[held] = part
        fresh = [pool[held] for held in sorted(plan.active - set(kept))]
        await _all(part.fence(self.commit_timeout_s) for part in fresh)
        settings = self.settings
        records = await self.thread(
            restore, fresh, settings.consumer(), settings.app, self._interrupted, settings.stall_timeout_s
        )
        if self._interrupted.is_set():
            raise RestoreInterrupted
        await self.thread(
            read_choices,
            fresh,
            settings.consumer(),
            settings.app,
            self._interrupted,
            settings.stall_timeout_s,
        )
        await self.skipping.refresh()
        await asyncio.gather(*(self.thread(self._activate, part) for part in fresh))
        for part in fresh:
            held = (part.processor.name, part.partition)
            holdings.owned[held] = Owned(part, Runner(self, part))
            del pool[held]
        for owned in holdings.owned.values():
            owned.generation, owned.part.serving = plan.generation, True
        holdings.standby, holdings.opening = {held: pool[held] for held in plan.standby}, {}
        for part in holdings.standby.values():
            part.serving = True
        await self.thread(self._follower.follow, list(holdings.standby.values()))
        self.generation = plan.generation
        for part in fresh:
            counts = self.metrics.partition(part.processor.name, part.partition)
            counts.restored(records=part.restored_records, seconds=system_clock.monotonic_s() - started_s)
        logger.info(
            "generation %(generation)d: kept %(kept)s, restored %(restored)s (%(records)d records "
            "in %(restore_s).2f s), standing by for %(standbys)s",
            {
                "generation": plan.generation,
                "kept": kept_names,
                "restored": [(part.processor.name, part.partition) for part in fresh],
                "records": records,
                "restore_s": system_clock.monotonic_s() - started_s,
                "standbys": sorted(holdings.standby),
            },
        )

    async def _quiet(self) -> None:
        """Wait until no transaction is open; each ends by itself within the commit's deadline."""
        jobs = [owned.runner.job for owned in self.holdings.owned.values() if owned.runner.job is not None]
        if jobs:
            await asyncio.wait(jobs)

    def _kept(self, plan: AssignmentPlan) -> dict[Held, Owned]:
        """Return what stays open as it is: owned in the generation just before this one, and nothing
        unsettled.

        A generation that jumped by more means this worker was out of the group for a while; another may have
        written since, so it fences and restores again, though it may find the same partitions in its hands.
        """
        return {
            held: owned
            for held, owned in self.holdings.owned.items()
            if held in plan.active
            and owned.generation in (plan.generation - 1, plan.generation)
            and owned.part.fenced_in
        }

    def _open(self, held: Held) -> Partition:
        name, number = held
        part = Partition(
            self.processors[name], number, self.cluster.environment, self._applied, self.membership.owns
        )
        expired_ms = system_clock.now_ms() - self.cluster.environment.tombstones_kept_ms
        part.on_rotten = self._rotten
        part.views = self.globals.views(part.processor)
        if part.changelog_next and part.touched_ms < expired_ms and part.stream_ms < expired_ms:
            part.rebuild(
                "it was away for longer than the changelog keeps tombstones: deletions may have been missed"
            )
        return part

    def _activate(self, part: Partition) -> None:
        part.activate()
        part.touch(system_clock.now_ms())

    def _step_down(self, part: Partition) -> None:
        part.touch(system_clock.now_ms())
        part.stand_by()
        part.mend()

    def _applied(self, part: Partition) -> None:
        self._loop.call_soon_threadsafe(part.wake_readers)

    def opened(self) -> None:
        """Let records flow: state and positions agree."""
        self.open = True

    def lost(self, part: Partition, epoch: int, error: FencedError) -> None:
        """Stop answering for *part*, whose write the broker refused."""
        self.losses.fenced(part, epoch, error)

    def _rotten(self, part: Partition, cause: str) -> None:
        self._loop.call_soon_threadsafe(self.losses.rotten, part, cause)

    # -- records

    def owns(self, part: Partition, epoch: int) -> bool:
        return epoch == self.epoch and part.fenced_in

    def progressed(self) -> None:
        """Note that a transaction was committed: a fetch that takes many is not stuck."""
        self.flow.progressed()

    def hand(self, processor: str, event: Any) -> None:
        """Give one fetched event to its partition's runner. Never waits: an agent is only the way in."""
        fetched: Fetched = event.value
        owned = self.holdings.owned.get((processor, fetched.partition))
        if owned is None or not self.owns(owned.part, fetched.epoch):
            self.void(event)
        else:
            owned.runner.hand(event)

    def void(self, event: Any, *, counted: bool = True) -> None:
        """Drop an event that is not ours any more: neither folded nor acked, and nothing waits for it."""
        self._group.discard(event.message)
        self._released(event.value, counted=counted)

    def done(self, event: Any, *, counted: bool = True) -> None:
        """Ack an event whose records are durable."""
        self._released(event.value, counted=counted)
        event.ack()

    def _released(self, fetched: Fetched, *, counted: bool) -> None:
        self.flow.released(fetched, current=counted and fetched.epoch == self.epoch)

    def park(self, event: Any) -> None:
        """Count an event no more that waits for another source of its table."""
        if event.value.epoch == self.epoch:
            self.flow.parked(event.value)

    def ask_ends(self) -> None:
        """Note that an intake waits for ends of sources."""
        self.source_ends.wanted.set()

    @property
    def share_bytes(self) -> int:
        """Return how much of each source may wait for another source of its table: all together as much as may
        be in hand.
        """
        return self.settings.inflight_bytes // max(
            1, sum(len(each.part.places) for each in self.holdings.merged())
        )

    # -- serving (holdfast.agents.serving.Serving)

    def tables(self) -> Mapping[str, Processor[Any, Any]]:
        return self.processors

    def lookup(self, table: str, partition: int) -> Partition | None:
        return self.holdings.lookup(table, partition)

    def partitions(self, table: str) -> int:
        return 0 if self._cluster is None else self._cluster.partitions[table]

    @property
    def standby_failure(self) -> Exception | None:
        return self._follower.failure

    def owner(self, table: str, partition: int) -> str | None:
        return (
            self.url if (table, partition) in self.holdings.owned else self._group.who_owns(table, partition)
        )

    def unready(self) -> str | None:
        return self.readiness.unready(
            folding=self.open, lost=self.holdings.unserved(), standby_failure=self.standby_failure
        )

    def touch(self) -> None:
        """Note in the stores that they are current, so that one left by a SIGKILL months from now is not
        taken for older than it is.
        """
        for part in self.holdings.served():
            self.thread(part.touch, system_clock.now_ms())

    def note_ends(self) -> None:
        """Note how far the source logs reach, for lag."""
        ends = self.feed.ends()
        for owned in self.holdings.owned.values():
            owned.part.note_source_ends(ends, system_clock.now_ms())

    # -- announcing

    async def announce(self) -> None:
        """Tell the workers topic what this worker holds now."""
        await self.announcer.announce(self.generation, self.holdings.announced(self.cluster.partitions))

    # -- the end

    async def close(self) -> None:
        """Close everything, whatever state it is in. Other workers may own these partitions from here on."""
        self.revoke()
        self.readiness.why = "stopped"
        if self._adopting is not None and not self._adopting.done():
            await asyncio.wait([self._adopting], timeout=self.commit_timeout_s)
        await self._quiet()
        await self.feed.close()
        await self.thread(self._follower.close)
        parts = self.holdings.give_up()
        await _all(part.close_writer() for part in parts)
        for part in parts:
            await self.thread(self._step_down, part)
            await self.thread(part.close)
        await self.globals.close()
        await self.announcer.withdraw()
        for task in self._watches:
            task.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)


async def _all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run *works* beside each other until the last has ended; raises the first failure only then: none
    goes on unseen.
    """
    failures = [found for found in await asyncio.gather(*works, return_exceptions=True) if found is not None]
    if failures:
        raise failures[0]
