"""The order of tests, and which of them stay in one process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import schedule
from tests.support.schedule import SERVERS, SPARK, Groups

QUICK, LIVE, LONG, DISTURBING, SPARKS = (
    "tests/core/test_ranges.py",
    "tests/cli/groups/test_groups.py",
    "tests/chaos/test_joins.py",
    "tests/clients/claims/test_offsets.py",
    "tests/pipeline/landing/test_land.py",
)


class Item(SimpleNamespace):
    """The attributes of a test that decide its position in the order."""

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None


def item(file: str, name: str = "a", marks: tuple[str, ...] = (), fixtures: tuple[str, ...] = ()) -> Any:
    return Item(nodeid=f"{file}::{name}", marks=marks, fixturenames=fixtures)


def test_spark_comes_first_then_servers_then_long_tests_then_real_parts_and_the_quick_ones_last() -> None:
    files = [QUICK, LIVE, LONG, DISTURBING, SPARKS]
    items = [item(file, name, marks=() if file == QUICK else ("broker",)) for name in "ab" for file in files]
    schedule.order(items)
    wanted = [(file, name) for file in (SPARKS, DISTURBING, LONG, LIVE, QUICK) for name in "ab"]
    assert [tuple(each.nodeid.split("::")) for each in items] == wanted


def test_one_test_with_a_part_takes_its_file_along() -> None:
    items = [item(QUICK), item(LIVE, "a"), item(LIVE, "b", marks=("broker",))]
    schedule.order(items)
    assert [each.nodeid.partition("::")[0] for each in items] == [LIVE, LIVE, QUICK]


def test_all_tests_with_a_session_are_one_group_and_all_that_disturb_servers_and_each_other_file_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = object.__new__(Groups)
    assert {
        groups._split_scope(f"tests/pipeline/{file}.py::a")
        for file in ("landing/test_land", "landing/test_land_topics", "test_replay")
    } == {SPARK}
    disturbing = (
        "clients/ranges/test_ranges",
        "outbox/harvest/test_fenced",
        "outbox/schema/test_kinds",
        "schemas/test_real_registry",
        "chaos/test_schema_registry",
        "agents/test_secure_broker",
        "agents/faust/test_refused_starts",
        "test_grants",
    )
    monkeypatch.setattr(schedule, "IS_EMBEDDED", False)
    assert {groups._split_scope(f"tests/{file}.py::a") for file in disturbing} == {SERVERS}
    monkeypatch.setattr(schedule, "IS_EMBEDDED", True)  # each process has servers of its own
    assert groups._split_scope("tests/test_grants.py::a") == "tests/test_grants.py"
    assert groups._split_scope(f"{QUICK}::a[1]") == groups._split_scope(f"{QUICK}::b") == QUICK


def test_a_session_that_the_schedule_would_not_see_is_refused() -> None:
    schedule.order([item(SPARKS, fixtures=("spark",))])
    with pytest.raises(AssertionError, match=r"test_ranges\.py::a takes the fixture `spark`"):
        schedule.order([item(QUICK, fixtures=("spark",))])


def test_servers_that_the_schedule_would_not_see_are_refused() -> None:
    schedule.order([item(DISTURBING, fixtures=("disturbed_broker",))])
    with pytest.raises(AssertionError, match=r"test_ranges\.py::a takes disturbed_broker"):
        schedule.order([item(QUICK, fixtures=("disturbed_broker",))])
    with pytest.raises(AssertionError, match=r"test_ranges\.py::a takes mysql"):
        schedule.order([item(QUICK, marks=("database",), fixtures=("mysql",))])
    with pytest.raises(AssertionError, match=r"test_ranges\.py::a takes schema_registry"):
        schedule.order([item(QUICK, marks=("database",), fixtures=("schema_registry",))])
    with pytest.raises(AssertionError, match=r"test_ranges\.py::a takes guarded_broker"):
        schedule.order([item(QUICK, marks=("broker",), fixtures=("guarded_broker",))])
    schedule.order([item(SPARKS, marks=("database", "spark"), fixtures=("spark", "schema_registry"))])
