"""Harvesting inside workers: with `outbox_harvest` every worker takes part in the outbox's election and leads
what it is given.

The harvester is the same as `holdfast outbox harvest` runs alone, and both may serve one outbox. Commands
(pause, resume, flush, status) reach it through an agent of the application. If the agent's channel were the
commands topic itself, the group would give each command to one worker only, and a shard may be led in any. So
the channel is a broadcast: every worker follows the whole topic (holdfast.outbox.command_log) and feeds the
agent of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass
from typing import Any

import faust
from faust.channels import Channel
from mode import Service
from mode.utils.queues import FlowControlEvent, ThrowableQueue

from holdfast.outbox.commands import Command
from holdfast.outbox.harvest.harvester import STOP_S, Harvester
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
        """End the wait for it: with *error*, or without where it was only cut short by the worker's stop."""
        if isinstance(error, Exception):
            self.done.set_exception(error)
        else:
            self.done.cancel()


class Broadcast(Channel[PendingCommand]):
    """A channel into this worker's agent that no assignment governs: an idle worker receives too, and so does
    one that is restoring.

    Faust's own queues are blocked until the worker has partitions and are emptied at each rebalance, and its
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
    """Runs a harvester as long as the worker runs, and ends the worker when the harvester must end."""

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
