"""An outbox in partitions, on Postgres: declared ones are like one table, inherited ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from holdfast.errors import OutboxDroppedError
from holdfast.outbox.harvest.harvester import Harvester
from holdfast.outbox.trial import trial_findings
from tests.outbox.databases import FreshOutbox, url_of
from tests.outbox.embedded import bench
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S

pytestmark = pytest.mark.database


@pytest.fixture
def outbox(request: pytest.FixtureRequest, tmp_path: Path) -> FreshOutbox:
    return FreshOutbox.make(url_of("postgres", request, tmp_path))


def run(outbox: FreshOutbox, *statements: str) -> None:
    with outbox.engine().begin() as connection:
        for each in statements:
            connection.execute(text(each))


def test_declared_partitions_are_written_checked_and_harvested(outbox: FreshOutbox) -> None:
    table = outbox.table
    run(
        outbox,
        f"ALTER TABLE {table} RENAME TO {table}_plain",
        f"CREATE TABLE {table} (LIKE {table}_plain INCLUDING ALL) PARTITION BY RANGE (id)",
        f"CREATE TABLE {table}_a PARTITION OF {table} FOR VALUES FROM (0) TO (3)",
        f"CREATE TABLE {table}_b PARTITION OF {table} FOR VALUES FROM (3) TO (1000)",
        f"DROP TABLE {table}_plain CASCADE",
    )
    with outbox.rows() as rows:
        problems, _ = trial_findings(rows)
    assert problems == []
    with bench(outbox) as desk:
        desk.write("one", "two", "three", "four", "five")
        with Harvester(desk.settings()):
            wait_for("five records", lambda: len(desk.published()) == 5, DEADLINE_S)
        assert desk.published() == ["one", "two", "three", "four", "five"]
        with outbox.rows() as rows:
            wait_for("an empty outbox", lambda: not rows.take(1), DEADLINE_S)


def test_inherited_partitions_are_refused_and_the_check_says_how_to_have_them(outbox: FreshOutbox) -> None:
    table = outbox.table
    run(
        outbox,
        f"CREATE TABLE {table}_a () INHERITS ({table})",
        f"CREATE FUNCTION {table}_route() RETURNS trigger LANGUAGE plpgsql AS"
        f" 'BEGIN INSERT INTO {table}_a SELECT NEW.*; RETURN NULL; END'",
        f"CREATE TRIGGER route BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_route()",
    )
    with outbox.engine().connect() as connection, pytest.raises(OutboxDroppedError):
        outbox.writer().write(connection, "orders", "k", "v")
    with outbox.rows() as rows:
        problems, _ = trial_findings(rows)
    (problem,) = problems
    assert problem.startswith(
        f"a row written to {table} arrives, but the statement reports that it stored none"
    )
    assert "Declare the partitions (PARTITION BY)" in problem
    run(outbox, f"DROP TRIGGER route ON {table}", f"DROP TABLE {table}_a")
    with outbox.rows() as rows:
        assert trial_findings(rows)[0] == []
