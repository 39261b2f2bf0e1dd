"""In which order, and in which of several processes, tests run (`make test JOBS=4`).

A file's tests stay together, for what its fixtures make. All tests with a Spark session are one such group: its
JVM takes long to warm up. What needs real parts comes first, so that at the end the thousands of quick tests
are left, of which no process is left with a long one.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from tests.support.parts import PARTS
from tests.support.places import ROOT

SPARK = "tests with a Spark session"
SESSION = re.compile(r"""\bspark: SparkSession\b|getfixturevalue\("spark"\)""")


def order(items: list[pytest.Item]) -> None:
    """Sort *items*: files with Spark, then those with other parts, the long ones before; within each as they
    were.
    """
    needed: dict[str, set[str]] = {}
    for item in items:
        file = _file(item.nodeid)
        needed.setdefault(file, set()).update(name for name in PARTS if item.get_closest_marker(name))
        assert with_session(file) or "spark" not in getattr(item, "fixturenames", ()), (
            f"{item.nodeid} takes the fixture `spark` by another form than {SESSION.pattern}"
        )
    items.sort(key=lambda item: _rank(_file(item.nodeid), needed[_file(item.nodeid)]))


def _rank(file: str, parts: set[str]) -> int:
    if with_session(file):
        return 0
    if file.startswith(("tests/chaos/", "tests/dev/demo/")):
        return 1
    return 2 if parts else 3


@cache
def with_session(file: str) -> bool:
    """Return whether tests of *file*, relative to the root, take the fixture `spark`."""
    path = ROOT / file
    if not file.startswith("tests/") or path.suffix != ".py":
        return False
    return SESSION.search(path.read_text(encoding="utf-8")) is not None


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class Groups(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out files, and all tests with a Spark session as one."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = _file(nodeid)
        return SPARK if with_session(file) else file
