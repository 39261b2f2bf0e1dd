"""One plain connection to the outbox's database: opened when it is needed, closed when it is lost, every
error typed.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy.engine import Dialect
from sqlalchemy.engine.url import URL
from sqlalchemy.exc import NoSuchModuleError
from sqlalchemy.sql import ClauseElement

from holdfast.errors import ConfigError, OutboxDatabaseError
from holdfast.outbox.schema.tables import NO_FILE, database_url, lacks_file, shown

CONNECT_TIMEOUT_S: Final = 10.0
STATEMENT_TIMEOUT_S: Final = 30.0
IDLE_TRANSACTION_S: Final = 5.0
"""How long a transaction of ours may do nothing: a leader that is frozen in one must not keep its
successor from the lease.
"""

Parameters = Mapping[str, Any] | Sequence[Any]


class Database:
    """A connection in autocommit mode that comes back by itself: after an error that lost it, the next call
    opens another.

    For one thread; only `interrupt` may be called from any. Nothing is retried here, for the caller alone
    knows what may be repeated.
    """

    def __init__(
        self,
        url: str | URL,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        statement_timeout_s: float = STATEMENT_TIMEOUT_S,
        idle_transaction_s: float = IDLE_TRANSACTION_S,
    ) -> None:
        self.url = database_url(url)
        self.dialect = raw_dialect(self.url)
        self._connect_timeout_s = connect_timeout_s
        self._statement_timeout_s = statement_timeout_s
        self._idle_transaction_s = idle_transaction_s
        self._connection: Any = None
        self._lock = threading.Lock()  # between closing and interrupting
        self._interrupted = False

    @property
    def name(self) -> str:
        """The kind of database: postgresql, mysql, mariadb or sqlite."""
        return self.dialect.name

    @property
    def is_postgres(self) -> bool:
        """Whether this is Postgres."""
        return self.name == "postgresql"

    @property
    def place(self) -> str:
        """The address without a password, for messages."""
        return shown(self.url)

    def connection(self) -> Any:
        """Return the open driver connection, opening one when there is none."""
        if self._interrupted:
            raise OutboxDatabaseError(
                f"the connection to {self.place} was interrupted, and is not opened again", is_lost=True
            )
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def _open(self) -> Any:
        if lacks_file(self.url):
            raise OutboxDatabaseError(f"cannot connect to {self.place}: {NO_FILE}", is_lost=True)
        driver = self.dialect.loaded_dbapi
        positional, named = self.dialect.create_connect_args(self.url)
        try:
            connection = self.dialect.connect(*positional, **{**self._arguments(), **named})
            if self.is_postgres:
                connection.autocommit = True
                if self.dialect.driver == "psycopg":
                    _leave_json(connection)
        except driver.Error as error:
            raise OutboxDatabaseError(
                f"cannot connect to {self.place}: {_message_of(error)}", is_lost=True
            ) from error
        return connection

    def _arguments(self) -> dict[str, Any]:
        match self.name:
            case "postgresql":
                ms, idle_ms = round(self._statement_timeout_s * 1000), round(self._idle_transaction_s * 1000)
                # Half-open connections are noticed by the kernel: a server that vanished must not hold a
                # leader for hours.
                return {
                    "connect_timeout": max(2, round(self._connect_timeout_s)),
                    "options": f"-c statement_timeout={ms} -c lock_timeout={ms} -c idle_in_transaction_session_timeout={idle_ms}",
                    "keepalives_idle": 10,
                    "keepalives_interval": 5,
                    "keepalives_count": 3,
                    "tcp_user_timeout": ms,
                    "application_name": "holdfast",
                }
            case "sqlite":
                return {
                    "isolation_level": None,
                    "timeout": self._statement_timeout_s,
                    "check_same_thread": False,
                }
            case _:
                s = max(1, round(self._statement_timeout_s))
                timeouts = {
                    "connect_timeout": max(1, round(self._connect_timeout_s)),
                    "read_timeout": s,
                    "write_timeout": s,
                }
                # MySQL has no limit for idle transactions, MariaDB has.
                idle_s = max(1, round(self._idle_transaction_s))
                first = f"SET SESSION innodb_lock_wait_timeout = {s} /*M!100300 , SESSION idle_transaction_timeout = {idle_s} */"
                return {"autocommit": True, "init_command": first, **timeouts}

    def run(self, sql: str, parameters: Parameters = ()) -> Any:
        """Return the cursor of one statement; close it when you have read it."""
        connection = self.connection()
        with self.errors_of(connection):
            cursor = connection.cursor()
            cursor.execute(sql, parameters or None) if not self._is_sqlite else cursor.execute(
                sql, parameters
            )
            return cursor

    def rows(self, sql: str, parameters: Parameters = ()) -> list[Any]:
        """Return all rows of one query."""
        connection = self.connection()
        with self.errors_of(connection), contextlib.closing(self.run(sql, parameters)) as cursor:
            found: list[Any] = cursor.fetchall()
            return found

    def count(self, sql: str, parameters: Parameters = ()) -> int:
        """Return how many rows one statement changed."""
        with contextlib.closing(self.run(sql, parameters)) as cursor:
            return int(cursor.rowcount)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Run what is inside in one transaction."""
        with contextlib.closing(self.run("BEGIN IMMEDIATE" if self._is_sqlite else "BEGIN")):
            pass
        try:
            yield
            with contextlib.closing(self.run("COMMIT")):
                pass
        except BaseException:
            with contextlib.suppress(OutboxDatabaseError):
                if self._connection is not None:  # a lost one has rolled back by itself
                    with contextlib.closing(self.run("ROLLBACK")):
                        pass
            raise

    @contextlib.contextmanager
    def errors_of(self, connection: Any) -> Iterator[None]:
        """Turn the driver's errors into `OutboxDatabaseError`, and let go of a connection that is lost."""
        driver = self.dialect.loaded_dbapi
        try:
            yield
        except driver.Error as error:
            is_lost = (
                self.dialect.is_disconnect(error, connection, None)
                or bool(getattr(connection, "closed", False))
                or self._interrupted
            )
            if is_lost:
                self.close()
            cure = "; `holdfast outbox init` makes the tables of an outbox" if lacks_table(error) else ""
            raise OutboxDatabaseError(f"{self.place}: {_message_of(error)}{cure}", is_lost=is_lost) from error

    def interrupt(self) -> None:
        """Make a call that waits for the database fail now, and every later one: to stop while the
        database does not answer.
        """
        with self._lock:
            self._interrupted = True
            if self._connection is None:
                return
            if self._is_sqlite:
                self._connection.interrupt()
                return
            with contextlib.suppress(OSError, ValueError, self.dialect.loaded_dbapi.Error):
                number = self._connection.fileno() if self.is_postgres else self._connection._sock.fileno()
                twin = socket.fromfd(number, socket.AF_INET, socket.SOCK_STREAM)
                with contextlib.closing(twin):
                    twin.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(self.dialect.loaded_dbapi.Error, OSError):
                connection.close()

    @property
    def _is_sqlite(self) -> bool:
        return self.name == "sqlite"

    def compile(self, statement: ClauseElement) -> tuple[str, dict[str, Any]]:
        """Return *statement* as text with named parameters, for `run`, and the values it brought itself."""
        compiled = statement.compile(dialect=self.dialect, compile_kwargs={"render_postcompile": True})
        return str(compiled), {name: value for name, value in compiled.params.items() if value is not None}

    def text(self, statement: ClauseElement) -> str:
        """Return *statement* as text with its values in it; for what is no hot path and takes no foreign
        text.
        """
        return str(statement.compile(dialect=self.dialect, compile_kwargs={"literal_binds": True}))

    def quoted(self, table: Any) -> str:
        """Return the name of *table*, quoted where it must be."""
        return self.dialect.identifier_preparer.format_table(table)


def _leave_json(connection: Any) -> None:
    """Have psycopg give JSON as the text that it is, instead of what it would parse it to."""
    from psycopg.types.string import TextLoader

    for name in ("json", "jsonb"):
        connection.adapters.register_loader(name, TextLoader)


def raw_dialect(url: URL) -> Dialect:
    """Return the dialect of *url* with its driver, writing named parameters; ConfigError when the driver
    is not installed.
    """
    try:
        kind: Callable[..., Dialect] = url.get_dialect()
        driver = url.get_dialect().import_dbapi()
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise ConfigError(
            f"the driver of {url.drivername} is not installed ({error}); pip install 'holdfast[outbox]'"
        ) from error
    return kind(dbapi=driver, paramstyle="named" if url.get_backend_name() == "sqlite" else "pyformat")


def _message_of(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


_UNDEFINED_TABLE, _NO_SUCH_TABLE = "42P01", 1146
"""By which PostgreSQL, and MySQL and MariaDB, say that there is no such table; SQLite says it in words."""


def lacks_table(error: Exception) -> bool:
    """Return whether a driver's error, or SQLAlchemy's around it, is that of a missing table."""
    driver = getattr(error, "orig", None) or error
    state = getattr(driver, "sqlstate", None) or getattr(driver, "pgcode", None)
    return (
        state == _UNDEFINED_TABLE
        or driver.args[:1] == (_NO_SUCH_TABLE,)
        or str(driver).startswith("no such table: ")
    )
