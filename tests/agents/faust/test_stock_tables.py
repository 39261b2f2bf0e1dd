"""No offset is committed ahead of the changes of Faust's tables that came of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP

from holdfast.agents.app import create_app
from holdfast.agents.faust.declared.stock_tables import StockTables
from holdfast.config import Settings
from holdfast.kafka.fetching.source_fetcher import Fetched


class Crashes:
    """An application that notes what ends it."""

    def __init__(self, commit_timeout_s: float) -> None:
        self.failures: list[BaseException] = []
        self.stopped_committing = False
        self.consumer = SimpleNamespace(commits_no_more=self._stop)
        self.manager = SimpleNamespace(
            settings=SimpleNamespace(commit_timeout_s=commit_timeout_s), crash=self.failures.append
        )

    def _stop(self) -> None:
        self.stopped_committing = True


@pytest.fixture
def patient() -> Crashes:
    return Crashes(60)


def test_a_commit_waits_for_the_changes_before_it_and_for_no_later_ones(patient: Crashes) -> None:
    async def run() -> None:
        tables, loop = StockTables(patient), asyncio.get_running_loop()
        assert await tables.written()
        before: asyncio.Future[Any] = loop.create_future()
        tables.sending(before)
        commit = asyncio.ensure_future(tables.written())
        await asyncio.sleep(0)
        assert not commit.done()
        tables.sending(loop.create_future())
        before.set_result(None)
        assert await commit

    asyncio.run(run())


def test_a_key_that_was_deleted_and_set_again_is_restored_whatever_its_value(tmp_path: Path) -> None:
    app = create_app([], Settings(app="shop", data_dir=tmp_path))
    counts, topic = app.Table("counts"), "shop-counts-changelog"
    fetched = Fetched(0, topic, 0, 0)
    keys, values = [b'"ada"', b'"ben"', b'"ada"', b'"ada"', b'"ben"'], [b"7", b"8", None, b"0", None]
    fetched.records.append(range(5), [0] * 5, values, keys, None)
    stock = app.tables.stock  # type: ignore[attr-defined]
    stock._standby, stock._next = {TP(topic, 0)}, {TP(topic, 0): 0}
    assert asyncio.run(stock.follow(fetched))
    assert dict(counts.items()) == {"ada": 0}


def test_a_row_that_is_not_written_in_time_is_not_committed() -> None:
    async def run() -> None:
        tables = StockTables(Crashes(0.01))
        tables.sending(asyncio.get_running_loop().create_future())
        assert not await tables.written()

    asyncio.run(run())


def test_a_change_that_cannot_be_written_ends_the_worker_before_anything_is_committed(
    patient: Crashes,
) -> None:
    async def run() -> None:
        tables = StockTables(patient)
        sent: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        tables.sending(sent)
        sent.set_exception(OSError("too large"))
        await tables.written()

    asyncio.run(run())
    assert patient.stopped_committing
    assert [str(each) for each in patient.failures] == [
        "a change of a table is not on its changelog: too large; it is made again after a restart"
    ]
