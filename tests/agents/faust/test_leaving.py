"""What a worker says when it leaves."""

from __future__ import annotations

import asyncio
import logging

import faust
import pytest

from holdfast.agents.faust.process.leaving import Worker


class Unstoppable(Worker):
    """A worker that starts nothing, and fails as it ends."""

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        raise ValueError("a bug at the end")


def test_what_fails_as_a_worker_ends_is_told_in_its_last_line(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    worker = Unstoppable(faust.App("shop", loop=loop), loop=loop)
    with caplog.at_level(logging.ERROR, "holdfast"), pytest.raises(SystemExit) as left:
        worker.execute_from_commandline()
    loop.close()
    assert left.value.code == 1
    traced, last = caplog.records
    assert traced.exc_info is not None
    assert last.getMessage().startswith("leaving: ")
    assert last.getMessage().endswith("ValueError: a bug at the end")
