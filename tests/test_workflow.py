"""The workflow of GitHub runs what CONTRIBUTING.md says, by targets and scripts that there are."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import yaml

from tests.support.places import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
JOBS: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]


def commands(job: str) -> list[str]:
    return [step["run"] for step in JOBS[job]["steps"] if "run" in step]


def test_the_whole_run_is_on_the_oldest_python_and_make_fast_on_each_newer_one() -> None:
    declared = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert commands("all")[-1] == ".ci/run"
    assert commands("fast") == ["make fast PYTHON=python${{ matrix.python }}"]
    (whole,) = (
        step["with"]["python-version"]
        for step in JOBS["all"]["steps"]
        if step.get("uses", "").startswith("actions/setup-python")
    )
    assert [whole, *JOBS["fast"]["strategy"]["matrix"]["python"]] == declared


def test_the_targets_that_jobs_name_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {match[1] for job in JOBS for run in commands(job) if (match := re.match(r"make ([a-z-]+)", run))}
    assert named <= targets
    assert "bounds" in named


def test_each_dependency_of_the_core_is_a_range_whose_ends_are_tested() -> None:
    ends = {
        name: dict(
            re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / f"tools/{name}.txt").read_text(), re.MULTILINE)
        )
        for name in ("lowest", "newest")
    }
    for each in PROJECT["dependencies"]:
        found = re.fullmatch(r"([\w-]+)>=([\d.]+)(?:,<([\d.]+))?", each)
        assert found, f"{each} is no range: a user's own version of it may be another"
        name, least, below = found.groups()
        lowest, newest = numbers(ends["lowest"][name]), numbers(ends["newest"][name])
        assert lowest[: len(numbers(least))] == numbers(least), f"tools/bounds --write: {each}"
        assert numbers(least) <= newest, f"tools/bounds --write: {each}"
        assert below is None or newest < numbers(below), f"tools/bounds --write: {each}"


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_a_script_of_tools_is_named_by_a_target_or_a_script() -> None:
    named = "\n".join(
        path.read_text()
        for path in (
            ROOT / "Makefile",
            ROOT / ".ci/run",
            ROOT / "CONTRIBUTING.md",
            *(ROOT / "tools").iterdir(),
        )
    )
    assert not [path.name for path in (ROOT / "tools").iterdir() if f"tools/{path.stem}" not in named]
