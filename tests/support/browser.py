"""A real Chromium for tests, driven by playwright: the system's own, since the package brings none.

Playwright's blocking interface keeps an event loop running in its thread, so it is started for a file of
tests and no longer: other files run loops of their own.
"""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.patience import DEADLINE_S
from tests.support.places import TESTDATA

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DEADLINE_MS = int(DEADLINE_S * 1000)
AXE = (
    "rules => axe.run(document, {resultTypes: ['violations', 'incomplete'], ...(rules.length ? {runOnly:"
    " rules} : {})})"
)


class BrowserMissingError(Exception):
    """There is no Chromium on PATH."""


def chromium() -> Path:
    """Return the path of Chromium; BrowserMissingError has the remedy if there is none."""
    for name in NAMES:
        if (found := shutil.which(name)) is not None:
            return Path(found)
    raise BrowserMissingError(
        f"none of {', '.join(NAMES)} is on PATH: `tools/browser` installs Debian's as root, else sudo apt-get"
        " install chromium"
    )


@contextmanager
def started() -> Iterator[Browser]:
    """Run a Chromium with a profile of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=[*FLAGS], headless=True)
        try:
            yield browser
        finally:
            browser.close()


@cache
def _axe() -> str:
    return gzip.decompress((TESTDATA / "axe.min.js.gz").read_bytes()).decode()


def violations(page: Page, *rules: str) -> list[str]:
    """Return axe-core's accessibility violations on a page, a line each; checks all its rules, or only
    *rules*.
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(_axe())
    found: dict[str, Any] = page.evaluate(AXE, list(rules))
    return [
        f"{each['id']}: {each['help']}: {node['target']} {node.get('failureSummary', '')}"
        for each in found["violations"]
        for node in each["nodes"]
    ]
