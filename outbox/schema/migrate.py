"""Making and removing an outbox's tables with Alembic: `upgrade`, `downgrade`, and the SQL of both for those
who run it themselves.

The lower half is what the migrations are written with. Each outbox has its own version table, so one database
may hold several.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from alembic import command, context, op
from alembic.config import Config
from sqlalchemy import BigInteger, Column, Integer, String, create_engine, inspect, text
from sqlalchemy.engine import Connection
from sqlalchemy.engine.url import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateTable, MetaData, Table

from holdfast.errors import OutboxDatabaseError, OutboxSchemaError
from holdfast.outbox.schema.columns import big_id, long_text
from holdfast.outbox.schema.kinds import type_problems
from holdfast.outbox.schema.layouts import Layout, layout_named
from holdfast.outbox.schema.tables import database_url, outbox_tables, shown


def version_table(table: str) -> tuple[str, str | None]:
    """Return the name and schema of the table that records the migrations of the outbox *table*."""
    schema, _, name = table.rpartition(".")
    return f"{name}_version", schema or None


def upgrade(url: str | URL, *, layout: str | Layout = "holdfast", table: str = "outbox") -> None:
    """Make what the outbox *table* lacks, whole or not at all where the database can (MySQL cannot);
    nothing when nothing lacks.
    """
    _run(url, layout, table, "head")


def downgrade(url: str | URL, *, layout: str | Layout = "holdfast", table: str = "outbox") -> None:
    """Remove what `upgrade` made.

    OutboxSchemaError while rows wait or are set aside. Tables of goharvest and Debezium stay.
    """
    _run(url, layout, table, "base")


def sql(dialect: str, *, layout: str | Layout = "holdfast", table: str = "outbox", down: bool = False) -> str:
    """Return the statements of `upgrade` (or `downgrade`) for *dialect*, to be read and run by hand."""
    chosen = layout_named(layout)
    outbox_tables(chosen, table, dialect=dialect)  # says what is wrong with the names
    config, output = _config(table, dialect=dialect), io.StringIO()
    config.output_buffer = output
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


def _run(url: str | URL, layout: str | Layout, table: str, target: str) -> None:
    chosen, read = layout_named(layout), database_url(url)
    outbox_tables(chosen, table, dialect=read.get_backend_name())
    place = shown(read)
    try:
        with create_engine(read, poolclass=NullPool).connect() as connection:
            _refuse_other_layout(connection, chosen, table)
            if target == "head":
                _refuse_types(connection, chosen, table)
            config = _config(table, connection=connection)
            (command.upgrade if target == "head" else command.downgrade)(config, f"{chosen.name}@{target}")
            connection.commit()
            if connection.dialect.name == "sqlite" and target == "head":
                connection.execute(
                    text("PRAGMA journal_mode=WAL")
                )  # so that the harvester's reading never holds up a writer
    except ModuleNotFoundError as error:
        raise OutboxDatabaseError(
            f"the driver of {read.drivername} is not installed ({error}); pip install 'holdfast[outbox]'"
        ) from error
    except SQLAlchemyError as error:
        message = " ".join(str(getattr(error, "orig", None) or error).split())
        raise OutboxDatabaseError(
            f"{place}: {message}; check the URL, that the database runs, and what its user may do"
        ) from error


def _refuse_other_layout(connection: Connection, layout: Layout, table: str) -> None:
    name, schema = version_table(table)
    if inspect(connection).has_table(name, schema=schema):
        place = connection.dialect.identifier_preparer.format_table(Table(name, MetaData(), schema=schema))
        others = [
            row[0]
            for row in connection.execute(text(f"SELECT version_num FROM {place}"))
            if not row[0].startswith(layout.name)
        ]
        if others:
            raise OutboxSchemaError(
                f"the outbox {table} has the layout {others[0].rpartition('_')[0]}, not {layout.name}; name that, or another table with --table"
            )


def _refuse_types(connection: Connection, layout: Layout, table: str) -> None:
    """Raise OutboxSchemaError when the outbox is there, made by others, with columns whose types it cannot
    have; nothing is made then.
    """
    outbox = outbox_tables(layout, table, dialect=connection.dialect.name).outbox
    inspector = inspect(connection)
    if inspector.has_table(outbox.name, schema=outbox.schema):
        there = {
            each["name"]: each["type"] for each in inspector.get_columns(outbox.name, schema=outbox.schema)
        }
        if found := type_problems(there, outbox, layout.kinds, connection.dialect):
            raise OutboxSchemaError(
                f"the outbox {table} cannot have the layout {layout.name}: {'; '.join(found)}. Change the columns, or make another outbox"
            )


# --- what migrations are written with ----------------------------------------------------------------------------------------------


def table_name() -> tuple[str, str | None]:
    """Return the name and schema of the outbox that is migrated."""
    schema, _, name = str(context.config.attributes["table"]).rpartition(".")
    return name, schema or None


def _is_offline() -> bool:
    return bool(context.is_offline_mode())


def create_table(
    name: tuple[str, str | None],
    columns: Sequence[Column[Any]],
    *,
    numbered: bool = False,
    unless_there: bool = False,
) -> bool:
    """Make one table; False when it was there, which is an error unless *unless_there*.

    As text it cannot look, and says IF NOT EXISTS.
    """
    if unless_there and not _is_offline() and inspect(op.get_bind()).has_table(name[0], schema=name[1]):
        return False
    options: dict[str, Any] = {
        f"{kind}_{option}": value for kind in ("mysql", "mariadb") for option, value in _INNODB.items()
    }
    # A number that was used once must never come again: a leader that crashed takes such a row for one it has
    # published.
    made = Table(name[0], MetaData(), *columns, schema=name[1], sqlite_autoincrement=numbered, **options)
    op.execute(CreateTable(made, if_not_exists=unless_there))
    return True


_INNODB = {"engine": "InnoDB", "charset": "utf8mb4"}


def create_own(
    order: str, fields: Sequence[Column[Any]], *, topic: str, key: str, found: bool = False
) -> None:
    """Make the three tables beside an outbox that has *fields* and whose rows are numbered by *order*.

    With *found*, the outbox was there before: rows that are set aside then keep the types that its own
    columns have.
    """
    name, schema = table_name()
    if found and not _is_offline():
        there = {
            each["name"]: each["type"] for each in inspect(op.get_bind()).get_columns(name, schema=schema)
        }
        fields = [Column(field.name, there.get(field.name, field.type)) for field in fields]
    types = {field.name: field.type for field in fields}
    attempts: list[Column[Any]] = [
        Column("id", big_id, primary_key=True, autoincrement=False),
        Column("topic", types[topic], nullable=False),
        Column("key", types[key]),
        Column("attempts", Integer(), nullable=False),
        Column("last_error", long_text, nullable=False),
        Column("next_attempt_ms", BigInteger(), nullable=False),
    ]
    quarantine: list[Column[Any]] = [
        Column(order, big_id, primary_key=True, autoincrement=False),
        *(Column(field.name, field.type) for field in fields),
        Column("attempts", Integer(), nullable=False),
        Column("reason", long_text, nullable=False),
        Column("quarantined_ms", BigInteger(), nullable=False),
    ]
    lease: list[Column[Any]] = [
        Column("shard", Integer(), primary_key=True, autoincrement=False),
        Column("epoch", BigInteger(), nullable=False),
        Column("leader", String(255), nullable=False),
        Column("updated_ms", BigInteger(), nullable=False),
    ]
    create_table((f"{name}_attempts", schema), attempts)
    create_table((f"{name}_quarantine", schema), quarantine)
    create_table((f"{name}_lease", schema), lease)


def drop_own() -> None:
    """Drop the three tables beside the outbox."""
    name, schema = table_name()
    for ending in ("lease", "quarantine", "attempts"):
        op.drop_table(f"{name}_{ending}", schema=schema)


def _quoted(name: tuple[str, str | None]) -> str:
    return op.get_context().dialect.identifier_preparer.format_table(
        Table(name[0], MetaData(), schema=name[1])
    )


def tune(name: tuple[str, str | None]) -> None:
    """Let Postgres clean up after so many deleted rows, not after a share of the table: a queue's share is
    of no meaning.
    """
    if op.get_context().dialect.name == "postgresql":
        cleaning = "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0"
        op.execute(f"ALTER TABLE {_quoted(name)} SET ({cleaning})")


_NUMBER = {
    "postgresql": "BIGINT GENERATED BY DEFAULT AS IDENTITY UNIQUE",
    "mysql": "BIGINT NOT NULL AUTO_INCREMENT UNIQUE",
    "mariadb": "BIGINT NOT NULL AUTO_INCREMENT UNIQUE",
}


def add_number(column: str) -> None:
    """Add a column to the outbox that numbers its rows, those that are there included; nothing when it has
    one.
    """
    name, schema = table_name()
    if _is_offline():  # offline there is no database to look at; only these databases check for it themselves
        if (kind := op.get_context().dialect.name) in ("postgresql", "mariadb"):
            op.execute(
                f"ALTER TABLE {_quoted((name, schema))} ADD COLUMN IF NOT EXISTS {column} {_NUMBER[kind]}"
            )
        return
    bind = op.get_bind()
    if any(each["name"] == column for each in inspect(bind).get_columns(name, schema=schema)):
        return
    match bind.dialect.name:
        case "postgresql":
            op.execute(
                f"ALTER TABLE {_quoted((name, schema))} ADD COLUMN {column} BIGINT GENERATED BY DEFAULT AS IDENTITY NOT NULL UNIQUE"
            )
        case "mysql" | "mariadb":
            op.execute(
                f"ALTER TABLE {_quoted((name, schema))} ADD COLUMN {column} BIGINT NOT NULL AUTO_INCREMENT UNIQUE"
            )
        case _:
            raise OutboxSchemaError(
                f"table {name} is there without {column}, and SQLite cannot add a column that numbers rows; make the table anew"
            )


def drop_number(column: str) -> None:
    """Drop the column of `add_number`; where it is the primary key, it came with the table, and stays."""
    name, schema = table_name()
    if op.get_context().dialect.name == "postgresql":
        op.execute(f"ALTER TABLE {_quoted((name, schema))} DROP COLUMN IF EXISTS {column}")
    elif not _is_offline() and inspect(op.get_bind()).get_pk_constraint(name, schema=schema)[
        "constrained_columns"
    ] != [column]:
        op.execute(f"ALTER TABLE {_quoted((name, schema))} DROP COLUMN {column}")


def refuse_loss(*, outbox: bool = True) -> None:
    """Raise OutboxSchemaError while the quarantine, or (*outbox*) the outbox, still has rows that dropping
    it would lose.
    """
    if _is_offline():
        return
    name, schema = table_name()
    for each in [f"{name}_quarantine", *([name] if outbox else [])]:
        if (
            op.get_bind().execute(text(f"SELECT 1 FROM {_quoted((each, schema))} LIMIT 1")).first()
            is not None
        ):
            raise OutboxSchemaError(
                f"table {each} still has rows, which would be lost; let them be harvested, retry or discard them first"
            )
