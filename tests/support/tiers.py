"""The `make` targets that run a test, as marks which pytest's ``-m`` selects.

A test does not name its tier: that follows from the parts that it needs (`tests.support.parts`), and from the
marks ``long``, ``promise``, ``variant`` and ``slow``.

| mark | target | runs |
|---|---|---|
| tier_fast | make fast | tests without parts, unless they are long |
| tier_test | make test | tests without parts, or on the embedded Kafka and SQLite; tests/promises |
| tier_all | make test-all | tests with parts, unless they are promises, variants or slow |
| tier_variants | make variants | variants |
| tier_random | make test-all, make variants | random tests without parts, for longer |
| tier_chaos | make chaos | slow tests |

The run's broker and database (parts `broker` and `sql`) are the embedded Kafka and SQLite in `make test`, and
Apache Kafka and PostgreSQL in `make test-all`. So a test that needs no other part runs in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.parts import PARTS

PROMISES = "tests/promises/"
"""The main promises on Apache Kafka, PostgreSQL and Spark: tests of other folders, by their marks."""
AS_LIBRARIES = {"broker", "sql"}
"""The parts that `make test` has within Python: the embedded Kafka and SQLite."""


def mark(item: pytest.Item) -> None:
    """Give *item*, whose parts are marked, the marks of its tiers."""
    tiers = tiers_of(item)
    if tiers and tiers[-1] == "test" and not parts_marked(item) and hasattr(_module(item), "scaled"):
        tiers.append("random")
    for tier in tiers:
        item.add_marker(f"tier_{tier}")


def tiers_of(item: pytest.Item) -> list[str]:
    """Return the tiers of *item*, whose parts are marked; none if only tests/promises runs its body."""
    parts = parts_marked(item)
    if item.get_closest_marker("slow"):
        return ["chaos"]
    if item.get_closest_marker("variant"):
        return ["variants"]
    if item.nodeid.startswith(PROMISES):
        return ["test"]
    if item.get_closest_marker("promise"):
        return ["test"] if parts <= AS_LIBRARIES else []
    if not parts:
        return ["test"] if item.get_closest_marker("long") else ["fast", "test"]
    return ["test", "all"] if parts <= AS_LIBRARIES else ["all"]


def parts_marked(item: pytest.Item) -> set[str]:
    """Return the parts by which *item* is marked."""
    return {name for name in PARTS if item.get_closest_marker(name)}


def check(items: Sequence[pytest.Item]) -> None:
    """Raise UsageError where tests/promises and the mark ``promise`` disagree; *items* are all tests.

    Without this, a test could be in no tier, or a promise could run on no real part.
    """
    kept = {_body(item): item.nodeid for item in items if item.nodeid.startswith(PROMISES)}
    promised = {_body(item): item.nodeid for item in items if item.get_closest_marker("promise")}
    if lacking := sorted(promised[body] for body in promised.keys() - kept.keys()):
        raise pytest.UsageError(f"{', '.join(lacking)}: a promise, so import it in a file of {PROMISES}")
    if unmarked := sorted(kept[body] for body in kept.keys() - promised.keys()):
        raise pytest.UsageError(f"{', '.join(unmarked)}: mark it `promise`, else `make test-all` repeats it")
    for item in items:
        if item.nodeid.startswith(PROMISES) and not parts_marked(item):
            raise pytest.UsageError(f"{item.nodeid} needs no real part: move it out of {PROMISES}")


def _module(item: pytest.Item) -> object:
    return getattr(item, "module", None)


def _body(item: pytest.Item) -> tuple[str, str]:
    """Return the module and the name of the function that *item* runs."""
    function: Any = getattr(item, "function", None)
    return getattr(function, "__module__", item.nodeid), getattr(function, "__qualname__", "")
