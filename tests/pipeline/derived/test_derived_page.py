"""docs/derived-tables.md against the program: every table with its columns and their types."""

from __future__ import annotations

import re

import pyarrow as pa

from holdfast.config import Settings
from holdfast.pipeline.derived.derive import TABLES, tables_named
from tests.support.places import DOCS

PAGE = (DOCS / "derived-tables.md").read_text()
TYPES = {
    pa.string(): "string",
    pa.int64(): "bigint",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.float64(): "double",
}


def columns_of(name: str) -> list[tuple[str, str]]:
    """Return the columns that a section of the page lists, with their types."""
    section = PAGE.split(f"\n## {name}\n")[1].split("\n## ")[0]
    found = list[tuple[str, str]]()
    for names, kinds in re.findall(r"^\| (`[^|]+) \| ([a-z, ]+) \|", section, re.MULTILINE):
        columns = re.findall(r"`(\w+)`", names)
        told = kinds.strip().split(", ")
        found += zip(columns, told if len(told) == len(columns) else told * len(columns), strict=True)
    return found


def test_the_page_has_every_table_with_its_columns_in_their_order() -> None:
    settings = Settings(books="orders", progress="shop.progress")
    for name in TABLES:
        [table] = tables_named(name, settings, ["orders"])
        assert columns_of(name) == [(field.name, TYPES[field.type]) for field in table.schema], name
