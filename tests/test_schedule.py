"""The order of tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.support import schedule

QUICK, LIVE, LONG, SHORT = (
    "tests/core/test_ranges.py",
    "tests/cli/test_groups.py",
    "tests/chaos/test_joins.py",
    "tests/pipeline/test_stopping.py",
)


class Item(SimpleNamespace):
    """As much of a test as is asked for its place."""

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None


def item(file: str, name: str = "a", *marks: str) -> Any:
    return Item(nodeid=f"{file}::{name}", marks=marks)


def test_what_is_long_comes_first_then_real_parts_and_the_quick_ones_last() -> None:
    marks = {LIVE: ("broker",), LONG: ("broker",)}
    items = [item(file, name, *marks.get(file, ())) for name in "ab" for file in (QUICK, LIVE, LONG)]
    schedule.order(items)
    wanted = [f"{file}::{name}" for file in (LONG, LIVE, QUICK) for name in "ab"]
    assert [each.nodeid for each in items] == wanted


def test_one_test_with_a_part_takes_its_file_along_and_a_folder_alone_makes_nothing_long() -> None:
    items = [item(SHORT), item(QUICK), item(LIVE, "a"), item(LIVE, "b", "broker")]
    schedule.order(items)
    assert [each.nodeid.partition("::")[0] for each in items] == [LIVE, LIVE, SHORT, QUICK]
