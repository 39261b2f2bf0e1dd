"""Outboxes for the tests of this folder: on every database, on the run's, and on Postgres alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.dev.databases.servers import Postgres
from tests.outbox.databases import DATABASES, FreshOutbox, url_of
from tests.support.parts import IS_EMBEDDED, part


@pytest.fixture(params=DATABASES)
def outbox(request: pytest.FixtureRequest, tmp_path: Path) -> FreshOutbox:
    """Give a fresh outbox of holdfast's layout, on each database in turn."""
    return FreshOutbox.make(url_of(request.param, request, tmp_path))


@pytest.fixture
@part("sql")
def run_database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the URL of the run's database: SQLite where its broker is the embedded Kafka, else PostgreSQL."""
    return url_of("sqlite" if IS_EMBEDDED else "postgres", request, tmp_path)


@pytest.fixture
def run_outbox(run_database: str) -> FreshOutbox:
    """Give a fresh outbox of holdfast's layout on the run's database."""
    return FreshOutbox.make(run_database)


@pytest.fixture
def postgres_outbox(postgres: Postgres) -> FreshOutbox:
    """Give a fresh outbox of holdfast's layout on Postgres."""
    return FreshOutbox.make(postgres.url)
