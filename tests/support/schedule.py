"""The order of tests, and their distribution over processes (`make test JOBS=4`).

A file's tests stay together, because they share its fixtures. All files with a Spark session are one group,
because its JVM takes long to warm up. So are those with servers that their tests kill and freeze, which no
other process can share: to make a MariaDB, a MySQL, a schema registry and a broker takes 20 seconds of a
processor. Tests with real parts come first, so that at the end the thousands of quick tests are left and no
process has a long one to finish.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from tests.support.parts import IS_EMBEDDED, PARTS
from tests.support.places import ROOT

SPARK = "tests with a Spark session"
SESSION = re.compile(
    r"""\bspark: SparkSession\b|getfixturevalue\("spark"\)|\bimport .*\bspark$""", re.MULTILINE
)
SERVERS = "tests with servers that they disturb"
DISTURBED = re.compile(
    r"""\bown_broker\.|\bDATABASES\b|\boutbox: FreshOutbox\b|\bschema_registry: SchemaRegistryServer\b|\bguarded_broker: Guarded\b|["'](?:mariadb|mysql)["']"""  # noqa: E501
)
IN_GROUPS = {"mariadb", "mysql", "schema_registry", "disturbed_broker", "guarded_broker"}
"""Fixtures that each process would start for itself. A PostgreSQL takes less than a second."""


def order(items: list[pytest.Item]) -> None:
    """Sort *items*: files with Spark, those with servers that they disturb, then those with other parts, the
    long ones before; within each as they were.
    """
    needed: dict[str, set[str]] = {}
    for item in items:
        file = _file(item.nodeid)
        needed.setdefault(file, set()).update(_marks(item))
        assert with_session(file) or "spark" not in getattr(item, "fixturenames", ()), (
            f"{item.nodeid} takes the fixture `spark` by another form than {SESSION.pattern}"
        )
        assert with_session(file) or with_servers(file) or not _servers(item), (
            f"{item.nodeid} takes {', '.join(_servers(item))} by another form than {DISTURBED.pattern}"
        )
    items.sort(key=lambda item: _rank(_file(item.nodeid), needed[_file(item.nodeid)]))


def _rank(file: str, parts: set[str]) -> int:
    if with_session(file):
        return 0
    if with_servers(file) and parts:
        return 1
    if file.startswith(("tests/chaos/", "tests/dev/demo/")):
        return 2
    return 3 if parts else 4


def with_session(file: str) -> bool:
    """Return whether tests of *file*, relative to the root, take the fixture `spark`."""
    return _has(file, SESSION)


def with_servers(file: str) -> bool:
    """Return whether tests of *file*, relative to the root, may take one of `IN_GROUPS`."""
    return not with_session(file) and _has(file, DISTURBED)


@cache
def _has(file: str, pattern: re.Pattern[str]) -> bool:
    path = ROOT / file
    if not file.startswith("tests/") or path.suffix != ".py":
        return False
    return pattern.search(path.read_text(encoding="utf-8")) is not None


def _servers(item: pytest.Item) -> list[str]:
    """Return which of `IN_GROUPS` a test takes, by its arguments or by a parameter."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    taken = set(getattr(item, "fixturenames", ()))
    if "database" in _marks(item):  # else such a word is a name alone
        taken |= {each for each in parameters.values() if isinstance(each, str)}
    return sorted(taken & IN_GROUPS)


def _marks(item: pytest.Item) -> set[str]:
    return {name for name in PARTS if item.get_closest_marker(name)}


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class Groups(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out files, and as one each all files with a Spark session, and all with servers that they
    disturb.
    """

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = _file(nodeid)
        if with_session(file):
            return SPARK
        # The embedded Kafka and SQLite are cheap: each process has its own.
        return SERVERS if with_servers(file) and not IS_EMBEDDED else file
