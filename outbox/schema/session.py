"""A connection of SQLAlchemy to an outbox's database, for the commands that make the tables and look at them:
with the same drivers and limits as that of harvesters, and every error typed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from sqlalchemy import create_engine, event
from sqlalchemy.engine import Connection
from sqlalchemy.engine.url import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from holdfast.errors import OutboxDatabaseError
from holdfast.outbox.schema.driver import DatabaseDriver, DatabaseLimits
from holdfast.outbox.schema.watch import CallWatch

COMMAND_LIMITS: Final = DatabaseLimits(idle_s=60.0)
"""Limits of a command: no successor waits for its lease, so a slow machine may hold it up in a
transaction.
"""

CURE: Final = "check the URL, that the database runs, and what its user may do"

_WATCH: Final = "holdfast watch"
_READ_TIMEOUT: Final = "_read_timeout"  # PyMySQL's; it sets the socket by it before each read


@contextlib.contextmanager
def connected(
    url: str | URL, *, limits: DatabaseLimits = COMMAND_LIMITS, may_make_file: bool = False
) -> Iterator[Connection]:
    """Give a connection, and close it. Uncommitted work is rolled back.

    OutboxDatabaseError for whatever the database says inside, and when it gives no answer within the limits;
    ConfigError for a URL that cannot be used.
    """
    driver = DatabaseDriver(url, limits)
    opened: list[Any] = []
    watch = CallWatch(driver.answer_s, lambda: driver.cut(opened[-1]) if opened else None)

    def connect() -> Any:
        opened.append(_opened(driver, may_make_file))
        watch.begin()
        return opened[-1]

    engine = create_engine(driver.url, creator=connect, poolclass=NullPool)
    for name in ("before_cursor_execute", "after_cursor_execute", "commit", "rollback"):
        event.listen(engine, name, _beginning(watch))
    try:
        with _typed(driver, watch), engine.connect() as connection:
            connection.info[_WATCH] = watch
            yield connection
    finally:
        watch.stop()


def _opened(driver: DatabaseDriver, may_make_file: bool) -> Any:
    try:
        connection = driver.connect(may_make_file=may_make_file)
        if driver.dialect.driver == "psycopg" and connection.info.encoding == "ascii":
            _read_as_text(connection)
        return connection
    except OutboxDatabaseError as error:
        if driver.dialect.name == "sqlite":  # of which it says what to do
            raise
        raise OutboxDatabaseError(f"{error}; {CURE}", is_lost=True) from error


def _read_as_text(connection: Any) -> None:
    """Have psycopg give the texts of a database in SQL_ASCII as texts, as SQLAlchemy needs them."""
    connection.autocommit = True
    connection.execute("SET client_encoding TO 'UTF8'")
    connection.autocommit = False


def _beginning(watch: CallWatch) -> Callable[..., None]:
    def begin(*_: Any) -> None:
        watch.begin()

    return begin


@contextlib.contextmanager
def _typed(driver: DatabaseDriver, watch: CallWatch) -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        own = error.orig if isinstance(error, DBAPIError) else None
        if watch.has_cut:
            said = (
                f"no answer within {watch.limit_s:.0f} s; check that the database runs, and whether it is"
                " overloaded"
            )
        elif driver.dialect.name == "sqlite":
            said = driver.words(own or error)
        else:
            said = f"{driver.words(own or error)}; {cure_of(own or error)}"
        raise OutboxDatabaseError(f"{driver.place}: {said}") from error


_LOCKED, _LOCK_WAIT = "55P03", 1205
"""By which PostgreSQL, and MySQL and MariaDB, say that a lock was waited for in vain."""


def cure_of(error: BaseException) -> str:
    """Return the remedy for a driver's error."""
    if getattr(error, "sqlstate", None) == _LOCKED or error.args[:1] == (_LOCK_WAIT,):
        return "another transaction, or another run of this command, keeps a lock: end it, or try again"
    return CURE


@contextlib.contextmanager
def patient(connection: Connection, limit_s: float) -> Iterator[None]:
    """Let statements inside last as long as *limit_s*, where they rewrite a table. Locks keep their limit."""
    watch: CallWatch | None = connection.info.get(_WATCH)
    with watch.patient(limit_s) if watch is not None else contextlib.nullcontext():
        match connection.dialect.name:
            case "postgresql":
                before = connection.exec_driver_sql("SHOW statement_timeout").scalar()
                connection.exec_driver_sql(f"SET LOCAL statement_timeout = {round(limit_s * 1000)}")
                yield
                connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{before}'")
            case "mysql" | "mariadb":
                with _reading_for(connection.connection.driver_connection, limit_s):
                    yield
            case _:
                yield


@contextlib.contextmanager
def _reading_for(connection: Any, limit_s: float) -> Iterator[None]:
    before = getattr(connection, _READ_TIMEOUT, None)
    if before is None:  # of a driver that cannot change it
        yield
        return
    setattr(connection, _READ_TIMEOUT, limit_s)
    try:
        yield
    finally:
        setattr(connection, _READ_TIMEOUT, before)
