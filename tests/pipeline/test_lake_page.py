"""docs/lake.md against the program: its tables of columns and of metrics."""

from __future__ import annotations

import re

from holdfast.cli.pipeline.landing_status import LandingPage
from holdfast.pipeline.bronze.lake import ADDED_COLUMNS, COLUMNS
from tests.support.places import DOCS

PAGE = (DOCS / "lake.md").read_text()
_HEADERS = "array<struct<key:string,value:binary>>"


def test_the_page_has_every_column_with_its_type_and_version() -> None:
    found = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([12]) \|", PAGE, re.MULTILINE)
    told = {name: (kind.strip(), int(since)) for name, kind, since in found}
    told["headers"] = (_HEADERS, told["headers"][1])
    assert told == {name: (kind, 2 if name in ADDED_COLUMNS else 1) for name, kind in COLUMNS.items()}
    assert [*told] == [*COLUMNS]


def test_the_page_has_every_metric() -> None:
    told = dict(re.findall(r"^\| `(holdfast_\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
    families = {
        each.name + ("_total" if each.type == "counter" else ""): each for each in LandingPage({}).collect()
    }
    labels = {name: ", ".join(getattr(each, "_labelnames")) for name, each in families.items()}  # noqa: B009
    assert {name: text.strip() for name, text in told.items()} == labels
