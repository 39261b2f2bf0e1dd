"""The agent that passes commands to a worker's harvester: it gets them whatever the group assigns to the
worker."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from holdfast.agents.app import App, create_app
from holdfast.agents.services.harvester import AGENT, PendingCommand, declare
from holdfast.config import Settings
from holdfast.outbox.commands import Command, Verb
from tests.support.patience import DEADLINE_S

PAUSE = Command(id="p", verb=Verb.PAUSE, at_ms=0)


class Notes:
    """A replacement of the service and its harvester."""

    def __init__(self, error: Exception | None = None) -> None:
        self.harvester, self.heard, self._error = self, list[Command](), error

    def obey(self, command: Command) -> None:
        if self._error is not None:
            raise self._error
        self.heard.append(command)


def harvesting_app(notes: Notes) -> App:
    app = create_app(
        [], Settings(app="shop", outbox_database="sqlite:///never-opened.db", outbox_harvest=True)
    )
    app.harvesting = notes  # type: ignore[assignment]
    return app


async def tell(app: App, *, send: bool = False, rebalance: bool = False) -> bool:
    """Start the agent alone and have it pause; return whether it got that within a while.

    No partition is ever assigned.
    """
    agent: Any = app.agents[AGENT]
    await agent.start()
    told = PendingCommand(PAUSE, Future())
    try:
        await (agent.channel.send(value=told) if send else agent.channel.put(told))
        if rebalance:
            app.flow_control.suspend()
            app.flow_control.resume()
        done, _ = await asyncio.wait([asyncio.wrap_future(told.done)], timeout=0.5 if send else DEADLINE_S)
        for each in done:
            each.result()
        return bool(done)
    finally:
        await agent.stop()


def test_an_idle_worker_hears_and_one_in_a_rebalance_loses_nothing() -> None:
    for rebalance in (False, True):
        notes = Notes()
        assert asyncio.run(tell(harvesting_app(notes), rebalance=rebalance))
        assert notes.heard == [PAUSE]


def test_a_channel_of_faust_would_let_it_wait_for_a_rebalance_and_then_forget() -> None:
    """The trap the broadcast is there for: an event is skipped while the worker has no assignment."""
    notes = Notes()
    assert not asyncio.run(tell(harvesting_app(notes), send=True))
    assert notes.heard == []


def test_a_caller_that_waits_gets_the_error() -> None:
    with pytest.raises(RuntimeError, match="broken"):
        asyncio.run(tell(harvesting_app(Notes(RuntimeError("broken")))))


def test_only_workers_that_harvest_have_the_agent() -> None:
    app = create_app([], Settings(app="shop"))
    assert AGENT not in app.agents
    declare(app)
    assert AGENT in app.agents


def test_a_stop_in_the_middle_of_a_command_keeps_no_caller_waiting() -> None:
    begun, release = threading.Event(), threading.Event()

    class Slow(Notes):
        def obey(self, command: Command) -> None:
            begun.set()
            release.wait(DEADLINE_S)

    async def stop_meanwhile(app: App) -> bool:
        agent: Any = app.agents[AGENT]
        await agent.start()
        told = PendingCommand(PAUSE, Future())
        await agent.channel.put(told)
        await asyncio.to_thread(begun.wait, DEADLINE_S)
        stopping = asyncio.ensure_future(agent.stop())
        done, _ = await asyncio.wait([asyncio.wrap_future(told.done)], timeout=DEADLINE_S)
        release.set()
        await stopping
        return bool(done) and told.done.cancelled()

    assert asyncio.run(stop_meanwhile(harvesting_app(Slow())))
