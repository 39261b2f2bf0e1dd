"""The global tables of a worker: one copy each, which follows its topic for as long as the worker lives."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from itertools import count
from threading import RLock
from typing import Any, Protocol

from confluent_kafka import KafkaException

from holdfast.agents.globals.feed import GlobalFeed, gather, partitions_of, stalled
from holdfast.agents.globals.waiting import Folding, ThreadPause
from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.engine.declared.global_tables import Global, globals_by_name
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.patience import Waiting
from holdfast.core.engine.fold.skips import OffsetRanges
from holdfast.core.engine.fold.stepping import Refused
from holdfast.core.engine.merge.global_copies import GlobalCopy, WorkerGlobals
from holdfast.core.engine.state.source_ids import SOURCE_IDS_FORMAT, SourceIds
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import BrokerError, GlobalsError, TopicError
from holdfast.kafka.fetching.source_fetcher import Fetched
from holdfast.tables.ends import ASK_TIMEOUT_S, EndsClient
from holdfast.tables.global_store import GlobalStore
from holdfast.tables.lived import Stopwatch
from holdfast.tables.state import Environment

logger = logging.getLogger(__name__)

FOLDER = "globals"
"""The folder of the copies in data_dir. The next worker removes it."""
ALL = ("global tables", -1)
"""The entry of readiness for a cause that holds up every copy."""
TOLD_PARTITIONS = 3
"""The most lagging partitions that one cause names."""
COUNT_EVERY_S = 30.0
"""The interval at which the partitions of the topics are counted: some may have been added."""


class Skipped(Protocol):
    """Knows what of a topic is skipped."""

    async def refresh(self) -> None: ...

    def ranges(self, topic: str, partition: int) -> OffsetRanges: ...


class GlobalsHost(Protocol):
    """The manager, as the copies use it."""

    settings: Settings
    processors: dict[str, Processor[Any, Any]]

    @property
    def stalled(self) -> dict[tuple[str, int], str]: ...

    @property
    def skipping(self) -> Skipped: ...

    @property
    def pool(self) -> Executor: ...

    def thread(self, call: Callable[..., Any], *args: Any) -> asyncio.Future[Any]: ...

    def progressed(self) -> None: ...

    def crash(self, error: BaseException) -> None: ...


class GlobalCopies:
    """The copies by name. `run` follows their topics."""

    def __init__(self, host: GlobalsHost) -> None:
        self._host = host
        self.reads: dict[str, Global[Any]] = globals_by_name(
            each for processor in host.processors.values() for each in processor.reads
        )
        self.copies: dict[str, GlobalCopy] = {}
        self.failures: dict[str, Counter[int]] = {name: Counter() for name in self.reads}
        """The number of records that each copy has refused, by partition of its topic."""
        self.moved = asyncio.Event()
        """Set, and replaced, when copies may have moved."""
        self._stores: dict[str, GlobalStore] = {}
        self._numbers = count()
        self._positions: dict[Place, int] = {}
        self._goals: dict[Place, int] = {}
        """The ends of the topics when the worker began to read them."""
        self._feed: GlobalFeed | None = None
        self._opened = asyncio.Event()
        self.environment: Environment | None = None
        self._ids = SourceIds(SOURCE_IDS_FORMAT, "", {})
        self.counts: dict[str, int] = {}
        """The number of partitions of each topic."""
        self.whole = not self.reads
        """True once each topic was read to its end. Until then no processor that reads a global folds."""
        self.waited_for: dict[str, Any] = {}
        """Positions that copies must reach before a partition continues, by the global's name."""
        self.why = ""
        self._applying: asyncio.Future[Any] | None = None
        self.foldings: set[Folding] = set()
        """The calls that fold a copy at this moment."""
        self._pause = ThreadPause(self._waits, lambda: host.progressed())
        self.closed = False

    async def open(self, environment: Environment, ids: Mapping[str, str]) -> None:
        """Make the copies, empty, of topics with these *ids*; call it before partitions are opened."""
        self._ids = SourceIds(SOURCE_IDS_FORMAT, environment.cluster_id, {**ids})
        if not self.reads or self.copies:
            return
        self.environment = environment
        self.counts = await self._host.thread(partitions_of, self._host.settings, sorted(self._topics))
        await self._host.thread(self._make)
        self._opened.set()

    def topic_ids(self, table: Global[Any]) -> dict[str, str]:
        """Return Kafka's id of the topic of *table* by its name, as of the worker's start, where it has
        one.
        """
        return self._ids.known([table.topic])

    @property
    def _topics(self) -> set[str]:
        return {each.topic for each in self.reads.values()}

    def _make(self) -> None:
        assert self.environment is not None, "open first"
        shutil.rmtree(self.environment.data_dir / FOLDER, ignore_errors=True)  # of a worker that was killed
        for name, table in self.reads.items():
            store = self._stores[name] = self.store(name)
            self.copies[name] = GlobalCopy(
                table, store, _Refusals(table, self.failures[name]), RLock(), self.patience()
            )

    def patience(self) -> Waiting:
        """Return how a copy waits for what its fold needs: on its thread, until the worker stops."""
        return Waiting(self._host.settings.later_timeout_s, system_clock.monotonic_s, self._pause)

    def _waits(self, why: str) -> None:
        self._host.stalled[ALL] = why

    def store(self, name: str) -> GlobalStore:
        """Return an empty store for a copy. Blocks."""
        assert self.environment is not None, "open first"
        # Numbered, so that a copy that is being removed and the next one of its name have different folders.
        folder = f"{name}.{next(self._numbers)}"
        return GlobalStore(self.environment.data_dir / FOLDER / folder, self.environment.budget)

    def views(self, processor: Processor[Any, Any]) -> WorkerGlobals | None:
        """Return the globals of a partition of *processor*; None where it reads none."""
        if not processor.reads:
            return None
        return WorkerGlobals([self.copies[each.name] for each in processor.reads])

    def feed(self) -> GlobalFeed:
        """Return a feed that reads the topics from the beginning."""
        host = self._host
        return GlobalFeed(host.settings, host.pool, host.skipping.ranges)

    def thread(self, call: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run a blocking call on a thread."""
        return self._host.thread(call, *args)

    def fold(self, name: str, call: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run on a thread what folds the table *name*, and is looked at whether it returns."""
        folding = Folding(name, call, *args)
        self.foldings.add(folding)
        work = self._host.thread(folding)
        work.add_done_callback(lambda _: self.foldings.discard(folding))
        return work

    @property
    def pauses(self) -> int:
        """Return how often folds have paused to wait for what they need."""
        return self._pause.ticks

    @property
    def stall_timeout_s(self) -> float:
        return self._host.settings.stall_timeout_s

    # -- how far the copies are

    def unready(self, table: Global[Any]) -> str | None:
        """Return why the copy of a global may not be read, None when it may: its topic was read to where it
        ended at the start.
        """
        if self.closed:
            return "the worker is stopping"
        if table.name not in self.copies or not (self.whole or self._goals):
            return f"global table {table.name} is not caught up: the end of {table.topic} is not known yet"
        if self.whole:
            return None
        behind = [
            f"partition {partition} was read up to {self._positions[topic, partition]} of {goal}"
            for (topic, partition), goal in sorted(self._goals.items())
            if topic == table.topic and self._positions[topic, partition] < goal
        ]
        if not behind:
            return None
        more = f" and {len(behind) - TOLD_PARTITIONS} more" if len(behind) > TOLD_PARTITIONS else ""
        return (
            f"global table {table.name} is not caught up: {', '.join(behind[:TOLD_PARTITIONS])}{more} of"
            f" {table.topic}"
        )

    def behind(self) -> list[str]:
        """Return of each global that is not caught up why it is not."""
        return [why for table in self.reads.values() if (why := self.unready(table)) is not None]

    def position(self, topic: str, partition: int) -> int:
        """Return the offset before which the copies have all records of a partition."""
        return self._positions.get((topic, partition), 0)

    def lags(self, topic: str) -> dict[int, int]:
        """Return how many offsets of each partition the copies have not read, as far as the broker has
        returned the ends.
        """
        ends = {} if self._feed is None else self._feed.ends()
        return {
            place[1]: max(0, end - self.position(*place))
            for place, end in sorted(ends.items())
            if place[0] == topic
        }

    def approximate_rows(self, name: str) -> int:
        store = None if self.closed else self._stores.get(name)
        return 0 if store is None else store.approximate_rows()

    # -- following

    async def run(self) -> None:
        """Follow the topics until cancelled; returns at once where no processor reads a global."""
        if not self.reads:
            return
        host = self._host
        await self._opened.wait()
        feed = self._feed = self.feed()
        try:
            await host.skipping.refresh()
            await self._follow(feed)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logger.exception("global tables cannot be followed any more")
            host.crash(error)
        finally:
            await feed.close()

    async def _follow(self, feed: GlobalFeed) -> None:
        await self._assign(feed)
        ends, idle, counted_s = await self._ends(), Stopwatch(), system_clock.monotonic_s()
        self._goals = ends
        while True:
            lots = await feed.fetch()
            for each in lots:
                await self._apply(each)
            if lots:
                self._host.progressed()
            idle.tick()
            if lots:
                idle.reset()
            for place in self._positions:
                self._positions[place] = max(self._positions[place], feed.reached(place))
            if not self.whole and all(self._positions[place] >= end for place, end in ends.items()):
                self.whole = True
            self._notify()
            self._look(feed, idle, ends)
            if system_clock.monotonic_s() - counted_s > COUNT_EVERY_S:
                counted_s = system_clock.monotonic_s()
                await self._recount(feed)

    def _notify(self) -> None:
        moved, self.moved = self.moved, asyncio.Event()
        moved.set()

    async def _assign(self, feed: GlobalFeed) -> None:
        for topic, partitions in self.counts.items():
            for partition in range(partitions):
                self._positions.setdefault((topic, partition), 0)
        await feed.assign(self._positions)

    async def _recount(self, feed: GlobalFeed) -> None:
        """Read partitions that were added. If no broker answers, the next round asks again."""
        try:
            counts = await self._host.thread(partitions_of, self._host.settings, sorted(self._topics))
        except (BrokerError, TopicError) as error:
            logger.info("partitions of global tables are not known: %(error)s", {"error": error})
            return
        if counts != self.counts:
            self.counts = counts
            await self._assign(feed)

    async def _apply(self, fetched: Fetched) -> None:
        for copy in self.copies.values():
            if copy.table.topic == fetched.topic and not self.closed:
                batch = fetched.records.batch(fetched.partition, copy.inputs)
                name = f"{copy.table.name}, partition {fetched.partition}"
                self._applying = self.fold(name, copy.apply, fetched.partition, batch)
                # The caller that waits for it may be gone when it ends.
                self._applying.add_done_callback(lambda done: done.cancelled() or done.exception())
                await asyncio.shield(self._applying)

    async def _ends(self) -> dict[Place, int]:
        """Return the ends of the topics; raises GlobalsError when brokers do not return them within the stall
        deadline.
        """
        client, ends = EndsClient(self._host.settings.consumer(), committed=True), dict[Place, int]()
        idle = Stopwatch()
        while missing := [place for place in self._positions if place not in ends]:
            try:
                ends |= await gather(client.begin(missing), ASK_TIMEOUT_S)
            except KafkaException as error:
                logger.info("ends of global tables cannot be asked for: %(error)s", {"error": error})
            idle.tick()
            if idle.s > self._host.settings.stall_timeout_s:
                raise GlobalsError(
                    f"no broker told the ends of {missing} for {idle.s:.0f} s: check the broker"
                )
            if len(ends) < len(self._positions):
                await asyncio.sleep(0.2)
        return ends

    def _look(self, feed: GlobalFeed, idle: Stopwatch, ends: Mapping[Place, int]) -> None:
        """Report what holds partitions up; raises GlobalsError when that has lasted for the stall
        deadline.
        """
        self._tell(feed.unreadable())
        if self.whole and not self.waited_for:
            idle.reset()
            return
        if idle.s <= self.stall_timeout_s:
            return
        if self.why:
            raise GlobalsError(f"global tables stand still: {self.why}")
        if self.waited_for:
            name, wanted = next(iter(self.waited_for.items()))
            raise stalled(name, idle.s, self.copies[name].vector, wanted)
        raise GlobalsError(
            f"global tables were read up to {self._positions} of {dict(ends)}, and nothing came for"
            f" {idle.s:.0f} s: check the broker"
        )

    def _tell(self, unreadable: str | None) -> None:
        """Report an unreadable batch in readiness: folds would continue without the records after it."""
        self.why = unreadable or ""
        if unreadable is None:
            self._host.stalled.pop(ALL, None)
        else:
            self._host.stalled[ALL] = f"global tables are stalled: {unreadable}"

    async def close(self) -> None:
        """Remove the copies, after all folds have ended."""
        self.closed = True
        self._pause.stopped.set()
        self._notify()
        if self._applying is not None and not self._applying.done():
            await asyncio.wait([self._applying])
        stores, self._stores = self._stores, {}
        for store in stores.values():
            await self._host.thread(store.destroy)


class _Refusals:
    """Logs and counts records that a copy refuses. They are not quarantined: each worker would send its own
    copy of them.
    """

    def __init__(self, table: Global[Any], failures: Counter[int]) -> None:
        self._table, self._failures = table, failures

    def __call__(self, partition: int, refused: Refused) -> None:
        self._failures[partition] += 1
        logger.warning(
            "record of global %(table)s changes nothing: %(topic)s/%(partition)d/%(offset)d at %(stage)s:"
            " %(error)s: %(reason)s",
            {
                "table": self._table.name,
                "topic": self._table.topic,
                "partition": partition,
                "offset": refused.offset,
                "stage": refused.stage,
                "error": refused.error,
                "reason": refused.reason[:200],
            },
        )
