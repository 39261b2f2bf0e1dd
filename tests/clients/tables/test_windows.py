"""Windows of a key, asked of workers."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import BlockingTableClient, Settings, TableClient, by_key
from holdfast.core.streams.window_rows import StreamRow, WindowRow
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.dev.ports import free_ports
from holdfast.errors import NoSuchTableError
from holdfast.streams import Tumbling, Windowed, WindowResult, stream_key, window_key
from tests.clients.tables.tabling import scenario

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
