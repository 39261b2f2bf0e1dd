"""Global tables over HTTP: rows for people, and refusals."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from holdfast.agents.web.global_routes import READS_AT_ONCE
from holdfast.dev.memory_tables import MemoryGlobal, MemoryWorker
from tests.agents.web.test_server import TOTALS, Asking, scenario, settings
from tests.clients.tables.test_globals import ORDERS, with_rates


@scenario
async def test_rows_come_with_the_position_of_the_copy() -> None:
    async with MemoryWorker(settings(), [ORDERS, TOTALS], partitions=2) as worker, Asking(worker) as asking:
        with_rates(worker)
        about = {"table": "rates", "position": [20, 30], "stream_ms": -1}
        status, answer, headers = await asking.ask("/globals/rates/rows/usd")
        assert (status, answer) == (200, {**about, "key": "usd", "found": True, "value": 0.9})
        assert headers["Cache-Control"] == "no-store"
        _, answer, _ = await asking.ask("/globals/rates/rows/eur")
        assert answer == {**about, "key": "eur", "found": False, "value": None}
        _, answer, _ = await asking.ask("/globals/rates/get", json.dumps({"keys": ["chf", "eur"]}).encode())
        assert answer == {**about, "values": [1.1, None]}
        _, answer, _ = await asking.ask("/globals/rates/scan?prefix=u&limit=1")
        assert answer == {**about, "rows": [["usd", 0.9]], "after": "usd"}
        _, answer, _ = await asking.ask("/globals/rates/scan?prefix=u&limit=1&after=usd")
        assert answer["rows"] == [["usdt", 0.8]]
        _, listed, _ = await asking.ask("/tables")
        assert listed["globals"] == {
            "rates": {"source": "rates", "serving": True, "position": [20, 30], "approximate_rows": 4}
        }
        assert {(table, verb) for table, verb, _ in worker.metrics.queries} == {
            ("rates", "get"),
            ("rates", "get_many"),
            ("rates", "scan"),
        }


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("rate/rows/usd", 404, "no global table 'rate' in application shop; its global tables: rates"),
        ("totals/rows/usd", 404, "no global table 'totals'"),
        ("rates/rows/usd?stale-ok=5", 400, "unknown parameter 'stale-ok'"),
        ("rates/rows/usd?version=1", 400, "unknown parameter 'version'"),
        ("rates/rows/usd?at-offset=5", 400, "names no partition of rates; write at-offset=0:5"),
        ("rates/rows/usd?at-offset=2:5", 400, "names partition 2 of rates, which has 2"),
        ("rates/rows/usd?at-offset=x:5", 400, "the partition of at-offset is 'x'"),
        ("rates/rows/usd?at-offset=0:21&timeout-ms=10", 504, "not yet at 0:21 after 10 ms"),
        ("rates/scan?limit=0", 400, "limit is 0"),
    ],
)
@scenario
async def test_what_cannot_be_answered_is_said(path: str, status: int, said: str) -> None:
    async with MemoryWorker(settings(), [ORDERS, TOTALS], partitions=2) as worker, Asking(worker) as asking:
        with_rates(worker)
        got, refused, _ = await asking.ask(f"/globals/{path}")
        assert (got, said in refused["message"]) == (status, True), refused


@scenario
async def test_a_copy_that_is_not_caught_up_says_so_and_lists_itself_as_not_serving() -> None:
    async with MemoryWorker(settings(), [ORDERS], partitions=2) as worker, Asking(worker) as asking:
        worker.globals["rates"].cause = "global table rates is not caught up"
        for path in ("rows/usd", "scan"):
            status, refused, headers = await asking.ask(f"/globals/rates/{path}")
            assert (status, refused["error"], headers["Retry-After"]) == (503, "not_ready", "1")
            assert "not caught up" in refused["message"]
        _, listed, _ = await asking.ask("/tables")
        assert listed["globals"]["rates"]["serving"] is False


@scenario
async def test_few_queries_read_copies_at_once_and_those_that_waited_ask_again_whether_they_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, most = 0, 0
    original, full, going = MemoryGlobal.read, asyncio.Event(), asyncio.Event()

    async def slowly(self: MemoryGlobal, work: Any) -> Any:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        if reading == READS_AT_ONCE:
            full.set()
        await going.wait()
        reading -= 1
        return await original(self, work)

    monkeypatch.setattr(MemoryGlobal, "read", slowly)
    async with MemoryWorker(settings(), [ORDERS], partitions=2) as worker, Asking(worker) as asking:
        rates = with_rates(worker).globals["rates"]
        asked = [
            asyncio.ensure_future(asking.ask("/globals/rates/rows/usd")) for _ in range(3 * READS_AT_ONCE)
        ]
        await full.wait()
        await asyncio.sleep(0.2)  # for the others to come; one that comes later is refused as they are
        rates.cause = "the worker is stopping"
        going.set()
        statuses = Counter([status for status, _, _ in await asyncio.gather(*asked)])
    assert most == READS_AT_ONCE
    assert statuses == {200: READS_AT_ONCE, 503: 2 * READS_AT_ONCE}


@scenario
async def test_the_list_of_a_worker_without_globals_is_as_it_was() -> None:
    async with MemoryWorker(settings(), [TOTALS], partitions=2) as worker, Asking(worker) as asking:
        _, listed, _ = await asking.ask("/tables")
        assert listed.keys() == {"app", "release", "tables", "url"}
