"""The console on a worker's web port: the same pages below /console, for people, in addition to the worker's
own answers for programs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from holdfast.agents.app import create_app
from holdfast.clients.tables.directory import FixedDirectory
from holdfast.config import Settings
from holdfast.console import live, openid, views
from holdfast.console.opening import ConsoleSources, open_application
from holdfast.console.place import ROOT, worker_place
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.dev.ports import free_ports
from holdfast.errors import ConfigError
from tests.agents.web.test_server import scenario
from tests.console.opened import Browsing, MadeUpGroups
from tests.console.openid_provider import OpenIdTestProvider
from tests.console.test_live import events, live_block
from tests.console.test_openid import CLIENT, SECRET, oidc_settings
from tests.console.test_pages import TOTALS, Outline, worker_settings

SAME = {"Sec-Fetch-Site": "same-origin"}
NO_KAFKA = {"bootstrap.servers": "127.0.0.1:1"}
TOKEN, WORKERS_TOKEN = "s3cret", "of-programs"


@asynccontextmanager
async def on_worker(**changes: Any) -> AsyncIterator[Browsing]:
    """Run a worker that serves the console, and ask it as a browser would."""
    settings = worker_settings(console_on_workers=True, **changes)
    directory = FixedDirectory()

    async def console(stack: AsyncExitStack) -> web.Application:
        sources = ConsoleSources(
            settings=settings,
            processors=(TOTALS,),
            directory=directory,
            groups=MadeUpGroups(settings, 3),
            table_directory=directory,
        )
        return await open_application(stack, sources, worker_place(settings), at_once=False)

    worker = MemoryWorker(settings, [TOTALS], partitions=3, console=console)
    claims = worker.claims()
    directory.announce({claims.url: claims})
    async with worker, aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield Browsing(worker.url, session)


async def sign_in(browsing: Browsing, token: str = TOKEN) -> aiohttp.ClientResponse:
    async with browsing.session.post(
        f"{browsing.url}{ROOT}/sign-in", data={"token": token}, headers=SAME, allow_redirects=False
    ) as response:
        await response.read()
        return response


@pytest.mark.long
@scenario
async def test_every_link_stays_below_the_root_and_leads_somewhere() -> None:
    async with on_worker() as browsing:
        status, text = await browsing.get(ROOT)
        assert status == 303
        left, seen = (
            [f"{ROOT}/"],
            {f"{ROOT}/quarantine", f"{ROOT}/producers/transactions"},  # which ask Kafka
        )
        while left:
            path = left.pop()
            seen.add(path)
            status, text = await browsing.get(path)
            assert status == 200, path
            pointed = re.findall(r' (?:href|src|action|data-script|data-style)="([^"]*)"', text)
            assert [each for each in pointed if not each.startswith((f"{ROOT}/", "#"))] == [], path
            assert Outline(text).wrong == []
            left += [
                each
                for each in Outline(text).links
                if each.startswith("/") and each not in seen and "/assets/" not in each
            ]
        assert f"{ROOT}/tables/view?name=totals&version=1" in seen
        asset = re.search(r'src="([^"]*console.js[^"]*)"', text)
        assert asset is not None
        assert (await browsing.get(asset[1]))[0] == 200


@pytest.mark.long
@scenario
async def test_programs_and_people_show_each_other_nothing() -> None:
    """The workers' token opens no page, and a session of the console reads no table: each port has one rule
    for each of them.
    """
    async with on_worker(web_token=WORKERS_TOKEN, console_token=TOKEN) as browsing:
        assert (await browsing.get("/tables"))[0] == 401
        status, _ = await browsing.get(f"{ROOT}/")
        assert status == 303
        bearer = {"Authorization": f"Bearer {WORKERS_TOKEN}", "Accept": "*/*"}
        assert (await browsing.get(f"{ROOT}/", **bearer))[0] == 401
        assert (await browsing.get("/tables", **bearer))[0] == 200
        response = await sign_in(browsing)
        assert (response.status, response.headers["Location"]) == (303, f"{ROOT}/")
        (cookie,) = response.cookies.values()
        assert (cookie["path"], cookie["samesite"], cookie["httponly"]) == (ROOT, "Strict", True)
        async with browsing.session.get(
            f"{browsing.url}{ROOT}/", headers={"Accept": live.EVENT_STREAM}
        ) as stream:
            await live_block(events(stream), "All is well")
        assert (await browsing.get("/tables"))[0] == 401


@pytest.mark.parametrize(
    "path",
    [
        f"{ROOT}/../tables",
        f"{ROOT}/%2e%2e/tables",
        "/c%6fnsole/../tables",
        f"//{ROOT}/../tables",
        "/console%2f..%2ftables",
        "/consoles",
        f"{ROOT}x/../tables",
    ],
)
def test_no_way_of_writing_a_path_gets_round_the_rules_for_programs(path: str) -> None:
    @scenario
    async def run() -> None:
        async with on_worker(web_token=WORKERS_TOKEN, console_token=TOKEN) as browsing:
            url = URL(browsing.url + path, encoded=True)
            async with browsing.session.get(url, allow_redirects=False) as response:
                assert response.status in (303, 401, 404), await response.text()
                assert "totals" not in await response.text()

    run()


@scenario
async def test_a_form_may_be_no_longer_than_on_the_consoles_own_port() -> None:
    async with on_worker(console_token=TOKEN) as browsing:
        assert (await sign_in(browsing, "x" * (views.LIMIT_BODY_BYTES + 1))).status == 413
        assert (await sign_in(browsing)).status == 303


@pytest.mark.long
@scenario
async def test_it_is_live_and_ends_with_the_worker() -> None:
    async with aiohttp.ClientSession() as session:
        async with on_worker() as browsing:
            response = await session.get(
                f"{browsing.url}{ROOT}/tables", headers={"Accept": live.EVENT_STREAM}
            )
            shown = await live_block(events(response), "3 of 3")
            assert f'href="{ROOT}/tables/view?name=totals&amp;version=1"' in shown
        async for _ in events(response):
            pass


@scenario
async def test_people_come_back_from_the_provider_to_the_worker_that_they_left() -> None:
    port, own = free_ports(2)
    issuer = f"http://localhost:{port}"
    back = f"http://127.0.0.1:{own}{ROOT}{openid.BACK}"
    provider = OpenIdTestProvider(port, CLIENT, SECRET, back)
    given = {
        "console_oidc_issuer": issuer,
        "console_oidc_client": CLIENT,
        "console_oidc_secret": SECRET,
        "console_names": "*@example.org",
    }
    async with (
        provider.running(),
        on_worker(web_port=own, web_token=WORKERS_TOKEN, kafka=NO_KAFKA, **given) as browsing,
    ):
        async with browsing.session.get(f"{browsing.url}{ROOT}/sign-in/oidc") as response:
            assert (response.status, str(response.url).partition("?")[0]) == (200, back)
        cookies = {each.key: each["path"] for each in browsing.session.cookie_jar}
        assert cookies == {f"holdfast-console-{own}": ROOT}, "the cookie of the way there is spent"
        assert "ada@example.org" in (await browsing.get(f"{ROOT}/workers"))[1]


@pytest.mark.parametrize(
    "given",
    [
        {"web_token": WORKERS_TOKEN},
        {"web_token": WORKERS_TOKEN, "console_acting_token": "a", "console_audit_topic": "audit"},
        {"web_bind": "0.0.0.0", "web_token": WORKERS_TOKEN},
    ],
)
def test_settings_by_which_pages_would_show_what_a_token_guards_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="console_on_workers shows every row"):
        Settings(console_on_workers=True, **given)
    Settings(console_on_workers=True, **given, console_token=TOKEN)


@pytest.mark.parametrize(
    ("missing", "extra"), [("holdfast.console.on_worker", "console"), ("authlib", "oidc")]
)
def test_a_worker_without_the_extra_is_advised_which_it_is(
    missing: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    settings = oidc_settings("https://login.example.org", console_on_workers=True)
    app = create_app([TOTALS], settings)

    @scenario
    async def run() -> None:
        with pytest.raises(ConfigError, match=rf"not installed: pip install 'holdfast\[{extra}\]'"):
            [*app.on_init_dependencies()]

    run()
