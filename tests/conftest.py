"""Fixtures of all tests. `broker` is the one real Kafka of the session; `fresh_topic` makes topics on it.

`postgres`, `mariadb` and `mysql` are the session's databases, started by the first test that asks.
"""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis
import pytest

from holdfast.dev.databases import MariaDB, MySQL, Postgres
from holdfast.dev.fixtures import SessionBroker, fresh_topic, holdfast_broker

__all__ = ["broker", "fresh_topic", "holdfast_broker"]

# Hypothesis gives each example 200 ms by itself, which a loaded machine takes for nothing: how long an example may take is told by the test's own timeout.
hypothesis.settings.register_profile("holdfast", deadline=None)
hypothesis.settings.load_profile("holdfast")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what runs long first: of several processes, none is left with it when the others have done the thousands of quick tests."""
    items.sort(key=lambda item: "core" in item.path.parts)


@pytest.fixture(scope="session")
def broker(holdfast_broker: SessionBroker) -> SessionBroker:
    """Give the session's Kafka: set ``KAFKA_BOOTSTRAP_SERVERS`` to test against another one."""
    return holdfast_broker


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Give the session's PostgreSQL; whoever freezes or kills it brings it back."""
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    """Give the session's MariaDB; whoever freezes or kills it brings it back."""
    with MariaDB() as server:
        yield server


@pytest.fixture(scope="session")
def mysql() -> Iterator[MySQL]:
    """Give the session's MySQL; whoever freezes or kills it brings it back."""
    with MySQL() as server:
        yield server
