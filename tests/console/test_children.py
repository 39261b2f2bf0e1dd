"""Questions in processes of their own: what they answer, and that none of them outlives its time or who
asked.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.clients.tables.directory import FixedDirectory
from holdfast.console.asking import child_calls
from holdfast.console.asking.child_calls import LIMIT_WAITING, ChildCalls, ChildError
from holdfast.console.pages import transactions
from holdfast.errors import BrokerError
from tests.agents.web.test_server import scenario
from tests.console import asked_work
from tests.console.opened import console_settings, opened
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

pytestmark = pytest.mark.process

PARENT = """
import asyncio, sys
from functools import partial
from holdfast.console.asking.child_calls import ChildCalls
from tests.console.asked_work import linger

asyncio.run(ChildCalls(600).run(partial(linger, sys.argv[1])))
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the work that is asked for in the modules that a process finds."""
    monkeypatch.syspath_prepend(str(ROOT))


def gone(noted: Path) -> bool:
    """Return whether the process whose number is in a file has ended."""
    try:
        os.kill(int(noted.read_text()), 0)
    except ProcessLookupError:
        return True
    return False


async def started(noted: Path) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await asyncio.to_thread(lambda: noted.exists() and noted.read_text()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@scenario
async def test_an_answer_comes_back_whatever_is_printed() -> None:
    assert await ChildCalls(DEADLINE_S).run(partial(asked_work.add, 2, 3)) == 5


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (asked_work.fail, "no Delta table at x"),
        (asked_work.lack, "^No module named 'pyarrow'$"),
        (asked_work.die, "ended without an answer: killed by the machine"),
        (asked_work.break_down, "^RuntimeError: a fold that cannot be called"),
    ],
)
def test_a_failure_there_is_reported_here(work: Callable[[], Any], said: str) -> None:
    @scenario
    async def run() -> None:
        with pytest.raises(ChildError, match=said):
            await ChildCalls(DEADLINE_S).run(work)

    run()


def test_one_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    @scenario
    async def run() -> None:
        calls = ChildCalls(5)
        with pytest.raises(ChildError, match="no answer within 5 s"):
            await calls.run(partial(asked_work.linger, str(tmp_path / "pid")))
        noted = tmp_path / "pid"
        assert not noted.exists() or not noted.read_text() or gone(noted), "it may not have come so far"

    run()


def test_an_answer_that_is_too_long_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_calls, "LIMIT_ANSWER_BYTES", 1 << 20)

    @scenario
    async def run() -> None:
        with pytest.raises(ChildError, match="more than 1 MiB"):
            await ChildCalls(DEADLINE_S).run(partial(asked_work.long_answer, 2 << 20))

    run()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells what a process holds")
def test_one_that_takes_too_much_memory_is_ended() -> None:
    @scenario
    async def run() -> None:
        calls = ChildCalls(DEADLINE_S, memory_bytes=100 << 20)
        with pytest.raises(ChildError, match="more than 100 MiB of memory"):
            await calls.run(partial(asked_work.grow, 200 << 20))
        assert await calls.run(partial(asked_work.add, 2, 3)) == 5

    run()


def test_so_many_wait_and_the_end_ends_all(tmp_path: Path) -> None:
    @scenario
    async def run() -> None:
        calls, noted = ChildCalls(DEADLINE_S), tmp_path / "pid"
        asked = [
            asyncio.ensure_future(calls.run(partial(asked_work.linger, str(noted))))
            for _ in range(LIMIT_WAITING)
        ]
        await started(noted)
        with pytest.raises(BrokerError, match="ask again later"):
            await calls.run(partial(asked_work.add, 1, 1))
        await calls.close()
        assert gone(noted)
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(each, ChildError) for each in outcomes), outcomes
        assert [str(each) for each in outcomes[1:]] == ["the console ends"] * (LIMIT_WAITING - 1)

    run()


def test_no_waiting_caller_leaves_a_process_running(tmp_path: Path) -> None:
    @scenario
    async def run() -> None:
        noted = tmp_path / "pid"
        asked = asyncio.ensure_future(ChildCalls(DEADLINE_S).run(partial(asked_work.linger, str(noted))))
        await started(noted)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert gone(noted)

    run()


def test_a_page_without_a_waiting_client_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = tmp_path / "pid"
    work = partial(asked_work.linger, str(noted))
    monkeypatch.setattr(transactions, "partial", lambda *arguments: work)

    @scenario
    async def run() -> None:
        async with opened(console_settings(), FixedDirectory()) as browsing:
            asked = asyncio.ensure_future(browsing.get("/producers/transactions"))
            await started(noted)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            async with asyncio.timeout(DEADLINE_S):
                while not await asyncio.to_thread(gone, noted):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert (await browsing.get("/"))[0] == 200

    run()


def test_a_console_that_is_killed_leaves_no_process_running(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    parent = subprocess.Popen(
        [sys.executable, "-P", "-c", PARENT, str(noted)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        wait_for("the child", lambda: noted.exists() and noted.read_text(), DEADLINE_S)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait(DEADLINE_S)
    wait_for("the end of the child", lambda: gone(noted), DEADLINE_S)
