"""Database servers for development and tests: they start on new data, survive kills and freezes, and leave
nothing running.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import system_clock
from holdfast.dev import ports, processes
from holdfast.dev.databases import binaries
from holdfast.dev.databases.servers import DatabaseServer, MariaDB, MySQL, Postgres
from holdfast.errors import DevBrokerError
from tests.support.patience import DEADLINE_S

pytestmark = pytest.mark.database


def asked(server: DatabaseServer, sql: str) -> Any:
    with (
        contextlib.closing(server.connect()) as connection,
        contextlib.closing(connection.cursor()) as cursor,
    ):
        cursor.execute(sql)
        connection.commit()
        return cursor.fetchall() if cursor.description else None


@pytest.mark.variants("mariadb", "mysql")
@pytest.mark.parametrize("kind", ["postgres", "mariadb", "mysql"])
def test_a_killed_server_comes_back_on_its_port_with_every_commit(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server: DatabaseServer = request.getfixturevalue(kind)
    port = server.port
    asked(server, "CREATE TABLE kept (a int)")
    asked(server, "INSERT INTO kept VALUES (7)")
    server.kill()
    assert not server.is_running
    with pytest.raises(Exception, match=r"refused|connect"):
        server.connect(timeout_s=2)
    server.restart()
    assert server.port == port
    assert [tuple(row) for row in asked(server, "SELECT a FROM kept")] == [(7,)]
    asked(server, "DROP TABLE kept")


def test_a_stopped_server_leaves_nothing_running() -> None:
    with Postgres() as server:
        port, folder = server.port, server.folder
        assert folder.exists()
    assert not folder.exists()
    assert ports.is_free(port)
    server.stop()


@pytest.mark.parametrize("kind", ["postgres", "mariadb", "mysql"])
def test_a_frozen_server_does_not_answer_until_it_is_thawed(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(kind)
    with contextlib.closing(server.connect()) as before:
        server.freeze()
        try:
            with pytest.raises(Exception, match="time"):
                server.connect(timeout_s=1)
        finally:
            server.thaw()
        with contextlib.closing(before.cursor()) as cursor:
            cursor.execute("SELECT 1")
            assert tuple(cursor.fetchone()) == (1,)


def test_a_server_ends_with_the_process_that_started_it_even_by_sigkill(tmp_path: Path) -> None:
    program = (
        "import os, signal; from holdfast.dev.databases.servers import Postgres\nserver = Postgres().start();"
        " print(server._child.pid, server.folder, flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid, folder = done.stdout.split()
    until_s = system_clock.monotonic_s() + DEADLINE_S
    while processes.birth_of(int(pid)) is not None:
        assert system_clock.monotonic_s() < until_s, "the server outlived its owner"
    subprocess.run(["rm", "-rf", folder], check=True, timeout=DEADLINE_S)


def test_a_server_that_cannot_start_says_what_its_log_says_and_leaves_nothing(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "initdb").write_text("#!/bin/sh\necho no room on the disk\nexit 3\n")
    (programs / "postgres").write_text("#!/bin/sh\nexit 1\n")
    for each in programs.iterdir():
        each.chmod(0o755)
    server = Postgres(programs=programs)
    folder = server.folder
    with pytest.raises(DevBrokerError, match=r"exited with 3: no room on the disk"):
        server.start()
    assert not folder.exists()


@pytest.mark.variants("MySQL", "MariaDB")
@pytest.mark.parametrize("make", [Postgres, MariaDB, MySQL])
def test_another_server_on_a_folder_has_the_password_that_its_data_know(make: type[DatabaseServer]) -> None:
    """A second object drew a password of its own, and failed after its whole deadline."""
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # not pytest's, which the user that Postgres runs as may not enter
        check_password_stays(make, Path(folder))


def check_password_stays(make: type[DatabaseServer], folder: Path) -> None:
    with make(folder) as first:
        asked(first, "CREATE TABLE kept (id integer)")
    second = make(folder)
    assert second.password == first.password
    assert (folder / "secret").stat().st_mode & 0o777 == 0o600
    with second:
        assert list(asked(second, "SELECT count(*) FROM kept")) == [(0,)]


def test_data_with_an_unknown_password_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(DevBrokerError, match="no file secret with their password; remove the folder"):
        Postgres(tmp_path).start()


def test_a_distribution_without_postgres_is_given_the_fetched_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "_postgres_places", lambda: ())
    monkeypatch.setattr(binaries, "fetched_postgres", lambda **_: Path("fetched"))
    assert binaries.find_postgres() == Path("fetched")


@pytest.mark.slow
def test_the_fetched_postgres_works_as_the_distributions_does() -> None:
    with Postgres(programs=binaries.fetched_postgres()) as server:
        assert "17.5" in asked(server, "SELECT version()")[0][0]


def test_another_machine_gets_advice_on_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(DevBrokerError, match="apt-get install mariadb-server"):
        binaries.fetched_mariadb()
