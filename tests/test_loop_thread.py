"""The event loop of blocking clients, as other threads meet it when it ends."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.errors import NotReadyError
from holdfast.loop_thread import LoopThread
from tests.support.limits import at_most
from tests.support.patience import DEADLINE_S

NOT_OPEN = "the client is not open: use it in a `with` statement, and not after it"


async def nothing() -> None:
    """End at once."""


def test_what_other_threads_wait_for_ends_with_it() -> None:
    """They waited for their own deadline and five seconds more, and the error was that the loop did not
    answer.
    """
    loop, begun = LoopThread("test"), threading.Semaphore(0)

    async def waiting() -> None:
        begun.release()
        await asyncio.sleep(DEADLINE_S)

    loop.start()
    with ThreadPoolExecutor(4) as others:
        waits = [others.submit(loop.wait, waiting(), DEADLINE_S) for _ in range(4)]
        for _ in waits:
            assert begun.acquire(timeout=DEADLINE_S)
        with at_most(3.0, "the end"):
            loop.stop(nothing())
            for each in waits:
                with pytest.raises(NotReadyError, match=NOT_OPEN):
                    each.result(DEADLINE_S)
    assert loop.closed


def test_calls_after_the_end_and_before_the_beginning_are_refused() -> None:
    loop = LoopThread("test")
    with pytest.raises(NotReadyError, match=NOT_OPEN):
        loop.wait(nothing(), 1.0)
    loop.stop(nothing())
    loop = LoopThread("test")
    loop.start()
    for _ in range(2):
        loop.stop(nothing())
        with pytest.raises(NotReadyError, match=NOT_OPEN):
            loop.wait(nothing(), 1.0)


def test_calls_from_many_threads_while_it_ends_all_end() -> None:
    loop, told = LoopThread("test"), list[str]()

    def call() -> None:
        while True:
            try:
                loop.wait(asyncio.sleep(0.001), DEADLINE_S)
            except NotReadyError as error:
                told.append(str(error))
                return

    loop.start()
    threads = [threading.Thread(target=call) for _ in range(8)]
    for each in threads:
        each.start()
    loop.wait(asyncio.sleep(0.05), DEADLINE_S)
    loop.stop(nothing())
    for each in threads:
        each.join(DEADLINE_S)
    assert told == [NOT_OPEN] * 8
