"""Harvesting inside workers: with `outbox_harvest` every worker takes part in the outbox's election and leads
what it is given.

The harvester is the same as `holdfast outbox harvest` runs alone, and both may serve one outbox. Commands
(pause, resume, flush, status) reach it through an agent of the application. Were the agent's channel
the commands topic itself, the group would give each command to one worker only, and a shard may be led in
any. So the channel is a broadcast: every worker follows the whole topic (holdfast.outbox.command_log) and
feeds the agent of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass
from typing import Any

import faust
from faust.channels import Channel
from mode import Service
from mode.utils.queues import FlowControlEvent, ThrowableQueue
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.clock import Clock, system_clock
from holdfast.outbox.commands import Command
from holdfast.outbox.harvest.harvester import STOP_S, Harvester, ShardStats
from holdfast.outbox.harvest.shard import LATENCY_BOUNDS_S
from holdfast.outbox.settings import HarvestSettings

logger = logging.getLogger(__name__)

WATCH_S = 0.5
AGENT = "holdfast.outbox"
LIMIT_WAITING = 16


@dataclass(frozen=True, slots=True)
class PendingCommand:
    """A command on its way to the agent, and the future of its sender."""

    command: Command
    done: Future[None]

    def undone(self, error: BaseException) -> None:
        """Let nobody wait for it any more: with *error*, or without where it was only cut short by the
        worker's stop.
        """
        if isinstance(error, Exception):
            self.done.set_exception(error)
        else:
            self.done.cancel()


class Broadcast(Channel[PendingCommand]):
    """A channel into this worker's agent that no assignment governs: an idle worker hears too, and so does
    one that is restoring.

    Faust's own queues stand still until the worker has partitions and are emptied at each rebalance, and its
    streams skip events (what `send` makes of a value) of another generation: so values are `put` as they are,
    into a queue of its own.
    """

    @property
    def queue(self) -> ThrowableQueue[Any]:
        if self._queue is None:
            self._queue = ThrowableQueue(
                maxsize=LIMIT_WAITING, flow_control=FlowControlEvent(initially_suspended=False)
            )
        return self._queue


class HarvesterService(Service):
    """Runs a harvester as long as the worker runs, and ends the worker when the harvester cannot go on."""

    def __init__(
        self,
        app: Any,
        settings: HarvestSettings,
        leave: Callable[[BaseException], Awaitable[None]],
        **kwargs: Any,
    ) -> None:
        self.harvester = Harvester(settings, hear=self.hear)
        self._app, self._leave = app, leave
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(**kwargs)

    async def on_start(self) -> None:
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.harvester.start)

    async def on_stop(self) -> None:
        await asyncio.to_thread(self.harvester.stop, STOP_S)

    def hear(self, command: Command) -> None:
        """Hand *command* to the agent and return when it has been obeyed, or when the worker stops; from
        the thread that follows them.
        """
        assert self._loop is not None
        done: Future[None] = Future()
        asyncio.run_coroutine_threadsafe(self._feed(PendingCommand(command, done)), self._loop)
        while not (self.should_stop or self.harvester.stopping):
            try:
                done.result(WATCH_S)
                return
            except LateError:
                continue
            except CancelledError:
                return

    async def _feed(self, told: PendingCommand) -> None:
        try:
            await self._app.agents.wait_until_agents_started()
            await self._app.agents[AGENT].channel.put(told)
        except BaseException as error:
            told.undone(error)
            raise

    @Service.task
    async def _watch(self) -> None:
        while not self.should_stop:
            await self.sleep(WATCH_S)
            if self.harvester.error is not None:
                logger.error(
                    "harvester of outbox %(outbox)s: %(error)s",
                    {"outbox": self.harvester.settings.name, "error": self.harvester.error},
                )
                await self._leave(self.harvester.error)
                return


def declare(app: faust.App) -> None:
    """Give *app* the agent that passes commands to the harvester of its worker."""

    async def obey(stream: Any) -> None:
        async for told in stream:
            harvesting: HarvesterService = app.harvesting  # type: ignore[attr-defined]
            try:
                await asyncio.to_thread(harvesting.harvester.obey, told.command)
            except BaseException as error:
                told.undone(error)
                raise
            told.done.set_result(None)

    obey.__doc__ = "Has the outbox's harvester in this worker pause, resume, flush or say how it is."
    app.agent(Broadcast(app), name=AGENT, concurrency=1)(obey)


class HarvesterPage(Collector):
    """What a harvester counts, for Prometheus; labels are the outbox's name and the shard."""

    def __init__(self, harvester: Harvester, clock: Clock = system_clock) -> None:
        self._harvester, self._clock = harvester, clock

    def collect(self) -> Iterable[Metric]:
        name, all_stats = self._harvester.settings.name, self._harvester.stats
        yield from self._gauges(name, all_stats)
        for metric, text, attribute in (
            ("leader_changes", "Terms that began in this process", "leader_changes"),
            ("published", "Rows published", "published"),
            ("batches", "Batches (transactions) published", "batches"),
            ("aborted", "Batches that came to nothing and were tried again", "aborted"),
            ("refused", "Times that Kafka refused a row or topic", "refused"),
            ("reset", "Rows given back unpublished (strategy mark)", "resets"),
            ("dead_letter_rows", "Rows set aside in the quarantine", "quarantined"),
            ("fenced", "Terms ended by a newer leader", "fenced"),
            ("restarts", "New beginnings within a term, after an error", "restarts"),
            ("queries", "Calls to the database", "queries"),
        ):
            family = CounterMetricFamily(f"holdfast_outbox_{metric}", text, labels=("outbox", "shard"))
            for stats in all_stats:
                family.add_metric((name, str(stats.shard)), getattr(stats, attribute))
            yield family
        latency = HistogramMetricFamily(
            "holdfast_outbox_publish_latency_seconds",
            "From a batch's first row being written to its commit",
            labels=("outbox", "shard"),
        )
        for stats in all_stats:
            latency.add_metric(
                (name, str(stats.shard)), list(_cumulative(stats.latency.counts)), stats.latency.total_s
            )
        yield latency

    def _gauges(self, name: str, all_stats: Iterable[ShardStats]) -> Iterator[Metric]:
        labels, now_ms = ("outbox", "shard"), self._clock.now_ms()
        leader = GaugeMetricFamily(
            "holdfast_outbox_leader", "1 while this process leads the shard", labels=labels
        )
        in_flight = GaugeMetricFamily(
            "holdfast_outbox_in_flight_rows", "Rows handed to Kafka and not yet acknowledged", labels=labels
        )
        pending = GaugeMetricFamily(
            "holdfast_outbox_pending_rows",
            "Rows in the table, counted now and then, up to 100,000",
            labels=labels,
        )
        oldest = GaugeMetricFamily(
            "holdfast_outbox_oldest_pending_age_seconds",
            "Age of the first row last taken, 0 for none",
            labels=labels,
        )
        for stats in all_stats:
            place = (name, str(stats.shard))
            leader.add_metric(place, int(self._harvester.leads(stats.shard)))
            in_flight.add_metric(place, stats.in_flight)
            pending.add_metric(place, stats.pending)
            created_ms = stats.oldest_created_ms
            oldest.add_metric(place, 0 if created_ms is None else max(0, now_ms - created_ms) / 1000)
        yield from (leader, in_flight, pending, oldest)


def _cumulative(counts: Iterable[int]) -> Iterator[tuple[str, int]]:
    total = 0
    for bound, count in zip((*map(str, LATENCY_BOUNDS_S), "+Inf"), counts, strict=True):
        total += count
        yield bound, total
