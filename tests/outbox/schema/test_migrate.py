"""Migrations: they make the tables that the code reads and writes, on every database, up and down and as
text; no waiting row is lost.
"""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import MetaData, inspect, text
from sqlalchemy.orm import Session

from holdfast.dev.databases.servers import Postgres
from holdfast.errors import ConfigError, OutboxDatabaseError, OutboxSchemaError
from holdfast.outbox.schema import migrate, steps
from holdfast.outbox.schema.layouts import layout_named
from holdfast.outbox.schema.migrate import downgrade, sql, upgrade
from holdfast.outbox.schema.session import connected
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
    assert left == (set() if layout == "holdfast" else {outbox.table})  # a foreign table is never dropped


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


def test_a_column_that_no_program_fills_is_a_problem(postgres_outbox: FreshOutbox) -> None:
    with postgres_outbox.engine().begin() as connection:
        connection.execute(
            text(
                f"ALTER TABLE {postgres_outbox.table} ADD COLUMN tenant text NOT NULL, ALTER COLUMN key SET"
                " NOT NULL"
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


def test_the_journal_of_a_file_waits_for_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as writer:
        writer.execute("CREATE TABLE orders (id INTEGER)")
        writer.execute("BEGIN IMMEDIATE")  # SQLite itself would not wait for this
        with connected(f"sqlite:///{file}") as connection:
            with pytest.raises(OutboxDatabaseError, match="journal cannot be set to WAL; try again"):
                migrate.write_ahead(connection, 0.0, "a.db")
            monkeypatch.setattr(migrate, "time", SimpleNamespace(sleep=lambda _: writer.execute("ROLLBACK")))
            migrate.write_ahead(connection, DEADLINE_S, "a.db")
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_a_database_that_is_not_there_is_said_without_its_password() -> None:
    with pytest.raises(OutboxDatabaseError, match="refused") as said:
        upgrade("postgresql://user:hunter2@127.0.0.1:1/none")
    assert "hunter2" not in str(said.value)


def test_your_own_metadata_may_hold_the_tables_among_your_models() -> None:
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


# --- what lacks, is half made, or is another's --------------------------------------------------------------


def names(outbox: FreshOutbox) -> set[str]:
    """Return which tables of *outbox* there are: its endings, "" for the outbox itself."""
    with outbox.engine().connect() as connection:
        there = inspect(connection).get_table_names()
    return {each.removeprefix(outbox.table) for each in there if each.startswith(outbox.table)}


def run(outbox: FreshOutbox, *statements: str) -> None:
    with outbox.engine().begin() as connection:
        for each in statements:
            connection.execute(text(each.format(outbox.table)))


def fresh(kind: str, request: pytest.FixtureRequest, folder: Path, layout: str = "holdfast") -> FreshOutbox:
    """Name an outbox that does not exist yet."""
    table = f"o_{uuid.uuid4().hex[:12]}"
    return FreshOutbox(url=url_of(kind, request, folder), table=table, layout=layout_named(layout))


variants = pytest.mark.variants(
    "postgres-goharvest",
    "postgres-debezium",
    "mariadb-holdfast",
    "mariadb-debezium",
    "mysql-holdfast",
    "mysql-goharvest",
    "sqlite-goharvest",
    "sqlite-debezium",
)
EVERY = {"", "_attempts", "_quarantine", "_lease", "_version"}


@variants
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", DATABASES)
def test_dropped_tables_other_than_the_outbox_are_made_again(
    kind: str, layout: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    outbox = FreshOutbox.make(url_of(kind, request, tmp_path), layout)
    with Session(outbox.engine()) as session, session.begin():
        outbox.writer().write(session, "outbox.event.orders", "k", "{}")
    for gone in (("_lease",), ("_attempts", "_quarantine", "_lease")):
        run(outbox, *(f"DROP TABLE {{}}{each}" for each in gone))
        upgrade(outbox.url, layout=layout, table=outbox.table)
        with outbox.engine().connect() as connection:
            assert problems(connection, outbox.tables) == []
        with outbox.rows() as rows:
            assert rows.count() == 1
    with pytest.raises(OutboxSchemaError, match="has the layout"):  # the version is noted as before
        upgrade(outbox.url, layout=next(each for each in LAYOUTS if each != layout), table=outbox.table)


@pytest.mark.parametrize("kind", DATABASES)
def test_an_outbox_that_was_dropped_is_not_made_again(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    outbox = FreshOutbox.make(url_of(kind, request, tmp_path))
    run(outbox, "DROP TABLE {}", "DROP TABLE {}_lease")
    with pytest.raises(
        OutboxSchemaError, match=r"would begin at number 1 again.* from a backup .* --table NEW.* --remove "
    ):
        upgrade(outbox.url, table=outbox.table)
    assert names(outbox) == EVERY - {"", "_lease"}  # nothing was made
    downgrade(outbox.url, table=outbox.table)  # as it says
    assert names(outbox) == {"_version"}
    upgrade(outbox.url, table=outbox.table)
    assert names(outbox) == EVERY


def test_a_number_that_was_dropped_is_not_made_again(postgres: Postgres) -> None:
    outbox = FreshOutbox.make(postgres.url, "debezium")
    run(outbox, "ALTER TABLE {} DROP COLUMN holdfast_id")
    with pytest.raises(OutboxSchemaError, match=rf"column {outbox.table}.holdfast_id was dropped"):
        upgrade(outbox.url, layout="debezium", table=outbox.table)


@variants
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", DATABASES)
def test_half_made_tables_are_finished_or_removed(
    kind: str,
    layout: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outbox, whole = fresh(kind, request, tmp_path, layout), kind in ("postgres", "sqlite")
    create_table = steps.create_table

    def create(name: tuple[str, str | None], *given: Any, **named: Any) -> bool:
        if name[0].endswith("_quarantine"):
            raise RuntimeError("the power fails")
        return create_table(name, *given, **named)

    for finish in (downgrade, upgrade):
        monkeypatch.setattr(steps, "create_table", create)
        with pytest.raises(RuntimeError, match="the power fails"):
            upgrade(outbox.url, layout=layout, table=outbox.table)
        monkeypatch.undo()
        assert names(outbox) == (set() if whole else {"", "_attempts", "_version"})
        finish(outbox.url, layout=layout, table=outbox.table)
    assert names(outbox) == EVERY
    with outbox.engine().connect() as connection:
        assert problems(connection, outbox.tables) == []


def test_a_removal_that_was_broken_off_is_finished(outbox: FreshOutbox) -> None:
    run(outbox, "DROP TABLE {}_lease", "DROP TABLE {}_quarantine")
    downgrade(outbox.url, table=outbox.table)
    assert names(outbox) == {"_version"}
    downgrade(outbox.url, table=outbox.table)  # nothing to do


@pytest.mark.parametrize(
    ("said", "match"),
    [
        (["holdfast_0002"], "'holdfast_0002', which this release of holdfast does not know .*install that"),
        (["nonsense", "holdfast_0001"], "says 'nonsense', which"),
        (["debezium_0001", "goharvest_0001"], "has the layout debezium, not holdfast"),
    ],
)
def test_an_unknown_version_in_the_version_table_is_refused(
    tmp_path: Path, said: list[str], match: str
) -> None:
    outbox = FreshOutbox.make(f"sqlite:///{tmp_path / 'a.db'}")
    run(outbox, "DELETE FROM {}_version", *(f"INSERT INTO {{}}_version VALUES ('{each}')" for each in said))
    for act in (upgrade, downgrade):
        with pytest.raises(OutboxSchemaError, match=match):
            act(outbox.url, table=outbox.table)
    assert names(outbox) >= EVERY


def test_a_foreign_table_with_the_name_of_the_version_table_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    outbox = FreshOutbox(url=url, table="outbox", layout=layout_named("holdfast"))
    run(outbox, "CREATE TABLE {}_version (number INTEGER)")
    with pytest.raises(OutboxSchemaError, match="is no version table of holdfast: it has no column"):
        upgrade(url)
    assert names(outbox) == {"_version"}


@pytest.mark.parametrize("kind", DATABASES)
def test_a_foreign_table_is_neither_taken_nor_removed(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    outbox = fresh(kind, request, tmp_path)
    run(outbox, "CREATE TABLE {} (id INTEGER PRIMARY KEY, title VARCHAR(20))")
    with pytest.raises(OutboxSchemaError, match=r"cannot have the layout holdfast: .* has no column bucket"):
        upgrade(outbox.url, table=outbox.table)
    with pytest.raises(OutboxSchemaError, match=r"says that these tables are holdfast's: .*`holdfast outbox"):
        downgrade(outbox.url, table=outbox.table)
    assert names(outbox) == {""}


def test_tables_that_your_own_migrations_made_are_taken(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    outbox = FreshOutbox(url=url, table="outbox", layout=layout_named("holdfast"))
    with outbox.engine().begin() as connection:
        outbox.tables.outbox.metadata.create_all(connection)
    upgrade(url)
    assert names(outbox) == EVERY
    downgrade(url)


def test_to_remove_what_a_mistyped_file_has_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(OutboxDatabaseError, match="there is no such file"):
        downgrade(f"sqlite:///{tmp_path / 'a.db'}")
    assert [*tmp_path.iterdir()] == []


AT_ONCE = """
import os, sys
from holdfast.outbox.schema.migrate import upgrade
children = []
for _ in range(6):
    child = os.fork()
    if not child:
        upgrade(sys.argv[1], table=sys.argv[2])
        os._exit(0)
    children.append(child)
sys.exit(sum(os.waitpid(each, 0)[1] != 0 for each in children))
"""


@pytest.mark.process
@pytest.mark.parametrize("kind", DATABASES)
def test_many_at_once_make_one_outbox(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    outbox = fresh(kind, request, tmp_path)
    done = subprocess.run(
        [sys.executable, "-P", "-c", AT_ONCE, outbox.url, outbox.table],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert names(outbox) == EVERY
    with outbox.engine().connect() as connection:
        assert problems(connection, outbox.tables) == []
