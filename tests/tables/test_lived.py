"""Deadlines of a process that was frozen: messages that came since are read before they end."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable

import pytest

from holdfast.tables import lived
from tests.support.limits import at_most

FROZEN_S = 3_600.0


class FrozenLoop(asyncio.SelectorEventLoop):
    """An event loop that can find itself an hour later, as one does when its process is thawed."""

    away_s = 0.0

    def time(self) -> float:
        return super().time() + self.away_s


def on_a_loop(work: Callable[[FrozenLoop], Awaitable[None]]) -> None:
    loop = FrozenLoop()
    try:
        loop.run_until_complete(work(loop))
    finally:
        loop.close()


async def ask(loop: FrozenLoop, timeout_s: float) -> bytes:
    """Return an answer that comes while the process is frozen."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)

        def freeze() -> None:
            theirs.send(b"!")
            loop.away_s += FROZEN_S

        loop.call_soon(freeze)
        async with lived.Within(timeout_s):
            return await loop.sock_recv(ours, 1)


def test_an_answer_that_came_during_a_freeze_is_read_before_the_deadline_ends() -> None:
    async def frozen(loop: FrozenLoop) -> None:
        assert await ask(loop, 15.0) == b"!"

    on_a_loop(frozen)


def test_a_deadline_that_nothing_meets_ends_in_time_all_the_same() -> None:
    async def nothing(loop: FrozenLoop) -> None:
        with at_most(30.0, "a deadline of 50 ms"), pytest.raises(TimeoutError):
            await lived.wait_for(asyncio.Event().wait(), 0.05)

    on_a_loop(nothing)


@pytest.mark.long
def test_a_freeze_does_not_shorten_a_wait() -> None:
    async def waits(loop: FrozenLoop) -> None:
        loop.call_later(0.01, setattr, loop, "away_s", FROZEN_S)
        began_s = time.monotonic()
        await lived.sleep(2 * lived.MOST_S)
        assert time.monotonic() - began_s > lived.MOST_S / 2

    on_a_loop(waits)
