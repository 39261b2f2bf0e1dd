"""Consoles that run in the process of a test, which may be frozen for longer than people wait for a page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from holdfast.console import openid, views
from holdfast.console.pages import quarantine, tables
from holdfast.console.watching import refused, reports
from holdfast.web import port
from tests.support.browser import started
from tests.support.parts import part
from tests.support.patience import DEADLINE_S

PATIENT = (
    (openid, "FAILED_S"),
    (openid, "TIMEOUT_S"),
    (port, "HEADERS_S"),
    (quarantine, "TIMEOUT_S"),
    (refused, "TIMEOUT_S"),
    (reports, "ATTEMPT_S"),
    (tables, "TIMEOUT_S"),
    (views, "BODY_S"),
    (views, "FIRST_LOOK_S"),
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a console wait as long as a test does, where the test says nothing else."""
    for module, name in PATIENT:
        monkeypatch.setattr(module, name, DEADLINE_S)


@pytest.fixture(scope="module")
@part("browser")
def browser() -> Iterator[Browser]:
    with started() as found:
        yield found
