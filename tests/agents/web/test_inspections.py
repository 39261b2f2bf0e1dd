"""Digests of what a worker serves, over its web port: of one moment, guarded as queries are, one at a time
for each partition.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.agents.web import inspections as module
from holdfast.agents.web.inspections import digest_of
from holdfast.clients.tables.inspecting import StoreInspector
from holdfast.core.engine.state.codec import digest, row_key
from holdfast.dev.memory_tables import MemoryReplica, MemoryWorker
from holdfast.errors import StoreError
from tests.agents.web.test_server import TOTALS, Asking, Total, scenario, settings
from tests.support.patience import DEADLINE_S, SCENARIO_S


def worker_with(rows: int, **changes: Any) -> MemoryWorker:
    worker = MemoryWorker(settings(**changes), [TOTALS], partitions=2)
    for number in range(rows):
        worker.put(TOTALS, 0, f"k{number:04d}", Total(number), offset=number)
    return worker


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


async def asked_until_read(asking: Asking, path: str, request: bytes) -> tuple[int, Any]:
    """Ask again while the store is still being read, as the answer says to: that takes as long as the machine
    is busy.
    """
    while True:
        status, found, _ = await asking.ask(path, request)
        if status != 503 or "ask again" not in found["message"]:
            return status, found
        await asyncio.sleep(0.1)


@scenario
async def test_the_digest_is_that_of_a_replay_and_the_rows_after_it_are_of_the_same_moment() -> None:
    worker = worker_with(1_200)
    async with worker, Asking(worker) as asking:
        status, found = await asked_until_read(asking, "/tables/totals/0/digest", body(inspection="one"))
        assert status == 200
        held = {row_key(key): value for key, value in worker.replica(TOTALS, 0).rows.items()}
        assert (found["digest"], found["rows"], found["timers"], found["as_of_offset"]) == (
            digest(sorted(held.items())),
            1_200,
            0,
            1_199,
        )
        worker.put(TOTALS, 0, "k0000", Total(99), offset=2_000)
        again = (await asked_until_read(asking, "/tables/totals/0/digest", body(inspection="one")))[1]
        assert again == found, "the same name is the same moment"
        status, page, _ = await asking.ask("/tables/totals/0/stored", body(inspection="one", limit=5))
        assert (status, len(page["rows"]), page["as_of_offset"]) == (200, 5, 1_199)
        newer = (await asked_until_read(asking, "/tables/totals/0/digest", body(inspection="two")))[1]
        assert (newer["as_of_offset"], newer["digest"] == found["digest"]) == (2_000, False)
        status, refused, _ = await asking.ask("/tables/totals/0/stored", body(inspection="one"))
        assert (status, "that inspection is over" in refused["message"]) == (410, True)


@pytest.mark.long
@scenario
async def test_a_partition_has_one_inspection_at_a_time_and_it_does_not_hold_up_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(state: Any, stop: threading.Event) -> Any:
        begun.set()
        go_on.wait(DEADLINE_S)
        return digest_of(state, stop)

    monkeypatch.setattr(module, "digest_of", slow)
    worker = worker_with(10)
    async with worker, Asking(worker) as asking:
        status, refused, headers = await asking.ask("/tables/totals/0/digest", body(inspection="one"))
        assert (status, refused["error"], "being read" in refused["message"]) == (503, "not_ready", True)
        assert "Retry-After" in headers
        assert await asyncio.to_thread(begun.wait, DEADLINE_S)
        status, refused, _ = await asking.ask("/tables/totals/0/digest", body(inspection="two"))
        assert (status, "another inspection" in refused["message"]) == (503, True)
        assert (await asking.ask("/tables/totals/0/rows/k0001"))[0] == 200
        go_on.set()
        assert (await asked_until_read(asking, "/tables/totals/0/digest", body(inspection="one")))[0] == 200


@scenario
async def test_digests_are_refused_without_the_right_to_query_and_malformed_ones_to_all() -> None:
    worker = worker_with(1, web_token="secret")
    async with worker, Asking(worker) as asking:
        for verb in ("digest", "stored"):
            assert (await asking.ask(f"/tables/totals/0/{verb}", body(inspection="one")))[0] == 401
    worker = worker_with(1)
    async with worker, Asking(worker) as asking:
        for wrong in (
            {},
            {"inspection": ""},
            {"inspection": "x" * 65},
            {"inspection": "x", "more": 1},
            {"inspection": 7},
        ):
            assert (await asking.ask("/tables/totals/0/digest", body(**wrong)))[0] == 400
        assert (await asking.ask("/tables/totals/0/stored", body(inspection="x", limit=0)))[0] == 400
        assert (await asking.ask("/tables/totals/9/digest", body(inspection="x")))[0] == 404
        worker.replica(TOTALS, 0).serving = False
        assert (await asking.ask("/tables/totals/0/digest", body(inspection="x")))[0] == 503


@pytest.mark.long
def test_the_inspector_asks_until_the_digest_is_there_and_reads_all_rows_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = module.digest_of

    def slow(state: Any, stop: threading.Event) -> Any:
        time.sleep(2.5)  # longer than a request waits, and than an attempt of the client
        return plain(state, stop)

    monkeypatch.setattr(module, "digest_of", slow)
    asyncio.run(asyncio.wait_for(_inspect(), SCENARIO_S))


async def _inspect() -> None:
    worker = worker_with(12_000)
    async with worker:

        def ask() -> tuple[str, str, int]:
            with StoreInspector(settings(), directory=worker.directory()) as inspector:
                assert inspector.partitions(TOTALS) == worker.partitions("totals")
                found = inspector.digest(TOTALS, 0)
                rows = list(inspector.stored(TOTALS, found))
                return found.digest, digest(rows), len(rows)

        told, computed, rows = await asyncio.to_thread(ask)
        assert (told == computed, rows) == (True, 12_000)


def test_a_reading_without_a_reader_ends() -> None:
    worker = worker_with(5_000)
    stop = threading.Event()
    stop.set()
    with ThreadPoolExecutor(1) as pool, pytest.raises(StoreError, match="no client waits"):
        pool.submit(digest_of, worker.replica(TOTALS, 0).pin(), stop).result(DEADLINE_S)
    assert isinstance(worker.replica(TOTALS, 0), MemoryReplica)
    assert (
        digest_of(worker.replica(TOTALS, 1).pin(), threading.Event()).digest == hashlib.sha256().hexdigest()
    )
