"""The targets of an outbox's writer:

SQLAlchemy's sessions and connections, and the drivers' own, sync and async.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy.engine import Connection, CursorResult, Dialect

from holdfast.errors import OutboxError

Execute = Callable[[str, tuple[Any, ...]], int]
"""Executes a statement, and returns how many rows it stored or returned, -1 where the driver does not say."""
ExecuteAsync = Callable[[str, tuple[Any, ...]], Awaitable[int]]

_DRIVERS = {
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "mysql": "mysql",
    "sqlite3": "sqlite",
    "aiosqlite": "sqlite",
}
_KINDS = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite"}


def opened(target: Any) -> tuple[Execute, str, str]:
    """Return a function that executes on *target*, its kind of database (mysql for MariaDB too), and how its
    driver marks parameters.
    """
    if _is_session(target):
        target = target.connection()  # on which the session begins its transaction
    if isinstance(target, Connection):
        refuse_autocommit(target.connection.dbapi_connection)
        connection = target

        def run(sql: str, parameters: tuple[Any, ...]) -> int:
            return _rows_of(connection.exec_driver_sql(sql, parameters))

        return run, _kind(target.dialect), target.dialect.paramstyle
    if _is_async(target):
        raise OutboxError(f"{type(target).__name__} is async; await write_async or write_many_async")
    kind = _driver_kind(target)
    if hasattr(target, "fetchone"):  # a cursor
        refuse_autocommit(getattr(target, "connection", None))

        def execute_on(sql: str, parameters: tuple[Any, ...]) -> int:
            target.execute(sql, parameters)
            return int(target.rowcount)

        return execute_on, kind, _style(kind)
    refuse_autocommit(target)

    def execute(sql: str, parameters: tuple[Any, ...]) -> int:
        cursor = target.cursor()
        try:
            cursor.execute(sql, parameters)
            return int(cursor.rowcount)
        finally:
            cursor.close()

    return execute, kind, _style(kind)


async def opened_async(target: Any) -> tuple[ExecuteAsync, str, str]:
    """Return the same as `opened`, for an async *target*."""
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    if isinstance(target, AsyncSession | async_scoped_session):
        target = await target.connection()
    if isinstance(target, AsyncConnection):
        raw = await target.get_raw_connection()
        refuse_autocommit(raw.driver_connection)
        connection = target

        async def run(sql: str, parameters: tuple[Any, ...]) -> int:
            return _rows_of(await connection.exec_driver_sql(sql, parameters))

        return run, _kind(target.dialect), target.dialect.paramstyle
    kind = _driver_kind(target)
    if not _is_async(target):
        raise OutboxError(
            f"{type(target).__module__}.{type(target).__name__} is not async; use write or write_many"
        )
    if not hasattr(target, "fetchone"):
        refuse_autocommit(target)
    elif kind == "postgresql":
        refuse_autocommit(target.connection)

    async def execute(sql: str, parameters: tuple[Any, ...]) -> int:
        return int((await target.execute(sql, parameters)).rowcount)

    return execute, kind, _style(kind)


def _rows_of(result: CursorResult[Any]) -> int:
    return len(result.fetchall()) if result.returns_rows else int(result.rowcount)


def _is_session(target: Any) -> bool:
    """Return whether *target* is a session of SQLAlchemy's, without importing SQLAlchemy's ORM."""
    return any(base.__module__.startswith("sqlalchemy.orm.") for base in type(target).__mro__)


def _is_async(target: Any) -> bool:
    return (
        "async" in type(target).__name__.lower() or type(target).__module__.partition(".")[0] == "aiosqlite"
    )


def _style(kind: str) -> str:
    return "qmark" if kind == "sqlite" else "format"


def _driver_kind(target: Any) -> str:
    for base in type(target).__mro__:
        if (kind := _DRIVERS.get(base.__module__.partition(".")[0])) is not None:
            return kind
    raise OutboxError(
        f"the outbox cannot be written on {type(target).__module__}.{type(target).__name__}; give it an"
        " SQLAlchemy Session or Connection, or a connection or cursor of psycopg, psycopg2, pymysql,"
        " mysqlclient or sqlite3"
    )


def _kind(dialect: Dialect) -> str:
    kind = _KINDS.get(dialect.name)
    if kind is None:
        raise OutboxError(
            f"the outbox does not know the database {dialect.name}; it knows PostgreSQL, MySQL, MariaDB and"
            " SQLite"
        )
    return kind


def refuse_autocommit(connection: Any) -> None:
    """Raise where the row would be committed at once, alone: the outbox is worth something only inside the
    caller's transaction.
    """
    match type(connection).__module__.partition(".")[0]:
        case "psycopg":
            alone = connection.autocommit and connection.info.transaction_status == 0
        case "psycopg2":
            alone = connection.autocommit and connection.get_transaction_status() == 0
        case "pymysql":
            alone = connection.get_autocommit() and not connection.server_status & 1
        case "sqlite3" | "aiosqlite":
            alone = connection.isolation_level is None and not connection.in_transaction
        case _:
            alone = False
    if alone:
        raise OutboxError(
            "this connection is in autocommit mode and in no transaction, so the record would be published"
            " whatever becomes of your change; begin a transaction first and write both in it"
        )
