"""Outboxes for the tests of this folder: on every database, and on Postgres alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.dev.databases.servers import Postgres
from tests.outbox.databases import DATABASES, FreshOutbox, url_of


@pytest.fixture(params=DATABASES)
def outbox(request: pytest.FixtureRequest, tmp_path: Path) -> FreshOutbox:
    """Give a fresh outbox of holdfast's layout, on each database in turn."""
    return FreshOutbox.make(url_of(request.param, request, tmp_path))


@pytest.fixture
def postgres_outbox(postgres: Postgres) -> FreshOutbox:
    """Give a fresh outbox of holdfast's layout on Postgres."""
    return FreshOutbox.make(postgres.url)
