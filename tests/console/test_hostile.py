"""Attacks by a stranger on the console's port: over raw sockets, against the real server."""

from __future__ import annotations

import asyncio
import logging

import aiohttp
import pytest

from holdfast.clients.tables.directory import FixedDirectory
from holdfast.console import server, views
from holdfast.console.access import LIMIT_FAILURES
from holdfast.web import port
from holdfast.web.port import ConnectionLimits
from tests.agents.web.test_server import scenario
from tests.console.opened import Browsing, console_settings, opened
from tests.console.test_access import TOKEN, sign_in


async def connect(browsing: Browsing) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(browsing.url.rpartition(":")[2]))


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""]).encode()


async def all_of(reader: asyncio.StreamReader) -> str:
    """Return all that comes until the console closes the connection."""
    try:
        return (await reader.read()).decode()
    except ConnectionError:
        return ""


@scenario
async def test_a_connection_that_sends_no_whole_request_is_closed() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(port, "HEADERS_S", 0.3)
        async with opened(console_settings(), FixedDirectory()) as browsing:
            silent, _ = await connect(browsing)
            slow, trickle = await connect(browsing)
            trickle.write(b"GET / HT")
            assert [await all_of(each) for each in (silent, slow)] == ["", ""]


@scenario
async def test_a_form_that_comes_too_slowly_is_not_waited_for() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "BODY_S", 0.3)
        async with opened(console_settings(console_token=TOKEN), FixedDirectory()) as browsing:
            reader, writer = await connect(browsing)
            form = ("Content-Length: 1000", "Content-Type: application/x-www-form-urlencoded")
            writer.write(head("POST", "/sign-in", "Sec-Fetch-Site: same-origin", *form) + b"token=")
            told = await all_of(reader)
            assert told.startswith("HTTP/1.1 408 ")
            assert "The form did not come within" in told


@scenario
async def test_a_form_that_breaks_off_is_no_failure_of_the_console() -> None:
    heard: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = heard.append  # type: ignore[method-assign,assignment]
    logging.getLogger("holdfast.console").addHandler(handler)
    try:
        async with opened(console_settings(console_token=TOKEN), FixedDirectory()) as browsing:
            _, writer = await connect(browsing)
            form = ("Content-Length: 1000", "Content-Type: application/x-www-form-urlencoded")
            writer.write(head("POST", "/sign-in", "Sec-Fetch-Site: same-origin", *form) + b"token=")
            await writer.drain()
            assert (await browsing.get("/sign-in"))[0] == 200
            writer.transport.abort()
            assert (await browsing.get("/sign-in"))[0] == 200
    finally:
        logging.getLogger("holdfast.console").removeHandler(handler)
    assert [each.getMessage() for each in heard if each.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(("limits", "kept"), [((5, 100), 5), ((100, 3), 3)])
def test_connections_are_limited_in_all_and_by_peer(limits: tuple[int, int], kept: int) -> None:
    @scenario
    async def run() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server, "LIMITS", ConnectionLimits(connections=limits[0], per_peer=limits[1]))
            async with opened(console_settings(), FixedDirectory()) as browsing:
                pairs = [await connect(browsing) for _ in range(8)]
                ends = [asyncio.ensure_future(all_of(reader)) for reader, _ in pairs]
                while sum(each.done() for each in ends) < 8 - kept:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                pairs[0][1].write(head("GET", "/", "Connection: close"))
                assert (await ends[0]).startswith("HTTP/1.1 200 ")
                assert sum(each.done() for each in ends) == 8 - kept + 1
                for _, writer in pairs:
                    writer.close()

    run()


@scenario
async def test_bytes_that_are_no_http_get_one_line() -> None:
    async with opened(console_settings(), FixedDirectory()) as browsing:
        reader, writer = await connect(browsing)
        writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nbad header\x00line\r\n\r\n")
        told = await all_of(reader)
        assert told.split()[1] == "400"
        assert told.partition("\r\n\r\n")[2].startswith("This is no HTTP request that the console reads: ")


@scenario
async def test_a_body_that_no_page_takes_is_not_read() -> None:
    async with opened(console_settings(console_token=TOKEN), FixedDirectory()) as browsing:
        for method, path in (("POST", "/act"), ("GET", "/"), ("POST", "/nowhere")):
            reader, writer = await connect(browsing)
            writer.write(head(method, path, "Content-Length: 1000000", "Sec-Fetch-Site: same-origin") + b"x")
            assert "connection: close" in (await all_of(reader)).lower(), path


@scenario
async def test_a_guesser_shuts_no_other_peer_out() -> None:
    async with (
        opened(console_settings(console_token=TOKEN), FixedDirectory()) as browsing,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))) as session,
    ):
        other = Browsing(browsing.url, session)
        for _ in range(LIMIT_FAILURES):
            assert await sign_in(browsing, "guess") == 403
        assert (await sign_in(browsing), await sign_in(other)) == (429, 303)


@scenario
async def test_guesses_of_a_bearers_token_are_slowed_down_too() -> None:
    async with opened(console_settings(console_token=TOKEN), FixedDirectory()) as browsing:
        asked = {"Accept": "*/*"}
        for _ in range(LIMIT_FAILURES):
            assert (await browsing.get("/", Authorization="Bearer guess", **asked))[0] == 401
        assert (await browsing.get("/", Authorization=f"Bearer {TOKEN}", **asked))[0] == 429
        assert await sign_in(browsing) == 303, "people sign in, whatever programs guess"
