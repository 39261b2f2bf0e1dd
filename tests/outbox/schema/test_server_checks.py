"""The findings of `outbox check` about servers and about objects on the tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from holdfast.outbox.schema.migrate import upgrade
from holdfast.outbox.schema.server_checks import server_findings
from holdfast.outbox.schema.session import connected
from holdfast.outbox.schema.tables import outbox_tables
from tests.outbox.databases import FreshOutbox, url_of


def findings(outbox: FreshOutbox) -> tuple[list[str], list[str]]:
    with connected(outbox.url) as connection:
        return server_findings(connection, outbox.tables)


def change(outbox: FreshOutbox, *statements: str) -> None:
    with outbox.engine().begin() as connection:
        for each in statements:
            connection.execute(text(each))


def test_a_database_as_it_comes_has_no_problem(outbox: FreshOutbox) -> None:
    assert findings(outbox)[0] == []


def test_of_sqlite(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    outbox = FreshOutbox.make(url_of("sqlite", request, tmp_path))
    table = outbox.table
    change(
        outbox,
        f"CREATE TRIGGER seen AFTER INSERT ON {table} BEGIN SELECT 1; END",
        f"DROP TABLE {table}_attempts",
        f"CREATE VIEW {table}_attempts AS SELECT 1 AS id",
        "PRAGMA journal_mode = DELETE",
    )
    problems, notes = findings(outbox)
    assert [each.partition(":")[0] for each in problems] == [f"{table}_attempts is a view"]
    assert any(each.startswith(f"a trigger on {table}: seen") for each in notes)
    change(
        outbox,
        f"ALTER TABLE {table} RENAME TO before",
        f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, bucket INTEGER, topic TEXT,"
        " key BLOB REFERENCES before (id), value BLOB AS (key))",
    )
    problems, notes = findings(outbox)
    assert f"column {table}.value is generated: what a service writes to it is refused" in problems
    assert any("without AUTOINCREMENT" in each for each in notes)
    assert any("foreign keys" in each for each in notes)


@pytest.mark.database
def test_of_postgres(postgres_outbox: FreshOutbox) -> None:
    outbox, table = postgres_outbox, postgres_outbox.table
    change(
        outbox,
        f"CREATE RULE keep AS ON DELETE TO {table} DO INSTEAD NOTHING",
        f"CREATE FUNCTION {table}_f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        f"CREATE TRIGGER seen BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_f()",
        f"ALTER TABLE {table} SET UNLOGGED",
        f"ALTER TABLE {table}_lease SET UNLOGGED",
        f"ALTER TABLE {table} ADD COLUMN also INTEGER GENERATED ALWAYS AS (1) STORED",
    )
    problems, notes = findings(outbox)
    assert [each.split(" rewrites")[0] for each in problems] == [f"rule keep on {table}"]
    assert any("CREATE TRIGGER seen BEFORE INSERT" in each for each in notes)
    assert any(f"{table} is UNLOGGED" in each for each in notes)
    change(
        outbox,
        f"DROP RULE keep ON {table}",
        f"ALTER TABLE {table} SET LOGGED",
        f"ALTER TABLE {table} REPLICA IDENTITY NOTHING",
        f"CREATE PUBLICATION p_{table} FOR TABLE {table}",
        f"ALTER TABLE {table} DROP COLUMN headers",
        f"ALTER TABLE {table} ADD COLUMN headers BYTEA GENERATED ALWAYS AS (NULL) STORED",
    )
    problems, _ = findings(outbox)
    assert any("has no replica identity" in each for each in problems)
    assert any(f"column {table}.headers is generated" in each for each in problems)


@pytest.mark.database
@pytest.mark.parametrize("layout", ["holdfast", "goharvest"])
def test_a_database_in_sql_ascii_is_described(
    layout: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url, name = url_of("postgres", request, tmp_path), f"ascii_{layout}"
    with create_engine(url, isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(
            text(
                f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
            )
        )
    made = f"{url.rpartition('/')[0]}/{name}"
    upgrade(made, layout=layout)
    with connected(made) as connection:
        problems, notes = server_findings(connection, outbox_tables(layout))
    (said,) = problems if layout == "goharvest" else notes
    assert said.startswith("server_encoding is SQL_ASCII")


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
@pytest.mark.variants("mariadb")
def test_of_mysql(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    outbox = FreshOutbox.make(url_of(kind, request, tmp_path), "goharvest")
    table = outbox.table
    change(
        outbox,
        f"ALTER TABLE {table}_attempts ENGINE=MyISAM",
        f"ALTER TABLE {table} MODIFY kafka_value VARCHAR(10000) CHARACTER SET latin1",
        f"CREATE TRIGGER seen_{table} BEFORE DELETE ON {table} FOR EACH ROW SET @seen = 1",
    )
    problems, notes = findings(outbox)
    assert any(f"{table}_attempts is base table of engine MyISAM" in each for each in problems)
    assert any(f"column {table}.kafka_value has the character set latin1" in each for each in problems)
    assert any(each == f"a trigger on {table}: seen_{table} at DELETE" for each in notes)


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
@pytest.mark.variants("mariadb")
def test_a_harvester_reads_no_row_that_is_not_committed(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    outbox = FreshOutbox.make(url_of(kind, request, tmp_path))
    with outbox.engine(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("SET GLOBAL TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"))
    try:
        with outbox.engine().connect() as connection, outbox.rows() as rows:
            outbox.writer().write(connection, "orders", key="k", value="v")
            assert rows.take(10) == []
            connection.rollback()
    finally:
        with outbox.engine(isolation_level="AUTOCOMMIT").connect() as connection:
            connection.execute(text("SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
