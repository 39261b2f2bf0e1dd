"""Access: tokens, mutual TLS with real certificates, and pages in a browser on the same machine."""

from __future__ import annotations

import asyncio
import functools
import json
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from holdfast.clients.tables.web_tls import client_tls, server_tls
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.dev.ports import free_ports
from holdfast.errors import ConfigError
from tests.support.patience import SCENARIO_S
from tests.support.places import TLS

TOKEN = "open-sesame"
PATHS = [
    "/tables",
    "/tables/secrets/0/rows/ada",
    "/tables/secrets/0/scan",
    "/health/live",
    "/health/ready",
    "/metrics",
    "/nothing",
]
DATA_PATHS = [path for path in PATHS if path not in ("/health/live", "/health/ready", "/metrics")]


class Secret(msgspec.Struct, frozen=True):
    text: str


def fold(rows: Any, event: Any, at_ms: int) -> None:
    """These rows are put by the tests."""


SECRETS: Processor[Any, Secret] = Processor(
    name="secrets", source="orders", decode=bytes, fold=fold, row=Secret
)


def scenario(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), SCENARIO_S))

    return run


def settings(**changes: Any) -> Settings:
    return Settings(**{"app": "shop", "web_port": free_ports(1)[0], **changes})


def worker_of(chosen: Settings) -> MemoryWorker:
    worker = MemoryWorker(chosen, [SECRETS], partitions=1)
    worker.put(SECRETS, 0, "ada", Secret("the-secret"), offset=1)
    return worker


async def ask(
    url: str, path: str, *, headers: dict[str, str] | None = None, tls: ssl.SSLContext | bool = True
) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(url + path, headers=headers, ssl=tls) as response,
    ):
        return response.status, await response.text()


# -- tokens


@pytest.mark.parametrize("path", PATHS)
@scenario
async def test_beyond_loopback_nothing_is_answered_without_the_token(path: str) -> None:
    chosen = settings(web_bind="0.0.0.0", web_token=TOKEN)
    url = f"http://127.0.0.1:{chosen.web_port}"
    async with worker_of(chosen):
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Basic b3Blbi1zZXNhbWU="}, 401),
            ({"Authorization": TOKEN}, 401),
            ({"Authorization": "Bearer "}, 401),
            ({"Authorization": "Bearer open-sesam"}, 403),
            ({"Authorization": "Bearer öpen-sesame"}, 403),
            ({"Authorization": f"Bearer {TOKEN}{TOKEN}"}, 403),
        ):
            got, text = await ask(url, path, headers=headers)
            assert (got, "the-secret" in text, "holdfast_" in text) == (status, False, False), headers
        got, text = await ask(url, path, headers={"Authorization": f"bearer {TOKEN}"})
        assert got == (404 if path == "/nothing" else 200)


@scenario
async def test_on_loopback_health_and_metrics_need_no_token_but_rows_do() -> None:
    chosen = settings(web_token=TOKEN)
    async with worker_of(chosen):
        answers = {path: (await ask(chosen.advertised_url, path))[0] for path in PATHS}
    assert answers == {path: 401 if path in DATA_PATHS else 200 for path in PATHS}


@scenario
async def test_health_and_metrics_never_hold_a_row() -> None:
    chosen = settings()
    async with worker_of(chosen):
        assert "the-secret" in (await ask(chosen.advertised_url, "/tables/secrets/0/rows/ada"))[1]
        for path in ("/health/live", "/health/ready", "/metrics", "/tables"):
            text = (await ask(chosen.advertised_url, path))[1]
            assert '"ada"' not in text
            assert "the-secret" not in text


@scenario
async def test_a_refusal_says_how_to_get_in() -> None:
    chosen = settings(web_token=TOKEN)
    async with (
        worker_of(chosen),
        aiohttp.ClientSession() as session,
        session.get(chosen.advertised_url + "/tables") as response,
    ):
        assert response.headers["WWW-Authenticate"].startswith("Bearer")
        assert "Authorization: Bearer" in json.loads(await response.text())["message"]


@pytest.mark.parametrize("bind", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
def test_a_port_that_others_can_reach_must_be_protected(bind: str) -> None:
    with pytest.raises(ConfigError, match="web_token"):
        settings(web_bind=bind)
    with pytest.raises(ConfigError, match="web_token"):
        settings(web_bind=bind, web_tls_cert=TLS / "server.pem", web_tls_key=TLS / "server-key.pem")


# -- pages in a browser


@pytest.mark.parametrize("path", PATHS)
@scenario
async def test_a_page_that_resolves_its_own_name_to_this_machine_reads_nothing(path: str) -> None:
    chosen = settings()
    async with worker_of(chosen):
        for host in (
            "rebound.example",
            f"rebound.example:{chosen.web_port}",
            "127.0.0.1.example",
            "[::1",
            "",
        ):
            status, text = await ask(chosen.advertised_url, path, headers={"Host": host})
            assert (status in (400, 403), "the-secret" in text) == (True, False), host
        for host in (f"localhost:{chosen.web_port}", "127.0.0.1", "[::1]:80", "LOCALHOST"):
            assert (await ask(chosen.advertised_url, path, headers={"Host": host}))[0] != 403


@scenario
async def test_the_advertised_name_may_be_asked_for_through_a_proxy() -> None:
    chosen = settings(web_url="http://tables.example:80")
    async with worker_of(chosen):
        status, _ = await ask(
            f"http://127.0.0.1:{chosen.web_port}", "/tables", headers={"Host": "tables.example"}
        )
    assert status == 200


OTHER_SITES: list[dict[str, str]] = [
    {"Origin": "http://evil.example"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "https://["},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Origin": "http://evil.example"},
    *(
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": frame}
        for frame in ("iframe", "frame", "object", "embed", "fencedframe")
    ),
]
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
POSTED = ("/tables/secrets/0/get", "/tables/secrets/0/scan", "/tables/secrets/0/digest", "/nothing")


async def sent(url: str, method: str, headers: dict[str, str], tls: ssl.SSLContext | bool = True) -> int:
    form = {"Content-Type": "text/plain"}  # what a page may send anywhere without asking first
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, headers={**form, **headers}, data=b"{}", ssl=tls) as response,
    ):
        return response.status


@pytest.mark.parametrize("changes", [{}, {"web_tls_ca": TLS / "ca.pem"}], ids=["open", "certificates"])
@scenario
async def test_a_page_of_another_site_has_nothing_asked(changes: dict[str, Any]) -> None:
    """A browser on this machine reaches the port, and shows the certificate of the person at it."""
    chosen: Settings = settings()
    tls: ssl.SSLContext | bool = True
    if changes:
        chosen, tls = mutual(), asker(web_tls_ca=TLS / "ca.pem", **CLIENT)
    url = f"http{'s' if changes else ''}://127.0.0.1:{chosen.web_port}"
    async with worker_of(chosen):
        for headers in OTHER_SITES:
            for path in PATHS:
                status, text = await ask(url, path, headers=headers, tls=tls)
                assert (status, "the-secret" in text) == (403, False), (path, headers)
            for path in POSTED:
                for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
                    assert await sent(url + path, method, headers, tls) in (403, 413), (method, path)
        for path in POSTED[:-1]:
            assert await sent(url + path, "POST", LINK, tls) == 403, "a form is no link"
            for own in ({}, {"Sec-Fetch-Site": "same-origin"}, {"Origin": url}):
                assert await sent(url + path, "POST", own, tls) != 403
        for path in PATHS:
            for own in ({}, LINK, {"Sec-Fetch-Site": "none"}, {"Origin": url.upper()}):
                assert (await ask(url, path, headers=own, tls=tls))[0] != 403, (path, own)


@scenario
async def test_routes_that_are_open_without_a_token_are_closed_to_pages_of_another_site() -> None:
    chosen = settings(web_token=TOKEN)
    async with worker_of(chosen):
        for path in ("/health/live", "/health/ready", "/metrics"):
            for headers in (*OTHER_SITES, {"Host": "rebound.example"}):
                assert (await ask(chosen.advertised_url, path, headers=headers))[0] == 403
        for headers in OTHER_SITES:
            bearing = {**headers, "Authorization": f"Bearer {TOKEN}"}
            status, _ = await ask(chosen.advertised_url, "/tables", headers=bearing)
            assert status == 200, "who has the token may be a proxy that passes on what browsers say"


@scenario
async def test_no_answer_is_shown_in_a_frame_or_taken_for_a_page() -> None:
    chosen = settings()
    async with worker_of(chosen), aiohttp.ClientSession() as session:
        for path in PATHS:
            async with session.get(chosen.advertised_url + path) as response:
                told = response.headers
                assert told["X-Frame-Options"] == "DENY"
                assert told["X-Content-Type-Options"] == "nosniff"
                assert told["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"
                assert told["Cache-Control"] == "no-store"
                assert not [name for name in told if name.startswith("Access-Control")]


# -- TLS


def mutual(**changes: Any) -> Settings:
    return settings(
        web_tls_cert=TLS / "server.pem",
        web_tls_key=TLS / "server-key.pem",
        web_tls_ca=TLS / "ca.pem",
        web_bind="0.0.0.0",
        **changes,
    )


CLIENT = {"web_tls_cert": TLS / "client.pem", "web_tls_key": TLS / "client-key.pem"}


def asker(**changes: Path) -> ssl.SSLContext:
    return client_tls(Settings(app="shop", **changes))  # type: ignore[arg-type]


@scenario
async def test_with_mutual_tls_a_certificate_of_the_authority_lets_in_and_nothing_else_does() -> None:
    chosen = mutual()
    url = f"https://127.0.0.1:{chosen.web_port}"
    ours = asker(web_tls_ca=TLS / "ca.pem", **CLIENT)
    without = ssl.create_default_context(cafile=str(TLS / "ca.pem"))
    async with worker_of(chosen):
        assert "the-secret" in (await ask(url, "/tables/secrets/0/rows/ada", tls=ours))[1]
        for path in PATHS:
            with pytest.raises(aiohttp.ClientError):
                await ask(url, path, tls=without)
            with pytest.raises(aiohttp.ClientError):
                await ask(url.replace("https", "http"), path)


@scenario
async def test_with_mutual_tls_and_a_token_both_are_needed() -> None:
    chosen = mutual(web_token=TOKEN)
    url = f"https://127.0.0.1:{chosen.web_port}"
    ours = asker(web_tls_ca=TLS / "ca.pem", **CLIENT)
    async with worker_of(chosen):
        assert (await ask(url, "/tables", tls=ours))[0] == 401
        assert (await ask(url, "/tables", tls=ours, headers={"Authorization": f"Bearer {TOKEN}"}))[0] == 200


@scenario
async def test_a_server_of_another_name_or_authority_is_not_asked() -> None:
    chosen = settings(web_tls_cert=TLS / "misnamed.pem", web_tls_key=TLS / "misnamed-key.pem")
    ours = asker(web_tls_ca=TLS / "ca.pem", **CLIENT)
    async with worker_of(chosen):
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await ask(f"https://127.0.0.1:{chosen.web_port}", "/tables", tls=ours)
    chosen = settings(web_tls_cert=TLS / "server.pem", web_tls_key=TLS / "server-key.pem")
    async with worker_of(chosen):
        assert (await ask(chosen.advertised_url, "/tables", tls=ours))[0] == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await ask(chosen.advertised_url, "/tables", tls=asker(web_tls_ca=TLS / "stranger.pem", **CLIENT))
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await ask(chosen.advertised_url, "/tables", tls=asker())


@scenario
async def test_workers_with_one_certificate_and_no_authority_trust_each_other() -> None:
    chosen = settings(web_tls_cert=TLS / "server-keystore.pem", web_tls_key=TLS / "server-key.pem")
    async with worker_of(chosen):
        assert (await ask(chosen.advertised_url, "/tables", tls=client_tls(chosen)))[0] == 200


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"web_tls_cert": TLS / "nowhere.pem"}, "nowhere.pem"),
        ({"web_tls_key": TLS / "client-key.pem"}, "client-key.pem"),
        ({"web_tls_key": TLS / "client-key-encrypted.pem"}, "client-key-encrypted.pem"),
        ({"web_tls_ca": TLS / "server-key.pem"}, "web_tls_ca"),
    ],
)
def test_certificates_that_cannot_be_used_are_named(changes: dict[str, Path], named: str) -> None:
    chosen = settings(
        **{"web_tls_cert": TLS / "server.pem", "web_tls_key": TLS / "server-key.pem", **changes}
    )
    with pytest.raises(ConfigError, match=named):
        server_tls(chosen)
    with pytest.raises(ConfigError, match=named):
        client_tls(chosen)
