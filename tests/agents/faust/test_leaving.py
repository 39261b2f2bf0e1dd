"""The last lines of a worker that leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import faust
import pytest

from holdfast.agents.faust.process.leaving import Worker, lines_logged
from holdfast.errors import ConfigError


class Shop(faust.App):
    """An application that leaves the words of its workers as they are."""

    worded: Callable[[str], str] | None = None


class Unstoppable(Worker):
    """A worker that starts nothing, and fails as it ends."""

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        raise ValueError("a bug at the end")


def test_an_error_while_a_worker_ends_is_in_its_last_line(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    worker = Unstoppable(Shop("shop", loop=loop), loop=loop)
    with caplog.at_level(logging.ERROR, "holdfast"), pytest.raises(SystemExit) as left:
        worker.execute_from_commandline()
    loop.close()
    assert left.value.code == 1
    traced, last = caplog.records
    assert traced.exc_info is not None
    assert last.getMessage().startswith("leaving: ")
    assert last.getMessage().endswith("ValueError: a bug at the end")


class Refused(Worker):
    """A worker that cannot start."""

    async def start(self) -> None:
        self._tell(ConfigError("cannot listen on port 6066"))

    async def stop(self) -> None:
        pass


@pytest.mark.long
@pytest.mark.parametrize(("level", "times"), [(logging.INFO, 2), (logging.WARNING, 1)])
def test_the_cause_comes_once_more_where_other_lines_have_followed_it(
    level: int, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    """At info, mode logs how each service ends; at warning, the cause is the last line already."""
    loop = asyncio.new_event_loop()
    worker = Refused(Shop("shop", loop=loop), loop=loop)
    caplog.handler.addFilter(lines_logged.filter)  # as the worker's own handlers have it
    with caplog.at_level(level), pytest.raises(SystemExit):
        worker.execute_from_commandline()
    loop.close()
    caplog.handler.removeFilter(lines_logged.filter)
    said = [record.getMessage() for record in caplog.records]
    assert said.count("leaving: cannot listen on port 6066") == times, said
    assert said[-1] == "leaving: cannot listen on port 6066"


@pytest.mark.long
def test_a_worker_words_its_cause_for_the_person_who_started_it(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    app = Shop("shop", loop=loop)
    app.worded = str.upper
    worker = Refused(app, loop=loop)
    with caplog.at_level(logging.CRITICAL), pytest.raises(SystemExit):
        worker.execute_from_commandline()
    loop.close()
    assert [record.getMessage() for record in caplog.records] == ["leaving: CANNOT LISTEN ON PORT 6066"]
