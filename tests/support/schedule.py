"""In which order tests run, for several processes (`make test JOBS=4`): files with long tests first, then those
that need real parts. At the end the thousands of quick ones are left, and no process is left with a long one.
"""

from __future__ import annotations

import pytest

from tests.support.parts import PARTS

LONG = ("tests/chaos/", "tests/dev/demo/", "tests/pipeline/")


def order(items: list[pytest.Item]) -> None:
    """Sort *items* by their files; within each as they were."""
    needed: dict[str, set[str]] = {}
    for item in items:
        marks = (name for name in PARTS if item.get_closest_marker(name))
        needed.setdefault(_file(item), set()).update(marks)
    items.sort(key=lambda item: _rank(_file(item), needed[_file(item)]))


def _rank(file: str, parts: set[str]) -> int:
    if not parts:
        return 2
    return 0 if file.startswith(LONG) else 1


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
