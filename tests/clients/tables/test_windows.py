"""Windows of a key, and of all keys by their time, asked of workers."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast import BlockingTableClient, Processor, Settings, TableClient, by_key
from holdfast.agents.web import window_pages
from holdfast.clients.tables.answers import Answer
from holdfast.clients.tables.directory import FixedDirectory
from holdfast.core.streams.windowing.rows import StreamRow, WindowRow
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.dev.ports import free_ports
from holdfast.errors import NoSuchTableError, OffsetTimeoutError, QueryError
from holdfast.streams import (
    Hopping,
    Session,
    Sliding,
    Tumbling,
    Windowed,
    WindowResult,
    stream_key,
    window_key,
)
from holdfast.testing import Topology
from tests.clients.tables.tabling import deadline_after, scenario
from tests.support.patience import DEADLINE_S

PARTITIONS = 3
VIEWS: Windowed[str, int] = Windowed(
    name="views",
    source="clicks",
    decode=bytes.decode,
    by=str,
    window=Tumbling("1s"),
    fold=lambda seen, page: (seen or 0) + 1,
    row=int,
)


async def worker_with_windows() -> MemoryWorker:
    worker = MemoryWorker(Settings(web_port=free_ports(1)[0]), [VIEWS], partitions=PARTITIONS)
    await worker.__aenter__()
    for key in ("home", "home@x"):
        at = by_key(key, PARTITIONS)
        for start_ms in (1_000, 2_000, 10_000):
            row = WindowRow(start_ms // 1_000, start_ms + 1_000)
            worker.put(VIEWS, at, window_key(key, start_ms), row, offset=40)
        worker.put(VIEWS, at, stream_key(at), StreamRow(10_500), offset=40)
    return worker


@scenario
async def test_the_windows_of_a_key_come_in_order_of_time_and_no_others() -> None:
    worker = await worker_with_windows()
    try:
        async with TableClient(worker.settings, [VIEWS], directory=worker.directory()) as tables:
            found = [each async for each in tables.windows(VIEWS, "home")]
            assert [each.value for each in found] == [
                WindowResult("home", start_ms, start_ms + 1_000, start_ms // 1_000)
                for start_ms in (1_000, 2_000, 10_000)
            ]
            assert {(each.partition, each.as_of_offset) for each in found} == {
                (by_key("home", PARTITIONS), 40)
            }
            some = [each async for each in tables.windows("views", "home", since_ms=2_000, until_ms=10_000)]
            assert [each.value.start_ms for each in some] == [2_000]
            assert [each async for each in tables.windows(VIEWS, "hom")] == []
            with pytest.raises(NoSuchTableError):
                [each async for each in tables.windows("view", "home")]
    finally:
        await worker.__aexit__(None, None, None)


@scenario
async def test_callers_without_an_event_loop_read_the_same() -> None:
    worker = await worker_with_windows()

    def read() -> list[int]:
        with BlockingTableClient(worker.settings, [VIEWS], directory=worker.directory()) as tables:
            return [each.value.start_ms for each in tables.windows(VIEWS, "home@x", since_ms=2_000)]

    try:
        assert await asyncio.to_thread(read) == [2_000, 10_000]
    finally:
        await worker.__aexit__(None, None, None)


# -- windows of all keys


def windowed(name: str, window: Any) -> Windowed[Any, int]:
    return Windowed(
        name=name,
        source="views",
        decode=msgspec.json.Decoder(tuple[str, int]).decode,
        by=lambda view: view[0],
        time=lambda view: view[1],
        window=window,
        fold=lambda seen, view: (seen or 0) + 1,
        row=int,
        merge=(lambda earlier, later: earlier + later) if isinstance(window, Session) else None,
    )


KINDS = [
    windowed("tumbling", Tumbling("1s", grace="1m")),
    windowed("hopping", Hopping("2s", every="1s", grace="1m")),
    windowed("sliding", Sliding("1s", grace="1m")),
    windowed("sessions", Session("1s", grace="1m")),
]
KEYS = ("home", "home@x", "home@0000000000002000", "@", "", "\U0001f600", "\x01")


def two_workers(processor: Windowed[Any, int]) -> tuple[list[MemoryWorker], list[WindowResult[Any]]]:
    """Return workers of partitions 0 and 1, and 2, with what a fold of some views leaves, and all its
    windows.
    """
    workers = [
        MemoryWorker(Settings(web_port=free_ports(1)[0]), [processor], partitions=PARTITIONS, active=active)
        for active in ([0, 1], [2])
    ]
    with Topology([processor], partitions=PARTITIONS) as topology:
        for at, key in enumerate(KEYS * 4):
            topology.pipe("views", [key, 1_000 + at * at * 7 % 5_000], key=key)
        assert not topology.refused
        for partition in range(PARTITIONS):
            for key, row in topology.table(processor, partition=partition).items():
                workers[partition // 2].put(processor, partition, key, row, offset=40 + partition)
        return workers, topology.windows(processor)


def directory_of(workers: list[MemoryWorker]) -> FixedDirectory:
    return FixedDirectory([worker.claims() for worker in workers])


@pytest.mark.parametrize("processor", KINDS, ids=lambda kind: str(kind.name))
@scenario
async def test_all_windows_of_a_time_come_from_all_partitions_and_workers(
    processor: Windowed[Any, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_pages, "LIMIT_PAGE_ROWS", 3)  # pages that find nothing, too
    workers, windows = two_workers(processor)
    starts = sorted({each.start_ms for each in windows})
    async with (
        workers[0],
        workers[1],
        TableClient(workers[0].settings, [processor], directory=directory_of(workers)) as tables,
    ):
        for since_ms, until_ms in (
            (None, None),
            (starts[2], None),
            (None, starts[-2]),
            starts[1:3],
            (9, 10),
        ):
            found = [
                each
                async for each in tables.windows(processor, since_ms=since_ms, until_ms=until_ms, page_rows=2)
            ]
            assert sorted(found_of(found)) == sorted(
                (each.key, each.start_ms, each.end_ms, each.value)
                for each in windows
                if (since_ms is None or each.start_ms >= since_ms)
                and (until_ms is None or each.start_ms < until_ms)
            )
            assert [(each.partition, each.key.encode()) for each in found] == sorted(
                (each.partition, each.key.encode()) for each in found
            )
            assert {each.as_of_offset - each.partition for each in found} <= {40}
            for key in KEYS:
                of_key = [
                    each.value
                    async for each in tables.windows(
                        processor.name, key, since_ms=since_ms, until_ms=until_ms
                    )
                ]
                assert of_key == [each.value for each in found if each.value.key == key]


def found_of(answers: list[Answer[WindowResult[int]]]) -> list[tuple[str, int, int, int]]:
    return [(each.value.key, each.value.start_ms, each.value.end_ms, each.value.value) for each in answers]


@scenario
async def test_one_partition_can_be_asked_and_an_offset_waited_for() -> None:
    workers, _ = two_workers(KINDS[0])
    async with (
        workers[0],
        workers[1],
        TableClient(workers[0].settings, KINDS, directory=directory_of(workers)) as tables,
    ):
        only = [each async for each in tables.windows("tumbling", partition=2, at_least=(2, 42))]
        assert {each.partition for each in only} == {2}
        with deadline_after(), pytest.raises(OffsetTimeoutError):
            [each async for each in tables.windows("tumbling", at_least=(2, 43), timeout_s=DEADLINE_S)]
        with pytest.raises(ValueError, match="at_least names partition"):
            [each async for each in tables.windows("tumbling", partition=1, at_least=(2, 42))]


@scenario
async def test_callers_without_an_event_loop_read_all_windows_page_by_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(window_pages, "LIMIT_PAGE_ROWS", 3)
    workers, windows = two_workers(KINDS[3])

    def read() -> list[tuple[str, int, int, int]]:
        with BlockingTableClient(workers[0].settings, KINDS, directory=directory_of(workers)) as tables:
            return found_of([*tables.windows("sessions", page_rows=1)])

    async with workers[0], workers[1]:
        assert sorted(await asyncio.to_thread(read)) == sorted(
            (each.key, each.start_ms, each.end_ms, each.value) for each in windows
        )


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({"since_ms": 5, "until_ms": 5}, "no window can start between them"),
        ({"since_ms": 6, "until_ms": 5}, "until_ms is exclusive"),
        ({"since_ms": 1.5}, "since_ms is 1.5; write a whole number of ms"),
        ({"until_ms": True}, "until_ms is True"),
        ({"until_ms": 10**15 + 1}, "1000000000000000 at most"),
        ({"key": 7}, "a key is a string, not int"),
    ],
)
@pytest.mark.parametrize("key", [{}, {"key": "home"}])
@scenario
async def test_an_impossible_range_is_refused_before_any_worker_is_asked(
    bounds: dict[str, Any], said: str, key: dict[str, Any]
) -> None:
    async with TableClient(Settings(), [VIEWS], directory=FixedDirectory()) as tables:
        with pytest.raises(QueryError, match=said):
            [each async for each in tables.windows(VIEWS, **{**key, **bounds})]


@pytest.mark.parametrize("key", [None, "ada"])
@scenario
async def test_a_table_without_windows_is_refused_by_the_client_and_by_workers(key: str | None) -> None:
    totals = Processor(name="views", source="clicks", decode=bytes, fold=nothing, row=int)
    async with MemoryWorker(Settings(web_port=free_ports(1)[0]), [totals], partitions=1) as worker:
        async with TableClient(worker.settings, [totals], directory=worker.directory()) as tables:
            with pytest.raises(NoSuchTableError, match="table views has no windows; read its rows by `get`"):
                [each async for each in tables.windows(totals, key)]
            with pytest.raises(NoSuchTableError, match="not given a table 'visits'"):
                [each async for each in tables.windows("visits", key)]
        async with TableClient(worker.settings, [VIEWS], directory=worker.directory()) as tables:
            if key is None:  # the client was given another program than the workers run
                with pytest.raises(NoSuchTableError, match="table views has no windows"):
                    [each async for each in tables.windows(VIEWS)]


def nothing(rows: Any, event: Any, at_ms: int) -> None:
    """Its rows are not asked for."""
