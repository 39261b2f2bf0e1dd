"""The delay after which the console believes that a worker is gone: one that refuses at once, one that is
late after a while.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast.clients.tables.directory import FixedDirectory
from holdfast.clock import ManualClock
from holdfast.console.watching import reports
from holdfast.console.watching import watch as watch_module
from holdfast.console.watching.picture import Picture, WorkerState, picture_of
from holdfast.console.watching.watch import BELIEVED_S, RESTED_S, Watch
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.errors import TopicError
from tests.agents.web.test_server import scenario
from tests.console.opened import console_settings, opened
from tests.console.test_pages import TOTALS, worker_settings
from tests.support.patience import DEADLINE_S


def state(watch: Watch) -> WorkerState:
    (worker,) = watch.picture.workers
    return worker.state


@scenario
async def test_a_worker_that_refuses_is_silent_at_the_next_look() -> None:
    clock = ManualClock()
    async with MemoryWorker(worker_settings(), [TOTALS], partitions=1) as worker:
        watch = Watch(worker.settings, [TOTALS], worker.directory(), None, clock=clock)
        async with watch:
            assert state(watch) is WorkerState.READY
            await worker.__aexit__(None, None, None)
            await watch.look()
            assert state(watch) is WorkerState.SILENT


@scenario
async def test_a_directory_that_is_gone_is_reported_and_the_state_before_stays() -> None:
    class Gone(FixedDirectory):
        async def refresh(self, timeout_s: float) -> None:
            if self.gone:
                raise TopicError("topic shop-workers does not exist")

        gone = False

    async with MemoryWorker(worker_settings(), [TOTALS], partitions=1) as worker:
        directory = Gone([worker.claims()])
        async with Watch(worker.settings, [TOTALS], directory, None) as watch:
            directory.gone = True
            await watch.look()
            assert (watch.picture.trouble, state(watch)) == (
                "topic shop-workers does not exist",
                WorkerState.READY,
            )


def test_a_look_that_fails_unexpectedly_is_no_reason_to_hurry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []

    async def fail(self: Watch) -> None:
        looks.append(1)
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr(Watch, "look", fail)

    @scenario
    async def run() -> None:
        async with Watch(worker_settings(), [TOTALS], FixedDirectory(), None, at_once=False):
            for _ in range(50):
                await asyncio.sleep(0)
        assert looks == [1]

    run()


@pytest.mark.long
def test_pages_are_answered_while_a_picture_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of 100,000 partitions takes seconds: no client waits for it before the first byte, and no worker
    that serves the console is blocked.
    """

    @scenario
    async def run() -> None:
        begun, goes = threading.Event(), threading.Event()

        def slowly(*given: Any, **more: Any) -> Picture:
            begun.set()
            assert goes.wait(DEADLINE_S)
            return picture_of(*given, **more)

        async with (
            MemoryWorker(worker_settings(), [TOTALS], partitions=1) as worker,
            opened(console_settings(), worker.directory()) as browsing,
        ):
            monkeypatch.setattr(watch_module, "picture_of", slowly)
            try:
                await browsing.get("/")  # a person watches, so that the console does too
                assert await asyncio.to_thread(begun.wait, DEADLINE_S)
                for path in ("/", "/workers", "/tables/view?name=totals"):
                    assert (await browsing.get(path))[0] == 200
            finally:
                goes.set()

    run()


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


def test_a_worker_that_is_only_late_is_believed_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "ATTEMPT_S", 0.2)

    @scenario
    async def run() -> None:
        clock, settings = ManualClock(), worker_settings()
        worker = await MemoryWorker(settings, [TOTALS], partitions=1).__aenter__()
        async with Watch(settings, [TOTALS], worker.directory(), None, clock=clock) as watch:
            while state(watch) is not WorkerState.READY:  # a busy machine may not answer in so short a time
                await watch.look()
            await worker.__aexit__(None, None, None)
            server = await asyncio.start_server(hang, "127.0.0.1", settings.web_port)
            await watch.look()
            assert state(watch) is WorkerState.READY
            clock.advance_ms(int(BELIEVED_S * 1000) + 1)
            await watch.look()
            assert state(watch) is WorkerState.SILENT
            server.close()

    run()


@scenario
async def test_a_worker_that_is_gone_is_asked_again_seldom_or_once_it_announces_itself_again() -> None:
    clock, dead_settings = ManualClock(), worker_settings()
    dead = MemoryWorker(dead_settings, [TOTALS], partitions=1)
    async with MemoryWorker(worker_settings(), [TOTALS], partitions=1) as heir:
        directory = FixedDirectory([dead.claims(generation=1), heir.claims(generation=2)])
        async with Watch(heir.settings, [TOTALS], directory, None, clock=clock) as watch:

            def dead_state() -> WorkerState | None:
                found = watch.picture.worker(dead.url)
                return None if found is None else found.state

            assert dead_state() is WorkerState.GONE
            async with MemoryWorker(dead_settings, [TOTALS], partitions=1, active=[]):
                await watch.look()
                assert dead_state() is WorkerState.GONE  # it is not asked
                clock.advance_ms(int(RESTED_S * 1000) + 1)
                await watch.look()
                assert dead_state() is WorkerState.READY
            await watch.look()
            assert dead_state() is WorkerState.GONE
            async with MemoryWorker(dead_settings, [TOTALS], partitions=1) as again:
                claims = {each.url: each for each in (again.claims(generation=3), heir.claims(generation=2))}
                directory.announce(claims)
                await watch.look()
                assert dead_state() is WorkerState.READY
