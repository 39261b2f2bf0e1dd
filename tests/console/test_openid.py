"""Signing in with an OpenID provider: who is let in, and which tokens and ways back are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import quote_plus

import aiohttp
import pytest
from joserfc.jwk import RSAKey
from playwright.sync_api import expect

from holdfast.clients.tables.directory import FixedDirectory
from holdfast.config import Settings
from holdfast.console import openid
from holdfast.console.access import NamePatterns
from holdfast.dev.ports import free_ports
from holdfast.errors import ConfigError
from holdfast.loop_thread import LoopThread
from tests.agents.web.test_server import scenario
from tests.console.opened import Browsing, MadeUpGroups, console_settings, opened
from tests.console.openid_provider import Claims, OpenIdTestProvider
from tests.support.browser import DEADLINE_MS, started, violations
from tests.support.patience import DEADLINE_S

CLIENT, SECRET = "console of shop", "s3cret:%/"
GROUP = "/groups/view?kind=claim&name=billing"


def oidc_settings(issuer: str, **changes: Any) -> Settings:
    given = {
        "console_oidc_issuer": issuer,
        "console_oidc_client": CLIENT,
        "console_oidc_secret": SECRET,
        "console_names": "*@example.org",
        "kafka": {"bootstrap.servers": "127.0.0.1:1"},
    }
    return console_settings(**{**given, **changes})


@asynccontextmanager
async def both(**changes: Any) -> AsyncIterator[tuple[OpenIdTestProvider, Browsing]]:
    """Run a provider, and a console that people sign in to with it."""
    (port,) = free_ports(1)
    settings = oidc_settings(f"http://localhost:{port}", **changes)
    provider = OpenIdTestProvider(port, CLIENT, SECRET, f"{settings.console_address}{openid.BACK}")
    async with provider.running(), opened(settings, FixedDirectory(), MadeUpGroups(settings, 1)) as browsing:
        yield provider, browsing


async def leave(browsing: Browsing) -> str:
    """Go to the provider; return the address that it sends back to."""
    async with browsing.session.get(f"{browsing.url}/sign-in/oidc", allow_redirects=False) as response:
        assert response.status == 303, await response.text()
        there = response.headers["Location"]
    async with browsing.session.get(there, allow_redirects=False) as response:
        assert response.status == 302
        return response.headers["Location"].removeprefix(browsing.url)


async def sign_in(browsing: Browsing) -> tuple[int, str]:
    return await browsing.get(await leave(browsing))


@pytest.mark.long
@scenario
async def test_whom_the_provider_names_is_let_in() -> None:
    async with both() as (_, browsing):
        assert (await browsing.get("/"))[0] == 303
        _, text = await browsing.get("/sign-in")
        assert ("/sign-in/oidc" in text, "console_token" in text) == (True, False)
        status, text = await sign_in(browsing)
        assert (status, "ada@example.org is signed in" in text) == (200, True)
        cookies = {each.key: each for each in browsing.session.cookie_jar}
        (cookie,) = [each for name, each in cookies.items() if not name.endswith("-oidc")]
        assert (cookie["httponly"], cookie["samesite"]) == (True, "Strict")
        status, text = await browsing.get("/")
        assert (status, "ada@example.org" in text, "may act" in text) == (200, True, False)


@scenario
async def test_those_named_so_may_act_under_their_own_names() -> None:
    async with both(console_acting_names="ada@example.org", console_audit_topic="audit") as (
        provider,
        browsing,
    ):
        await sign_in(browsing)
        assert "ada@example.org may act" in (await browsing.get("/"))[1]
        assert 'name="form_token"' in (await browsing.get(GROUP))[1]
        provider.person["email"] = "bob@example.org"
        await sign_in(browsing)
        assert "may act" not in (await browsing.get("/"))[1]
        assert 'name="form_token"' not in (await browsing.get(GROUP))[1]


def changed(**claims: Any) -> Callable[[Claims], Claims]:
    return lambda given: {name: value for name, value in {**given, **claims}.items() if value is not None}


UNTRUE: dict[str, tuple[Callable[[Claims], Claims], str]] = {
    "expired": (changed(exp=1_700_000_000), "expired"),
    "without an end": (changed(exp=None), "exp"),
    "of the future": (changed(nbf=9_000_000_000), "not accepted"),
    "for another client": (changed(aud="another"), "aud"),
    "for several, not made out to this one": (changed(aud=[CLIENT, "another"], azp="another"), "azp"),
    "of another provider": (changed(iss="https://evil.example"), "iss"),
    "of another sign-in": (changed(nonce="another"), "nonce"),
    "without a nonce": (changed(nonce=None), "nonce"),
    "of nobody": (changed(sub=None), "sub"),
    "without a name": (changed(email=None), "has no email"),
    "with a name that is none": (changed(email=["ada@example.org"]), "has no email"),
    "of an address that is not verified": (changed(email_verified=False), "not verified"),
    "of an address that is not verified, in text": (changed(email_verified="false"), "not verified"),
    "of somebody who may not look": (changed(email="eve@evil.example"), "not among those who may look"),
    "of somebody who is called nearly so": (changed(email="ada@e\u212aample.org"), "not among"),
    "of an address within an address": (changed(email="eve@evil.example@example.org"), "no email"),
    "of an address with a domain in front": (changed(email='"eve@evil.example"@example.org'), "no email"),
    "of a subject that is none": (changed(sub=["1"]), "sub|not accepted"),
    "of an endless subject": (changed(sub="x" * 256), "sub"),
    "of yesterday, beyond what clocks differ": (changed(exp=1, iat=0), "expired"),
    "issued tomorrow": (changed(iat=9_000_000_000), "not accepted"),
    "of a name with a control character": (changed(email="ada\n@example.org"), "has no email"),
}


@pytest.mark.parametrize("what", UNTRUE)
def test_an_invalid_token_is_refused(what: str) -> None:
    change, said = UNTRUE[what]

    @scenario
    async def run() -> None:
        async with both() as (provider, browsing):
            provider.change = change
            await refused(browsing, said)

    run()


NAMED = [
    # the Kelvin sign in lower case is k, the long s in upper case S, and I has a dot in Turkish
    ("kay", "\u212aay", False),
    ("\u212aay", "kay", False),
    ("kay", "KAY", False),
    ("s", "\u017f", False),
    ("i", "\u0130", False),
    ("stra\u00dfe", "strasse", False),
    ("e\u0301", "\u00e9", False),
    ("a", "\uff41", False),
    ("ada", "ada ", False),
    ("ada", "ada", True),
    ("*", "\u212aay", True),
]


@pytest.mark.parametrize(("listed", "name", "in_"), NAMED)
@pytest.mark.parametrize("addresses", [False, True])
def test_a_name_is_in_the_list_by_every_letter(listed: str, name: str, in_: bool, addresses: bool) -> None:
    assert (name in NamePatterns(listed, addresses=addresses)) is in_


@pytest.mark.parametrize(
    ("listed", "email", "in_"),
    [
        ("*@Example.org", "ada@example.ORG", True),
        ("Ada@example.org", "ada@example.org", False),
        ("*@kexample.org", "ada@\u212aexample.org", False),
        ("*@example.org", "ada@example.org.evil", False),
        ("*@example.org", "ada@sub.example.org", False),
    ],
)
def test_of_an_address_the_domain_is_compared_as_dns_does(listed: str, email: str, in_: bool) -> None:
    assert (email in NamePatterns(listed, addresses=True)) is in_
    assert email not in NamePatterns(listed), "of other claims every letter counts"


@scenario
async def test_a_subject_of_other_letters_is_another_person() -> None:
    async with both(console_names="a1B2", console_oidc_claim="sub") as (provider, browsing):
        for subject, expected in (("A1b2", 403), ("a1B2", 200)):
            provider.person["sub"] = subject
            status, text = await sign_in(browsing)
            assert (status, "capital letters and accents count" in text) == (expected, expected == 403)


@scenario
async def test_who_acts_is_not_who_is_called_alike() -> None:
    acting = {"console_acting_names": "kay@example.org", "console_audit_topic": "audit"}
    async with both(**acting) as (provider, browsing):
        for name in ("\u212aay@example.org", "KAY@example.org"):
            provider.person["email"] = name
            assert (await sign_in(browsing))[0] == 200
            assert "may act" not in (await browsing.get("/"))[1], name


@scenario
async def test_the_way_back_of_another_provider_counts_for_nothing() -> None:
    async with both() as (provider, browsing):
        back = await leave(browsing)
        status, text = await browsing.get(f"{back}&iss=https%3A%2F%2Fevil.example")
        assert (status, "Another provider" in text) == (403, True)
        back = await leave(browsing)
        assert (await browsing.get(f"{back}&iss={quote_plus(provider.issuer)}"))[0] == 200


@pytest.mark.parametrize("how", ["sign_by_secret", "sign_by_stranger", "sign_not"])
def test_a_token_that_the_provider_did_not_sign_is_refused(how: str) -> None:
    @scenario
    async def run() -> None:
        async with both() as (provider, browsing):
            provider.sign = getattr(provider, how)
            await refused(browsing, "not accepted")

    run()


async def refused(browsing: Browsing, said: str) -> None:
    status, text = await sign_in(browsing)
    assert status == 403
    assert any(each in text for each in said.split("|")), text
    assert (await browsing.get("/"))[0] == 303


@scenario
async def test_a_way_back_counts_once_and_in_the_browser_that_went() -> None:
    async with both() as (_, browsing):
        back = await leave(browsing)
        async with opened_elsewhere(browsing) as other:
            status, text = await other.get(back)
            assert (status, "another browser" in text) == (403, True)
        assert (await browsing.get(back))[0] == 403, "it was spent by whoever had it without the cookie"
        back = await leave(browsing)
        assert (await browsing.get(back))[0] == 200
        status, text = await browsing.get(back)
        assert (status, "is not known, or took too long" in text) == (403, True)
        for wrong in (openid.BACK, f"{openid.BACK}?state=x&code=y"):
            assert (await browsing.get(wrong))[0] == 403
        back = await leave(browsing)
        assert (await browsing.get(back.replace("code=", "code=x")))[0] == 502, (
            "the provider knows no such code"
        )


@asynccontextmanager
async def opened_elsewhere(browsing: Browsing) -> AsyncIterator[Browsing]:
    async with aiohttp.ClientSession() as session:
        yield Browsing(browsing.url, session)


@scenario
async def test_a_refusal_of_the_provider_is_shown() -> None:
    async with both() as (provider, browsing):
        provider.refuses = "<b>not today</b>"
        status, text = await sign_in(browsing)
        assert (status, "signed nobody in: &lt;b&gt;not today&lt;/b&gt;" in text) == (403, True)


@scenario
async def test_a_provider_that_is_away_or_another_is_reported() -> None:
    (port,) = free_ports(1)
    async with opened(oidc_settings(f"http://localhost:{port}"), FixedDirectory()) as browsing:
        status, text = await browsing.get("/sign-in/oidc")
        assert (status, "did not answer as one does" in text) == (502, True)
    (port,) = free_ports(1)
    provider = OpenIdTestProvider(port, CLIENT, SECRET, "")
    provider.issuer = "https://evil.example"
    async with (
        provider.running(),
        opened(oidc_settings(f"http://localhost:{port}"), FixedDirectory()) as browsing,
    ):
        status, text = await browsing.get("/sign-in/oidc")
        assert (status, "calls itself https://evil.example" in text) == (502, True)


@pytest.mark.long
def test_keys_that_the_provider_changes_are_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openid, "KEYS_S", 0.0)

    @scenario
    async def run() -> None:
        async with both() as (provider, browsing):
            assert (await sign_in(browsing))[0] == 200
            assert (await sign_in(browsing))[0] == 200
            assert provider.asked.count("keys") == 1
            provider.key = RSAKey.generate_key(2048, {"kid": "two", "use": "sig"}, private=True)
            assert (await sign_in(browsing))[0] == 200
            assert provider.asked.count("keys") == 2

    run()


@pytest.mark.long
def test_keys_without_names_are_fetched_again_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openid, "KEYS_S", 0.0)

    @scenario
    async def run() -> None:
        async with both() as (provider, browsing):
            provider.names_keys = False
            assert (await sign_in(browsing))[0] == 200
            provider.key = RSAKey.generate_key(2048, {"kid": "two", "use": "sig"}, private=True)
            assert (await sign_in(browsing))[0] == 200
            provider.sign = provider.sign_by_stranger
            assert (await sign_in(browsing))[0] == 403

    run()


@pytest.mark.parametrize("named", ["http://evil.example/authorize", "javascript:alert(1)", "https://[evil"])
def test_a_provider_does_not_send_people_to_an_insecure_address(named: str) -> None:
    @scenario
    async def run() -> None:
        async with both() as (provider, browsing):
            provider.authorization = named
            status, text = await browsing.get("/sign-in/oidc")
            assert (status, "which is not https" in text) == (502, True), text

    run()


@pytest.mark.long
@scenario
async def test_repeated_attempts_do_not_make_others_lose_the_way_back() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openid, "LIMIT_PENDING_OF_PEER", 3)
        patch.setattr(openid, "LIMIT_PENDING", 5)
        async with (
            both() as (_, browsing),
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))) as session,
        ):
            back, other = await leave(browsing), Browsing(browsing.url, session)
            for _ in range(9):
                assert (await other.get("/sign-in/oidc"))[0] == 303
            assert (await browsing.get(back))[0] == 200


@scenario
async def test_a_provider_that_is_away_is_asked_once_for_all_who_wait() -> None:
    async with both() as (provider, browsing):
        provider.authorization = "http://evil.example"
        found = await asyncio.gather(*(browsing.get("/sign-in/oidc") for _ in range(8)))
        assert {status for status, _ in found} == {502}
        assert provider.asked == ["discovery"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"console_oidc_issuer": "http://login.example.org"}, "write the provider's https address"),
        ({"console_oidc_client": None}, "needs console_oidc_client"),
        ({"console_names": None}, "name them in console_names"),
        ({"console_acting_names": "ada"}, "console_audit_topic"),
        ({"console_url": "shop.example.org"}, "write https://host"),
    ],
)
def test_settings_that_leave_something_open_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        oidc_settings("https://login.example.org", **changes)


@contextmanager
def in_a_thread() -> Iterator[tuple[OpenIdTestProvider, Browsing]]:
    """Run both in another thread than this one, which the browser's driver has."""
    loop, running = LoopThread("openid-test"), both(console_acting_names="ada@*", console_audit_topic="audit")
    loop.start()
    try:
        yield loop.wait(running.__aenter__(), DEADLINE_S)
    finally:
        loop.stop(_left(running))


async def _left(running: Any) -> None:
    await running.__aexit__(None, None, None)


@pytest.mark.browser
def test_a_person_signs_in_by_a_browser_that_keeps_sites_apart() -> None:
    """The provider is another site (localhost) than the console (127.0.0.1): a strict cookie has to be there
    after the way back.
    """
    with in_a_thread() as (_, browsing), started() as browser:
        page = browser.new_page(base_url=browsing.url)
        page.set_default_timeout(DEADLINE_MS)
        page.goto("/")
        assert violations(page) == []
        page.get_by_role("link", name="Sign in with your account").click()
        expect(page.locator("h1")).to_have_text("Overview", timeout=DEADLINE_MS)
        expect(page.locator("header")).to_contain_text("ada@example.org may act")
        page.get_by_role("button", name="Sign out").click()
        expect(page.locator("h1")).to_have_text("Sign in")
