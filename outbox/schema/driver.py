"""Opens every connection to an outbox's database: its driver, its limits, and the parameters that a URL may
have.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy.engine import Dialect
from sqlalchemy.engine.url import URL
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from holdfast.errors import ConfigError, OutboxDatabaseError
from holdfast.outbox.schema.tables import DRIVERS, NO_FILE, database_url, is_forgotten, lacks_file, shown

KNOWN: Final = {
    "postgresql": ("psycopg", "psycopg2"),
    "mysql": ("pymysql", "mysqldb"),
    "mariadb": ("pymysql", "mysqldb"),
    "sqlite": ("pysqlite",),
}
"""The drivers that the limits are known of. SQLAlchemy has others."""

_CODE: Final = {
    "psycopg": ("autocommit", "conninfo", "context", "cursor_factory", "prepare_threshold", "row_factory"),
    "psycopg2": ("async", "async_", "connection_factory", "cursor_factory", "dsn"),
    "pymysql": ("auth_plugin_map", "autocommit", "conv", "cursorclass", "defer_connect", "ssl"),
    "mysqldb": ("autocommit", "conv", "cursorclass", "ssl"),
    "pysqlite": ("autocommit", "check_same_thread", "detect_types", "factory", "isolation_level"),
}
"""Parameters that take objects of Python, or that holdfast must give itself."""

_SQLITE: Final = ("timeout", "cached_statements", "uri")
_SQLITE_URI: Final = ("cache", "immutable", "mode", "modeof", "nolock", "psow", "vfs")
_MYSQL_SSL: Final = ("ssl_capath", "ssl_check_hostname", "ssl_cipher")  # that SQLAlchemy makes `ssl` of


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseLimits:
    """The limits of a connection, in seconds. A URL may not lift those of statements, locks and idleness."""

    connect_s: float = 10.0
    statement_s: float = 30.0
    """Of a statement, and of its wait for a lock."""
    idle_s: float = 5.0
    """The limit on an idle transaction of ours: a leader that is frozen in one must not keep its successor
    from the lease.
    """
    margin_s: float = 5.0
    """The client waits so much longer than the server, which can report the reason."""

    @property
    def answer_s(self) -> float:
        """Return how long the client waits for the answer to a statement."""
        return self.statement_s + self.margin_s


class DatabaseDriver:
    """Opens connections to one database. ConfigError, before any is opened, for a URL that cannot be used."""

    def __init__(self, url: str | URL, limits: DatabaseLimits) -> None:
        self.url, self.limits = database_url(url), limits
        self.dialect = raw_dialect(self.url)
        self.place = shown(self.url)
        self._check_parameters()
        self._positional, self._named = self._from_url()

    @property
    def answer_s(self) -> float:
        """Return how long to wait for the answer to a statement: the limit, or the URL's own where it is
        longer.
        """
        return max(self.limits.answer_s, float(self._named.get("read_timeout") or 0))

    def connect(self, *, autocommit: bool = False, may_make_file: bool = False) -> Any:
        """Return a new connection of the driver. A SQLite file that is not there is made with
        *may_make_file*.

        OutboxDatabaseError when there is none, ConfigError when the driver does not take what the URL says.
        """
        if is_forgotten(self.url):
            raise ConfigError(
                f"{self.place} names no file, but a database in memory, which is gone when its connection"
                " closes; write one like sqlite:///shop.db"
            )
        if not may_make_file and lacks_file(self.url):
            raise OutboxDatabaseError(f"cannot connect to {self.place}: {NO_FILE}", is_lost=True)
        try:
            connection = self.dialect.connect(*self._positional, **self._arguments())
            if self.dialect.name in ("mysql", "mariadb"):
                self._limit_session(connection)
                connection.autocommit(autocommit)
            elif self.dialect.name == "postgresql":
                connection.autocommit = autocommit
        except self.dialect.loaded_dbapi.Error as error:
            raise OutboxDatabaseError(
                f"cannot connect to {self.place}: {self.words(error)}", is_lost=True
            ) from error
        except (IndexError, struct.error) as error:
            raise OutboxDatabaseError(
                f"cannot connect to {self.place}: what answers there is no {self.dialect.name} ({error})",
                is_lost=True,
            ) from error
        except (TypeError, ValueError, AttributeError, KeyError, NotImplementedError, OSError) as error:
            raise self._not_taken(error) from error
        return connection

    def cut(self, connection: Any) -> None:
        """Make a call that waits for *connection* fail now; from any thread."""
        if self.dialect.name == "sqlite":
            connection.interrupt()
            return
        with contextlib.suppress(OSError, ValueError, AttributeError, self.dialect.loaded_dbapi.Error):
            has_number = self.dialect.name == "postgresql"
            number = connection.fileno() if has_number else connection._sock.fileno()
            twin = socket.fromfd(number, socket.AF_INET, socket.SOCK_STREAM)
            with contextlib.closing(twin):
                twin.shutdown(socket.SHUT_RDWR)

    def words(self, error: BaseException) -> str:
        """Return a driver's error message in a line; for a known one of SQLite, the remedy."""
        said = " ".join(str(error).split()) or type(error).__name__
        if self.dialect.name == "sqlite":
            for part, cure in _SQLITE_CURES.items():
                if part in said:
                    return cure
        return said

    # --- what the driver is given ---------------------------------------------------------------------------

    def _arguments(self) -> dict[str, Any]:
        arguments = {**self._limits(), **self._named}
        match self.dialect.name:
            case "postgresql":
                arguments["options"] = " ".join([*_texts(self._own_options()), self._options()]).strip()
            case "sqlite":
                arguments |= {"isolation_level": None, "check_same_thread": False}
        return arguments

    def _limits(self) -> dict[str, Any]:
        connect_s, ms = self.limits.connect_s, round(self.limits.statement_s * 1000)
        match self.dialect.name:
            case "postgresql":
                # Half-open connections are noticed by the kernel: a server that vanished must not hold a
                # leader for hours.
                return {
                    "connect_timeout": max(2, round(connect_s)),
                    "keepalives_idle": 10,
                    "keepalives_interval": 5,
                    "keepalives_count": 3,
                    "tcp_user_timeout": ms,
                    "application_name": "holdfast",
                }
            case "sqlite":
                return {"timeout": self.limits.statement_s}
            case _:
                s = max(1, round(self.limits.answer_s))
                return {"connect_timeout": max(1, round(connect_s)), "read_timeout": s, "write_timeout": s}

    def _own_options(self) -> Any:
        """Return the user's options for PostgreSQL: of the URL, or else of libpq's variable, which ours would
        hide.
        """
        return self._named.get("options") or os.environ.get("PGOPTIONS", "")

    def _options(self) -> str:
        ms, idle_ms = round(self.limits.statement_s * 1000), round(self.limits.idle_s * 1000)
        limits = {
            "statement_timeout": ms,
            "lock_timeout": max(ms - 1000, ms * 9 // 10),  # less, so that the server reports the lock
            "idle_in_transaction_session_timeout": idle_ms,
            "default_transaction_isolation": "read\\ committed",  # whatever the server's own default is
        }
        return " ".join(f"-c {name}={value}" for name, value in limits.items())

    def _limit_session(self, connection: Any) -> None:
        """Set the limits of MySQL and MariaDB, after the URL's `init_command`.

        MySQL has no limit for idle transactions, MariaDB has. `lock_wait_timeout` is that of whole tables.
        """
        s, idle_s = max(1, round(self.limits.statement_s)), max(1, round(self.limits.idle_s))
        limits = f"SET SESSION innodb_lock_wait_timeout = {s}, SESSION lock_wait_timeout = {s}"
        # With a server whose default is READ UNCOMMITTED, a harvester would publish rows that are rolled
        # back.
        limits += ", SESSION sql_safe_updates = 0"
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute(f"{limits} /*M!100300 , SESSION idle_transaction_timeout = {idle_s} */")

    # --- what the URL says ----------------------------------------------------------------------------------

    def _from_url(self) -> tuple[list[Any], dict[str, Any]]:
        try:
            positional, named = self.dialect.create_connect_args(self.url)
        except (ArgumentError, TypeError, ValueError) as error:
            raise self._not_taken(error) from error
        return list(positional), dict(named)

    def _not_taken(self, error: BaseException) -> ConfigError:
        said = " ".join(str(error).split()) or type(error).__name__
        return ConfigError(f"{self.place}: the driver {self.dialect.driver} does not take this URL: {said}")

    def _check_parameters(self) -> None:
        """Raise ConfigError for a parameter that cannot be written in a URL, or that the driver does not
        have.
        """
        driver, names = self.dialect.driver, list(self.url.query)
        if driver == "pysqlite":
            self._check_sqlite_name(names)
        for name in names:
            if name in _CODE[driver]:
                raise ConfigError(
                    f"{self.place}: the parameter {name} can be given in code alone; leave it out of the URL"
                )
            if (taken := self._taken()) is not None and name not in taken:
                raise ConfigError(
                    f"{self.place}: the driver {driver} has no parameter {name}; it has"
                    f" {', '.join(sorted(taken))}"
                )
        if driver != "pysqlite":
            self._check_repeated()

    def _check_repeated(self) -> None:
        repeated = ("host", "options", "port") if self.dialect.name == "postgresql" else ()
        for name, value in self.url.query.items():
            if not isinstance(value, str) and name not in repeated:
                raise ConfigError(f"{self.place}: the parameter {name} stands in the URL more than once")

    def _check_sqlite_name(self, names: Iterable[str]) -> None:
        file, is_uri = self.url.database or "", str(self.url.query.get("uri", "")).lower() in _TRUE
        if file.startswith("file:") and not is_uri:
            raise ConfigError(
                f"{self.place}: a name that begins with file: is an address only with uri=true; "
                f"write sqlite:///{file}?uri=true, or leave file: out"
            )
        if is_uri and not file.startswith("file:"):
            raise ConfigError(
                f"{self.place}: with uri=true the name begins with file:; write"
                f" sqlite:///file:{file}?uri=true"
            )
        if not is_uri and (ofs := sorted({*names} & {*_SQLITE_URI})):
            raise ConfigError(
                f"{self.place}: SQLite takes {', '.join(ofs)} only in an address; write"
                f" sqlite:///file:{file}?uri=true&{ofs[0]}=…"
            )

    def _taken(self) -> set[str] | None:
        """Return the parameters that a URL of this driver may have; None where they cannot be asked for."""
        module: Any = self.dialect.loaded_dbapi
        match self.dialect.driver:
            case "psycopg":
                names = {each.keyword.decode() for each in module.pq.Conninfo.get_defaults()}
            case "pymysql":
                names = {*inspect.signature(module.connections.Connection.__init__).parameters, *_MYSQL_SSL}
            case "pysqlite":
                names = {*_SQLITE, *_SQLITE_URI}
            case _:
                return None
        return names - {"self"} - {*_CODE[self.dialect.driver]}


_TRUE: Final = ("true", "yes", "on", "y", "t", "1")  # as SQLAlchemy reads it
_SQLITE_CURES: Final = {
    "readonly database": (
        "the file can only be read here; give this user the right to write it and its folder, "
        "where SQLite makes files beside it, and leave mode=ro and immutable out of the URL"
    ),
    "unable to open database file": (
        "the file cannot be opened; check that its folder is there, and that this user may write "
        "the file and the folder, where SQLite makes files beside it"
    ),
    "file is not a database": "the file is no SQLite database; check the URL",
    "database is locked": "another program keeps the file locked; end its transaction, and try again",
}


def _texts(value: Any) -> list[str]:
    """Return the texts of a parameter that may occur in a URL more than once."""
    return [value] if isinstance(value, str) else list(value)


def raw_dialect(url: URL) -> Dialect:
    """Return the dialect of *url* with its driver, writing named parameters; ConfigError when the driver
    is not installed, is for asyncio, or one that holdfast does not know.
    """
    backend = url.get_backend_name()
    try:
        kind: Callable[..., Dialect] = url.get_dialect()
        _check_driver(url, kind)
        driver = url.get_dialect().import_dbapi()
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise ConfigError(
            f"the driver of {url.drivername} is not installed ({error}); pip install 'holdfast[outbox]'"
        ) from error
    return kind(dbapi=driver, paramstyle="named" if backend == "sqlite" else "pyformat")


def _check_driver(url: URL, dialect: Any) -> None:
    backend = url.get_backend_name()
    if dialect.driver in KNOWN[backend]:
        return
    known = " or ".join(f"{backend}+{each}" for each in KNOWN[backend])
    why = (
        f"is for asyncio, and holdfast's own connections are not; write {backend}+{DRIVERS[backend]}"
        if dialect.is_async
        else f"is none of those that holdfast knows the limits of; write {known}"
    )
    raise ConfigError(f"{shown(url)}: the driver {url.drivername} {why}")
