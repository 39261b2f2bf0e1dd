"""Opening connections to an outbox's database: with limits that hold whatever the database does, and with the
parameters of the URL.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psycopg
import pymysql
import pytest
from sqlalchemy import make_url, text

from holdfast.dev.databases.server import DatabaseServer
from holdfast.dev.databases.servers import Postgres
from holdfast.errors import ConfigError, OutboxDatabaseError
from holdfast.outbox.schema.database import Database
from holdfast.outbox.schema.driver import DatabaseDriver, DatabaseLimits
from holdfast.outbox.schema.migrate import upgrade
from holdfast.outbox.schema.session import connected, cure_of
from holdfast.outbox.schema.tables import lacks_file, problems
from holdfast.outbox.schema.watch import CallWatch
from tests.outbox.databases import FreshOutbox, url_of
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S

SLOW = r"(?i)lock|time|no answer"  # with limits this short a busy machine may say any of these, anywhere
SHORT = DatabaseLimits(connect_s=2.0, statement_s=1.0, margin_s=1.0)


def with_parameter(url: str, **more: str) -> str:
    return make_url(url).update_query_dict(more).render_as_string(hide_password=False)


# --- what a URL may say ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "postgresql://h/d?nonsense=1",
            "the driver psycopg has no parameter nonsense; it has application_name",
        ),
        ("mysql://h/d?sslmode=disable", "the driver pymysql has no parameter sslmode; it has"),
        ("sqlite:///a.db?nonsense=1", "the driver pysqlite has no parameter nonsense; it has cache, cached"),
        ("postgresql://h/d?row_factory=x", "row_factory can be given in code alone"),
        ("postgresql://h/d?autocommit=true", "autocommit can be given in code alone"),
        ("mysql://h/d?cursorclass=x", "cursorclass can be given in code alone"),
        ("sqlite:///a.db?isolation_level=DEFERRED", "isolation_level can be given in code alone"),
        ("mysql://h/d?charset=a&charset=b", "charset stands in the URL more than once"),
        ("mysql://h/d?read_timeout=soon", "pymysql does not take this URL: .*soon"),
        ("sqlite:///a.db?timeout=soon", "pysqlite does not take this URL: .*soon"),
        ("sqlite:///file:a.db", r"only with uri=true; write sqlite:///file:a.db\?uri=true"),
        ("sqlite:///a.db?uri=true", r"begins with file:; write sqlite:///file:a.db\?uri=true"),
        ("sqlite:///a.db?mode=ro", r"only in an address; write sqlite:///file:a.db\?uri=true&mode="),
        ("sqlite+aiosqlite:///a.db", r"is for asyncio, .*; write sqlite\+pysqlite"),
        ("mysql+aiomysql://h/d", r"is for asyncio, .*; write mysql\+pymysql"),
        ("postgresql+asyncpg://ada:PW@h/d", r"is for asyncio, .*; write postgresql\+psycopg"),
        ("postgresql+pg8000://h/d", r"holdfast knows the limits of; write postgresql\+psycopg or"),
        ("postgresql+nonsense://h/d", "is not installed"),
    ],
)
def test_what_a_driver_does_not_take_is_said_by_name_before_any_connection(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        Database(url)
    assert "PW" not in str(caught.value)
    with pytest.raises(ConfigError, match=said), connected(url):
        pass


@pytest.mark.parametrize(
    "more", [{"connect_timeout": "0"}, {"port": "three"}, {"ssl_ca": "/no/such/file"}, {"compress": "true"}]
)
def test_a_value_that_the_driver_does_not_take_is_said(more: dict[str, str]) -> None:
    with (
        pytest.raises(ConfigError, match="pymysql does not take this URL: "),
        connected(with_parameter("mysql://u:PW@127.0.0.1:1/d", **more)),
    ):
        pass


@pytest.mark.parametrize("kind", ["harvester", "command"])
def test_options_of_postgres_count_together_with_the_limits(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    ask = asking(kind)
    settings = ("search_path", "statement_timeout", "lock_timeout")
    url = with_parameter(postgres.url, options="-c search_path=shop -c statement_timeout=0")
    assert [ask(url, f"SHOW {each}") for each in settings] == ["shop", "30s", "29s"]
    monkeypatch.setenv("PGOPTIONS", "-c search_path=other")
    assert ask(postgres.url, "SHOW search_path") == "other"
    assert ask(url, "SHOW search_path") == "shop"


@pytest.mark.parametrize("server", ["mariadb", "mysql"])
def test_a_first_command_of_mysql_counts_together_with_the_limits(
    server: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    first = "SET SESSION sort_buffer_size = 65536, SESSION lock_wait_timeout = 99"
    url = with_parameter(url_of(server, request, tmp_path), init_command=first)
    settings = "sort_buffer_size", "lock_wait_timeout", "innodb_lock_wait_timeout"
    asked = "SELECT concat_ws(' ', {})".format(", ".join(f"@@session.{each}" for each in settings))
    assert asking("harvester")(url, asked) == asking("command")(url, asked) == "65536 30 30"


def asking(kind: str) -> Callable[[str, str], object]:
    def of_a_harvester(url: str, sql: str) -> object:
        with closing(Database(url)) as database:
            return database.rows(sql)[0][0]

    def of_a_command(url: str, sql: str) -> object:
        with connected(url) as connection:
            return connection.execute(text(sql)).scalar()

    return of_a_harvester if kind == "harvester" else of_a_command


# --- limits ------------------------------------------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[int]:
    """Give the port of something that accepts connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_a_database_that_accepts_and_is_silent_is_not_waited_for(kind: str, silent: int) -> None:
    url = f"{kind}://u:PW@127.0.0.1:{silent}/d"
    with pytest.raises(OutboxDatabaseError, match=r"cannot connect to .*time"):
        upgrade(url, limits=SHORT)
    with pytest.raises(OutboxDatabaseError, match=r"cannot connect to .*time") as caught:
        Database(url, connect_timeout_s=2.0, statement_timeout_s=1.0).run("SELECT 1")
    assert caught.value.is_lost
    assert "PW" not in str(caught.value)


@contextmanager
def locked(outbox: FreshOutbox) -> Iterator[None]:
    """Keep the outbox and its version table locked for others."""
    tables = [outbox.table, f"{outbox.table}_version"]
    with outbox.engine().connect() as connection:
        if outbox.dialect == "sqlite":
            connection.exec_driver_sql("BEGIN EXCLUSIVE")
        elif outbox.dialect == "postgresql":
            connection.execute(text(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE"))
        else:
            connection.execute(text(f"LOCK TABLES {', '.join(f'{each} WRITE' for each in tables)}"))
        yield
        if outbox.dialect in ("mysql", "mariadb"):
            connection.execute(text("UNLOCK TABLES"))


@pytest.mark.long
def test_a_locked_table_is_not_waited_for(outbox: FreshOutbox) -> None:
    with locked(outbox), pytest.raises(OutboxDatabaseError, match=SLOW):
        upgrade(outbox.url, table=outbox.table, limits=SHORT)
    with (
        locked(outbox),
        closing(Database(outbox.url, statement_timeout_s=1.0)) as database,
        pytest.raises(OutboxDatabaseError, match=SLOW),
    ):
        database.run(f"DELETE FROM {outbox.table}")
    upgrade(outbox.url, table=outbox.table)


def test_the_holder_of_a_lock_is_advised_to_end() -> None:
    for error in (psycopg.errors.LockNotAvailable("x"), pymysql.err.OperationalError(1205, "x")):
        assert cure_of(error).startswith("another transaction, or another run of this command, keeps a lock")
    assert cure_of(psycopg.errors.InsufficientPrivilege("x")).startswith("check the URL")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_command_does_not_wait_for_a_server_that_was_stopped_since(
    postgres_outbox: FreshOutbox, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = text("SELECT pg_backend_pid()")
    with (
        pytest.raises(OutboxDatabaseError, match=SLOW),
        connected(postgres_outbox.url, limits=SHORT) as connection,
        stopped(int(connection.execute(asked).scalar_one())),
    ):
        problems(connection, postgres_outbox.tables)
    assert capfd.readouterr().err == ""


def test_a_harvester_does_not_wait_for_a_server_that_was_stopped_since(
    postgres_outbox: FreshOutbox,
) -> None:
    with closing(Database(postgres_outbox.url, statement_timeout_s=1.0)) as database:

        def answer(sql: str) -> int:
            with suppress(OutboxDatabaseError):
                return int(database.rows(sql)[0][0])
            return 0

        pid = wait_for("an answer", lambda: answer("SELECT pg_backend_pid()"), DEADLINE_S)
        with stopped(pid), pytest.raises(OutboxDatabaseError, match=r"no answer within 6 s") as caught:
            database.rows("SELECT 1")
        assert caught.value.is_lost
        wait_for("another connection", lambda: answer("SELECT 1"), DEADLINE_S)


@contextmanager
def frozen(server: DatabaseServer) -> Iterator[None]:
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_nor_for_a_mysql_that_was_stopped(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = url_of(kind, request, tmp_path)
    with (
        pytest.raises(OutboxDatabaseError, match=SLOW),
        connected(url, limits=SHORT) as connection,
        frozen(request.getfixturevalue(kind)),
    ):
        connection.execute(text("SELECT 1"))
    with connected(url) as connection:
        connection.execute(text("SELECT 1"))


@pytest.mark.long
def test_a_watch_cuts_the_call_that_lasts_and_no_other() -> None:
    cuts: list[int] = []
    watch = CallWatch(0.08, lambda: cuts.append(1))
    for _ in range(3):
        with watch.call():
            pass
    assert (cuts, watch.has_cut) == ([], False)
    with watch.call():
        wait_for("a cut", lambda: cuts, DEADLINE_S)
    assert watch.has_cut
    watch.stop()
    assert not watch.has_cut
    with watch.call():  # after it was stopped, too
        wait_for("another cut", lambda: len(cuts) > 1, DEADLINE_S)
    watch.stop()


def test_a_forked_process_cuts_no_call_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.outbox.schema.watch.TICK_S", 0.01)
    parent, cut_here = os.getpid(), list[str]()
    theirs = CallWatch(0.01, lambda: None if os.getpid() == parent else cut_here.append("theirs"))
    with theirs.call():
        child = os.fork()
        if not child:
            try:
                with CallWatch(0.05, lambda: cut_here.append("own")).call():
                    wait_for("a cut", lambda: "own" in cut_here, DEADLINE_S)
            finally:
                os._exit(0 if set(cut_here) == {"own"} else 1)
        assert os.waitpid(child, 0)[1] == 0
    theirs.stop()


# --- files of SQLite ---------------------------------------------------------------------------------------


def test_an_address_of_sqlite_is_that_of_its_file(tmp_path: Path) -> None:
    url = f"sqlite:///file:{tmp_path / 'a b.db'}?uri=true"
    assert lacks_file(make_url(url))
    with pytest.raises(OutboxDatabaseError, match="there is no such file"), connected(url):
        pass
    upgrade(url)
    assert not lacks_file(make_url(url))
    with connected(f"sqlite:///{tmp_path / 'a b.db'}") as connection:
        assert connection.execute(text("SELECT count(*) FROM outbox")).scalar() == 0


def test_a_read_only_file_is_reported_with_the_remedy(tmp_path: Path) -> None:
    upgrade(f"sqlite:///{tmp_path / 'a.db'}")
    url = f"sqlite:///file:{tmp_path / 'a.db'}?mode=ro&uri=true"
    with pytest.raises(OutboxDatabaseError, match="can only be read here; give this user the right") as said:
        upgrade(url, table="other")
    assert "attempt to write" not in str(said.value)
    with (
        closing(Database(url)) as database,
        pytest.raises(OutboxDatabaseError, match="leave mode=ro and immutable out of the URL"),
    ):
        database.run("DELETE FROM outbox")


def test_a_file_that_is_not_of_sqlite_is_reported_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("This is a text, and no database." * 40)
    for url, said in (
        (f"sqlite:///{tmp_path / 'text'}", "is no SQLite database; check the URL"),
        (f"sqlite:///{tmp_path}/no/such/a.db", "cannot be opened; check that its folder is there"),
    ):
        with pytest.raises(OutboxDatabaseError, match=said):
            upgrade(url)


def test_a_file_of_sqlite_is_waited_for_as_long_as_the_limit(tmp_path: Path) -> None:
    with closing(DatabaseDriver(f"sqlite:///{tmp_path / 'a.db'}", SHORT).connect(may_make_file=True)) as made:
        assert made.execute("PRAGMA busy_timeout").fetchone() == (1000,)
