"""The web port over real sockets: what it answers, what it refuses and how it says so."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Self
from urllib.parse import quote

import aiohttp
import msgspec
import pytest
from yarl import URL

from holdfast.agents.web import server
from holdfast.clock import ManualClock
from holdfast.config import Settings
from holdfast.core.engine import query_wire
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.query_wire import JSON, MSGPACK, PageReply, Refusal, RowReply, RowsReply
from holdfast.core.engine.state.codec import RowCodec
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.dev.ports import free_ports
from holdfast.errors import ConfigError
from tests.support.patience import SCENARIO_S
from tests.support.visits import Visit, visits


class Total(msgspec.Struct, frozen=True, array_like=True):
    count: int = 0
    note: str = ""


def fold(rows: Any, event: Any, at_ms: int) -> None:
    """These rows are put by the tests."""


TOTALS: Processor[Any, Total] = Processor(name="totals", source="orders", decode=bytes, fold=fold, row=Total)


def scenario(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), SCENARIO_S))

    return run


def settings(**changes: Any) -> Settings:
    return Settings(**{"app": "shop", "web_port": free_ports(1)[0], **changes})


class Asking:
    """Asks one worker."""

    def __init__(self, worker: MemoryWorker, accept: str = JSON) -> None:
        self._at, self._accept = worker.url, accept

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(headers={"Accept": self._accept})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def ask(
        self, path: str, body: bytes | None = None, content_type: str = JSON
    ) -> tuple[int, Any, dict[str, str]]:
        url, method = URL(self._at + path, encoded=True), "GET" if body is None else "POST"
        async with self._session.request(
            method, url, data=body, headers={"Content-Type": content_type}
        ) as response:
            raw = await response.read()
            return (
                response.status,
                json.loads(raw) if response.content_type == JSON else raw,
                dict(response.headers),
            )


# -- rows


@scenario
async def test_a_row_is_answered_with_its_partition_and_how_far_it_is_true() -> None:
    async with MemoryWorker(settings(), [TOTALS], partitions=2) as worker, Asking(worker) as asking:
        worker.put(TOTALS, 1, "ada", Total(3, "x"), offset=41)
        worker.replica(TOTALS, 1).stream_ms = 1_700_000_000_000
        status, answer, headers = await asking.ask("/tables/totals/1/rows/ada")
    assert status == 200
    assert answer == {
        "table": "totals",
        "version": 1,
        "partition": 1,
        "role": "active",
        "as_of_offset": 41,
        "stream_ms": 1_700_000_000_000,
        "key": "ada",
        "found": True,
        "value": {"count": 3, "note": "x"},
    }
    assert headers["Cache-Control"] == "no-store"


@scenario
async def test_a_named_table_is_asked_for_after_its_processor_and_other_names_are_refused() -> None:
    shop = visits()
    async with MemoryWorker(settings(), [shop], partitions=1) as worker, Asking(worker) as asking:
        worker.put(shop, 0, "ann", Visit("home", 5), offset=3, table="open")
        status, answer, _ = await asking.ask("/tables/visitors.open/0/rows/ann")
        assert (status, answer["table"], answer["value"]) == (
            200,
            "visitors.open",
            {"page": "home", "since_ms": 5},
        )
        _, page, _ = await asking.ask("/tables/visitors.open/0/scan")
        assert page["rows"] == [["ann", {"page": "home", "since_ms": 5}]]
        _, own, _ = await asking.ask("/tables/visitors/0/rows/ann")
        assert own["found"] is False
        for name in ("visitors.shut", "visitors.", "visitors.open.more", ".open", "visitors..open"):
            status, refused, _ = await asking.ask(f"/tables/{name}/0/rows/ann")
            assert (status, refused["error"]) == (404, "no_such_table")
            assert "its tables: visitors, visitors.open, visitors.pages" in refused["message"]
        _, listed, _ = await asking.ask("/tables")
        assert listed["tables"]["visitors"]["tables"] == ["open", "pages"]
        assert {table for table, _, _ in worker.metrics.queries} == {"visitors", "visitors.open", ""}


@scenario
async def test_a_missing_row_is_an_answer_and_no_error() -> None:
    async with MemoryWorker(settings(), [TOTALS], partitions=1) as worker, Asking(worker) as asking:
        status, answer, _ = await asking.ask("/tables/totals/0/rows/nobody")
    assert (status, answer["found"], answer["value"], answer["as_of_offset"]) == (200, False, None, -1)


@scenario
async def test_messagepack_carries_the_stored_bytes_of_a_row() -> None:
    async with (
        MemoryWorker(settings(), [TOTALS], partitions=1) as worker,
        Asking(worker, accept=MSGPACK) as asking,
    ):
        worker.put(TOTALS, 0, "ada", Total(3), offset=4)
        _, raw, headers = await asking.ask("/tables/totals/0/rows/ada")
        reply = msgspec.msgpack.decode(raw, type=RowReply)
        codec: RowCodec[Total] = RowCodec(Total)
        assert headers["Content-Type"] == MSGPACK
        assert reply.value is not None
        assert codec.decode(reply.value) == Total(3)


@scenario
async def test_many_rows_come_in_the_order_of_their_keys_with_null_for_the_missing() -> None:
    async with MemoryWorker(settings(), [TOTALS], partitions=1) as worker, Asking(worker) as asking:
        worker.put(TOTALS, 0, "a", Total(1), offset=0)
        worker.put(TOTALS, 0, "c", Total(3), offset=7)
        status, answer, _ = await asking.ask(
            "/tables/totals/0/get", json.dumps({"keys": ["c", "b", "a", "a"]}).encode()
        )
    assert status == 200
    assert [row and row["count"] for row in answer["values"]] == [3, None, 1, 1]


HOSTILE_KEYS = [
    "",
    "a/b",
    "../../metrics",
    "..",
    "%2F",
    "%25",
    "a b+c",
    "ключ",
    "键/😀",
    "\n\r\0",
    "?x=1&y#z",
    "x" * 5_000,
]


@pytest.mark.parametrize("key", HOSTILE_KEYS)
@scenario
async def test_any_text_is_a_key(key: str) -> None:
    async with MemoryWorker(settings(), [TOTALS], partitions=1) as worker, Asking(worker) as asking:
        worker.put(TOTALS, 0, key, Total(9), offset=1)
        _, answer, _ = await asking.ask("/tables/totals/0/get", json.dumps({"keys": [key]}).encode())
        assert answer["values"] == [{"count": 9, "note": ""}]
        _, answer, _ = await asking.ask(f"/tables/totals/0/rows/{quote(key, safe='')}")
        assert (answer["found"], answer["key"]) == (True, key)


@scenario
async def test_a_key_of_a_megabyte_goes_into_the_body() -> None:
    key = "k" * 1_000_000
    async with (
        MemoryWorker(settings(), [TOTALS], partitions=1) as worker,
        Asking(worker, accept=MSGPACK) as asking,
    ):
        worker.put(TOTALS, 0, key, Total(9), offset=1)
        _, raw, _ = await asking.ask("/tables/totals/0/get", msgspec.msgpack.encode({"keys": [key]}), MSGPACK)
        assert msgspec.msgpack.decode(raw, type=RowsReply).values[0] is not None
        _, raw, _ = await asking.ask(
            "/tables/totals/0/scan", msgspec.msgpack.encode({"prefix": key}), MSGPACK
        )
        assert [each[0] for each in msgspec.msgpack.decode(raw, type=PageReply).rows] == [key]


# -- bounds


@scenario
async def test_a_scan_comes_in_pages_in_key_order_and_ends() -> None:
    async with MemoryWorker(settings(), [TOTALS], partitions=1) as worker, Asking(worker) as asking:
        keys = sorted([f"a{i:03}" for i in range(250)] + ["aé", "a😀"], key=str.encode)
        for key in [*keys, "b", "A"]:
            worker.put(TOTALS, 0, key, Total(1), offset=5)
        seen: list[str] = []
        path, pages = "/tables/totals/0/scan?prefix=a&limit=100", 0
        after: str | None = ""
        while after is not None:
            _, answer, _ = await asking.ask(path + (f"&after={quote(after, safe='')}" if after else ""))
            seen += [key for key, _ in answer["rows"]]
            after, pages = answer["after"], pages + 1
    assert seen == keys
    assert pages == 3


@scenario
async def test_a_page_stays_within_its_limits_in_rows_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_wire, "LIMIT_REPLY_BYTES", 1_000_000)
    monkeypatch.setattr(query_wire, "LIMIT_PAGE_ROWS", 50)
    asked: list[int] = []
    async with (
        MemoryWorker(settings(), [TOTALS], partitions=1) as worker,
        Asking(worker, accept=MSGPACK) as asking,
    ):
        replica = worker.replica(TOTALS, 0)
        plain = replica.scan

        def scan(prefix: str, after: str | None, limit: int, table: str = "") -> list[tuple[str, bytes]]:
            asked.append(limit)
            return plain(prefix, after, limit)

        monkeypatch.setattr(replica, "scan", scan)
        for at in range(60):
            replica.put(f"small{at:02}", Total(1))
            replica.put(f"large{at:02}", Total(1, "x" * 300_000))
        _, raw, _ = await asking.ask("/tables/totals/0/scan?prefix=small&limit=1000")
        assert len(msgspec.msgpack.decode(raw, type=PageReply).rows) == 50
        asked.clear()
        _, raw, _ = await asking.ask("/tables/totals/0/scan?prefix=large")
        page = msgspec.msgpack.decode(raw, type=PageReply)
        assert (len(page.rows), page.after) == (3, "large02")
        assert sum(asked) <= 16, "no more rows were read into memory than the first chunk"
        many = msgspec.msgpack.encode({"keys": [f"large{at:02}" for at in range(60)]})
        _, raw, _ = await asking.ask("/tables/totals/0/get", many, MSGPACK)
        assert len(msgspec.msgpack.decode(raw, type=RowsReply).values) == 3


@scenario
async def test_reading_ahead_grows_only_as_far_as_the_reply_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_wire, "LIMIT_REPLY_BYTES", 1_000_000)
    read = 0
    async with (
        MemoryWorker(settings(), [TOTALS], partitions=1) as worker,
        Asking(worker, accept=MSGPACK) as asking,
    ):
        replica = worker.replica(TOTALS, 0)
        plain = replica.scan

        def scan(prefix: str, after: str | None, limit: int, table: str = "") -> list[tuple[str, bytes]]:
            nonlocal read
            rows = plain(prefix, after, limit)
            read += len(rows)
            return rows

        monkeypatch.setattr(replica, "scan", scan)
        for at in range(1_000):
            replica.put(f"{at:04}", Total(1, "x" * 10_000))
        _, raw, _ = await asking.ask("/tables/totals/0/scan?limit=1000")
    answered = len(msgspec.msgpack.decode(raw, type=PageReply).rows)
    assert 90 <= answered <= 100
    assert read <= answered + 2


@scenario
async def test_one_row_larger_than_a_reply_is_still_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_wire, "LIMIT_REPLY_BYTES", 1_000)
    async with MemoryWorker(settings(), [TOTALS], partitions=1) as worker, Asking(worker) as asking:
        for key in ("a", "b"):
            worker.put(TOTALS, 0, key, Total(1, "x" * 5_000), offset=1)
        _, answer, _ = await asking.ask("/tables/totals/0/scan")
        assert ([key for key, _ in answer["rows"]], answer["after"]) == (["a"], "a")
        _, answer, _ = await asking.ask("/tables/totals/0/get", b'{"keys":["b","a"]}')
        assert len(answer["values"]) == 1


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/tables/totals/0/scan?limit=0", None, 400, "ask for 1 to"),
        ("/tables/totals/0/scan?limit=-1", None, 400, "whole number"),
        ("/tables/totals/0/scan?limit=1_0", None, 400, "whole number"),
        ("/tables/totals/0/scan?prefx=a", None, 400, "unknown parameter 'prefx'"),
        ("/tables/totals/0/rows/a?stale-ok=soon", None, 400, "write 100 (offsets), 250ms"),
        ("/tables/totals/0/rows/a?at-offset=99999999999999999999", None, 400, "whole number"),
        ("/tables/totals/0/rows/a?at-offset=1&at-offset=2", None, 400, "given twice"),
        ("/tables/totals/x/rows/a", None, 400, "partition is 'x'"),
        ("/tables/totals/2/rows/a", None, 404, "partitions 0 to 1"),
        ("/tables/nope/0/rows/a", None, 404, "its tables: totals"),
        ("/tables/totals/0/rows/a?version=2", None, 404, "version 1 here"),
        ("/tables/totals/0/get", b'{"keys":[]}', 400, "ask for 1 to"),
        ("/tables/totals/0/get", b'{"keys":[1]}', 400, "Expected `str`"),
        ("/tables/totals/0/get", b'{"kays":[]}', 400, "kays"),
        ("/tables/totals/0/get", b"\xff\xfe", 400, "body"),
        ("/tables/totals/0/get", b'{"keys":["\\ud800"]}', 400, "body"),
        ("/tables/totals/0/get", json.dumps({"keys": ["k"] * 10_001}).encode(), 400, "ask for 1 to 10000"),
        ("/tables/totals/0/scan", b'{"limit":-5}', 400, "ask for 1 to"),
        ("/table/totals", None, 404, "see /tables"),
    ],
)
@scenario
async def test_a_request_that_makes_no_sense_is_refused_with_one_that_would(
    path: str, body: bytes | None, status: int, message: str
) -> None:
    async with MemoryWorker(settings(), [TOTALS], partitions=2) as worker, Asking(worker) as asking:
        got, refusal, _ = await asking.ask(path, body)
    assert got == status
    assert message in refusal["message"]


@scenario
async def test_a_body_over_the_limit_is_refused_without_reading_it_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(query_wire, "LIMIT_BODY_BYTES", 10_000)
    async with MemoryWorker(settings(), [TOTALS], partitions=1) as worker, Asking(worker) as asking:
        status, refusal, _ = await asking.ask("/tables/totals/0/get", b"x" * 20_000)
    assert (status, refusal["error"]) == (413, "too_large")


@scenario
async def test_more_queries_than_the_limit_are_asked_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LIMIT_IN_FLIGHT", 1)
    async with MemoryWorker(settings(), [TOTALS], partitions=1) as worker, Asking(worker) as asking:
        waiting = asyncio.create_task(asking.ask("/tables/totals/0/rows/a?at-offset=5&timeout-ms=60000"))
        await worker.replica(TOTALS, 0).waited_for.wait()
        status, refusal, headers = await asking.ask("/tables/totals/0/rows/a")
        assert (status, refusal["error"], headers["Retry-After"]) == (503, "not_ready", "1")
        await worker.replica(TOTALS, 0).advance(5)
        assert (await waiting)[0] == 200
        assert (await asking.ask("/tables/totals/0/rows/a"))[0] == 200


# -- read your writes


@scenario
async def test_a_query_for_an_offset_waits_until_it_is_reflected() -> None:
    async with MemoryWorker(settings(), [TOTALS], partitions=1) as worker, Asking(worker) as asking:
        replica = worker.replica(TOTALS, 0)
        asked = asyncio.create_task(asking.ask("/tables/totals/0/rows/ada?at-offset=7&timeout-ms=60000"))
        await replica.waited_for.wait()
        await replica.advance(6)
        assert not asked.done()
        replica.put("ada", Total(8))
        await replica.advance(7)
        status, answer, _ = await asked
    assert (status, answer["as_of_offset"], answer["value"]["count"]) == (200, 7, 8)


@scenario
async def test_an_offset_that_is_not_reached_in_time_is_refused_with_the_numbers() -> None:
    async with MemoryWorker(settings(), [TOTALS], partitions=1) as worker, Asking(worker) as asking:
        await worker.replica(TOTALS, 0).advance(3)
        status, refusal, _ = await asking.ask("/tables/totals/0/rows/ada?at-offset=7&timeout-ms=20")
    assert (status, refusal["error"]) == (504, "offset_timeout")
    assert "offset 3, not yet 7 after 20 ms" in refusal["message"]


@scenario
async def test_a_partition_that_moves_during_the_wait_is_not_answered_here() -> None:
    async with MemoryWorker(settings(), [TOTALS], partitions=1) as worker, Asking(worker) as asking:
        replica = worker.replica(TOTALS, 0)
        asked = asyncio.create_task(asking.ask("/tables/totals/0/rows/ada?at-offset=7&timeout-ms=60000"))
        await replica.waited_for.wait()
        del worker.replicas["totals", 0]
        worker.owners["totals", 0] = "http://127.0.0.1:1"
        await replica.advance(7)
        status, refusal, headers = await asked
    assert (status, refusal["owner"]) == (421, "http://127.0.0.1:1")
    assert headers["Location"] == "http://127.0.0.1:1/tables/totals/0/rows/ada?at-offset=7&timeout-ms=60000"


# -- elsewhere, not yet, or stale


@scenario
async def test_a_partition_without_a_known_owner_is_answered_with_try_again() -> None:
    async with (
        MemoryWorker(settings(), [TOTALS], partitions=2, active=[0]) as worker,
        Asking(worker) as asking,
    ):
        status, refusal, headers = await asking.ask("/tables/totals/1/rows/ada")
    assert (status, refusal["error"], headers["Retry-After"]) == (503, "not_ready", "1")
    assert "no known owner" in refusal["message"]


@scenario
async def test_a_restoring_partition_is_refused_with_the_cause_though_it_has_the_row() -> None:
    async with MemoryWorker(settings(), [TOTALS], partitions=1) as worker, Asking(worker) as asking:
        worker.put(TOTALS, 0, "ada", Total(1), offset=1)
        worker.replica(TOTALS, 0).serving, worker.cause = False, "restoring totals/0: 10 of 90 records"
        status, refusal, _ = await asking.ask("/tables/totals/0/rows/ada")
    assert status == 503
    assert "restoring totals/0: 10 of 90 records" in refusal["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [("rows/ada", None), ("get", b'{"keys": ["ada"]}'), ("scan", None)],
    ids=["one row", "many rows", "a scan"],
)
@scenario
async def test_rows_read_while_the_partition_was_lost_are_not_answered(path: str, body: bytes | None) -> None:
    async with MemoryWorker(settings(), [TOTALS], partitions=1) as worker, Asking(worker) as asking:
        worker.put(TOTALS, 0, "ada", Total(1), offset=1)
        replica = worker.replica(TOTALS, 0)

        def lost(read: Callable[..., Any]) -> Callable[..., Any]:
            def reading(*args: Any) -> Any:
                replica.serving = False  # frozen here, say, for longer than a session
                return read(*args)

            return reading

        for name in ("get", "get_many", "scan"):
            setattr(replica, name, lost(getattr(replica, name)))
        status, refusal, _ = await asking.ask(f"/tables/totals/0/{path}", body)
    assert (status, refusal["error"]) == (503, "not_ready")


@pytest.mark.parametrize(
    ("bound", "applied", "source_end", "current_ms", "stream_ms", "status"),
    [
        (None, 9, 10, 1_000_000, 0, 421),  # no bound accepts a stale row
        ("0", 9, 10, 0, 0, 200),
        ("0", 8, 10, 1_000_000, 0, 421),
        ("1", 8, 10, 0, 0, 200),
        ("5", 8, -1, 1_000_000, 0, 421),  # its lag is not known
        ("100ms", 8, 10, 999_900, -1, 200),
        ("100ms", 8, 10, 999_899, -1, 421),
        ("100ms", 8, -1, -1, 999_950, 200),  # it has all records appended before its last one
        ("100ms", 8, 10, -1, -1, 421),  # its age is not known
        ("1,100ms", 8, 10, 999_950, 0, 200),
        ("0,100ms", 8, 10, 999_950, 0, 421),  # both bounds hold
        ("1,10ms", 8, 10, 999_950, 0, 421),
    ],
)
@scenario
async def test_a_standby_answers_within_the_stated_staleness_only(
    bound: str | None, applied: int, source_end: int, current_ms: int, stream_ms: int, status: int
) -> None:
    worker = MemoryWorker(
        settings(), [TOTALS], partitions=1, active=[], standby=[0], clock=ManualClock(now_ms=1_000_000)
    )
    replica = worker.replica(TOTALS, 0)
    replica.applied, replica.source_end, replica.current_ms, replica.stream_ms = (
        applied,
        source_end,
        current_ms,
        stream_ms,
    )
    worker.owners["totals", 0] = "http://127.0.0.1:1"
    async with worker, Asking(worker) as asking:
        got, answer, _ = await asking.ask(
            "/tables/totals/0/rows/ada" + ("" if bound is None else f"?stale-ok={bound}")
        )
        assert got == status
        assert answer.get("role") == ("standby" if status == 200 else None)
        del worker.owners["totals", 0]
        got, answer, _ = await asking.ask(
            "/tables/totals/0/rows/ada" + ("" if bound is None else f"?stale-ok={bound}")
        )
        assert got == (200 if status == 200 else 503)


# -- health, metrics, failures


@scenario
async def test_health_says_alive_at_once_and_ready_only_when_serving() -> None:
    async with MemoryWorker(settings(), [TOTALS], partitions=1) as worker, Asking(worker) as asking:
        worker.cause = "restoring totals/0"
        assert (await asking.ask("/health/live"))[:2] == (200, {"status": "live"})
        assert (await asking.ask("/health/ready"))[:2] == (
            503,
            {"status": "unready", "cause": "restoring totals/0"},
        )
        worker.cause = None
        assert (await asking.ask("/health/ready"))[:2] == (200, {"status": "ready"})


@scenario
async def test_tables_lists_the_held_partitions_and_their_positions() -> None:
    async with (
        MemoryWorker(settings(), [TOTALS], partitions=3, active=[0], standby=[2]) as worker,
        Asking(worker) as asking,
    ):
        worker.put(TOTALS, 0, "ada", Total(1), offset=4)
        _, answer, _ = await asking.ask("/tables")
    held = answer["tables"]["totals"]["held"]
    assert (answer["app"], answer["tables"]["totals"]["partitions"]) == ("shop", 3)
    assert [(each["partition"], each["role"], each["as_of_offset"]) for each in held] == [
        (0, "active", 4),
        (2, "standby", -1),
    ]


@scenario
async def test_a_failure_inside_is_answered_and_logged_and_ends_only_its_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with MemoryWorker(settings(), [TOTALS], partitions=1) as worker, Asking(worker) as asking:
        worker.replica(TOTALS, 0).rows["ada"] = b"\x07not a row"
        with caplog.at_level(logging.ERROR):
            status, refusal, _ = await asking.ask("/tables/totals/0/rows/ada")
        assert (status, refusal["error"]) == (500, "failed")
        assert "a request failed" in caplog.text
        assert (await asking.ask("/tables/totals/0/rows/bob"))[0] == 200


@scenario
async def test_a_port_in_use_is_a_setting_to_change() -> None:
    taken = settings()
    async with MemoryWorker(taken, [TOTALS], partitions=1):
        with pytest.raises(ConfigError, match=f"port {taken.web_port}"):
            async with MemoryWorker(taken, [TOTALS], partitions=1):
                raise AssertionError("two servers on one port")


@scenario
async def test_the_port_is_free_again_when_the_service_has_stopped() -> None:
    once = settings()
    for _ in range(3):
        async with MemoryWorker(once, [TOTALS], partitions=1) as worker, Asking(worker) as asking:
            assert (await asking.ask("/health/live"))[0] == 200


def test_a_refusal_says_nothing_it_does_not_know() -> None:
    assert msgspec.json.decode(query_wire.encode_json(Refusal(error="moved", message="m"))) == {
        "error": "moved",
        "message": "m",
        "owner": None,
        "retry_after_ms": None,
    }
