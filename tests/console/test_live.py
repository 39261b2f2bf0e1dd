"""The stream of events: its content, its times, and its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from holdfast.clients.tables.directory import FixedDirectory
from holdfast.console import live
from holdfast.console.showing.rendering import render_block
from holdfast.dev.memory_tables import MemoryWorker
from tests.agents.web.test_server import scenario
from tests.console.opened import Browsing, console_settings, opened
from tests.console.test_pages import TOTALS, worker_settings

TOKEN = "s3cret"


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, str]]:
    """Yield (name, data) of each event."""
    name, data = "", list[str]()
    async for raw in response.content:
        line = raw.decode().rstrip("\n")
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data.append(line.removeprefix("data: "))
        elif not line and name:
            yield name, "\n".join(data)
            name, data = "", []


async def live_block(found: AsyncIterator[tuple[str, str]], what: str) -> str:
    """Return the first block that has *what* in it."""
    async for name, data in found:
        if name == "live" and what in data:
            return data
    raise AssertionError(f"the stream has ended without {what}")


def stream(browsing: Browsing, path: str = "/", **headers: str) -> Any:
    return browsing.session.get(browsing.url + path, headers={"Accept": live.EVENT_STREAM, **headers})


@pytest.mark.long
@scenario
async def test_what_happens_to_a_worker_is_sent_at_once() -> None:
    async with (
        MemoryWorker(worker_settings(), [TOTALS], partitions=2) as worker,
        opened(console_settings(), worker.directory()) as browsing,
        stream(browsing) as response,
    ):
        assert response.headers["Content-Type"] == live.EVENT_STREAM
        found = events(response)
        assert "All is well" in await live_block(found, "<h2")
        worker.cause = "a record of orders/1 <cannot> be read"
        shown = await live_block(found, "1 to look at")
        assert "a record of orders/1 &lt;cannot&gt; be read" in shown
        await worker.__aexit__(None, None, None)
        shown = await live_block(found, "2 critical")
        assert "All 2 partitions of totals v1 have an owner that does not answer" in shown
        assert "<html" not in shown


@pytest.mark.long
@scenario
async def test_figures_are_sent_as_points() -> None:
    async with MemoryWorker(worker_settings(), [TOTALS], partitions=1) as worker:
        worker.replica(TOTALS, 0).source_end = 10
        async with opened(console_settings(), worker.directory()) as browsing, stream(browsing) as response:
            async for name, data in events(response):
                if name == "point" and data.endswith(", 10]"):
                    break


@pytest.mark.long
def test_so_many_pages_are_live_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LIMIT_STREAMS", 2)

    @scenario
    async def run() -> None:
        async with (
            MemoryWorker(worker_settings(), [TOTALS], partitions=1) as worker,
            opened(console_settings(), worker.directory()) as browsing,
            stream(browsing) as first,
            stream(browsing) as second,
            stream(browsing) as third,
        ):
            assert [first.status, second.status, third.status] == [200, 200, 503]
            assert (await browsing.get("/"))[0] == 200
            first.close()
            while (again := await stream(browsing)).status == 503:  # the slot of a closed stream is free
                await browsing.get("/")
            again.close()

    run()


@pytest.mark.long
@scenario
async def test_the_stream_ends_with_the_session_that_asked_for_it() -> None:
    same = {"Sec-Fetch-Site": "same-origin"}
    async with (
        MemoryWorker(worker_settings(), [TOTALS], partitions=1) as worker,
        opened(console_settings(console_token=TOKEN), worker.directory()) as browsing,
    ):
        sign_in, sign_out = f"{browsing.url}/sign-in", f"{browsing.url}/sign-out"
        await (await browsing.session.post(sign_in, data={"token": TOKEN}, headers=same)).read()
        async with stream(browsing) as response:
            found = events(response)
            await live_block(found, "<h2")
            await (await browsing.session.post(sign_out, headers=same)).read()
            async for _ in found:
                pass


@pytest.mark.long
@scenario
async def test_a_page_that_many_look_at_is_made_once_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def counting(template: str, block: str, context: Any) -> str:
        made.append(context["picture"])
        return render_block(template, block, context)

    monkeypatch.setattr(live, "render_block", counting)
    async with (
        MemoryWorker(worker_settings(), [TOTALS], partitions=1) as worker,
        opened(console_settings(), worker.directory()) as browsing,
    ):
        responses = [await stream(browsing) for _ in range(8)]
        for response in responses:
            await live_block(events(response), "<h2")
            response.close()
        looks = {id(each) for each in made}  # which are kept, so that no two have one id
        assert len(made) == len(looks), "streams made the page for themselves"


@scenario
async def test_a_question_for_the_head_alone_opens_no_stream() -> None:
    async with opened(console_settings(), FixedDirectory()) as browsing:
        sent = {"Accept": live.EVENT_STREAM}
        async with browsing.session.head(browsing.url, headers=sent) as response:
            assert response.headers["Content-Type"].startswith("text/html")


@pytest.mark.long
@scenario
async def test_the_end_of_the_console_ends_all_streams() -> None:
    async with (
        MemoryWorker(worker_settings(), [TOTALS], partitions=1) as worker,
        aiohttp.ClientSession() as session,
    ):
        async with opened(console_settings(), worker.directory()) as browsing:
            response = await session.get(browsing.url, headers={"Accept": live.EVENT_STREAM})
            await live_block(events(response), "<h2")
        async for _ in events(response):
            pass
