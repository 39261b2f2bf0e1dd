"""The targets of make that run a test follow from its marks, and each test is run by one."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests.support import tiers
from tests.support.places import ROOT
from tests.support.scale import scaled


def body() -> None:
    """Stands for the function of a test."""


def other() -> None:
    """Stands for another one."""


class Case:
    """A test as pytest collects it, with as much of it as the tiers depend on."""

    def __init__(self, nodeid: str, *marks: str, function: Callable[[], None] = body, **module: Any) -> None:
        self.nodeid, self.marks, self.function = f"tests/{nodeid}", set(marks), function
        self.module = ModuleType("a")
        self.module.__dict__.update(module)

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None

    def add_marker(self, name: str) -> None:
        self.marks.add(name)


def tiers_of(nodeid: str, *marks: str, **module: Any) -> set[str]:
    case: Any = Case(nodeid, *marks, **module)
    tiers.mark(case)
    return {each.removeprefix("tier_") for each in case.marks if each.startswith("tier_")}


@pytest.mark.parametrize(
    ("marks", "wanted"),
    [
        ((), {"fast", "test"}),
        (("long",), {"test"}),
        (("broker",), {"test", "all"}),
        (("broker", "sql", "long"), {"test", "all"}),
        (("broker", "kafka"), {"all"}),
        (("database",), {"all"}),
        (("process",), {"all"}),
        (("browser",), {"all"}),
        (("broker", "promise"), {"test"}),
        (("broker", "spark", "promise"), set()),
        (("broker", "variant"), {"variants"}),
        (("variant", "slow"), {"chaos"}),
    ],
)
def test_a_tier_follows_from_the_parts_and_marks(marks: tuple[str, ...], wanted: set[str]) -> None:
    assert tiers_of("a.py::test", *marks) == wanted


def test_promises_run_on_real_parts_in_make_test() -> None:
    assert tiers_of("promises/a.py::test", "kafka", "spark", "promise") == {"test"}


def test_random_tests_without_parts_are_run_for_longer_too() -> None:
    assert tiers_of("a.py::test", "long", scaled=scaled) == {"test", "random"}
    assert tiers_of("a.py::test", "broker", scaled=scaled) == {"test", "all"}


def check(*cases: Any) -> None:
    tiers.check(cases)


def test_a_promise_that_no_file_of_promises_runs_is_refused() -> None:
    home, shown = Case("a.py::test", "spark", "promise"), Case("promises/a.py::test", "spark", "promise")
    check(home, shown)
    with pytest.raises(pytest.UsageError, match=r"^tests/a.py::test: a promise, so import it in a file of"):
        check(home)
    with pytest.raises(pytest.UsageError, match=r"^tests/a.py::test: a promise"):
        check(home, Case("promises/a.py::test", "spark", "promise", function=other))


def test_a_file_of_promises_runs_promises_alone_on_real_parts() -> None:
    with pytest.raises(pytest.UsageError, match="mark it `promise`, else `make test-all` repeats it"):
        check(Case("promises/a.py::test", "kafka"))
    with pytest.raises(pytest.UsageError, match="needs no real part"):
        check(Case("a.py::test", "promise"), Case("promises/a.py::test", "promise"))


def test_make_has_a_target_for_each_tier() -> None:
    made = re.findall(r"\btier_\w+", (ROOT / "Makefile").read_text())
    declared = re.findall(r'"(tier_\w+):', (ROOT / "pyproject.toml").read_text())
    assert set(made) == set(declared)
