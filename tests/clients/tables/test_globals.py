"""Global tables, asked of any worker: its copy answers, with the position it has."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from holdfast import (
    BlockingTableClient,
    FoldWith,
    Global,
    Json,
    Processor,
    Rows,
    Settings,
    Source,
    TableClient,
)
from holdfast.clients.tables.directory import FixedDirectory
from holdfast.core.engine.query_wire import LIMIT_REPLY_BYTES
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.dev.ports import free_ports
from holdfast.errors import AccessError, NoSuchTableError, NotReadyError, OffsetTimeoutError, QueryError
from tests.clients.tables.tabling import deadline_after, scenario
from tests.support.patience import DEADLINE_S

PARTITIONS = 2


def set_rate(rows: Rows[float], rate: float, at_ms: int, currency: str) -> None:
    rows[currency] = rate


def convert(rows: Rows[float], order: str, at_ms: int) -> None:
    rows[order] = rows.globals[RATES].get(order, 0.0)


RATES: Global[float] = Global("rates", Source("rates", Json(float)), FoldWith(set_rate, ("key",)), row=float)
ORDERS: Processor[Any, float] = Processor(
    name="orders", on={Source("orders", Json(str)): convert}, row=float, reads=(RATES,)
)
PLAIN: Processor[Any, float] = Processor(name="orders", on={Source("orders", Json(str)): convert}, row=float)


def a_worker(*processors: Processor[Any, Any], **changes: Any) -> MemoryWorker:
    settings = Settings(**{"app": "shop", "web_port": free_ports(1)[0], **changes})
    return MemoryWorker(settings, processors or [ORDERS], partitions=PARTITIONS)


def with_rates(worker: MemoryWorker) -> MemoryWorker:
    rates = worker.globals["rates"]
    for at, (key, rate) in enumerate((("usd", 0.9), ("gbp", 1.2), ("usdt", 0.8), ("chf", 1.1))):
        rates.put(key, rate, partition=at % 2, offset=10 * at)
    return worker


def client(*workers: MemoryWorker, **changes: Any) -> TableClient:
    directory = FixedDirectory([each.claims(generation=at) for at, each in enumerate(workers)])
    return TableClient(Settings(app="shop", **changes), [ORDERS], directory=directory)


@pytest.mark.parametrize("table", [RATES, "rates"])
@scenario
async def test_a_row_of_a_global_comes_with_the_position_of_the_copy(table: Global[float] | str) -> None:
    async with with_rates(a_worker()) as worker, client(worker) as tables:
        answer = await tables.get(table, "usd")
        assert (answer.value, answer.role, answer.partition) == (0.9, "copy", -1)
        assert (answer.positions, answer.as_of_offset) == ({0: 20, 1: 30}, 51)
        many = await tables.get_many(table, ["gbp", "eur", "chf"])
        assert {key: each.value for key, each in many.items()} == {"gbp": 1.2, "eur": None, "chf": 1.1}
        assert many["eur"].positions == {0: 20, 1: 30}


@pytest.mark.parametrize("page_rows", [1, 2, 1_000])
@scenario
async def test_a_scan_of_a_global_is_of_all_partitions_in_the_order_of_keys(page_rows: int) -> None:
    async with with_rates(a_worker()) as worker, client(worker) as tables:
        found = [each async for each in tables.scan(RATES, page_rows=page_rows)]
        assert [(each.key, each.value) for each in found] == [
            ("chf", 1.1),
            ("gbp", 1.2),
            ("usd", 0.9),
            ("usdt", 0.8),
        ]
        assert all(each.positions == {0: 20, 1: 30} for each in found)
        assert [each.key async for each in tables.scan("rates", "usd", page_rows=page_rows)] == [
            "usd",
            "usdt",
        ]
        assert [each async for each in tables.scan(RATES, "x")] == []


@scenario
async def test_pages_and_answers_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.clients.tables.query_router.ATTEMPT_S", 60.0)  # no page is asked for twice
    texts: Global[str] = Global("texts", Source("texts", Json(str)), FoldWith(set_rate, ("key",)), row=str)
    wide: Processor[Any, float] = Processor(
        name="wide", on={Source("orders", Json(str)): convert}, row=float, reads=(texts,)
    )
    async with a_worker(wide) as worker:
        for at in range(3):
            worker.globals["texts"].put(f"k{at}", "x" * (LIMIT_REPLY_BYTES * 2 // 5), offset=at)
        async with TableClient(Settings(app="shop"), [wide], directory=worker.directory()) as tables:
            assert len([each async for each in tables.scan(texts, timeout_s=DEADLINE_S)]) == 3
            assert len(await tables.get_many(texts, ["k0", "k1", "k2"], timeout_s=DEADLINE_S)) == 3
        assert sum(worker.metrics.queries.values()) == 4


@scenario
async def test_any_worker_answers_in_turn_and_one_that_cannot_is_passed() -> None:
    one, other, third = with_rates(a_worker()), with_rates(a_worker()), a_worker(PLAIN)
    async with one, other, third, client(one, other, third) as tables:
        for _ in range(6):
            assert (await tables.get(RATES, "usd")).value == 0.9
        assert sum(one.metrics.queries.values()) >= 2
        assert sum(other.metrics.queries.values()) >= 2
        one.globals["rates"].cause = "global table rates is not caught up"
        for _ in range(3):
            assert (await tables.get(RATES, "usd")).value == 0.9
        other.globals["rates"].cause = "global table rates is not caught up"
        with deadline_after(), pytest.raises(NotReadyError, match="not caught up"):
            await tables.get(RATES, "usd", timeout_s=DEADLINE_S)
        await other.__aexit__(None, None, None)
        one.globals["rates"].cause = None
        for _ in range(3):
            assert (await tables.get(RATES, "usd")).value == 0.9


@scenario
async def test_a_copy_that_is_not_caught_up_is_waited_for() -> None:
    async with with_rates(a_worker()) as worker, client(worker) as tables:
        rates = worker.globals["rates"]
        rates.cause = "global table rates is not caught up: partition 0 was read up to 5 of 17 of rates"
        with deadline_after(), pytest.raises(NotReadyError, match="partition 0 was read up to 5 of 17"):
            await tables.get(RATES, "usd", timeout_s=DEADLINE_S)
        asked = asyncio.ensure_future(tables.get(RATES, "usd"))
        await asyncio.sleep(0.1)
        rates.cause = None
        assert (await asked).value == 0.9


@scenario
async def test_offsets_of_the_topic_can_be_waited_for() -> None:
    async with with_rates(a_worker()) as worker, client(worker) as tables:
        assert (await tables.get(RATES, "usd", at_least=(0, 20))).value == 0.9
        with deadline_after(), pytest.raises(OffsetTimeoutError, match="is at 0:20,1:30, not yet at 1:31"):
            await tables.get(RATES, "usd", at_least={1: 31}, timeout_s=DEADLINE_S)
        asked = asyncio.ensure_future(tables.get(RATES, "usd", at_least={0: 21, 1: 30}))
        await asyncio.sleep(0.1)
        worker.globals["rates"].put("usd", 0.7, offset=21)
        answer = await asked
        assert (answer.value, answer.positions) == (0.7, {0: 21, 1: 30})


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"partition": 0}, "leave out partition"),
        ({"max_staleness": timedelta(seconds=1)}, "max_staleness says nothing"),
        ({"at_least": (0, {"rates": 3})}, "write at_least as an offset by partition"),
        ({"at_least": {2: 3}}, "names partition 2 of rates, which has 2"),
    ],
)
@scenario
async def test_terms_that_a_copy_does_not_know_are_refused(terms: dict[str, Any], said: str) -> None:
    async with with_rates(a_worker()) as worker, client(worker) as tables:
        with pytest.raises(QueryError, match=said):
            await tables.get(RATES, "usd", **terms)
        with pytest.raises(QueryError, match=said):
            [each async for each in tables.scan(RATES, **terms)]


@scenario
async def test_a_key_with_rows_in_two_partitions_is_an_error_that_says_so() -> None:
    async with with_rates(a_worker()) as worker, client(worker) as tables:
        worker.globals["rates"].put("usd", 0.1, partition=1, offset=31)
        with pytest.raises(QueryError, match="rows of 'usd' in two partitions of rates"):
            await tables.get(RATES, "usd")
        with pytest.raises(QueryError, match="rows of 'usd' in two partitions of rates"):
            [each async for each in tables.scan(RATES)]
        assert (await tables.get(RATES, "gbp")).value == 1.2


@scenario
async def test_an_object_that_is_no_global_table_is_refused() -> None:
    async with a_worker(PLAIN) as worker, client(worker) as tables:
        with pytest.raises(NoSuchTableError, match="no global table 'rates' in application shop"):
            await tables.get(RATES, "usd")
        with pytest.raises(
            NoSuchTableError, match=r"not given a table 'rate', only: orders, rates \(global\)"
        ):
            await tables.get("rate", "usd")
        with pytest.raises(NoSuchTableError, match="global table rates has no windows"):
            [each async for each in tables.windows(RATES)]
    async with TableClient(Settings(), [PLAIN], directory=FixedDirectory()) as tables:
        with pytest.raises(NoSuchTableError, match="not given a table 'rates'"):
            await tables.get(RATES, "usd")
    async with TableClient(Settings(app="shop"), [ORDERS], directory=FixedDirectory()) as tables:
        with (
            deadline_after(),
            pytest.raises(NotReadyError, match="no worker of shop claims global table rates"),
        ):
            await tables.get(RATES, "usd", timeout_s=DEADLINE_S)


@scenario
async def test_a_global_needs_the_token() -> None:
    async with with_rates(a_worker(web_token="t")) as worker:
        async with client(worker, web_token="t") as tables:
            assert (await tables.get(RATES, "usd")).value == 0.9
        async with client(worker, web_token="other") as tables:
            with pytest.raises(AccessError):
                await tables.get(RATES, "usd")


@scenario
async def test_callers_without_an_event_loop_read_a_global_too() -> None:
    def read() -> tuple[float | None, list[str]]:
        with BlockingTableClient(worker.settings, [ORDERS], directory=worker.directory()) as tables:
            return tables.get(RATES, "usd").value, [each.key for each in tables.scan("rates", page_rows=1)]

    async with with_rates(a_worker()) as worker:
        assert await asyncio.to_thread(read) == (0.9, ["chf", "gbp", "usd", "usdt"])
