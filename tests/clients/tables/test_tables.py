"""TableClient against a worker with a real web port: its answers, their bounds, and the keys that it
takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.clients.tables.blocking import BlockingTableClient
from holdfast.clients.tables.client import NOWHERE, TableClient
from holdfast.config import Settings
from holdfast.core.engine import query_wire
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.errors import (
    ChangelogError,
    ConfigError,
    NoSuchTableError,
    NotReadyError,
    QueryError,
)
from tests.clients.tables.tabling import ROUTED, TOTALS, Total, asked, client, one_worker, scenario, settings
from tests.support.patience import DEADLINE_S
from tests.support.visits import Visit, Visitor, visits

# -- answers


@scenario
async def test_a_row_comes_decoded_with_its_partition_and_how_far_it_is_true() -> None:
    async with one_worker(partitions=2) as worker, client(worker) as tables:
        worker.put(TOTALS, 1, "ada", Total(3), offset=41)
        worker.replica(TOTALS, 1).stream_ms = 7_000
        answer = await tables.get(TOTALS, "ada", partition=1)
        assert (answer.value, answer.partition, answer.as_of_offset, answer.stream_ms, answer.role) == (
            Total(3),
            1,
            41,
            7_000,
            "active",
        )
        missing = await tables.get(TOTALS, "bob", partition=1)
        assert (missing.value, missing.partition, missing.as_of_offset) == (None, 1, 41)


@scenario
async def test_without_a_route_every_partition_is_asked_and_the_row_found_wherever_it_is() -> None:
    async with one_worker(partitions=3) as worker, client(worker) as tables:
        for partition in range(3):
            worker.put(TOTALS, partition, f"only in {partition}", Total(partition), offset=10 + partition)
            found = await tables.get("totals", f"only in {partition}")
            assert (found.value, found.partition, found.as_of_offset) == (
                Total(partition),
                partition,
                10 + partition,
            )
        nowhere = await tables.get(TOTALS, "nobody")
        assert (nowhere.value, nowhere.partition, nowhere.as_of_offset) == (None, NOWHERE, NOWHERE)
        assert dict(nowhere.positions) == {0: 10, 1: 11, 2: 12}


@scenario
async def test_a_row_in_two_partitions_is_no_single_answer() -> None:
    async with one_worker(partitions=2) as worker, client(worker) as tables:
        for partition in range(2):
            worker.put(TOTALS, partition, "ada", Total(partition), offset=1)
        with pytest.raises(QueryError, match="say which with `partition`"):
            await tables.get(TOTALS, "ada")
        assert (await tables.get(TOTALS, "ada", partition=1)).value == Total(1)


@scenario
async def test_a_route_is_followed_and_no_other_worker_is_asked() -> None:
    async with one_worker(partitions=4) as worker, client(worker) as tables:
        worker.put(ROUTED, 3, "7", Total(7), offset=1)
        assert (await tables.get(ROUTED, "7")).value == Total(7)
        assert asked(worker) == 1
        assert (await tables.get(ROUTED, "*")).partition == NOWHERE  # routed nowhere: everywhere
        assert asked(worker) == 5
        with pytest.raises(QueryError, match="is not a valid key of routed"):
            await tables.get(ROUTED, "seven")


@scenario
async def test_many_keys_are_asked_for_by_partition_at_once() -> None:
    async with one_worker(partitions=2) as worker, client(worker) as tables:
        for at in range(10):
            worker.put(ROUTED, at % 2, f"{at}", Total(at), offset=at)
        answers = await tables.get_many(ROUTED, [f"{at}" for at in range(12)])
        assert [answers[f"{at}"].value for at in range(12)] == [*(Total(at) for at in range(10)), None, None]
        assert asked(worker) == 2
        assert await tables.get_many(ROUTED, []) == {}
        anywhere = await tables.get_many(TOTALS, ["b", "a", "b"])
        assert list(anywhere) == ["b", "a"]


@scenario
async def test_many_large_rows_come_in_as_many_replies_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_wire, "LIMIT_REPLY_BYTES", 1_000_000)
    keys = [f"{at}" for at in range(25)]
    async with one_worker() as worker, client(worker) as tables:
        for key in keys:
            worker.put(TOTALS, 0, key, Total(int(key), "x" * 300_000), offset=1)
        answers = await tables.get_many(TOTALS, keys, partition=0)
        assert [answers[key].value.count for key in keys if answers[key].value] == list(range(25))  # type: ignore[union-attr]
        assert asked(worker) == 9


HOSTILE_KEYS = [
    "",
    "a/b",
    "../../metrics",
    "..",
    "%2F",
    "ключ",
    "键/😀",
    "\n\r\0",
    "?x=1&y#z",
    "k" * 1_000_000,
    "键" * 300_000,
]


@pytest.mark.parametrize("key", HOSTILE_KEYS, ids=lambda key: repr(key[:12]))
@scenario
async def test_any_text_is_a_key(key: str) -> None:
    async with one_worker() as worker, client(worker) as tables:
        worker.put(TOTALS, 0, key, Total(9), offset=1)
        assert (await tables.get(TOTALS, key)).value == Total(9)
        assert [answer.key async for answer in tables.scan(TOTALS, key)] == [key]
        assert (await tables.get_many(TOTALS, [key, "other"]))[key].value == Total(9)


@scenario
async def test_a_key_that_is_no_text_is_refused_before_anyone_is_asked() -> None:
    async with one_worker() as worker, client(worker) as tables:
        with pytest.raises(QueryError, match="Unicode"):
            await tables.get(TOTALS, "\ud800")
        assert asked(worker) == 0


@scenario
async def test_a_row_of_another_type_is_reported_and_not_misread() -> None:
    async with one_worker() as worker, client(worker) as tables:
        worker.replica(TOTALS, 0).rows["ada"] = b"\x01\x81\xa5count\xa3one"
        with pytest.raises(ChangelogError, match="does not fit its type"):
            await tables.get(TOTALS, "ada")


# -- a client that is not open


@scenario
async def test_a_client_outside_its_block_says_so_and_does_not_wait() -> None:
    """It asked Kafka for the workers of an application that were there, and blamed the broker after the
    deadline.
    """

    async def scanned(tables: TableClient) -> None:
        async for _ in tables.scan(TOTALS, timeout_s=DEADLINE_S):
            pass

    questions: list[Callable[[TableClient], Awaitable[object]]] = [
        lambda tables: tables.get(TOTALS, "ada", timeout_s=DEADLINE_S),
        lambda tables: tables.get(TOTALS, "ada", partition=0, timeout_s=DEADLINE_S),
        scanned,
    ]
    async with one_worker() as worker:
        opened = client(worker)
        async with opened as tables:
            await tables.get(TOTALS, "ada", partition=0)
        for each in (client(worker), opened):
            for question in questions:
                with pytest.raises(ConfigError, match=r"the table client is not open: use it in a `with`"):
                    await question(each)
        assert asked(worker, "ok") == 1, "nobody was asked for those outside the block"


# -- scans


@scenario
async def test_a_scan_goes_through_all_partitions_in_order_page_by_page() -> None:
    async with one_worker(partitions=3) as worker, client(worker) as tables:
        for at in range(60):
            worker.put(TOTALS, at % 3, f"a{at:02}", Total(at), offset=100 + at % 3)
        worker.put(TOTALS, 0, "b", Total(0), offset=100)
        rows = [
            (answer.partition, answer.key, answer.value.count, answer.as_of_offset)
            async for answer in tables.scan(TOTALS, "a", page_rows=7)
        ]
        assert rows == [
            (at % 3, f"a{at:02}", at, 100 + at % 3) for at in sorted(range(60), key=lambda at: (at % 3, at))
        ]
        assert [answer.key async for answer in tables.scan(TOTALS, "a0", partition=2)] == [
            "a02",
            "a05",
            "a08",
        ]
        assert [answer.key async for answer in tables.scan(TOTALS, "zzz")] == []


@scenario
async def test_a_scan_survives_that_its_partition_moves_between_two_pages() -> None:
    async with one_worker() as here, one_worker() as there:
        for worker in (here, there):
            for at in range(20):
                worker.put(TOTALS, 0, f"{at:02}", Total(at), offset=5)
        async with client(here) as tables:
            seen = []
            async for answer in tables.scan(TOTALS, page_rows=5):
                seen.append(answer.key)
                if len(seen) == 8:
                    del here.replicas["totals", 0]
                    here.owners["totals", 0] = there.url
        assert seen == [f"{at:02}" for at in range(20)]
        assert asked(here, "moved") >= 1
        assert asked(there, "ok") >= 2


# -- without an event loop


def test_the_blocking_form_gives_the_same_answers() -> None:
    async def serve(ready: Callable[[MemoryWorker], Awaitable[None]]) -> None:
        async with one_worker(partitions=2) as worker:
            for at in range(20):
                worker.put(ROUTED, at % 2, f"{at}", Total(at), offset=at)
            await ready(worker)

    async def in_thread(worker: MemoryWorker) -> None:
        await asyncio.to_thread(ask, worker)

    def ask(worker: MemoryWorker) -> None:
        with BlockingTableClient(
            Settings(app="shop"), [ROUTED, TOTALS], directory=worker.directory()
        ) as tables:
            assert tables.get(ROUTED, "4").value == Total(4)
            assert tables.get_many(ROUTED, ["3", "99"])["3"].value == Total(3)
            assert len(list(tables.scan(ROUTED, page_rows=3))) == 20
            assert next(iter(tables.scan(ROUTED, page_rows=3))).key == "0"  # not read to its end
            worker.replica(TOTALS, 0).serving = False
            with pytest.raises(NotReadyError):
                tables.get(TOTALS, "ada", partition=0, timeout_s=0.1)

    asyncio.run(asyncio.wait_for(serve(in_thread), DEADLINE_S))


# -- named tables


@scenario
async def test_a_named_table_is_asked_for_by_its_name_and_each_by_its_own_route() -> None:
    shop = visits()
    async with (
        MemoryWorker(settings(), [shop], partitions=4) as worker,
        TableClient(Settings(app="shop"), [shop], directory=worker.directory()) as tables,
    ):
        home = by_key("ann", 4)
        worker.put(shop, home, "ann", Visitor(7), offset=1)
        worker.put(shop, home, "ann", Visit("home", 5), offset=1, table="open")
        worker.put(shop, 3, "ann", 2.5, offset=1, table="pages")
        assert (await tables.get(shop, "ann")).value == Visitor(7)
        assert (await tables.get("visitors.open", "ann")).value == Visit("home", 5)
        assert asked(worker) == 2
        assert (await tables.get("visitors.pages", "ann")).value == 2.5
        assert asked(worker) == 6, "a table without a route is asked for everywhere"
        assert [each.value async for each in tables.scan("visitors.open")] == [Visit("home", 5)]
        assert (await tables.get("visitors.open", "nobody")).value is None
        for name in ("visitors.shut", "visitors.", "open"):
            with pytest.raises(NoSuchTableError, match=f"not given a table {name!r}, only: visitors, visit"):
                await tables.get(name, "ann")


def test_a_blocking_client_reads_named_tables() -> None:
    shop = visits()

    async def serve() -> None:
        async with MemoryWorker(settings(), [shop], partitions=1) as worker:
            worker.put(shop, 0, "ann", Visit("home", 5), offset=1, table="open")

            def ask() -> list[object]:
                with BlockingTableClient(
                    Settings(app="shop"), [shop], directory=worker.directory()
                ) as tables:
                    return [
                        tables.get("visitors.open", "ann").value,
                        *(each.value for each in tables.scan("visitors.open")),
                    ]

            assert await asyncio.to_thread(ask) == [Visit("home", 5)] * 2

    asyncio.run(serve())
