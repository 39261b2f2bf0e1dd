"""Further cases of promises: another database, the other engine, another kind of the same fault.

`make test` shows each promise in its main case, in the time that a change can wait for. `make variants`
shows the others:

    @pytest.mark.variants("mysql-debezium", "mariadb-debezium")   # of these parameters
    @pytest.mark.variant                                          # the whole test
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pytest


def mark(item: pytest.Item) -> None:
    """Mark *item* as a variant if its parameters are named as one."""
    if _parameters(item) in _named(item):
        item.add_marker("variant")


def check(items: Iterable[pytest.Item]) -> None:
    """Fail if a test names parameters that it has not, or names all that it has; *items* are all tests there
    are.
    """
    named: dict[str, set[str]] = {}
    there = defaultdict[str, set[str]](set)
    for item in items:
        if ids := _named(item):
            test = item.nodeid.partition("[")[0]
            named[test] = ids
            there[test].add(_parameters(item))
    for test, ids in named.items():
        if there[test] == {""}:
            continue  # another file runs it by a fixture of its own
        if unknown := ids - there[test]:
            raise pytest.UsageError(
                f"{test} has no parameters {sorted(unknown)}: it has {sorted(there[test])}"
            )
        if ids == there[test]:
            raise pytest.UsageError(f"{test} names all its parameters as variants: none shows its promise")


def _named(item: pytest.Item) -> set[str]:
    return {each for marker in item.iter_markers("variants") for each in marker.args}


def _parameters(item: pytest.Item) -> str:
    specified = getattr(item, "callspec", None)
    return "" if specified is None else str(specified.id)
