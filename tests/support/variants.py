"""Further cases of promises: another database, the other engine, another kind of the same fault.

`make test` and `make test-all` show each promise in its main case, and `make variants` shows the others:

    @pytest.mark.variants("mysql-debezium", "mariadb-debezium")   # of these parameters
    @pytest.mark.variant                                          # the whole test
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest


def mark(item: pytest.Item) -> None:
    """Mark *item* as a variant if its parameters are named as one."""
    if _parameters(item) in _named(item):
        item.add_marker("variant")


def check(items: Sequence[pytest.Item]) -> None:
    """Fail if a test names parameters that it has not, or if a test or a file has variants alone; *items* are
    all tests there are.
    """
    _check_names(items)
    _check_main_cases(items)


def _check_names(items: Sequence[pytest.Item]) -> None:
    there = defaultdict[str, set[str]](set)
    for item in items:
        if _named(item):
            there[_test(item)].add(_parameters(item))
    for item in items:
        found = there[_test(item)]
        if found == {""}:
            continue  # another file runs it by a fixture of its own
        if unknown := _named(item) - found:
            raise pytest.UsageError(
                f"{_test(item)} has no parameters {sorted(unknown)}: it has {sorted(found)}"
            )


def _check_main_cases(items: Sequence[pytest.Item]) -> None:
    of_variants, shown = set[str](), set[str]()
    for item in items:
        places = {_test(item) if _named(item) else "", item.nodeid.partition("::")[0]} - {""}
        if item.get_closest_marker("variant"):
            of_variants |= places
        elif not item.get_closest_marker("slow"):
            shown |= places
    if lacking := sorted(of_variants - shown):
        raise pytest.UsageError(
            f"{', '.join(lacking)}: variants alone, so that `make test-all` does not show it; leave the"
            " main case out of them"
        )


def _test(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _named(item: pytest.Item) -> set[str]:
    return {each for marker in item.iter_markers("variants") for each in marker.args}


def _parameters(item: pytest.Item) -> str:
    specified = getattr(item, "callspec", None)
    return "" if specified is None else str(specified.id)
