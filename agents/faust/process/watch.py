"""The manager as a Faust service: it starts before anything consumes, is watched while it runs, and closes
after everything else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from typing import Any, Protocol

from mode import Service

from holdfast.agents.faust.process.fold_now import global_fold_now, stack_of
from holdfast.agents.faust.process.loop_watch import STUCK_EXIT_CODE, TICK_S, Doors, LoopWatch
from holdfast.agents.faust.process.outages import outages
from holdfast.agents.partitions.manager import PartitionManager
from holdfast.agents.partitions.upkeep.checker import StoreChecker
from holdfast.clock import system_clock
from holdfast.errors import HoldfastError
from holdfast.tables import lived

logger = logging.getLogger(__name__)

PROBE_EVERY_S, NOTE_EVERY_S, TOUCH_EVERY_S = 5.0, 1.0, 600.0


class FoldOnThread(Protocol):
    """A call that folds the table *name* on a thread."""

    name: str
    thread: int | None


class GlobalFoldWatch:
    """Watches whether the folds of global tables return, which run on threads next to the event loop."""

    def __init__(self, manager: PartitionManager) -> None:
        self._manager, self._limit_s = manager, manager.settings.fold_limit_s
        self._stood: dict[FoldOnThread, int] = {}
        """The number of looks that each fold has lasted; not the clock, which advances while a process is
        frozen.
        """
        self._told: dict[FoldOnThread, tuple[str, int]] = {}
        self._pauses = 0

    def look(self) -> str | None:
        """Say which fold does not return, once; call it every TICK_S / 2. Return why the worker has to end,
        None while it need not.
        """
        copies = self._manager.globals
        if copies.pauses != self._pauses:  # one waits for a need of its fold, and the others after it
            self._pauses = copies.pauses
            self._stood.clear()
        self._stood = {each: self._stood.get(each, 0) + 1 for each in copies.foldings}
        for each in [*self._told.keys() - copies.foldings]:
            self._manager.stalled.pop(self._told.pop(each), None)
        for folding, looks in self._stood.items():
            stood_s = looks * TICK_S / 2
            if stood_s >= self._limit_s and folding not in self._told:
                self._tell(folding, stood_s)
            if stood_s > self._manager.settings.stall_timeout_s:
                return f"the fold of global table {folding.name} has not returned for {stood_s:.0f} s"
        return None

    def _tell(self, folding: FoldOnThread, stood_s: float) -> None:
        frame = sys._current_frames().get(folding.thread or 0)
        try:
            at = global_fold_now(frame)
        except Exception as error:  # noqa: BLE001  the call may have ended while it was read
            at = f"a record that is not known: {error!r}"
        place = self._told[folding] = (f"global {folding.name}", id(folding))
        why = f"the fold of global table {folding.name} does not return ({at})"
        self._manager.stalled[place] = why
        logger.critical(
            "%(why)s, for more than %(stood_s).0f s; it ends the worker after %(stall_s).0f s. It is"
            " at:\n%(stack)s",
            {
                "why": why,
                "stood_s": stood_s,
                "stall_s": self._manager.settings.stall_timeout_s,
                "stack": stack_of(frame),
            },
        )


class ManagerService(Service):
    """Starts, watches and closes the manager.

    The watch ends a worker that cannot make progress: records in hand that are not committed, or an
    assignment that does not become ready, for longer than `stall_timeout_s`. Its supervisor starts another; a
    silent worker is of no use. A fold that never returns stops the event loop and with it the watch, so a
    thread watches the loop. *doors* are those of the web port.
    """

    def __init__(self, manager: PartitionManager, doors: Doors = lambda: ((), None), **kwargs: Any) -> None:
        self.manager = manager
        settings = manager.settings
        self._loop_watch = LoopWatch(
            limit_s=settings.fold_limit_s, stall_s=settings.stall_timeout_s, doors=doors
        )
        self._restored = 0
        self._global_folds = GlobalFoldWatch(manager)
        self._checker = StoreChecker(manager)
        super().__init__(**kwargs)

    async def on_start(self) -> None:
        await self.manager.start()
        self._loop_watch.start()

    async def on_stop(self) -> None:
        self._loop_watch.end()
        self._checker.close()
        await self.manager.close()

    @Service.task
    async def _watch(self) -> None:
        manager = self.manager
        probed_s = noted_s = touched_s = ticked_s = system_clock.monotonic_s()
        while not self.should_stop:
            await asyncio.sleep(TICK_S / 2)
            now_s = system_clock.monotonic_s()
            if (
                now_s - ticked_s > lived.MOST_S
            ):  # frozen, or held up: nothing could move, and messages that came since are yet to be read
                manager.flow.progress_s = min(now_s, manager.flow.progress_s + now_s - ticked_s)
            ticked_s = now_s
            if now_s - noted_s > NOTE_EVERY_S:
                noted_s = now_s
                manager.note_ends()
            if now_s - touched_s > TOUCH_EVERY_S:
                touched_s = now_s
                manager.touch()
            if manager.feed.broker_down and now_s - probed_s > PROBE_EVERY_S:
                probed_s = now_s
                await manager.feed.probe()
            why = self._global_folds.look() or self._stuck(now_s)
            if why is not None:
                manager.crash(HoldfastError(why))
                return

    @Service.task
    async def _watch_outages(self) -> None:
        await outages.run(lambda: self.manager.feed.broker_down)

    @Service.task
    async def _check_stores(self) -> None:
        await self._checker.run()

    @Service.task
    async def _skip_unreadable(self) -> None:
        await self.manager.skipping.run()

    @Service.task
    async def _ask_source_ends(self) -> None:
        await self.manager.source_ends.run()

    @Service.task
    async def _let_idle_origins_go(self) -> None:
        await self.manager.idle_origins.run()

    @Service.task
    async def _follow_globals(self) -> None:
        await self.manager.globals.run()

    @Service.task
    async def _upgrade_tables(self) -> None:
        await self.manager.upgrading.run()

    @Service.task
    async def _watch_topics(self) -> None:
        await self.manager.topics.run(self.manager.cluster.topics)

    @Service.task
    async def _trim_internal(self) -> None:
        await self.manager.trimming.run()

    def _stuck(self, now_s: float) -> str | None:
        manager = self.manager
        idle_s = now_s - manager.flow.progress_s
        restored = manager.holdings.restored_records()
        if (manager.open and not manager.flow.busy) or restored != self._restored:
            manager.flow.progress_s, self._restored = now_s, restored
        elif manager.open and idle_s > manager.settings.stall_timeout_s:
            return f"records in hand and nothing committed for {idle_s:.0f} s"
        elif not manager.open and idle_s > 2 * manager.settings.stall_timeout_s:
            return f"not ready for {idle_s:.0f} s: {manager.unready()}"
        if manager.standby_failure is not None:
            return f"standby failed: {manager.standby_failure}"
        return None


def exit_within(seconds: float, code: int) -> None:
    """End the process with *code* if it is still there after *seconds*: a stop must not hang on a thread
    that does not return.
    """

    def end() -> None:
        logger.critical(
            "did not stop within %(waited_s).0f s; leaving at once, the next owner fences and restores",
            {"waited_s": seconds},
        )
        os._exit(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


__all__ = ["STUCK_EXIT_CODE", "ManagerService", "exit_within"]
