"""The real parts that tests need, as marks: `@part("broker")` below `@pytest.fixture` marks the tests that
use what it starts.

A test that starts a part in its own body bears the mark itself (`@pytest.mark.broker`). `make fast` runs what
has none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import pytest

F = TypeVar("F", bound=Callable[..., Any])

PARTS = ("broker", "spark", "database", "process", "browser")
DATABASES = ("postgres", "mariadb", "mysql")

QUICK_JAVA = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""Environment of a JVM that lives for seconds: it compiles quickly rather than well, for a third less
processor time.
"""


def part(name: str) -> Callable[[F], F]:
    """Say of a fixture which part it starts: broker, database, spark or browser."""

    def told(make: F) -> F:
        make.__dict__["part"] = name
        return make

    return told


def parts_of(item: pytest.Item) -> Iterator[str]:
    """Yield the parts that the fixtures of a test start, or that it asks for by a parameter."""
    known = getattr(item, "_fixtureinfo", None)
    for name in getattr(item, "fixturenames", ()):
        if name == "holdfast_broker":
            yield "broker"
        for found in known.name2fixturedefs.get(name, ()) if known is not None else ():
            if (told := getattr(found.func, "part", None)) is not None:
                yield told
    parameters = getattr(item, "callspec", None)
    if parameters is not None and any(
        value in DATABASES for value in parameters.params.values() if isinstance(value, str)
    ):
        yield "database"


def times(reports: Iterable[pytest.TestReport]) -> list[tuple[str, dict[str, float]]]:
    """Return how many seconds of a run went to each room, and to tests that need each part; set-up
    included.
    """
    by_room, by_part = defaultdict[str, float](float), defaultdict[str, float](float)
    for report in reports:
        room = report.nodeid.partition("::")[0].split("/")[1]
        by_room[room.removesuffix(".py")] += report.duration
        by_part[str(dict(report.user_properties).get("parts", "none"))] += report.duration
    return [("room", by_room), ("part", by_part)]
