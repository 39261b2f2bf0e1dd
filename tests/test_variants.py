"""The cases that `make test` leaves to `make variants`: further cases alone, by names that are there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import variants


class Case:
    """A test as pytest collects it, with as much of it as is looked at."""

    def __init__(
        self, test: str, parameters: str = "", named: tuple[str, ...] = (), slow: bool = False
    ) -> None:
        self.nodeid = f"tests/{test}[{parameters}]" if parameters else f"tests/{test}"
        self.marks: dict[str, Any] = {"variants": SimpleNamespace(args=named)} if named else {}
        if slow:
            self.marks["slow"] = SimpleNamespace(args=())
        if parameters:
            self.callspec = SimpleNamespace(id=parameters)

    def iter_markers(self, name: str) -> list[Any]:
        return [self.marks[name]] if name in self.marks else []

    def get_closest_marker(self, name: str) -> Any:
        return self.marks.get(name)

    def add_marker(self, name: str) -> None:
        self.marks[name] = SimpleNamespace(args=())


def left_out(*cases: Case) -> list[str]:
    items: Any = cases
    for item in items:
        variants.mark(item)
    variants.check(items)
    return [each.nodeid for each in cases if each.get_closest_marker("variant")]


def test_the_parameters_that_are_named_are_variants_and_the_others_are_not() -> None:
    named = ("mysql", "sqlite")
    cases = [Case("a.py::test_rows", each, named) for each in ("mysql", "postgres", "sqlite")]
    assert left_out(*cases) == ["tests/a.py::test_rows[mysql]", "tests/a.py::test_rows[sqlite]"]


def test_a_name_that_no_parameter_has_is_refused() -> None:
    with pytest.raises(
        pytest.UsageError, match=r"test_rows has no parameters \['oracle'\]: it has \['mysql'"
    ):
        left_out(*(Case("a.py::test_rows", each, ("oracle",)) for each in ("mysql", "postgres")))


def test_a_test_that_is_run_by_another_file_without_parameters_is_a_main_case() -> None:
    assert left_out(Case("embedded.py::test_rows", named=("mysql",))) == []


def test_a_test_whose_parameters_are_all_variants_is_refused() -> None:
    shown = Case("a.py::test_shown")
    with pytest.raises(pytest.UsageError, match=r"^tests/a.py::test_rows: variants alone"):
        left_out(shown, *(Case("a.py::test_rows", each, ("x", "y")) for each in ("x", "y")))


@pytest.mark.parametrize(
    "beside", [[], [Case("a.py::test_long", slow=True)]], ids=["alone", "beside a slow one"]
)
def test_a_file_of_variants_alone_is_refused(beside: list[Case]) -> None:
    whole = Case("a.py::test_rows")
    whole.add_marker("variant")
    with pytest.raises(pytest.UsageError, match=r"^tests/a.py: variants alone"):
        left_out(whole, *beside)
    assert left_out(whole, *beside, Case("a.py::test_shown")) == [whole.nodeid]
