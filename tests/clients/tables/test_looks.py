"""Looks at the directory are everybody's: no caller's haste, cancellation or end cuts one short."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from holdfast.clients.tables.client import TableClient
from holdfast.clients.tables.directory import FixedDirectory
from holdfast.config import Settings
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.errors import BrokerError, ConfigError
from tests.clients.tables.tabling import TOTALS, Total, one_worker, scenario
from tests.support.patience import DEADLINE_S


class Held(FixedDirectory):
    """A directory that learns of *worker* once it is `told`; until then a look at it is under way."""

    def __init__(self, worker: MemoryWorker) -> None:
        super().__init__()
        self._worker = worker
        self.looks = 0
        self.begun, self.told = asyncio.Event(), asyncio.Event()

    async def refresh(self, timeout_s: float) -> None:
        self.looks += 1
        self.begun.set()
        await self.told.wait()
        self.announce({self._worker.url: self._worker.claims()})


@asynccontextmanager
async def held() -> AsyncIterator[tuple[Held, TableClient]]:
    """Give such a directory, and a client that goes by it; the worker has a row of ada's."""
    async with one_worker() as worker:
        worker.put(TOTALS, 0, "ada", Total(1), offset=1)
        directory = Held(worker)
        async with TableClient(Settings(app="shop"), [TOTALS], directory=directory) as tables:
            yield directory, tables


@scenario
async def test_hasty_callers_share_one_look() -> None:
    """Each began a look of its own, and its requests kept a slow broker from the next for half a minute."""
    async with held() as (directory, tables):
        for _ in range(20):
            with pytest.raises(BrokerError, match="was not read in time"):
                await tables.get(TOTALS, "ada", timeout_s=0.01)
        assert directory.looks == 1
        asked = asyncio.create_task(tables.get(TOTALS, "ada", timeout_s=DEADLINE_S))
        directory.told.set()
        assert (await asked).value == Total(1)
        assert directory.looks == 1


@scenario
async def test_a_look_continues_when_its_caller_is_cancelled() -> None:
    async with held() as (directory, tables):
        asked = asyncio.create_task(tables.get(TOTALS, "ada", timeout_s=DEADLINE_S))
        await directory.begun.wait()
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked
        directory.told.set()
        assert (await tables.get(TOTALS, "ada", timeout_s=DEADLINE_S)).value == Total(1)
        assert directory.looks == 1


@scenario
async def test_a_client_that_is_closed_amid_a_look_says_so_to_callers_that_wait() -> None:
    async with held() as (directory, tables):
        asked = asyncio.create_task(tables.get(TOTALS, "ada", timeout_s=DEADLINE_S))
        await directory.begun.wait()
    with pytest.raises(ConfigError, match="the table client is not open"):
        await asked
