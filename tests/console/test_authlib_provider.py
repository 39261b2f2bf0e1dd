"""Signing in with a provider that others wrote: authlib's own server side."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast.clients.tables.directory import FixedDirectory
from holdfast.console import openid
from holdfast.dev.ports import free_ports
from tests.agents.web.test_server import scenario
from tests.console.authlib_provider import KEYS, AuthlibProvider
from tests.console.opened import Browsing, MadeUpGroups, opened
from tests.console.test_openid import leave, oidc_settings, sign_in

pytestmark = pytest.mark.long
CLIENT, SECRET = "console", "s3cret"  # authlib does not decode what RFC 6749 has clients encode


@asynccontextmanager
async def both(algorithm: str = "RS256") -> AsyncIterator[tuple[AuthlibProvider, Browsing]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "AUTHLIB_INSECURE_TRANSPORT", "1")  # on loopback
        patch.setattr(openid, "KEYS_S", 0.0)
        (port,) = free_ports(1)
        settings = oidc_settings(
            f"http://localhost:{port}", console_oidc_client=CLIENT, console_oidc_secret=SECRET
        )
        redirect = f"{settings.console_address}{openid.BACK}"
        provider = AuthlibProvider(port, CLIENT, SECRET, redirect, algorithm)
        async with (
            provider.running(),
            opened(settings, FixedDirectory(), MadeUpGroups(settings, 1)) as browsing,
        ):
            yield provider, browsing


@pytest.mark.parametrize(
    "algorithm", [next(iter(KEYS)), *(pytest.param(each, marks=pytest.mark.variant) for each in [*KEYS][1:])]
)
def test_its_tokens_let_people_in(algorithm: str) -> None:
    @scenario
    async def run() -> None:
        async with both(algorithm) as (provider, browsing):
            status, text = await sign_in(browsing)
            assert (status, "ada@example.org is signed in" in text) == (200, True), text
            assert provider.codes == {}, "a code counts once"
            assert "ada@example.org" in (await browsing.get("/"))[1]

    run()


@scenario
async def test_keys_that_it_rotates_are_found_and_those_that_it_withdraws_count_no_more() -> None:
    async with both() as (provider, browsing):
        assert (await sign_in(browsing))[0] == 200
        before = provider.signing
        provider.rotate(keep=True)
        status, text = await sign_in(browsing)
        assert status == 200, text
        provider.signing = before  # a node of the provider that does not know the new key
        assert (await sign_in(browsing))[0] == 200
        provider.rotate(keep=False)
        assert (await sign_in(browsing))[0] == 200
        provider.signing = before
        status, text = await sign_in(browsing)
        assert (status, "is not accepted" in text) == (403, True), text


@scenario
async def test_it_refuses_a_code_without_the_verifier_of_the_browser_that_began() -> None:
    async with both() as (_, browsing):
        first, second = await leave(browsing), await leave(browsing)
        code = second.partition("code=")[2].partition("&")[0]
        own = first.partition("code=")[2].partition("&")[0]
        status, text = await browsing.get(second.replace(code, own))
        assert (status, "The provider refused" in text) == (502, True), text
