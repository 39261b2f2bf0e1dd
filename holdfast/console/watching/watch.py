"""Looks at the application again and again: often while a person watches, else seldom."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from holdfast.clients.tables.directory import Directory, Workers
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.console.watching.beside import BesideLook
from holdfast.console.watching.groups import GroupDesk
from holdfast.console.watching.history import History, flows_of, positions_of
from holdfast.console.watching.picture import Picture, Reports, WorkerState, picture_of
from holdfast.console.watching.reports import Silence, WorkerReport, WorkerReports
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.query_wire import WorkerClaims
from holdfast.errors import HoldfastError

logger = logging.getLogger(__name__)

LOOK_S = 1.0
RESTS = 5.0
"""The console rests after a look for so many times the processor time of its picture: that of 100,000
partitions takes two seconds.
"""
IDLE_LOOK_S = 10.0
GROUPS_S = 2.0
WATCHED_FOR_S = 15.0
"""The time for which a request for a page without live updates counts as watching."""
DIRECTORY_S = 2.0
RESTED_S = 30.0
"""The time for which a worker that is gone is not asked, unless it announces itself again: its host may not
even refuse.
"""
BELIEVED_S = 5.0
"""The age up to which a worker's last report is used while it is only late."""


def rest_s(used_s: float) -> float:
    """Return how long to rest after a look whose picture took *used_s* of the processor, so that looks never
    take more than a fifth of it.

    >>> rest_s(0.02), rest_s(2.0)
    (1.0, 10.0)
    """
    return max(LOOK_S, RESTS * used_s)


class Watch:
    """Keeps `picture` as of now. Use it with `async with`; the owner of *directory* and *groups* is this
    object.
    """

    def __init__(
        self,
        settings: Settings,
        processors: Sequence[Processor[Any, Any]],
        directory: Directory,
        groups: GroupDesk | None,
        beside: Sequence[BesideLook[Any]] = (),
        *,
        at_once: bool = True,
        clock: Clock = system_clock,
    ) -> None:
        """*at_once*: the first look ends before this is entered; else it begins then."""
        self._app, self._processors, self._clock = settings.app, processors, clock
        self._directory, self.groups, self.beside = directory, groups, beside
        self._reports = WorkerReports(settings)
        self._told: dict[str, tuple[float, WorkerReport]] = {}
        self._resting: dict[str, tuple[float, WorkerClaims, Silence]] = {}
        self.history = History()
        self.picture = picture_of(self._app, processors, directory.workers, {}, at_ms=clock.now_ms())
        self._used_s = 0.0
        self._looked = asyncio.Condition()
        self._wake = asyncio.Event()
        self._watchers, self._asked_s = 0, float("-inf")
        self._tasks: list[asyncio.Task[None]] = []
        self._at_once = at_once
        self.looked = False
        """True once a look has ended: before that, `picture` shows nothing."""

    async def __aenter__(self) -> Self:
        await self._reports.__aenter__()
        if self._at_once:
            await self.look()
        self._tasks = [asyncio.create_task(self._run())]
        if self.groups is not None:
            self._tasks.append(asyncio.create_task(self._run_groups(self.groups)))
        self._tasks += [asyncio.create_task(self._run_beside(each)) for each in self.beside]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._reports.__aexit__(kind, error, traceback)
        await self._directory.close()
        if self.groups is not None:
            await self.groups.close()

    # -- who looks

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look often for as long as this lasts."""
        self._watchers += 1
        self._wake.set()
        try:
            yield
        finally:
            self._watchers -= 1

    def asked(self) -> None:
        """Look often for a while: a page was requested."""
        self._asked_s = self._clock.monotonic_s()
        self._wake.set()

    async def next_look(self, timeout_s: float) -> None:
        """Return after the next look, or after *timeout_s*."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._looked:
                await self._looked.wait()

    # -- looking

    async def _run(self) -> None:
        if self._at_once:
            await self._pause(LOOK_S)
        while True:
            try:
                await self.look()
            except Exception:
                logger.exception("a look at the workers failed")
            await self._pause(rest_s(self._used_s))

    async def _run_groups(self, groups: GroupDesk) -> None:
        while True:
            try:
                await groups.look()
            except Exception:
                logger.exception("a look at the groups failed")
            await self._pause(GROUPS_S)

    async def _run_beside(self, look: BesideLook[Any]) -> None:
        """Repeat a look at something other than the workers while the console is watched: it may be at a
        database, or at a whole lake.
        """
        while True:
            if self._unwatched():
                self._wake.clear()
                await self._wake.wait()
            try:
                await look.fresh()
            except Exception:
                logger.exception("a look at the %(name)s failed", {"name": look.name})
            await asyncio.sleep(look.every_s)

    def _unwatched(self) -> bool:
        return not self._watchers and self._clock.monotonic_s() - self._asked_s > WATCHED_FOR_S

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self._unwatched():
            self._wake.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), IDLE_LOOK_S)

    async def look(self) -> None:
        """Look at the directory and ask all workers; then `picture` is of now."""
        trouble = await self._refreshed()
        workers = self._directory.workers
        resting = self._rested(workers)
        asked = await self._reports.ask(workers.urls - resting.keys())
        reports = {**self._believed(asked), **resting}
        now_s = self._clock.monotonic_s()
        # In a thread, off the event loop: requests for pages do not wait until thousands of lines are made.
        picture = await asyncio.to_thread(self._paint, workers, reports, trouble, now_s)
        self._rest(picture, workers, asked, now_s)
        async with self._looked:
            self.picture, self.looked = picture, True
            self._looked.notify_all()

    def _paint(self, workers: Workers, reports: Reports, trouble: str | None, now_s: float) -> Picture:
        """Put the reports together, and learn from them; one look at a time does, in any thread."""
        began_s, at_ms = system_clock.thread_s(), self._clock.now_ms()
        picture = picture_of(
            self._app,
            self._processors,
            workers,
            reports,
            at_ms=at_ms,
            stalled=self.history.stalled(now_s),
            trouble=trouble,
        )
        self.history.learn(positions_of(picture), now_s=now_s, at_s=at_ms / 1000)
        self.history.learn_flows(flows_of(picture), now_s=now_s)
        self._used_s = system_clock.thread_s() - began_s
        return picture

    async def _refreshed(self) -> str | None:
        try:
            await self._directory.refresh(DIRECTORY_S)
        except HoldfastError as error:  # the topic may be gone too
            return str(error)
        return None

    def _rested(self, workers: Workers) -> dict[str, WorkerReport | Silence]:
        """Return why workers that are gone, and need not be asked now, were silent."""
        now_s, announced = self._clock.monotonic_s(), {each.url: each for each in workers.announced}
        self._resting = {
            url: rest
            for url, rest in self._resting.items()
            if rest[0] > now_s and announced.get(url) == rest[1]
        }
        return {url: silence for url, (_, _, silence) in self._resting.items()}

    def _rest(
        self,
        picture: Picture,
        workers: Workers,
        asked: Mapping[str, WorkerReport | Silence],
        now_s: float,
    ) -> None:
        gone = {each.url for each in picture.workers if each.state is WorkerState.GONE}
        for claims in workers.announced:
            told = asked.get(claims.url)
            if claims.url in gone and isinstance(told, Silence):
                self._resting[claims.url] = now_s + RESTED_S, claims, told

    def _believed(self, reports: dict[str, WorkerReport | Silence]) -> dict[str, WorkerReport | Silence]:
        """Return *reports* with the last report of each worker that is only late."""
        now_s = self._clock.monotonic_s()
        for url, told in reports.items():
            if isinstance(told, WorkerReport):
                self._told[url] = now_s, told
            elif told.late and url in self._told and now_s - self._told[url][0] <= BELIEVED_S:
                reports[url] = self._told[url][1]
        for url in self._told.keys() - reports.keys():
            del self._told[url]
        return reports
