"""Steps of an outbox's migrations. Each makes, or drops, only the missing part: it may be repeated after a
run that was cut short.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from alembic import context, op
from sqlalchemy import BigInteger, Column, Integer, String, inspect, text
from sqlalchemy.schema import CreateTable, MetaData, Table

from holdfast.errors import OutboxSchemaError
from holdfast.outbox.schema.columns import big_id, long_text
from holdfast.outbox.schema.session import patient

REWRITE_S: Final = 3600.0
"""The time for a database to number the rows of an existing table, or to drop the numbers."""


def table_name() -> tuple[str, str | None]:
    """Return the name and schema of the outbox that is migrated."""
    schema, _, name = str(context.config.attributes["table"]).rpartition(".")
    return name, schema or None


def _is_offline() -> bool:
    return bool(context.is_offline_mode())


def has_table(name: tuple[str, str | None]) -> bool:
    """Return whether there is such a table; as text it cannot look, and takes it that there is."""
    return _is_offline() or inspect(op.get_bind()).has_table(name[0], schema=name[1])


def create_table(
    name: tuple[str, str | None],
    columns: Sequence[Column[Any]],
    *,
    numbered: bool = False,
    unless_there: bool = False,
) -> bool:
    """Make one table; False when it was there.

    As text it cannot look, and with *unless_there* says IF NOT EXISTS.
    """
    if not _is_offline() and has_table(name):
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
    """Make the three additional tables of an outbox that has *fields* and whose rows are numbered by *order*.

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
    """Drop the three additional tables of the outbox."""
    name, schema = table_name()
    for ending in ("lease", "quarantine", "attempts"):
        drop_table((f"{name}_{ending}", schema))


def drop_table(name: tuple[str, str | None]) -> None:
    """Drop one table, where it is."""
    if has_table(name):
        op.drop_table(name[0], schema=name[1])


def _quoted(name: tuple[str, str | None]) -> str:
    return op.get_context().dialect.identifier_preparer.format_table(
        Table(name[0], MetaData(), schema=name[1])
    )


def tune(name: tuple[str, str | None]) -> None:
    """Let Postgres clean up after so many deleted rows, not after a share of the table: a queue's share is
    of no meaning.
    """
    if op.get_context().dialect.name == "postgresql":
        cleaning = (
            "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000,"
            " autovacuum_vacuum_cost_delay = 0"
        )
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
    if not _has_column(column):
        with patient(op.get_bind(), REWRITE_S):
            _add_number((name, schema), column)


def _has_column(column: str) -> bool:
    name, schema = table_name()
    return any(each["name"] == column for each in inspect(op.get_bind()).get_columns(name, schema=schema))


def _add_number(name: tuple[str, str | None], column: str) -> None:
    match op.get_bind().dialect.name:
        case "postgresql":
            op.execute(
                f"ALTER TABLE {_quoted(name)} ADD COLUMN {column} BIGINT GENERATED BY DEFAULT AS IDENTITY NOT"
                " NULL UNIQUE"
            )
        case "mysql" | "mariadb":
            op.execute(
                f"ALTER TABLE {_quoted(name)} ADD COLUMN {column} BIGINT NOT NULL AUTO_INCREMENT UNIQUE"
            )
        case _:
            raise OutboxSchemaError(
                f"table {name[0]} is there without {column}, and SQLite cannot add a column that numbers"
                " rows; make the table anew"
            )


def drop_number(column: str) -> None:
    """Drop the column of `add_number`; where it is the primary key, it came with the table, and stays."""
    name, schema = table_name()
    if not has_table((name, schema)):
        return
    if op.get_context().dialect.name == "postgresql":
        op.execute(f"ALTER TABLE {_quoted((name, schema))} DROP COLUMN IF EXISTS {column}")
    elif not _is_offline() and _has_column(column) and not _is_key(column):
        with patient(op.get_bind(), REWRITE_S):
            op.execute(f"ALTER TABLE {_quoted((name, schema))} DROP COLUMN {column}")


def _is_key(column: str) -> bool:
    name, schema = table_name()
    key = inspect(op.get_bind()).get_pk_constraint(name, schema=schema)
    return bool(key["constrained_columns"] == [column])


def refuse_loss(*, outbox: bool = True) -> None:
    """Raise OutboxSchemaError while the quarantine, or (*outbox*) the outbox, still has rows that dropping
    it would lose.
    """
    if _is_offline():
        return
    name, schema = table_name()
    for each in [f"{name}_quarantine", *([name] if outbox else [])]:
        if (
            has_table((each, schema))
            and op.get_bind().execute(text(f"SELECT 1 FROM {_quoted((each, schema))} LIMIT 1")).first()
            is not None
        ):
            raise OutboxSchemaError(
                f"table {each} still has rows, which would be lost; let them be harvested, retry or discard"
                " them first"
            )
