"""The keeper as a Faust service: it starts before anything consumes, is watched while it runs, and closes after everything else."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import sys
import threading
from contextlib import suppress
from typing import Any

from mode import Service

from holdfast.agents.checker import StoreChecker
from holdfast.agents.keeper import Keeper
from holdfast.clock import system_clock
from holdfast.errors import HoldfastError
from holdfast.tables import lived

logger = logging.getLogger(__name__)

TICK_S = 0.5
PROBE_EVERY_S, NOTE_EVERY_S, TOUCH_EVERY_S = 5.0, 1.0, 600.0
STUCK_EXIT_CODE = 70


class KeeperService(Service):
    """Starts, watches and closes the keeper.

    The watch ends a worker that cannot make progress: records in hand that are not committed, or an assignment that does not
    become ready, for longer than `stall_timeout_s`. Its supervisor starts another; a silent worker helps nobody. A fold that never
    returns stops the event loop and with it the watch, so a thread watches the watch.
    """

    def __init__(self, keeper: Keeper, **kwargs: Any) -> None:
        self.keeper = keeper
        self._restored = 0
        self._checker = StoreChecker(keeper)
        self._ticked, self._ended = threading.Event(), threading.Event()
        super().__init__(**kwargs)

    async def on_start(self) -> None:
        await self.keeper.start()
        threading.Thread(target=self._watch_the_watch, name="holdfast-watch", daemon=True).start()

    async def on_stop(self) -> None:
        self._ended.set()
        self._checker.close()
        await self.keeper.close()

    def _watch_the_watch(self) -> None:
        # Own ticks are counted, not the clock: in a process that was frozen both stood still.
        limit, missed = self.keeper.settings.stall_timeout_s / TICK_S, 0
        while not self._ended.wait(TICK_S):
            missed = 0 if self._ticked.is_set() else missed + 1
            self._ticked.clear()
            if missed > limit:
                logger.critical("the event loop has stood still for %.0f s: a fold that does not return? leaving", missed * TICK_S)
                with suppress(Exception):  # the supervisor's next attempt matters more than this one's trace
                    faulthandler.dump_traceback(sys.__stderr__ or 2)
                os._exit(STUCK_EXIT_CODE)

    @Service.task
    async def _watch(self) -> None:
        keeper = self.keeper
        probed_s = noted_s = touched_s = ticked_s = system_clock.monotonic_s()
        while not self.should_stop:
            await asyncio.sleep(TICK_S / 2)
            self._ticked.set()
            now_s = system_clock.monotonic_s()
            if now_s - ticked_s > lived.MOST_S:  # frozen, or held up: nothing could move, and what has come meanwhile is yet to be read
                keeper.progress_s = min(now_s, keeper.progress_s + now_s - ticked_s)
            ticked_s = now_s
            if now_s - noted_s > NOTE_EVERY_S:
                noted_s = now_s
                keeper.note_ends()
            if now_s - touched_s > TOUCH_EVERY_S:
                touched_s = now_s
                keeper.touch()
            if keeper.feed.broker_down and now_s - probed_s > PROBE_EVERY_S:
                probed_s = now_s
                await keeper.feed.probe()
            why = self._stuck(now_s)
            if why is not None:
                keeper.crash(HoldfastError(why))
                return

    @Service.task
    async def _check_stores(self) -> None:
        await self._checker.run()

    @Service.task
    async def _skip_unreadable(self) -> None:
        await self.keeper.skipping.run()

    def _stuck(self, now_s: float) -> str | None:
        keeper = self.keeper
        idle_s = now_s - keeper.progress_s
        restored = keeper.restored_records()
        if (keeper.open and not keeper.busy) or restored != self._restored:
            keeper.progress_s, self._restored = now_s, restored
        elif keeper.open and idle_s > keeper.settings.stall_timeout_s:
            return f"records in hand and nothing committed for {idle_s:.0f} s"
        elif not keeper.open and idle_s > 2 * keeper.settings.stall_timeout_s:
            return f"not ready for {idle_s:.0f} s: {keeper.unready()}"
        if keeper.standby_failure is not None:
            return f"standby failed: {keeper.standby_failure}"
        return None


def exit_within(seconds: float, code: int) -> None:
    """End the process with *code* if it is still there after *seconds*: a stop must not hang on a thread that does not return."""

    def end() -> None:
        logger.critical("did not stop within %.0f s; leaving at once, the next owner fences and restores", seconds)
        os._exit(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
