"""Type checkers find a program's mistakes where they are typed, and nothing in a program without one.

`mistakes.py` has a function for each mistake. A checker must find all of them but those of UNFOUND; where it
does not, the declaration refuses the mistake when the function is called.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import HoldfastError
from holdfast.testing import Topology
from tests.support.places import ROOT

HERE = Path(__file__).parent
MISTAKES = HERE / "mistakes.py"
CHECK_S = 600.0
LEAST = 36
"""Of each checker: how many mistakes it finds at least, or the declaration refuses."""
UNFOUND = frozenset(
    {
        "final_results_of_another_type",
        "fold_of_another_source",
        "global_fold_of_another_type",
        "reduced_to_another_type",
        "total_of_text",
    }
)
"""Mistakes that come out with the first record only."""


def functions() -> dict[str, range]:
    """Return the lines of each mistake, by its name."""
    found = ast.parse(MISTAKES.read_text()).body
    return {
        each.name: range(each.lineno, (each.end_lineno or each.lineno) + 1)
        for each in found
        if isinstance(each, ast.FunctionDef)
    }


def run(*command: str) -> str:
    arguments = [sys.executable, "-m", *command]
    return subprocess.run(
        arguments, cwd=ROOT, capture_output=True, text=True, timeout=CHECK_S, check=False
    ).stdout


def of_mypy() -> list[tuple[str, int]]:
    """Return file and line of each error that mypy --strict finds."""
    out = run("mypy", "--strict", "--no-error-summary", *FILES)
    return [(Path(name).name, int(line)) for name, line in ERROR.findall(out)]


def of_pyright() -> list[tuple[str, int]]:
    """Return file and line of each error that pyright finds in its standard mode."""
    settings = str(HERE / "pyright.json")
    out = run("basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", settings)
    found = [each for each in json.loads(out)["generalDiagnostics"] if each["severity"] == "error"]
    return [(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in found]


ERROR = re.compile(r"^(\S+\.py):(\d+): error", re.MULTILINE)
FILES = [str(HERE / "correct.py"), str(MISTAKES)]
CHECKERS = {"mypy": of_mypy, "pyright": of_pyright}


@cache
def errors(checker: str) -> list[tuple[str, int]]:
    return CHECKERS[checker]()


@cache
def refused() -> frozenset[str]:
    """Return the mistakes that a declaration refuses, or the test that makes them."""
    module: Any = import_module("tests.typing.mistakes")
    found = set[str]()
    for name in functions():
        with warnings.catch_warnings(action="ignore"):
            try:
                getattr(module, name)()
            except (HoldfastError, TypeError):  # others would be faults of this test
                found.add(name)
    return frozenset(found)


@pytest.mark.long
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_correct_program_has_no_errors(checker: str) -> None:
    assert [line for name, line in errors(checker) if name == "correct.py"] == []


@pytest.mark.long
@pytest.mark.parametrize("checker", CHECKERS)
def test_mistakes_are_found_where_they_are_typed(checker: str) -> None:
    lines = {line for name, line in errors(checker) if name == "mistakes.py"}
    found = {name for name, span in functions().items() if not lines.isdisjoint(span)} | refused()
    missed = functions().keys() - found
    assert missed <= UNFOUND, sorted(missed - UNFOUND)
    assert len(found) >= LEAST


def test_every_mistake_is_listed() -> None:
    assert len(functions()) >= 40
    assert functions().keys() >= UNFOUND


def test_the_correct_program_runs() -> None:
    with warnings.catch_warnings(action="ignore"):
        correct: Any = import_module("tests.typing.correct")
    with Topology([correct.cents, correct.words]) as shop:
        shop.pipe("orders", correct.Order("o1", "ada", 7, 1_000), key="ada", at=1_000)
        assert shop.values(correct.cents.to) == [("ada", 7)]
        assert shop.table("words") == {"ada": 1}
