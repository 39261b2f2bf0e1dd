"""Making and removing an outbox's tables with Alembic: `upgrade`, `downgrade`, and the SQL of both for users
who run it themselves.

Each outbox has its own version table, so one database may hold several. Tables that its row names existed
once; a missing one was dropped since. Without a row the tables may be half made: MySQL and MariaDB commit
each of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text
from sqlalchemy.engine import Connection
from sqlalchemy.engine.url import URL
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import MetaData, Table

from holdfast.clock import system_clock
from holdfast.errors import OutboxDatabaseError, OutboxSchemaError
from holdfast.outbox.schema.driver import DatabaseLimits
from holdfast.outbox.schema.layouts import Layout, layout_named
from holdfast.outbox.schema.session import COMMAND_LIMITS, connected
from holdfast.outbox.schema.tables import OutboxTables, database_url, outbox_tables, problems, shown

ADDED: Final = {"debezium": "holdfast_id"}
"""The column that `upgrade` adds to an outbox that was there, by layout."""

_AGAIN_S: Final = 0.05
_ALEMBIC: Final = threading.Lock()  # it keeps what it runs in variables of its modules


def version_table(table: str) -> tuple[str, str | None]:
    """Return the name and schema of the table that records the migrations of the outbox *table*."""
    schema, _, name = table.rpartition(".")
    return f"{name}_version", schema or None


def upgrade(
    url: str | URL,
    *,
    layout: str | Layout = "holdfast",
    table: str = "outbox",
    limits: DatabaseLimits = COMMAND_LIMITS,
) -> None:
    """Make what the outbox *table* lacks, whole or not at all where the database can (MySQL and MariaDB
    cannot: run it again); nothing when nothing lacks. Of several at once each waits for the one before.

    OutboxSchemaError when the existing tables cannot have the layout, when the version table has an unknown
    version, or when the outbox itself was dropped. OutboxDatabaseError when the database refuses, or does not
    answer within *limits*. ConfigError for a URL that cannot be used.
    """
    chosen, read = layout_named(layout), database_url(url)
    outbox_tables(chosen, table, dialect=read.get_backend_name())  # raises for invalid names
    with connected(read, limits=limits, may_make_file=True) as connection:
        with alone(connection, table, limits.statement_s), _ALEMBIC:
            _make(connection, chosen, table)
        if connection.dialect.name == "sqlite":
            write_ahead(connection, limits.statement_s, shown(read))


def downgrade(
    url: str | URL,
    *,
    layout: str | Layout = "holdfast",
    table: str = "outbox",
    limits: DatabaseLimits = COMMAND_LIMITS,
) -> None:
    """Remove what `upgrade` made, and what of it is there.

    OutboxSchemaError while rows wait or are set aside. Tables of goharvest and Debezium stay. Other errors
    are those of `upgrade`.
    """
    chosen, read = layout_named(layout), database_url(url)
    outbox_tables(chosen, table, dialect=read.get_backend_name())
    with (
        connected(read, limits=limits) as connection,
        alone(connection, table, limits.statement_s),
        _ALEMBIC,
    ):
        _remove(connection, chosen, table)


def sql(dialect: str, *, layout: str | Layout = "holdfast", table: str = "outbox", down: bool = False) -> str:
    """Return the statements of `upgrade` (or `downgrade`) for *dialect*, to be read and run by hand."""
    chosen = layout_named(layout)
    outbox_tables(chosen, table, dialect=dialect)  # raises for invalid names
    config, output = _config(table, dialect=dialect), io.StringIO()
    config.output_buffer = output
    with _ALEMBIC:
        if down:
            command.downgrade(config, f"{chosen.name}_0001:base", sql=True)
        else:
            command.upgrade(config, f"{chosen.name}@head", sql=True)
    return output.getvalue().strip() + "\n"


def _config(table: str, **attributes: Any) -> Config:
    config = Config()
    config.set_main_option("script_location", "holdfast.outbox:migrations")
    config.attributes |= {"table": table, **attributes}
    return config


# --- one at a time -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def alone(connection: Connection, table: str, limit_s: float) -> Iterator[None]:
    """Run the body while no other process does so to the outbox *table*, and commit it.

    OutboxDatabaseError when the others take longer than *limit_s*.
    """
    name = f"holdfast:{table.rpartition('.')[2]}"
    match connection.dialect.name:
        case "postgresql":
            number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
            # Else a session that is serializable by default would not see what the one before has made.
            connection.execution_options(isolation_level="READ COMMITTED")
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": number})
            yield
            connection.commit()
        case "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield
            connection.commit()
        case _:
            with _named_lock(connection, name, limit_s):
                yield
                connection.commit()


@contextlib.contextmanager
def _named_lock(connection: Connection, name: str, limit_s: float) -> Iterator[None]:
    """Hold a lock of MySQL or MariaDB, which the end of a transaction leaves as it is."""
    named = {"name": name, "limit": max(1, round(limit_s))}
    if connection.execute(text("SELECT GET_LOCK(:name, :limit)"), named).scalar() != 1:
        raise OutboxDatabaseError(
            f"another process has been making or removing these tables for {limit_s:.0f} s (lock {name}); try"
            " again"
        )
    connection.commit()  # so that the next read sees the work of the process before
    try:
        yield
    finally:
        if not connection.invalidated:
            connection.execute(text("SELECT RELEASE_LOCK(:name)"), named)


def write_ahead(connection: Connection, limit_s: float, place: str) -> None:
    """Set the journal of a SQLite file to WAL, so that the harvester's reading never holds up a writer.

    OutboxDatabaseError when others use the file for *limit_s*: SQLite itself does not wait for a writer here.
    """
    until_s = system_clock.monotonic_s() + limit_s
    while True:
        try:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            return
        except OperationalError as error:
            if "locked" not in str(error.orig):
                raise
            if system_clock.monotonic_s() > until_s:
                raise OutboxDatabaseError(
                    f"{place}: another program uses the file, so its journal cannot be set to WAL; try again"
                ) from error
        time.sleep(_AGAIN_S)


# --- making and removing -----------------------------------------------------------------------------------


def _make(connection: Connection, layout: Layout, table: str) -> None:
    tables = outbox_tables(layout, table, dialect=connection.dialect.name)
    version, there = _version(connection, layout, table), _there(connection, tables)
    if version:
        _refuse_dropped(connection, tables, there)
    _refuse_shape(connection, tables, there)
    config = _config(table, connection=connection)
    if version and len(there) < len(tables.every):
        # Each step makes what lacks, so all of them again make all that lacks.
        connection.execute(text(f"DELETE FROM {_quoted_version(connection, table)}"))
    command.upgrade(config, f"{layout.name}@head")


def _remove(connection: Connection, layout: Layout, table: str) -> None:
    tables = outbox_tables(layout, table, dialect=connection.dialect.name)
    version, there = _version(connection, layout, table), _there(connection, tables)
    if version is None and there:
        name, _ = version_table(table)
        raise OutboxSchemaError(
            f"no table {name} says that these tables are holdfast's:"
            f" {', '.join(each.fullname for each in there)}; `holdfast outbox init --layout {layout.name}"
            f" --table {table}` looks at them and makes it, then remove them"
        )
    if not there and not version:
        return
    config = _config(table, connection=connection)
    if not version:
        _refuse_shape(connection, tables, there)
        command.stamp(config, f"{layout.name}@head")  # half made, or half removed
    command.downgrade(config, f"{layout.name}@base")


def _there(connection: Connection, tables: OutboxTables) -> list[Table]:
    inspector = inspect(connection)
    return [each for each in tables.every if inspector.has_table(each.name, schema=each.schema)]


def _quoted_version(connection: Connection, table: str) -> str:
    name, schema = version_table(table)
    return connection.dialect.identifier_preparer.format_table(Table(name, MetaData(), schema=schema))


def _version(connection: Connection, layout: Layout, table: str) -> str | None:
    """Return the version in the version table: the last migration, "" for none; None if there is no such
    table.

    OutboxSchemaError when that is of another layout, or not known.
    """
    name, schema = version_table(table)
    inspector = inspect(connection)
    if not inspector.has_table(name, schema=schema):
        return None
    if "version_num" not in {each["name"] for each in inspector.get_columns(name, schema=schema)}:
        raise OutboxSchemaError(
            f"table {name} is no version table of holdfast: it has no column version_num; name another outbox"
            " with --table"
        )
    said = sorted(
        connection.execute(text(f"SELECT version_num FROM {_quoted_version(connection, table)}")).scalars()
    )
    known = {
        each.revision: each.branch_labels
        for each in ScriptDirectory.from_config(_config(table)).walk_revisions()
    }
    if unknown := [each for each in said if each not in known]:
        raise OutboxSchemaError(
            f"table {name} says {', '.join(map(repr, unknown))}, which this release of holdfast does not know"
            f" (it knows {', '.join(sorted(known))}); a later release made the outbox: install that."
            " Otherwise name another with --table"
        )
    if others := [each for each in said if layout.name not in known[each]]:
        raise OutboxSchemaError(
            f"the outbox {table} has the layout {others[0].rpartition('_')[0]}, not {layout.name}; name that,"
            " or another table with --table"
        )
    if len(said) > 1:
        raise OutboxSchemaError(
            f"table {name} says {' and '.join(said)}, of which one can be true; delete the row that is not"
        )
    return said[0] if said else ""


def _refuse_dropped(connection: Connection, tables: OutboxTables, there: list[Table]) -> None:
    """Raise OutboxSchemaError when the outbox existed, and is gone, or its numbers are: created again, it
    would number its rows as others before them, and a harvester would take those for published.
    """
    outbox, order = tables.outbox, tables.layout.order
    if outbox not in there:
        gone = f"table {outbox.fullname}"
    elif order not in _columns(connection, outbox):
        gone = f"column {outbox.fullname}.{order}"
    else:
        return
    raise OutboxSchemaError(
        f"{gone} was dropped: it was there when {outbox.name}_version was written. Made anew, it would begin"
        " at number 1 again, and harvesters take rows with numbers that they have published for published."
        " Restore the table from a backup that has its last number, or make another outbox: `holdfast outbox"
        " init --table NEW`, with a new --name of its harvesters. If no row of it was ever published,"
        f" `holdfast outbox init --remove --layout {tables.layout.name} --table {outbox.fullname}` removes"
        " the rest; then make it again"
    )


def _columns(connection: Connection, table: Table) -> set[str]:
    return {each["name"] for each in inspect(connection).get_columns(table.name, schema=table.schema)}


def _refuse_shape(connection: Connection, tables: OutboxTables, there: list[Table]) -> None:
    """Raise OutboxSchemaError when a table that is there, made by others, cannot have the layout; nothing is
    made then.
    """
    outbox, layout = tables.outbox, tables.layout
    added = f"table {outbox.fullname} has no column {ADDED.get(layout.name)}"
    if found := [each for each in problems(connection, tables, only=there) if each != added]:
        raise OutboxSchemaError(
            f"the outbox {outbox.fullname} cannot have the layout {layout.name}: {'; '.join(found)}. Change"
            " the columns, or make another outbox"
        )
