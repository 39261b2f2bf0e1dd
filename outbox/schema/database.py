"""One plain connection to the outbox's database: opened when it is needed, closed when it is lost, every
error typed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy.engine.url import URL
from sqlalchemy.sql import ClauseElement

from holdfast.errors import OutboxDatabaseError
from holdfast.outbox.schema.driver import DatabaseDriver, DatabaseLimits
from holdfast.outbox.schema.tables import file_number
from holdfast.outbox.schema.watch import CallWatch

LIMITS: Final = DatabaseLimits()
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
        connect_timeout_s: float = LIMITS.connect_s,
        statement_timeout_s: float = LIMITS.statement_s,
        idle_transaction_s: float = LIMITS.idle_s,
    ) -> None:
        limits = DatabaseLimits(
            connect_s=connect_timeout_s, statement_s=statement_timeout_s, idle_s=idle_transaction_s
        )
        self._driver = DatabaseDriver(url, limits)
        self.url, self.dialect = self._driver.url, self._driver.dialect
        self._connection: Any = None
        self._file: tuple[int, int] | None = None
        self._journal: tuple[int, int] | None = None
        self._lock = threading.Lock()  # between closing and interrupting
        self._interrupted = False
        self._watch = CallWatch(self._driver.answer_s, self._cut)

    @property
    def name(self) -> str:
        """The kind of database: postgresql, mysql, mariadb or sqlite."""
        return self.dialect.name

    @property
    def is_postgres(self) -> bool:
        """Return whether this is Postgres."""
        return self.name == "postgresql"

    @property
    def place(self) -> str:
        """The address without a password, for messages."""
        return self._driver.place

    def connection(self) -> Any:
        """Return the open driver connection, opening one when there is none."""
        if self._interrupted:
            raise OutboxDatabaseError(
                f"the connection to {self.place} was interrupted, and is not opened again", is_lost=True
            )
        if self._connection is not None and (replaced := self._replaced()):
            self.close()
            raise OutboxDatabaseError(
                f"{self.place}: {replaced} was replaced, moved or deleted while it was open; from here on"
                " what is in the file of that name now is read",
                is_lost=True,
            )
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def _replaced(self) -> str:
        """Return which file of SQLite is another than the connection has open, or is gone; "" for none."""
        if self._file is None:
            return ""
        if file_number(self.url) != self._file:
            return "the file"
        journal, self._journal = self._journal, file_number(self.url, "-wal")
        return "the file's journal, -wal," if journal not in (None, self._journal) else ""

    def _open(self) -> Any:
        self._file, self._journal = file_number(self.url), None  # a journal is there from the first read
        connection = self._driver.connect(autocommit=True)
        if self.dialect.driver == "psycopg":
            _leave_json(connection)
        return connection

    def run(self, sql: str, parameters: Parameters = ()) -> Any:
        """Return the cursor of one statement; close it when you have read it."""
        connection = self.connection()
        with self.errors_of(connection):
            cursor = connection.cursor()
            if self._is_sqlite:
                cursor.execute(sql, parameters)
            else:
                with self._watch.call():
                    cursor.execute(sql, parameters or None)
            return cursor

    def rows(self, sql: str, parameters: Parameters = ()) -> list[Any]:
        """Return all rows of one query. Text in SQLite that is not UTF-8 comes as bytes."""
        try:
            return self._rows(sql, parameters)
        except OutboxDatabaseError as error:
            if not (self._is_sqlite and _UNDECODABLE in str(error)) or self._connection is None:
                raise
            # From here on: one call for each text is dear, and few files hold such a row.
            self._connection.text_factory = _text_or_bytes
            return self._rows(sql, parameters)

    def _rows(self, sql: str, parameters: Parameters) -> list[Any]:
        connection = self.connection()
        with self.errors_of(connection), contextlib.closing(self.run(sql, parameters)) as cursor:
            found: list[Any] = cursor.fetchall()
            return found

    def count(self, sql: str, parameters: Parameters = ()) -> int:
        """Return how many rows one statement changed."""
        with contextlib.closing(self.run(sql, parameters)) as cursor:
            return int(cursor.rowcount)

    @contextlib.contextmanager
    def transaction(self, *, snapshot: bool = False) -> Iterator[None]:
        """Run the body of the with statement in one transaction.

        With *snapshot*, its queries see its own changes, but no change that is committed after the
        first of them.
        """
        begin = "BEGIN IMMEDIATE" if self._is_sqlite else "BEGIN"
        if snapshot and self.is_postgres:  # in MySQL each is so; in SQLite one that writes is alone
            begin = "BEGIN ISOLATION LEVEL REPEATABLE READ"
        with contextlib.closing(self.run(begin)):
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
                or _is_read_only(error)  # a standby by now: the next connection may find the primary
                or self._interrupted
            )
            words = self._driver.words(error)
            if self._watch.has_cut:
                is_lost, words = True, f"no answer within {self._watch.limit_s:.0f} s"
            if is_lost:
                self.close()
            cure = "; `holdfast outbox init` makes the tables of an outbox" if lacks_table(error) else ""
            raise OutboxDatabaseError(f"{self.place}: {words}{cure}", is_lost=is_lost) from error

    def interrupt(self) -> None:
        """Make a call that waits for the database fail now, and every later one: to stop while the
        database does not answer.
        """
        self._interrupted = True
        self._cut()

    def _cut(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._driver.cut(self._connection)

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        with self._lock:
            connection, self._connection = self._connection, None
        self._watch.stop()
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
        """Return *statement* as text with its values in it; not for hot paths or foreign text."""
        return str(statement.compile(dialect=self.dialect, compile_kwargs={"literal_binds": True}))

    def quoted(self, table: Any) -> str:
        """Return the name of *table*, quoted where it must be."""
        return self.dialect.identifier_preparer.format_table(table)


_UNDECODABLE = "Could not decode to UTF-8"
"""The message of Python's sqlite3 about text that is not UTF-8, which SQLite keeps as it is given."""


def _text_or_bytes(found: bytes) -> str | bytes:
    try:
        return found.decode()
    except UnicodeDecodeError:
        return found


def _leave_json(connection: Any) -> None:
    """Have psycopg give JSON as the text that it is, instead of what it would parse it to."""
    from psycopg.types.string import TextLoader

    for name in ("json", "jsonb"):
        connection.adapters.register_loader(name, TextLoader)


_READ_ONLY, _READ_ONLY_MYSQL = "25006", (1290, 1836)
"""By which PostgreSQL, and MySQL and MariaDB, say that they take no writes."""


def _is_read_only(error: BaseException) -> bool:
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state == _READ_ONLY or (len(error.args) > 1 and error.args[0] in _READ_ONLY_MYSQL)


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
