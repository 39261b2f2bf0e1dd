"""Manages this worker's partitions: adopts them when Faust assigns them, gives them up when it revokes them,
and serves their state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.agents.cluster import Survey, survey
from holdfast.agents.globals.copies import GlobalCopies
from holdfast.agents.globals.intake import GlobalIntake
from holdfast.agents.globals.served import ServedGlobal
from holdfast.agents.metrics import Metrics
from holdfast.agents.partitions.batches.flow import FlowControl
from holdfast.agents.partitions.batches.intake import Intake, LogIntake
from holdfast.agents.partitions.batches.merging_intake import MergingIntake
from holdfast.agents.partitions.batches.runner import Runner
from holdfast.agents.partitions.gate import FoldGate
from holdfast.agents.partitions.held.announcer import Announcer
from holdfast.agents.partitions.held.committing import CommitNotes
from holdfast.agents.partitions.held.holdings import Holdings
from holdfast.agents.partitions.membership import Membership
from holdfast.agents.partitions.ownership.adoption import Adoption
from holdfast.agents.partitions.ownership.losses import Losses
from holdfast.agents.partitions.ownership.upgrading import Upgrading
from holdfast.agents.partitions.readiness import Readiness
from holdfast.agents.partitions.types import FoldEvent, FoldLimits, GroupClient, Held
from holdfast.agents.partitions.upkeep.idle_origins import IdleOrigins
from holdfast.agents.partitions.upkeep.skipping import Skipping
from holdfast.agents.partitions.upkeep.source_ends import SourceEnds
from holdfast.agents.partitions.upkeep.topic_watch import TopicWatch
from holdfast.agents.partitions.upkeep.trimming import Trimming
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.linger import AdaptiveLinger
from holdfast.core.engine.upgrades import in_version
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import FencedError
from holdfast.kafka.fetching.source_fetcher import Fetched, SourceFetcher
from holdfast.kafka.requests.connections import connector
from holdfast.tables.partition import Partition

logger = logging.getLogger(__name__)

THREADS = 64


class PartitionManager:
    """Composes the parts of a worker that own partitions, and is the host of their runners. Lives on the
    event loop; blocking work goes to threads.
    """

    def __init__(
        self,
        settings: Settings,
        processors: Mapping[str, Processor[Any, Any]],
        metrics: Metrics,
        group: GroupClient,
        *,
        clock: Clock = system_clock,
    ) -> None:
        self._group, self.settings, self.processors, self.metrics = group, settings, dict(processors), metrics
        self._clock = clock
        self._cluster: Survey | None = None
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast")
        self._crashed = False
        self._told_misplaced = set[str]()
        self._announced_partial: frozenset[Held] | None = None
        self._watches: set[asyncio.Task[None]] = set()
        self._make_flow()
        self._make_ownership()
        self._make_services()

    def _make_flow(self) -> None:
        """Make the parts that a record passes, from the feed to a transaction."""
        settings = self.settings
        topics = [topic for processor in self.processors.values() for topic in processor.topics]
        self.sources = set(topics)
        self.gate = FoldGate()
        self.linger = AdaptiveLinger(settings.linger_ms / 1000)
        self.flow = FlowControl(settings.inflight_bytes, topics, clock=self._clock)
        self.long_folds = asyncio.Lock()
        """Held by the partition that has a long turn; those that wait for it have the next, in order."""
        self.feed = SourceFetcher(
            connector(settings, timeout_s=settings.request_timeout_s),
            self._pool,
            fetch_records=settings.fetch_records,
            fetch_bytes=settings.fetch_bytes,
            queue_bytes=2 * settings.fetch_bytes,
            unpacked_batch_bytes=settings.unpacked_batch_bytes,
            timeout_s=settings.request_timeout_s,
        )
        self._limits = FoldLimits(
            transaction_bytes=settings.inflight_bytes,
            commit_timeout_s=settings.commit_timeout_s,
            later_timeout_s=settings.later_timeout_s,
            quarantine_topic=settings.quarantine_topic,
            quarantine_limit=settings.quarantine_limit,
        )

    def _make_ownership(self) -> None:
        """Make the parts that take up, own and give up partitions."""
        settings, clock = self.settings, self._clock
        self.holdings = Holdings(self.processors)
        self.announcer = Announcer(settings, self.thread, clock=clock)
        self.commit_notes = CommitNotes(self._group, self.holdings)
        self.membership = Membership(
            session_s=settings.session_timeout_s, rebalance_s=settings.rebalance_timeout_s, clock=clock
        )
        self.skipping = Skipping(
            settings,
            self.thread,
            self.announcer.producer,
            gate=self.gate,
            feed=self.feed,
            holdings=self.holdings,
            metrics=self.metrics,
            clock=clock,
        )
        self.readiness = Readiness(self.membership, self.feed, self.skipping.why)
        self.stalled = self.readiness.stalled
        self.adoption = Adoption(
            settings,
            self,
            self.thread,
            gate=self.gate,
            holdings=self.holdings,
            membership=self.membership,
            readiness=self.readiness,
            skipping=self.skipping,
            notes=self.commit_notes,
            metrics=self.metrics,
            clock=clock,
        )
        self.losses = Losses(
            self._group,
            self,
            session_s=settings.session_timeout_s,
            gate=self.gate,
            holdings=self.holdings,
            membership=self.membership,
            readiness=self.readiness,
            metrics=self.metrics,
            clock=clock,
        )

    def _make_services(self) -> None:
        """Make the services that run in the background (agents/faust/process/watch.py)."""
        settings, gate, holdings = self.settings, self.gate, self.holdings
        self.source_ends = SourceEnds(settings, self.processors, gate=gate, holdings=holdings)
        self.idle_origins = IdleOrigins(
            settings, self.processors, gate=gate, holdings=holdings, feed=self.feed, clock=self._clock
        )
        self.globals = GlobalCopies(self)
        self.served_globals = {
            name: ServedGlobal(table, self.globals) for name, table in self.globals.reads.items()
        }
        self.trimming = Trimming(settings, self.processors, self.thread, gate=gate, holdings=holdings)
        self.topics = TopicWatch(settings, self.processors, self.thread, self, holdings)
        self.upgrading = Upgrading(
            settings,
            self.processors,
            self.thread,
            gate=gate,
            holdings=holdings,
            announcer=self.announcer,
            announce=self.announce,
            open_earlier=self._open_earlier,
            ends=self.feed.ends,
            is_folded=self._is_folded,
            clock=self._clock,
        )

    async def start(self) -> None:
        """Read the metadata of this application's topics; raises TopicError when state based on them would be
        wrong.
        """
        self._cluster = await self.thread(survey, self.settings, list(self.processors.values()))
        await self.upgrading.open(self.cluster.versions)
        await self.globals.open(self.cluster.environment, self.cluster.topics.topics)

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
        """End the worker, because of an error that only a restart (and perhaps a person) can cure."""
        if self._crashed:
            return  # a consequence of the first failure is not worth another report
        self._crashed = True
        self.readiness.why = f"stopping: {error}"
        self.gate.closed()
        self.watch(self._group.leave(error))

    def crash_soon(self, error: BaseException) -> None:
        """End the worker, from any thread."""
        self._loop.call_soon_threadsafe(self.crash, error)

    def watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work* in the background, until the manager closes."""
        task = asyncio.ensure_future(work)
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    # -- ownership

    @property
    def open(self) -> bool:
        return self.gate.open

    @property
    def epoch(self) -> int:
        return self.gate.epoch

    def revoke(self) -> None:
        """Void the fetched records whose fold has not begun.

        Called first of all when a rebalance starts, and on a stop; must not wait.
        """
        self.gate.revoked()
        self.flow.void()
        for owned in self.holdings.owned.values():
            owned.runner.revoked()
        self.adoption.interrupt()
        self.upgrading.interrupt()
        self.readiness.why = "rebalancing"
        self.metrics.rebalances += 1

    def open_partition(self, held: Held) -> Partition:
        """Open the store of a partition. Blocks."""
        name, number = held
        environment = self.cluster.environment
        part = Partition(self.processors[name], number, environment, self._applied, self.membership.owns)
        part.on_rotten = self._rotten
        part.owner.views = self.globals.views(part.processor)
        part.head_of = self.feed.head
        return self._not_expired(part)

    def _open_earlier(self, held: Held, version: int) -> Partition:
        """Open the store of a partition in an earlier version. Blocks."""
        name, number = held
        processor, environment = in_version(self.processors[name], version), self.cluster.environment
        part = Partition(processor, number, environment, self._applied, self.membership.owns, earlier=True)
        return self._not_expired(part)

    def _is_folded(self, held: Held, version: int) -> bool:
        """Return whether a worker of the group folds a partition in an earlier version."""
        name, number = held
        changelog = in_version(self.processors[name], version).changelog(self.settings.app)
        return self._group.who_folds(changelog, number) is not None

    def is_folded_earlier(self, part: Partition) -> bool:
        """Return whether a worker of the group folds *part* in an earlier version."""
        held, own = (part.processor.name, part.partition), part.processor.version
        return any(
            self._is_folded(held, version) for version in self.cluster.versions[held[0]] if version < own
        )

    def _not_expired(self, part: Partition) -> Partition:
        environment = self.cluster.environment
        expired_ms = self._clock.now_ms() - environment.tombstones_kept_ms
        if part.changelog_next and part.touched_ms < expired_ms and part.stream_ms < expired_ms:
            part.rebuild(
                "it was away for longer than the changelog keeps tombstones: deletions may have been missed"
            )
        return part

    def runner_of(self, part: Partition) -> Runner:
        """Return a new runner of a partition that was restored."""
        limits, clock = self._limits, self._clock
        intake: Intake = (
            MergingIntake(self, part, self._seen(part), clock=clock)
            if part.choices_topics
            else LogIntake(self, part, limits.transaction_bytes, clock=clock)
        )
        return Runner(self, part, intake, limits, clock=clock)

    def _seen(self, part: Partition) -> GlobalIntake | None:
        return GlobalIntake(self, part, self.globals) if part.processor.reads else None

    def _applied(self, part: Partition) -> None:
        self._loop.call_soon_threadsafe(part.waiters.wake)

    def lost(self, part: Partition, epoch: int, error: FencedError) -> None:
        """Stop answering for *part*, whose write the broker refused."""
        self.losses.fenced(part, epoch, error)

    async def may_refuse(self, topic: str, partition: int, offset: int) -> bool:
        """Return whether an operator allows refusing a record that would otherwise stall the partition."""
        return await self.skipping.may_refuse(topic, partition, offset)

    def _rotten(self, part: Partition, cause: str) -> None:
        self._loop.call_soon_threadsafe(self.losses.rotten, part, cause)

    # -- records

    def owns(self, part: Partition, epoch: int) -> bool:
        return epoch == self.gate.epoch and part.owner.fenced_in

    def progressed(self) -> None:
        """Report progress: a fetch whose records need many transactions is not stuck."""
        self.flow.progressed()

    def hand(self, processor: str, event: FoldEvent) -> None:
        """Pass one fetched event to its partition's runner, without waiting: an agent is only the way in."""
        fetched = event.value
        owned = self.holdings.owned.get((processor, fetched.partition))
        if owned is None or not self.owns(owned.part, fetched.epoch):
            self.void(event)
        else:
            owned.runner.enqueue(event)

    def void(self, event: FoldEvent, *, counted: bool = True) -> None:
        """Drop an event that this worker no longer owns: it is neither folded nor acked, and nothing waits
        for it.
        """
        self._group.discard(event.message)
        self._released(event.value, counted=counted)

    def done(self, event: FoldEvent, *, counted: bool = True) -> None:
        """Ack an event whose records are durable."""
        self._released(event.value, counted=counted)
        event.ack()

    def _released(self, fetched: Fetched, *, counted: bool) -> None:
        self.flow.released(fetched, current=counted and fetched.epoch == self.gate.epoch)

    def park(self, event: FoldEvent) -> None:
        """Stop counting an event that waits for another source of its table, or for data that its fold
        needs.
        """
        if event.value.epoch == self.gate.epoch:
            self.flow.parked(event.value)

    def ask_ends(self) -> None:
        """Have the ends of sources looked up: an intake waits for them."""
        self.source_ends.wanted.set()

    @property
    def share_bytes(self) -> int:
        """Return how many bytes of each source may wait for another source of its table. Together they are at
        most the bytes that may be in hand.
        """
        return self.settings.inflight_bytes // max(
            1, sum(len(each.part.places) for each in self.holdings.ordered())
        )

    # -- serving (holdfast.agents.serving.Serving)

    def tables(self) -> Mapping[str, Processor[Any, Any]]:
        return self.processors

    def global_tables(self) -> Mapping[str, ServedGlobal]:
        return self.served_globals

    def lookup(self, table: str, partition: int) -> Partition | None:
        return self.holdings.lookup(table, partition)

    def earlier(self, table: str, partition: int) -> Partition | None:
        return self.upgrading.earlier(table, partition)

    def earlier_version(self, table: str) -> int | None:
        return self.upgrading.earlier_version(table)

    def building(self, table: str, partition: int) -> str | None:
        return self.upgrading.building(table, partition)

    def waiting(self, table: str, partition: int) -> bool:
        return self.upgrading.waiting(table, partition)

    def partitions(self, table: str) -> int:
        return 0 if self._cluster is None else self._cluster.partitions[table]

    @property
    def standby_failure(self) -> Exception | None:
        return self.adoption.standby_failure

    def owner(self, table: str, partition: int) -> str | None:
        return (
            self.settings.advertised_url
            if (table, partition) in self.holdings.owned
            else self._group.who_owns(table, partition)
        )

    def unreadable(self) -> Collection[Place]:
        return self.feed.standing.keys()

    def unready(self) -> str | None:
        return self.readiness.unready(
            folding=self.gate.open,
            lost=self.holdings.unserved(),
            standby_failure=self.standby_failure,
            behind=self.globals.behind(),
            building=self.upgrading.causes(),
            awaited=self.awaited(),
        )

    def awaited(self) -> Sequence[str]:
        """Return the topics that this worker reads and that did not exist when the group assigned partitions;
        empty during a rebalance.
        """
        return self._group.awaited() if self.gate.open else ()

    def touch(self) -> None:
        """Mark the stores as current, so that one left by a SIGKILL is not taken, months later, for older
        than it is.
        """
        for part in self.holdings.served():
            self.thread(part.touch, self._clock.now_ms())

    def note_ends(self) -> None:
        """Record the ends of the source logs, for lag."""
        ends = self.feed.ends()
        for owned in self.holdings.owned.values():
            owned.part.note_source_ends(ends, self._clock.now_ms())
        for table, (wrong, of) in self.metrics.misplaced().items():
            if table not in self._told_misplaced:
                self._told_misplaced.add(table)
                logger.warning(
                    "%(wrong)d of the first %(of)d row keys of %(table)s that were looked at are in"
                    " partitions where its route does not look for them: queries by key do not find these"
                    " rows. Have producers partition records as the route does (by_key: murmur2, librdkafka's"
                    " partitioner=murmur2_random), or declare the route that they use, or none, and all"
                    " partitions are asked",
                    {"wrong": wrong, "of": of, "table": table},
                )
        if self._announced_partial not in (None, self._partial()):
            self.watch(self.announce())

    # -- announcing

    async def announce(self) -> None:
        """Announce on the workers topic the partitions that this worker holds now."""
        self._announced_partial = self._partial()
        held = self.holdings.announced(self.cluster.partitions)
        tables = {name: {**told, **self.upgrading.announced(name)} for name, told in held.items()}
        await self.announcer.announce(self.adoption.generation, tables)

    def _partial(self) -> frozenset[Held]:
        return frozenset((part.processor.name, part.partition) for part in self.holdings.partial())

    # -- the end

    async def close(self) -> None:
        """Close everything, whatever state it is in. Other workers may own these partitions from here on."""
        self.revoke()
        self.readiness.why = "stopped"
        await self.adoption.settled()
        await self.adoption.quiet()
        await self.feed.close()
        await self.upgrading.close()
        await self.adoption.close()
        await self.globals.close()
        await self.announcer.withdraw()
        for task in self._watches:
            task.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
