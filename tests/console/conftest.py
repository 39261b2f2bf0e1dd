"""Consoles that run in the process of a test, which may stand still for longer than people wait for a
page.
"""

from __future__ import annotations

import pytest

from holdfast.console import openid, views
from holdfast.console.pages import quarantine, tables
from holdfast.console.watching import refused, reports
from holdfast.web import port
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
