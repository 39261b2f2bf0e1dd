"""The parts that tests need, as marks: `@part("kafka")` below `@pytest.fixture` marks the tests that use the
fixture.

A test that starts a part in its own body bears the mark itself (`@pytest.mark.kafka`). So does a test that
takes the fixture `broker` and needs Apache Kafka.

| mark | part |
|---|---|
| broker | the run's broker: the embedded Kafka in `make test`, else Apache Kafka |
| sql | the run's database: SQLite where the broker is embedded, else PostgreSQL |
| kafka | Apache Kafka itself |
| database | a database server, or a schema registry |
| spark | a Spark session |
| process | other programs, which take seconds |
| browser | Chromium |
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import pytest

F = TypeVar("F", bound=Callable[..., Any])

PARTS = ("broker", "sql", "kafka", "database", "spark", "process", "browser")
IS_EMBEDDED = bool(os.environ.get("TESTS_EMBEDDED"))
"""True if the run's broker is the embedded Kafka, as in `make test`."""
DATABASES = ("postgres", "mariadb", "mysql")

QUICK_JAVA = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""Environment of a JVM that lives for seconds: it compiles quickly rather than well, for a third less
processor time.
"""


def part(name: str) -> Callable[[F], F]:
    """Mark the tests that use a fixture with the part *name*, one of `PARTS`."""

    def told(make: F) -> F:
        make.__dict__["part"] = name
        return make

    return told


def parts_of(item: pytest.Item) -> Iterator[str]:
    """Yield the parts that a test needs, by its fixtures or by a parameter."""
    known = getattr(item, "_fixtureinfo", None)
    for name in getattr(item, "fixturenames", ()):
        if name == "run_broker":
            yield "broker"
        if name == "apache_broker":
            yield "kafka"
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
