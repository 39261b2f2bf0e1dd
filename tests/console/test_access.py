"""Access to the console: by address, Host header, token, cookie; and the headers of every answer for
browsers.
"""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from holdfast.clients.tables.directory import FixedDirectory
from holdfast.config import Settings
from holdfast.console.access import LIMIT_FAILURES
from holdfast.errors import ConfigError
from tests.agents.web.test_server import scenario
from tests.console.opened import Browsing, console_settings, opened

TOKEN = "s3cret"
ALL = ("/", "/workers", "/tables", "/groups", "/tables/view?name=totals", "/nowhere")


async def sign_in(browsing: Browsing, token: str = TOKEN, **headers: str) -> int:
    form = {"token": token}
    told = {"Sec-Fetch-Site": "same-origin", **headers}
    async with browsing.session.post(
        f"{browsing.url}/sign-in", data=form, headers=told, allow_redirects=False
    ) as response:
        return response.status


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "10.0.0.1", "console.example.org"])
def test_others_can_reach_it_only_with_a_token(bind: str) -> None:
    with pytest.raises(ConfigError, match=r"console_bind is .*, which others can reach: set console_token"):
        Settings(console_bind=bind)
    assert Settings(console_bind=bind, console_token=TOKEN).console_bind == bind


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "é"])
def test_a_token_that_no_header_carries_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="console_token must be visible ASCII"):
        Settings(console_token=token)


@pytest.mark.long
@scenario
async def test_without_a_token_the_host_header_must_name_this_machine() -> None:
    async with opened(console_settings(), FixedDirectory()) as browsing:
        assert (await browsing.get("/"))[0] == 200
        for host in ("evil.example", "evil.example:6067", "10.0.0.1", "[", ""):
            status, text = await browsing.get("/", Host=host)
            assert (status, "must name this machine" in text) == (403, True), host


@scenario
async def test_with_a_token_nothing_is_shown_to_strangers() -> None:
    settings = console_settings(console_token=TOKEN, app="secret-shop")
    async with opened(settings, FixedDirectory()) as browsing:
        for path in ALL:
            for accept in ("text/html", "*/*", "text/event-stream"):
                status, text = await browsing.get(path, Accept=accept)
                assert status == (303 if accept == "text/html" else 401), path
                assert "secret-shop" not in text
        status, text = await browsing.get("/sign-in")
        assert (status, "secret-shop" in text) == (200, False)
        assert (await browsing.get("/assets/console.js"))[0] == 200
        for wrong in ("Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", TOKEN):
            assert (await browsing.get("/", Authorization=wrong))[0] == 303
        status, text = await browsing.get("/", Authorization=f"Bearer {TOKEN}")
        assert (status, "secret-shop" in text) == (200, True)


@scenario
async def test_a_browser_signs_in_and_out() -> None:
    async with opened(console_settings(console_token=TOKEN), FixedDirectory()) as browsing:
        assert await sign_in(browsing, "wrong") == 403
        assert (await browsing.get("/"))[0] == 303
        assert await sign_in(browsing) == 303
        (cookie,) = browsing.session.cookie_jar
        assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
        assert TOKEN not in cookie.value
        assert (await browsing.get("/"))[0] == 200
        async with browsing.session.post(
            f"{browsing.url}/sign-out", headers={"Sec-Fetch-Site": "same-origin"}, allow_redirects=False
        ) as response:
            assert response.status == 303
        assert (await browsing.get("/", Cookie=f"{cookie.key}={cookie.value}"))[0] == 303


@scenario
async def test_guesses_are_slowed_down() -> None:
    async with opened(console_settings(console_token=TOKEN), FixedDirectory()) as browsing:
        for _ in range(LIMIT_FAILURES):
            assert await sign_in(browsing, "guess") == 403
        assert await sign_in(browsing) == 429


@scenario
async def test_forms_of_other_sites_are_refused() -> None:
    async with opened(console_settings(console_token=TOKEN), FixedDirectory()) as browsing:
        for headers in (
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": "cross-site", "Origin": browsing.url},
        ):
            assert await sign_in(browsing, **headers) == 403
        async with browsing.session.post(
            f"{browsing.url}/sign-in", data={"token": TOKEN}, headers={"Origin": "http://evil.example"}
        ) as response:
            assert response.status == 403
        async with browsing.session.post(f"{browsing.url}/sign-in", data={"token": TOKEN}) as response:
            assert response.status == 403
        assert not [*browsing.session.cookie_jar]


@scenario
async def test_pages_of_other_sites_have_nothing_read_for_them_but_links_lead_here() -> None:
    async with opened(console_settings(), FixedDirectory()) as browsing:
        for site in ("cross-site", "same-site"):
            for mode, status in (("no-cors", 403), ("cors", 403), ("navigate", 200)):
                sent = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
                assert (await browsing.get("/", **sent))[0] == status, sent
            for frame in ("iframe", "frame", "object", "embed", "fencedframe", "image"):
                sent = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": frame}
                for path in ("/", "/log", "/sign-in", "/assets/console.js", "/nowhere"):
                    assert (await browsing.get(path, **sent))[0] == 403, sent
            sent = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
            assert (await browsing.get("/", **sent))[0] == 200
        for origin in ("http://evil.example", "null", "http://[", browsing.url + "1"):  # a browser of old
            assert (await browsing.get("/", Origin=origin))[0] == 403, origin
        assert (await browsing.get("/", Origin=browsing.url))[0] == 200
        for site in ("same-origin", "none"):
            assert (await browsing.get("/", **{"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "cors"}))[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@scenario
async def test_whatever_may_change_something_must_come_from_a_page_of_the_console(method: str) -> None:
    async with opened(console_settings(console_token=TOKEN), FixedDirectory()) as browsing:
        for path in ("/act", "/sign-in", "/sign-out", "/", "/nowhere"):
            for sent in (
                {},
                {"Origin": "http://evil.example"},
                {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
            ):
                async with browsing.session.request(
                    method, browsing.url + path, headers=sent, allow_redirects=False
                ) as response:
                    assert (response.status, "Set-Cookie" in response.headers) == (403, False)


@scenario
async def test_every_answer_forbids_browsers_to_run_foreign_code() -> None:
    async with opened(console_settings(), FixedDirectory()) as browsing:
        _, text = await browsing.get("/")
        (style,) = re.findall("<style>(.*?)</style>", text, re.DOTALL)
        allowed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        for path in ("/", "/nowhere", "/assets/console.js", "/workers/view?url=x"):
            async with browsing.session.get(browsing.url + path) as response:
                policy = response.headers["Content-Security-Policy"]
                assert policy.startswith(
                    f"default-src 'none'; script-src 'self'; style-src 'self' 'sha256-{allowed}';"
                )
                assert "unsafe" not in policy
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["X-Frame-Options"] == "DENY"
                stays = "immutable" in response.headers["Cache-Control"]
                assert stays == path.startswith("/assets/")
