"""Migrations: what they make is what the code reads and writes, on every database, up and down and as
text; nothing that waits is lost.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import MetaData, inspect, text
from sqlalchemy.orm import Session

from holdfast.dev.databases.servers import Postgres
from holdfast.errors import ConfigError, OutboxDatabaseError, OutboxSchemaError
from holdfast.outbox.schema.layouts import layout_named
from holdfast.outbox.schema.migrate import downgrade, sql, upgrade
from holdfast.outbox.schema.tables import check, outbox_tables, problems
from tests.outbox.databases import DATABASES, LAYOUTS, FreshOutbox, url_of
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", DATABASES)
def test_up_down_and_up_again_ends_in_the_very_tables_of_the_code(
    kind: str, layout: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    outbox = FreshOutbox.make(url_of(kind, request, tmp_path), layout)
    downgrade(outbox.url, layout=layout, table=outbox.table)
    upgrade(outbox.url, layout=layout, table=outbox.table)
    upgrade(outbox.url, layout=layout, table=outbox.table)  # nothing to do
    names = {table.name for table in outbox.tables.every}
    with outbox.engine().connect() as connection:
        assert problems(connection, outbox.tables) == []
        options = {
            "compare_type": True,
            "include_name": lambda name, kind_, _: kind_ != "table" or name in names,
        }
        assert (
            compare_metadata(
                MigrationContext.configure(connection, opts=options), outbox.tables.outbox.metadata
            )
            == []
        )
    downgrade(outbox.url, layout=layout, table=outbox.table)
    with outbox.engine().connect() as connection:
        left = names.intersection(inspect(connection).get_table_names())
    assert left == (set() if layout == "holdfast" else {outbox.table})  # a table of others is never dropped


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_printed_statements_make_and_remove_the_same(postgres: Postgres, layout: str) -> None:
    table = f"printed_{layout}"
    outbox = FreshOutbox(url=postgres.url, table=table, layout=layout_named(layout))
    for down in (False, True):
        with outbox.engine(isolation_level="AUTOCOMMIT").connect() as connection:
            for statement in sql("postgresql", layout=layout, table=table, down=down).split(";"):
                if statement.strip():
                    connection.execute(text(statement))
            assert bool(problems(connection, outbox.tables)) == down


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "mariadb", "sqlite"])
def test_every_layout_is_printed_for_every_database(dialect: str, layout: str) -> None:
    printed = sql(dialect, layout=layout, table="shop.outbox" if dialect == "postgresql" else "outbox")
    assert len(re.findall(r"CREATE TABLE", printed)) == 5  # four, and the version's
    assert "DROP TABLE" in sql(dialect, layout=layout, down=True)


def test_what_waits_or_was_set_aside_is_not_dropped(outbox: FreshOutbox) -> None:
    with Session(outbox.engine()) as session, session.begin():
        outbox.writer().write(session, "orders", "k")
    with pytest.raises(OutboxSchemaError, match=f"table {outbox.table} still has rows"):
        downgrade(outbox.url, table=outbox.table)
    with outbox.rows() as rows:
        rows.set_aside(rows.take(1)[0], "x")
        with pytest.raises(OutboxSchemaError, match=f"table {outbox.table}_quarantine still has rows"):
            downgrade(outbox.url, table=outbox.table)
        rows.discard([1])
    downgrade(outbox.url, table=outbox.table)


def test_an_outbox_has_one_layout(outbox: FreshOutbox) -> None:
    with pytest.raises(OutboxSchemaError, match="has the layout holdfast, not goharvest"):
        upgrade(outbox.url, layout="goharvest", table=outbox.table)


def test_what_lacks_is_listed(outbox: FreshOutbox) -> None:
    with outbox.engine().begin() as connection:
        check(connection, outbox.tables)
        connection.execute(text(f"DROP TABLE {outbox.table}_lease"))
        connection.execute(text(f"ALTER TABLE {outbox.table} DROP COLUMN timestamp_ms"))
        found = problems(connection, outbox.tables)
        assert found == [
            f"table {outbox.table} has no column timestamp_ms",
            f"table {outbox.table}_lease is missing",
        ]
        with pytest.raises(
            OutboxSchemaError,
            match=r"is not ready for the layout holdfast: .* `holdfast outbox init --layout holdfast",
        ):
            check(connection, outbox.tables)


def test_a_column_that_nobody_fills_is_a_problem(postgres_outbox: FreshOutbox) -> None:
    with postgres_outbox.engine().begin() as connection:
        connection.execute(
            text(
                f"ALTER TABLE {postgres_outbox.table} ADD COLUMN tenant text NOT NULL, ALTER COLUMN key SET NOT NULL"
            )
        )
        found = problems(connection, postgres_outbox.tables)
    assert [each.partition(f"{postgres_outbox.table}.")[2] for each in found] == [
        "key is NOT NULL and must take nulls",
        "tenant is NOT NULL without a default, and this layout does not fill it",
    ]


def test_an_sqlite_file_lets_readers_and_a_writer_at_it_together(tmp_path: Path) -> None:
    outbox = FreshOutbox.make(f"sqlite:///{tmp_path / 'a.db'}")
    with outbox.engine().connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"


def test_a_database_that_is_not_there_is_said_without_its_password() -> None:
    with pytest.raises(OutboxDatabaseError, match="refused") as said:
        upgrade("postgresql://user:hunter2@127.0.0.1:1/none")
    assert "hunter2" not in str(said.value)


def test_your_own_metadata_may_hold_the_tables_beside_your_models() -> None:
    metadata = MetaData()
    outbox_tables("holdfast", "shop_outbox", dialect="postgresql", metadata=metadata)
    assert sorted(metadata.tables) == [
        "shop_outbox",
        "shop_outbox_attempts",
        "shop_outbox_lease",
        "shop_outbox_quarantine",
    ]
    with pytest.raises(ConfigError, match="does not know the database 'oracle'"):
        outbox_tables(dialect="oracle")


@pytest.mark.process
def test_alembics_own_command_runs_the_same_migrations(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    alembic = [
        sys.executable,
        "-P",
        "-m",
        "alembic",
        "-c",
        str(ROOT / "alembic.ini"),
        "-x",
        f"database={url}",
        "-x",
        "table=mine",
    ]
    for target, there in (("upgrade holdfast@head", True), ("downgrade holdfast@base", False)):
        done = subprocess.run(
            [*alembic, *target.split()],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outbox = FreshOutbox(url=url, table="mine", layout=layout_named("holdfast"))
        with outbox.engine().connect() as connection:
            assert (problems(connection, outbox.tables) == []) == there
