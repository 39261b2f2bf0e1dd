"""The people who may act in the console, and that no act goes unnoted."""

from __future__ import annotations

import re
from typing import Any

import pytest

from holdfast.clients.tables.directory import FixedDirectory
from holdfast.config import Settings
from holdfast.console.acting import audit
from holdfast.console.watching.blocking import StillRunningError
from holdfast.errors import ConfigError
from tests.agents.web.test_server import scenario
from tests.console.opened import Browsing, MadeUpGroups, console_settings, opened

LOOK, ACT = "look-token", "act-token"
SAME = {"Sec-Fetch-Site": "same-origin"}
GROUP = "/groups/view?kind=claim&name=billing"
PAUSE = {"what": "pause", "on": "billing", "minutes": "5"}


def acting_settings(**changes: Any) -> Settings:
    given = {"console_token": LOOK, "console_acting_token": ACT, "console_audit_topic": "audit"}
    return console_settings(**{**given, "kafka": {"bootstrap.servers": "127.0.0.1:1"}, **changes})


async def post(browsing: Browsing, path: str, form: dict[str, str], **headers: str) -> tuple[int, str]:
    async with browsing.session.post(
        browsing.url + path, data=form, headers={**SAME, **headers}, allow_redirects=False
    ) as response:
        return response.status, await response.text()


async def form_token(browsing: Browsing) -> str | None:
    _, text = await browsing.get(GROUP)
    found = re.search(r'name="form_token" value="([^"]*)"', text)
    return None if found is None else found[1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"console_acting_token": ACT}, "name the topic that says who did what, console_audit_topic"),
        (
            {"console_acting_token": LOOK, "console_token": LOOK, "console_audit_topic": "audit"},
            "everybody who looks may act",
        ),
        ({"console_acting_token": "a b", "console_audit_topic": "audit"}, "must be visible ASCII"),
    ],
)
def test_settings_that_would_let_people_act_unnoted_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Settings(**given)


@scenario
async def test_only_those_may_act_who_have_signed_in_for_it() -> None:
    settings = acting_settings()
    async with opened(settings, FixedDirectory(), MadeUpGroups(settings, 3)) as browsing:
        assert (await post(browsing, "/act", PAUSE))[0] == 401
        assert (await post(browsing, "/act", PAUSE, Authorization=f"Bearer {ACT}"))[0] == 401
        assert (await post(browsing, "/act", PAUSE, Authorization=f"Bearer {LOOK}"))[0] == 403
        assert (await post(browsing, "/sign-in", {"token": LOOK}))[0] == 303
        assert await form_token(browsing) is None
        assert (await post(browsing, "/act", {**PAUSE, "form_token": ""}))[0] == 403


@scenario
async def test_a_person_who_may_act_gives_a_name() -> None:
    async with opened(acting_settings(), FixedDirectory()) as browsing:
        for who in ("", "  ", "x" * 61, "a\nb"):
            status, text = await post(browsing, "/sign-in", {"token": ACT, "who": who})
            assert (status, "say who you are" in text) == (400, True), who
        assert (await post(browsing, "/sign-in", {"token": ACT, "who": "Ada"}))[0] == 303
        assert "Ada may act" in (await browsing.get("/"))[1]


@scenario
async def test_without_a_token_to_look_people_still_sign_in_to_act() -> None:
    settings = acting_settings(console_token=None)
    async with opened(settings, FixedDirectory(), MadeUpGroups(settings, 3)) as browsing:
        assert await form_token(browsing) is None
        assert (await post(browsing, "/act", {**PAUSE, "form_token": "x"}))[0] == 403
        assert (await post(browsing, "/sign-in", {"token": ACT, "who": "Ada"}))[0] == 303
        assert await form_token(browsing) is not None


@scenario
async def test_foreign_forms_and_those_of_other_sessions_do_not_act() -> None:
    settings = acting_settings()
    async with opened(settings, FixedDirectory(), MadeUpGroups(settings, 3)) as browsing:
        await post(browsing, "/sign-in", {"token": ACT, "who": "Ada"})
        earlier = await form_token(browsing)
        assert earlier is not None
        await post(browsing, "/sign-out", {})
        await post(browsing, "/sign-in", {"token": ACT, "who": "Ada"})
        for token in ("", "x", earlier):
            status, text = await post(browsing, "/act", {**PAUSE, "form_token": token})
            assert (status, "not made for this session" in text) == (403, True)
        right = await form_token(browsing) or ""
        form = {**PAUSE, "form_token": right}
        assert (await post(browsing, "/act", form, **{"Sec-Fetch-Site": "cross-site"}))[0] == 403
        assert (await post(browsing, "/act", {**form, "what": "delete"}))[0] == 404


def test_what_takes_too_long_is_noted_as_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[tuple[str, str]] = []
    monkeypatch.setattr(
        audit.AuditTrail, "write", lambda self, record: noted.append((record.outcome, record.more))
    )

    class Endless(MadeUpGroups):
        async def ask(self, work: Any) -> Any:
            if "pause" in work.__code__.co_names:
                raise StillRunningError("no answer about groups within 60 s")
            return await super().ask(work)

    @scenario
    async def run() -> None:
        settings = acting_settings()
        async with opened(settings, FixedDirectory(), Endless(settings, 3)) as browsing:
            await post(browsing, "/sign-in", {"token": ACT, "who": "Ada"})
            form = {**PAUSE, "form_token": await form_token(browsing) or ""}
            status, text = await post(browsing, "/act", form)
            assert (status, "what comes of it is not known" in text) == (409, True)

    run()
    assert [outcome for outcome, _ in noted] == ["asked", "unknown"]


@pytest.mark.long
def test_what_cannot_be_noted_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "TIMEOUT_S", 0.3)
    done: list[object] = []

    class Recording(MadeUpGroups):
        async def ask(self, work: Any) -> Any:
            if "pause" in work.__code__.co_names:
                done.append(work)
            return await super().ask(work)

    @scenario
    async def run() -> None:
        settings = acting_settings()
        async with opened(settings, FixedDirectory(), Recording(settings, 3)) as browsing:
            await post(browsing, "/sign-in", {"token": ACT, "who": "Ada"})
            form = {**PAUSE, "form_token": await form_token(browsing) or ""}
            status, text = await post(browsing, "/act", form)
            assert (status, "Nothing was done: the audit topic audit did not take" in text) == (409, True)

    run()
    assert done == []
