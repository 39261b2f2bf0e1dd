"""The console over TLS, and people who show certificates."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast.clients.tables.directory import FixedDirectory
from holdfast.clients.tables.web_tls import client_tls
from holdfast.config import Settings
from holdfast.errors import ConfigError
from tests.agents.web.test_server import scenario
from tests.console.opened import Browsing, MadeUpGroups, console_settings, opened
from tests.support.places import TLS

SERVER = {"console_tls_cert": TLS / "server.pem", "console_tls_key": TLS / "server-key.pem"}
ACTING = {"console_acting_names": "holdfast-*", "console_audit_topic": "audit"}
NAME = "holdfast-client"
GROUP = "/groups/view?kind=claim&name=billing"


def asker(certificate: str | None) -> ssl.SSLContext:
    """Return the TLS context of a client that trusts our authority, and shows a certificate of it or none."""
    more: dict[str, Any] = {}
    if certificate is not None:
        more = {"web_tls_cert": TLS / f"{certificate}.pem", "web_tls_key": TLS / f"{certificate}-key.pem"}
    if certificate is None:
        return ssl.create_default_context(cafile=str(TLS / "ca.pem"))
    return client_tls(Settings(app="shop", web_tls_ca=TLS / "ca.pem", **more))


@asynccontextmanager
async def console_of(certificate: str | None, **changes: Any) -> AsyncIterator[Browsing]:
    settings = console_settings(**{**SERVER, "kafka": {"bootstrap.servers": "127.0.0.1:1"}, **changes})
    async with (
        opened(settings, FixedDirectory(), MadeUpGroups(settings, 1)) as browsing,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=asker(certificate))) as session,
    ):
        yield Browsing(browsing.url, session)


@pytest.mark.long
@scenario
async def test_over_tls_the_cookie_never_goes_without_it() -> None:
    async with console_of(None, console_token="s3cret") as browsing:
        assert browsing.url.startswith("https://")
        same = {"Sec-Fetch-Site": "same-origin"}
        async with browsing.session.post(
            f"{browsing.url}/sign-in", data={"token": "s3cret"}, headers=same, allow_redirects=False
        ) as response:
            assert "Secure" in response.headers["Set-Cookie"]
        with pytest.raises(aiohttp.ClientError):
            await Browsing(browsing.url.replace("https", "http"), browsing.session).get("/")


@pytest.mark.long
@scenario
async def test_a_certificate_of_the_authority_lets_in_and_nothing_else_does() -> None:
    async with console_of("client", console_tls_ca=TLS / "ca.pem") as browsing:
        status, text = await browsing.get("/")
        assert (status, NAME in text, "may act" in text, "Sign out" in text) == (200, True, False, False)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=asker(None))) as without:
            with pytest.raises(aiohttp.ClientError):
                await Browsing(browsing.url, without).get("/")


@scenario
async def test_only_those_named_may_look() -> None:
    async with console_of("client", console_tls_ca=TLS / "ca.pem", console_names="ada, bob") as browsing:
        status, text = await browsing.get("/")
        assert (status, "names nobody who may look" in text) == (403, True)


@scenario
async def test_those_named_act_with_a_form_of_their_own() -> None:
    async with console_of("client", console_tls_ca=TLS / "ca.pem", **ACTING) as browsing:
        _, text = await browsing.get(GROUP)
        assert f"{NAME} may act" in text
        token = text.partition('name="form_token" value="')[2].partition('"')[0]
        form = {"what": "delete", "on": "billing"}
        for given, site, status in (
            (token, "same-origin", 404),  # there is no such act, but who asks may act
            ("x", "same-origin", 403),
            ("", "same-origin", 403),
            (token, "cross-site", 403),  # a browser shows the certificate, whatever page made the form
        ):
            async with browsing.session.post(
                f"{browsing.url}/act",
                data={**form, "form_token": given},
                headers={"Sec-Fetch-Site": site},
            ) as response:
                assert response.status == status, (given, site)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"console_tls_cert": TLS / "server.pem"}, "belong together"),
        ({"console_tls_ca": TLS / "ca.pem"}, "needs TLS"),
        ({**SERVER, "console_tls_ca": TLS / "ca.pem", "console_token": "x"}, "choose one"),
        ({"console_acting_names": "ada", "console_audit_topic": "audit"}, "names in certificates or tokens"),
    ],
)
def test_settings_that_contradict_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Settings(**changes)


@scenario
async def test_certificates_that_cannot_be_used_are_named() -> None:
    settings = console_settings(console_tls_cert=Path("nowhere.pem"), console_tls_key=Path("nowhere.pem"))
    with pytest.raises(ConfigError, match=r"console_tls_cert and console_tls_key: cannot use nowhere\.pem"):
        async with opened(settings, FixedDirectory()):
            pass
