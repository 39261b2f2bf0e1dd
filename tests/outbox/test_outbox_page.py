"""docs/outbox.md, and a table of docs/from-debezium.md, against the code: its columns, buckets and routing
are executed.
"""

from __future__ import annotations

import re

import pytest

from holdfast.agents.services.harvester_page import HarvesterPage
from holdfast.outbox.harvest.harvester import Harvester
from holdfast.outbox.schema.layouts import DebeziumLayout, bucket_of
from holdfast.outbox.schema.tables import outbox_tables
from holdfast.outbox.schema.wakeup import channel_of
from holdfast.outbox.settings import HarvestSettings
from tests.support.places import DOCS

PAGE = (DOCS / "outbox.md").read_text()


def table(name: str, page: str = PAGE) -> list[list[str]]:
    """Return the cells of the table after the comment *name*, backticks dropped."""
    found = re.search(rf"<!-- {name} -->\n((?:\|.*\n)+)", page)
    assert found is not None, f"the page has no table {name}"
    return [
        [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
        for line in found[1].splitlines()[2:]
    ]


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "sqlite"])
def test_the_page_names_the_columns_and_which_of_them_must_be_given(dialect: str) -> None:
    columns = outbox_tables(dialect=dialect).outbox.columns
    assert [row[0] for row in table("holdfast")] == [column.name for column in columns]
    for column, (_, must, _) in zip(columns, table("holdfast"), strict=True):
        given = not column.nullable and column.server_default is None and not column.primary_key
        assert must == ("yes" if given else "no"), column.name


def test_the_pages_buckets_are_those_of_the_code() -> None:
    assert len(table("buckets")) >= 5
    for topic, key, bucket in table("buckets"):
        assert bucket_of(topic, None if key == "none" else key.encode()) == int(bucket), key


def test_the_page_says_how_debeziums_rows_are_published() -> None:
    layout = DebeziumLayout()
    row = layout.decode((1, "7b0a", "order", "42", "Made", '{"a": 1}', 0))
    typed = DebeziumLayout(type_header="eventType").decode((1, "7b0a", "order", "42", "Made", None, 0))
    said = {
        column: published for column, published in table("debezium", (DOCS / "from-debezium.md").read_text())
    }
    assert said["aggregatetype order"] == f"topic {row.topic}"
    assert said["aggregateid 42"] == f"key {(row.key or b'').decode()}"
    assert "null is a tombstone" in said["payload"]
    assert (row.value, typed.value) == (b'{"a": 1}', None)
    assert said["id"] == f"header {row.headers[0][0]}"
    assert ([name for name, _ in row.headers], [name for name, _ in typed.headers]) == (
        ["id"],
        ["id", "eventType"],
    )


def test_the_page_names_the_channel_and_the_tables() -> None:
    tables = outbox_tables()
    assert f'NOTIFY "{channel_of(tables.outbox).replace("outbox", "<outbox>")}"' in PAGE
    for each in tables.own:
        assert f"`<outbox>{each.name.removeprefix('outbox')}`" in PAGE


def test_the_page_names_every_metric_of_a_harvester() -> None:
    page = HarvesterPage(Harvester(HarvestSettings(database="sqlite://")))
    assert [row[0] for row in table("metrics")] == [family.name for family in page.collect()]


def test_a_page_that_says_something_else_is_found() -> None:
    changed = PAGE.replace("| orders | `key-0` | 185 |", "| orders | `key-0` | 186 |")
    assert table("buckets", changed)[0] == ["orders", "key-0", "186"]
    assert bucket_of("orders", b"key-0") != 186
