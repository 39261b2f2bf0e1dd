"""Calls that block, in threads of their own: so many at once, so many waiting, each with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from holdfast.errors import BrokerError

T = TypeVar("T")

LIMIT_WAITING = 16
WAIT_S = 10.0


class StillRunningError(BrokerError):
    """A call took too long to be waited for. It continues, and its result will not be known."""


class BlockingCalls:
    """Runs calls in *threads* threads, and waits for each up to *wait_s*; what they are about, *subject*, is
    named in errors.
    """

    def __init__(self, subject: str, threads: int = 1, wait_s: float = WAIT_S) -> None:
        self._subject, self._wait_s = subject, wait_s
        self._threads = ThreadPoolExecutor(
            max_workers=threads, thread_name_prefix=f"holdfast-console-{subject}"
        )
        self._waiting = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of *work*; BrokerError when too many wait already, StillRunningError when it
        takes too long.
        """
        if self._waiting >= LIMIT_WAITING:
            raise BrokerError(
                f"{LIMIT_WAITING} questions about {self._subject} wait already; ask again later"
            )
        self._waiting += 1
        asked = asyncio.get_running_loop().run_in_executor(self._threads, work)
        asked.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(asked), self._wait_s)
        except TimeoutError:
            raise StillRunningError(
                f"no answer about {self._subject} within {self._wait_s:g} s; check bootstrap.servers and the"
                " brokers"
            ) from None

    def _done(self, asked: asyncio.Future[Any]) -> None:
        self._waiting -= 1
        if not asked.cancelled():
            asked.exception()  # the caller has the error; it may have left by now

    async def close(self, last: Callable[[], None] = lambda: None) -> None:
        """Do *last* after the calls that run or wait, and end the threads."""
        await asyncio.get_running_loop().run_in_executor(self._threads, last)
        self._threads.shutdown(wait=False)
