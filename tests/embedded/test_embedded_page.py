"""docs/embedded.md names every api that is answered."""

from __future__ import annotations

import re

from holdfast.embedded.apis.handlers import HANDLERS
from holdfast.embedded.configs.broker import broker_settings
from holdfast.embedded.settings import EmbeddedSettings
from tests.support.places import DOCS

PAGE = (DOCS / "embedded.md").read_text()


def test_the_page_names_the_apis() -> None:
    table = PAGE.split("<!-- apis -->")[1].split("<!-- end -->")[0]
    named = [each for row in table.splitlines()[3:] for each in row.split("|")[2:3]]
    assert sorted(re.findall(r"\w+", " ".join(named))) == sorted(HANDLERS)


def test_the_page_counts_the_settings_of_a_broker() -> None:
    assert f"reports the {len(broker_settings(EmbeddedSettings()))} that clients" in PAGE
