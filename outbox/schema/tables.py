"""The tables of an outbox: the one that services write to, and three more that only holdfast uses.

- ``<outbox>``: the rows that wait, in the columns of its layout
- ``<outbox>_attempts``: of each row that Kafka refused so far, how often, why, and when it is due again;
  mostly empty
- ``<outbox>_quarantine``: rows set aside, whole, in the outbox's own columns, with the reason
- ``<outbox>_lease``: of each shard the epoch of its leader

Rows that failed are not marked in the outbox itself: other programs' layouts have no column for it, and an
outbox that is only ever inserted into and deleted from stays small.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, inspect
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.engine.url import URL
from sqlalchemy.exc import ArgumentError

from holdfast.config.kafka_properties import MASK
from holdfast.errors import ConfigError, OutboxSchemaError
from holdfast.outbox.schema.columns import big_id, long_text
from holdfast.outbox.schema.kinds import narrower, type_problems
from holdfast.outbox.schema.layouts import Layout, layout_named

NO_FILE = "there is no such file; check the URL, or make the outbox there with `holdfast outbox init`"
DIALECTS = ("postgresql", "mysql", "mariadb", "sqlite")
LIMIT_NAME = 40  # longer ones would not leave room for the names derived from it, at 63 bytes on Postgres
DRIVERS = {"postgresql": "psycopg", "mysql": "pymysql", "mariadb": "pymysql", "sqlite": "pysqlite"}
_NAME = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxTables:
    """The four tables of one outbox, in one layout, for one kind of database."""

    layout: Layout
    outbox: Table
    attempts: Table
    quarantine: Table
    lease: Table

    @property
    def own(self) -> tuple[Table, Table, Table]:
        """Return the additional tables of the outbox, which only holdfast uses."""
        return (self.attempts, self.quarantine, self.lease)

    @property
    def every(self) -> tuple[Table, Table, Table, Table]:
        """All four, the outbox first."""
        return (self.outbox, *self.own)


def outbox_tables(
    layout: str | Layout = "holdfast",
    table: str = "outbox",
    *,
    dialect: str = "postgresql",
    metadata: MetaData | None = None,
) -> OutboxTables:
    """Return the tables of the outbox named *table* (``schema.table`` to name its schema), ready to be
    created.

    Give your own *metadata* to have them among your models, for your own Alembic migrations.
    """
    _check(table, dialect)
    chosen = layout_named(layout)
    schema, _, name = table.rpartition(".")
    place: dict[str, Any] = {"schema": schema or None, "mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
    place |= {"mysql_charset": "utf8mb4", "mariadb_charset": "utf8mb4"}
    metadata = MetaData() if metadata is None else metadata
    columns = chosen.columns(dialect)
    return OutboxTables(
        layout=chosen,
        # A number that was used once must never come again: a leader that crashed takes such a row for one it
        # has published.
        outbox=Table(name, metadata, *columns, **place, sqlite_autoincrement=True),
        attempts=_attempts(f"{name}_attempts", chosen, columns, metadata, place),
        quarantine=_quarantine(f"{name}_quarantine", chosen, columns, metadata, place),
        lease=_lease(f"{name}_lease", metadata, place),
    )


def _check(table: str, dialect: str) -> None:
    if not _NAME.fullmatch(table) or len(table.rpartition(".")[2]) > LIMIT_NAME:
        raise ConfigError(
            f"outbox table {table!r:.200}: letters, digits and _ (and one schema before a dot), at most"
            f" {LIMIT_NAME} characters"
        )
    if dialect not in DIALECTS:
        raise ConfigError(
            f"the outbox does not know the database {dialect!r:.200}; it knows {', '.join(DIALECTS)}"
        )


def _attempts(
    name: str, layout: Layout, columns: Sequence[Column[Any]], metadata: MetaData, place: Mapping[str, Any]
) -> Table:
    types = {each.name: each.type for each in columns}
    return Table(
        name,
        metadata,
        Column("id", big_id, primary_key=True, autoincrement=False),
        Column("topic", types[layout.topic], nullable=False),
        Column("key", types[layout.key]),
        Column("attempts", Integer(), nullable=False),
        Column("last_error", long_text, nullable=False),
        Column("next_attempt_ms", BigInteger(), nullable=False),
        **place,
    )


def _quarantine(
    name: str, layout: Layout, columns: Sequence[Column[Any]], metadata: MetaData, place: Mapping[str, Any]
) -> Table:
    return Table(
        name,
        metadata,
        *(
            Column(each.name, each.type, primary_key=each.name == layout.order, autoincrement=False)
            for each in columns
        ),
        Column("attempts", Integer(), nullable=False),
        Column("reason", long_text, nullable=False),
        Column("quarantined_ms", BigInteger(), nullable=False),
        **place,
    )


def _lease(name: str, metadata: MetaData, place: Mapping[str, Any]) -> Table:
    return Table(
        name,
        metadata,
        Column("shard", Integer(), primary_key=True, autoincrement=False),
        Column("epoch", BigInteger(), nullable=False),
        Column("leader", String(255), nullable=False),
        Column("updated_ms", BigInteger(), nullable=False),
        **place,
    )


_SECRETS = re.compile(r"(?i)((?:password|passwd|passfile|pwd|secret|token|ssl_?key_?password)=)[^&\s]*")


def masked(url: str) -> str:
    """Return a URL, however malformed, without what may be its password.

    >>> masked("postgres//ada:PW@host/shop"), masked("postgresql://ada:P@:/W@host/shop"), masked("ada:PW@host")
    ('postgres//ada:********@host/shop', 'postgresql://ada:********@host/shop', 'ada:********@host')
    >>> masked("postgresql://host/shop?user=ada&password=PW&x=1"), masked("sqlite:///file.db")
    ('postgresql://host/shop?user=ada&password=********&x=1', 'sqlite:///file.db')
    """  # noqa: E501
    head, at, rest = url.rpartition("@")
    if at:
        scheme, slashes, user = head.partition("//")
        if not slashes:
            scheme, user = "", head
        name, colon, _ = user.partition(":")
        url = f"{scheme}{slashes}{name}{colon}{MASK if colon else ''}@{rest}"
    return masked_parameters(url)


def masked_parameters(url: str) -> str:
    return _SECRETS.sub(rf"\1{MASK}", url)


def database_url(url: str | URL) -> URL:
    """Return *url* with the driver that holdfast uses if it names none; ConfigError unless it is a URL of a
    known database.

    >>> database_url("postgresql://shop@localhost/shop").drivername, database_url("mariadb://u@h/d").drivername
    ('postgresql+psycopg', 'mariadb+pymysql')
    """
    try:
        read = make_url(url)
    except (ArgumentError, ValueError):
        # Without the error itself, which repeats the URL.
        raise ConfigError(
            f"{masked(str(url))!r} is not a database URL; write one like"
            " postgresql://user:password@host/database"
        ) from None
    backend = {"postgres": "postgresql"}.get(read.get_backend_name(), read.get_backend_name())
    if backend not in DIALECTS:
        raise ConfigError(
            f"the outbox does not know the database {backend!r}; it knows {', '.join(DIALECTS)}"
        )
    if read.host is not None and "@" in read.host:
        raise ConfigError(
            f"{masked(str(url))!r} has more than one @: in a user's name or password write it as %40"
        )
    if backend == "sqlite" and (read.host or read.username):
        raise ConfigError(
            f"{masked(str(url))!r} names a host or user, and SQLite has neither; write sqlite:///file.db"
        )
    return read if "+" in read.drivername else read.set(drivername=f"{backend}+{DRIVERS[backend]}")


def shown(url: URL) -> str:
    """Return *url* for messages: without the password, be it a password or a parameter.

    >>> shown(make_url("postgresql://ada:PW@host/shop?password=PW&sslmode=disable"))
    'postgresql://ada:***@host/shop?password=********&sslmode=disable'
    """
    return masked_parameters(url.render_as_string(hide_password=True))


def lacks_file(url: URL) -> bool:
    """Return whether *url* is that of a SQLite database whose file does not exist: to connect would make an
    empty one.

    >>> lacks_file(make_url("sqlite:////no/such/folder/shop.db")), lacks_file(make_url("sqlite://"))
    (True, False)
    >>> lacks_file(make_url("sqlite:///file:/no/such/shop.db?uri=true"))
    True
    >>> lacks_file(make_url("sqlite:///file:shop?mode=memory&uri=true"))
    False
    """
    name = _file(url)
    return url.get_backend_name() == "sqlite" and not name.startswith(":") and not Path(name).exists()


def file_number(url: URL, ending: str = "") -> tuple[int, int] | None:
    """Return the device and number of a SQLite database's file, or of the one with *ending*, which no other
    file of that name shares; None for a database in memory or of a server, and where there is no file.
    """
    name = _file(url)
    if url.get_backend_name() != "sqlite" or name.startswith(":"):
        return None
    try:
        found = Path(f"{name}{ending}").stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_forgotten(url: URL) -> bool:
    """Return whether *url* is that of a SQLite database in memory that each connection has to itself: its
    tables are gone when the connection is closed.

    >>> is_forgotten(make_url("sqlite://")), is_forgotten(make_url("sqlite:///shop.db"))
    (True, False)
    >>> is_forgotten(make_url("sqlite:///file:shop?mode=memory&cache=shared&uri=true"))
    False
    """
    shared = url.query.get("cache") == "shared"
    return url.get_backend_name() == "sqlite" and _file(url).startswith(":") and not shared


def _file(url: URL) -> str:
    name = url.database or ":memory:"
    if not name.startswith("file:"):
        return name
    return ":memory:" if {"mode": "memory"}.items() <= url.query.items() else _path(name)


def _path(address: str) -> str:
    """Return the path of a `file:` address.

    >>> _path("file:shop.db"), _path("file:///var/my%20shop.db#x"), _path("file::memory:")
    ('shop.db', '/var/my shop.db', ':memory:')
    """
    path = address.removeprefix("file:").partition("?")[0].partition("#")[0]
    if path.startswith("//"):
        path = "/" + path[2:].partition("/")[2]
    return unquote(path)


def problems(
    connection: Connection, tables: OutboxTables, *, only: Sequence[Table] | None = None
) -> list[str]:
    """Return the differences between the database and *tables*: missing ones, types that rows would not come
    out of as they went in, columns that no program fills; empty when all is well.
    """
    found = []
    inspector = inspect(connection)
    types: dict[str, dict[str, Any]] = {}
    for table in tables.every if only is None else only:
        if not inspector.has_table(table.name, schema=table.schema):
            found.append(f"table {table.fullname} is missing")
            continue
        there = {column["name"]: column for column in inspector.get_columns(table.name, schema=table.schema)}
        types[table.name] = {name: column["type"] for name, column in there.items()}
        for column in table.columns:
            if column.name not in there:
                found.append(f"table {table.fullname} has no column {column.name}")
            elif not there[column.name]["nullable"] and column.nullable:
                found.append(f"column {table.fullname}.{column.name} is NOT NULL and must take nulls")
        found += _type_problems(connection, tables, table, types)
        alien = [
            name
            for name, column in there.items()
            if name not in table.columns
            and not column["nullable"]
            and column.get("default") is None
            and not column.get("autoincrement") is True
        ]
        found += [
            f"column {table.fullname}.{name} is NOT NULL without a default, and this layout does not fill it"
            for name in alien
        ]
    return found


def _type_problems(
    connection: Connection, tables: OutboxTables, table: Table, types: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    layout, dialect = tables.layout, connection.dialect
    there, outbox = types[table.name], types.get(tables.outbox.name, {})
    if table is tables.outbox:
        return type_problems(there, table, layout.kinds, dialect)
    if table is tables.quarantine:
        return narrower(there, outbox, table, [(name, name) for name in layout.kinds], dialect)
    if table is tables.attempts:
        return narrower(there, outbox, table, [("topic", layout.topic), ("key", layout.key)], dialect)
    return []


def check(connection: Connection, tables: OutboxTables) -> None:
    """Check that the tables are as they must be; OutboxSchemaError lists the differences."""
    if found := problems(connection, tables):
        raise OutboxSchemaError(
            f"the outbox {tables.outbox.fullname} is not ready for the layout {tables.layout.name}:"
            f" {'; '.join(found)}; `holdfast outbox init --layout {tables.layout.name} --table"
            f" {tables.outbox.fullname}` makes what is missing"
        )
