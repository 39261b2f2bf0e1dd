"""A stranger who reaches the web port can do it no harm: over raw sockets, against the real server."""

from __future__ import annotations

import asyncio
import functools
import gzip
import json
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import compression_utils

from holdfast.config import Settings
from holdfast.core.engine import query_wire
from holdfast.core.engine.declared.processor import Processor
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.dev.ports import free_ports
from holdfast.web import port
from tests.support.patience import DEADLINE_S, SCENARIO_S
from tests.support.places import TLS

TOKEN = "open-sesame"


class Total(msgspec.Struct, frozen=True):
    count: int = 0


def fold(rows: Any, event: Any, at_ms: int) -> None:
    """These rows are put by the tests."""


TOTALS: Processor[Any, Total] = Processor(name="totals", source="orders", decode=bytes, fold=fold, row=Total)


def scenario(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), SCENARIO_S))

    return run


def worker_of(**changes: Any) -> MemoryWorker:
    worker = MemoryWorker(
        Settings(**{"app": "shop", "web_port": free_ports(1)[0], **changes}), [TOTALS], partitions=1
    )
    worker.put(TOTALS, 0, "ada", Total(3), offset=1)
    return worker


async def connect(worker: MemoryWorker) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", worker.settings.web_port)


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""]).encode()


async def answered(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], dict[str, Any]]:
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return (
        int(status.split()[1]),
        headers,
        json.loads(await reader.readexactly(int(headers["content-length"]))),
    )


async def closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def sent(worker: MemoryWorker, *chunks: bytes) -> tuple[int, dict[str, str], dict[str, Any], bool]:
    """Send a request whose body does not end, and return the answer and whether the worker then closes
    without waiting for the rest.
    """
    reader, writer = await connect(worker)
    for chunk in chunks:
        writer.write(chunk)
    try:
        status, headers, body = await answered(reader)
        return status, headers, body, await asyncio.wait_for(closed(reader), DEADLINE_S)
    finally:
        writer.close()


PATHS = ["/health/live", "/tables", "/tables/totals/0/get", "/nowhere"]


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "GZIP", "gzip, gzip"])
@scenario
async def test_a_compressed_body_is_refused_unread_on_every_path_with_and_without_a_token(
    path: str, token: str | None, encoding: str
) -> None:
    async with worker_of(web_token=token) as worker:
        status, _, body, ended = await sent(
            worker,
            head("POST", path, f"Content-Encoding: {encoding}", "Content-Length: 50000000"),
            b"\x1f\x8b" * 500,
        )
    assert (status, body["error"], ended) == (415, "malformed", True)


@pytest.mark.long
@scenario
async def test_a_compressed_body_is_not_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is counted and not timed: nothing in this process makes a decompressor."""
    made: list[object] = []
    original = compression_utils.ZLibDecompressor.__init__

    def counting(self: Any, *args: Any, **options: Any) -> None:
        made.append(self)
        original(self, *args, **options)

    monkeypatch.setattr(compression_utils.ZLibDecompressor, "__init__", counting)
    async with worker_of(web_token=TOKEN) as worker:
        bomb = gzip.compress(b"\0" * (64 << 20))
        lines = "Content-Encoding: gzip", f"Content-Length: {len(bomb) + 1}"
        status, *_ = await sent(worker, head("POST", "/tables/totals/0/get", *lines), bomb)
    assert (status, made) == (415, [])


@scenario
async def test_without_the_token_a_body_is_not_waited_for() -> None:
    async with worker_of(web_token=TOKEN) as worker:
        for path in ("/tables/totals/0/get", "/tables/totals/0/scan", "/nothing"):
            status, headers, _, ended = await sent(
                worker, head("POST", path, "Content-Length: 1000000"), b"x" * 100
            )
            assert (status, headers["connection"], ended) == (
                401 if path != "/nothing" else status,
                "close",
                True,
            ), path


@scenario
async def test_bodies_are_bounded_and_taken_only_where_one_belongs() -> None:
    async with worker_of() as worker:
        for method, path, length in (
            ("POST", "/tables/totals/0/get", query_wire.LIMIT_BODY_BYTES + 1),
            ("GET", "/tables", 1_000_000),
            ("GET", "/tables/totals/0/rows/ada", 2),
            ("POST", "/nowhere", 1_000_000),
        ):
            status, _, body, ended = await sent(worker, head(method, path, f"Content-Length: {length}"), b"x")
            assert (status, body["error"], ended) == (413, "too_large", True), path
        status, _, body, ended = await sent(
            worker, head("GET", "/metrics", "Transfer-Encoding: chunked"), b"5\r\nhello\r\n"
        )
        assert (status, body["error"], ended) == (413, "too_large", True)


@pytest.mark.parametrize(
    "path",
    ["/tables/totals/0/rows/%ff", "/tables/totals/0/scan?prefix=%ff", "/tables/totals/0/rows/%zz", "/%c3%28"],
)
@scenario
async def test_a_key_that_is_no_text_is_refused_and_not_taken_for_another(path: str) -> None:
    async with worker_of() as worker:
        reader, writer = await connect(worker)
        writer.write(head("GET", path))
        status, _, body = await answered(reader)
        writer.close()
    assert (status, body["error"]) == (400, "malformed")
    assert "%25" in body["message"] or "UTF-8" in body["message"]


@scenario
async def test_malformed_requests_cost_one_line_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async with worker_of() as worker:
        for _ in range(20):
            reader, writer = await connect(worker)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nbad header\x00line\r\n\r\n")
            status, _, body = await answered(reader)
            assert (status, body["error"]) == (400, "malformed")
            writer.close()
        counted = worker.metrics.web_refused["malformed"]
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (len(told), told[0].exc_info, "\n" in told[0].getMessage(), counted) == (1, None, False, 20)


@scenario
async def test_a_body_that_breaks_off_is_the_peers_fault(caplog: pytest.LogCaptureFixture) -> None:
    async with worker_of() as worker:
        _, writer = await connect(worker)
        writer.write(head("POST", "/tables/totals/0/get", "Content-Length: 100") + b"{")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()
        await asyncio.sleep(0.1)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


# -- connections


async def held(worker: MemoryWorker, count: int, kept: int) -> tuple[list[asyncio.StreamWriter], int]:
    """Open *count* connections; return them, and how many the worker has not closed once it has closed all
    but *kept*.
    """
    pairs = [await connect(worker) for _ in range(count)]
    pending = {asyncio.ensure_future(closed(reader)) for reader, _ in pairs}
    async with asyncio.timeout(DEADLINE_S):
        while len(pending) > kept:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    _, pending = await asyncio.wait(pending, timeout=0.2)  # and no more than those
    for end in pending:
        end.cancel()
    return [writer for _, writer in pairs], len(pending)


@pytest.mark.parametrize(
    ("changes", "kept"), [({"web_connections": 7}, 7), ({"web_connections_per_peer": 5}, 5)]
)
@scenario
async def test_connections_are_limited_in_all_and_by_peer(changes: dict[str, int], kept: int) -> None:
    async with worker_of(**changes) as worker:
        writers, open_now = await held(worker, 20, kept)
        assert (open_now, sum(worker.metrics.web_refused.values())) == (kept, 20 - kept)
        for writer in writers:
            writer.close()
        status = 0
        while not status:  # room that is given back is room for others
            reader, writer = await connect(worker)
            try:
                writer.write(head("GET", "/health/live"))
                status, *_ = await answered(reader)
            except (ConnectionError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.05)
            finally:
                writer.close()
        assert status == 200


@scenario
async def test_silent_tls_handshakes_count_too() -> None:
    async with worker_of(
        web_connections=6, web_tls_cert=TLS / "server.pem", web_tls_key=TLS / "server-key.pem"
    ) as worker:
        writers, open_now = await held(worker, 15, 6)
        assert open_now == 6
        for writer in writers:
            writer.close()
        tls = ssl.create_default_context(cafile=str(TLS / "ca.pem"))
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", worker.settings.web_port, ssl=tls)
                writer.write(head("GET", "/health/live"))
                assert (await answered(reader))[0] == 200
                writer.close()
                return
            except (ConnectionError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.05)


@pytest.mark.long
@scenario
async def test_a_connection_that_sends_no_whole_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "HEADERS_S", 0.5)
    async with worker_of() as worker:
        silent, _ = await connect(worker)
        slow, trickle = await connect(worker)
        trickle.write(b"GET /metrics HT")
        again, writer = await connect(worker)
        writer.write(head("GET", "/health/live"))
        assert (await answered(again))[0] == 200
        await asyncio.sleep(0.05)
        writer.write(b"GET /hea")
        assert [await closed(each) for each in (silent, slow, again)] == [True, True, True]
        kept, writer = await connect(worker)
        writer.write(head("GET", "/health/live"))
        await answered(kept)
        await asyncio.sleep(1.0)  # between requests a connection may rest for longer
        writer.write(head("GET", "/health/live"))
        assert (await answered(kept))[0] == 200


@scenario
async def test_a_client_that_reads_nothing_of_its_answer_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(port, "WRITE_S", 0.5)
    async with worker_of() as worker:
        for at in range(7):
            worker.put(TOTALS, 0, "k" * 1000 + str(at) + "x" * 1_000_000, Total(1), offset=at)
        _, writer = await asyncio.open_connection(
            "127.0.0.1", worker.settings.web_port, limit=1024
        )  # its reader stops reading soon
        writer.write(head("GET", "/tables/totals/0/scan?prefix=kkk"))
        async with asyncio.timeout(DEADLINE_S):
            while not worker.metrics.web_refused["slow"]:  # noqa: ASYNC110  counted by the worker, which tells nobody
                await asyncio.sleep(0.05)
        writer.transport.abort()
