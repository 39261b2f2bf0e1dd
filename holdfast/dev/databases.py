"""A real PostgreSQL, MariaDB or MySQL on this machine, for development and tests.

    with Postgres(folder) as postgres:
        engine = create_engine(postgres.url)

Servers listen on loopback only, on a free port, with a password. They keep their data in their folder, end with the process that
started them (on Linux, even by SIGKILL), and can be frozen, killed and started again to see what a client makes of it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from holdfast.clock import system_clock
from holdfast.dev import binaries, leash, ports
from holdfast.errors import DevBrokerError

__all__ = ["DatabaseServer", "MariaDB", "MySQL", "Postgres"]

START_DEADLINE_S = 90.0  # for machines under load; a server that ends is noticed at once
INIT_DEADLINE_S = 120.0
STOP_GRACE_S = 10.0
USER = "holdfast"
DATABASE = "holdfast"
_POLL_S = 0.05
_LOG_LINES = 15


class DatabaseServer(ABC):
    """One server in one folder (a temporary one when none is given, removed at `stop`). Nothing runs before `start`.

    With *durable*, a commit is on disk before it is answered, as in production; without, it has left the process: a kill loses nothing.
    """

    kind: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, folder: Path | str | None = None, *, durable: bool = False) -> None:
        self._given = None if folder is None else Path(folder).absolute()
        self._own: Path | None = None
        self.durable = durable
        self.port = 0
        self.password = secrets.token_urlsafe(18)
        self._forker: ThreadPoolExecutor | None = None
        self._child: subprocess.Popen[bytes] | None = None

    # --- what it is ------------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def url(self) -> str:
        """The address of its database for SQLAlchemy, with the password."""

    @abstractmethod
    def connect(self, *, timeout_s: float = 10.0) -> Any:
        """Return a new DB-API connection to its database."""

    @property
    def folder(self) -> Path:
        """Where its data and its log lie."""
        if self._given is not None:
            return self._given
        if self._own is None:
            self._own = Path(tempfile.mkdtemp(prefix=f"holdfast-{self.kind}-"))
        return self._own

    @property
    def is_running(self) -> bool:
        """Whether its process lives, frozen or not."""
        return self._child is not None and self._child.poll() is None

    # --- start and stop ----------------------------------------------------------------------------------------------------------

    def start(self, *, deadline_s: float = START_DEADLINE_S) -> Self:
        """Start the server, on the data of its folder or on new data, and return when it answers. A start that fails leaves nothing running."""
        if self.is_running:
            raise DevBrokerError(f"{self.kind} in {self.folder} runs already")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not (self.folder / "data").exists():
                self._initialise()
            if not self.port or not ports.is_free(self.port):
                (self.port,) = ports.free_ports(1)
            self._launch()
            self._wait_ready(deadline_s)
        except BaseException:
            self.stop(grace_s=0)
            raise
        return self

    @abstractmethod
    def _initialise(self) -> None:
        """Make the data folder."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command that runs the server."""

    def _run(self, command: list[str], *, said: str = "", **more: Any) -> None:
        """Run a program that prepares data, and raise DevBrokerError with what it said when it fails."""
        try:
            done = subprocess.run(
                command,
                cwd="/",
                input=said,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
                timeout=INIT_DEADLINE_S,
                **more,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DevBrokerError(f"{command[0]} did not run: {error}") from error
        if done.returncode != 0:
            raise DevBrokerError(f"{command[0]} exited with {done.returncode}: {' | '.join(done.stdout.splitlines()[-_LOG_LINES:])}")

    def _launch(self) -> None:
        leashed = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), *self._command()]

        def fork() -> None:
            with (self.folder / "server.log").open("ab") as log:
                self._child = subprocess.Popen(
                    leashed, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd="/", start_new_session=True
                )

        # A leashed server dies with the thread that forked it, so one thread forks and lives as long as this object.
        if self._forker is None:
            self._forker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-dev")
        self._forker.submit(fork).result()

    def _wait_ready(self, deadline_s: float) -> None:
        until_s = system_clock.monotonic_s() + deadline_s
        while True:
            try:
                self.connect(timeout_s=2.0).close()
                return
            except Exception as error:  # of any driver: not there yet, or never
                if not self.is_running:
                    raise DevBrokerError(f"{self.kind} ended at its start; its log says: {self._log_tail()}") from error
                if system_clock.monotonic_s() > until_s:
                    raise DevBrokerError(f"{self.kind} did not answer within {deadline_s:.0f} s: {error}; {self._log_tail()}") from error
            time.sleep(_POLL_S)

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return " | ".join((self.folder / "server.log").read_text(errors="replace").splitlines()[-_LOG_LINES:])
        return "(no log)"

    def stop(self, *, grace_s: float = STOP_GRACE_S) -> None:
        """End the server: politely, then by SIGKILL after *grace_s*. Harmless when nothing runs."""
        self._end(grace_s)
        if self._forker is not None:
            self._forker.shutdown(wait=True)
            self._forker = None
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)
            self._own = None

    def _end(self, grace_s: float) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.poll() is None and grace_s > 0:
            child.send_signal(self.stop_signal)
            child.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=grace_s)
        if child.poll() is None:
            family = _family(child.pid)
            child.kill()
            for pid in family[1:]:  # a server whose head is gone may take a while to notice
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        child.wait(timeout=10)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    # --- trouble on demand ---------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the server by SIGKILL, as a crash would; returns when all of it is gone. `restart` brings it back."""
        self._end(0)
        self._wait_silent()

    def restart(self, *, deadline_s: float = START_DEADLINE_S) -> None:
        """Start the server again on its old port and data, ending it first when it runs; returns when it answers."""
        self._end(STOP_GRACE_S)
        self._wait_silent()
        self._launch()
        self._wait_ready(deadline_s)

    def _wait_silent(self) -> None:
        until_s = system_clock.monotonic_s() + 10.0
        while not ports.is_free(self.port):  # processes of its own may outlive a killed server for a moment
            if system_clock.monotonic_s() > until_s:
                raise DevBrokerError(f"{self.kind} was ended, and port {self.port} is still taken after 10 s")
            time.sleep(_POLL_S)

    def freeze(self) -> None:
        """Stop every process of the server by SIGSTOP: connections stay open, and nothing is answered until `thaw`."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        self._signal_all(signal.SIGCONT)

    def processes(self) -> list[int]:
        """Return the ids of the server's processes, the head first; Postgres has one for each connection."""
        return _family(self._process().pid)

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self.processes():  # the head first, so that it forks no more
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _process(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            raise DevBrokerError(f"{self.kind} in {self.folder} does not run; call start() first")
        return self._child


class Postgres(DatabaseServer):
    """PostgreSQL: the distribution's, or one that is fetched. Run by root, it runs as `postgres` or `nobody`, for it refuses root."""

    kind = "postgres"
    stop_signal = signal.SIGINT  # does not wait for clients to leave

    def __init__(self, folder: Path | str | None = None, *, durable: bool = False, programs: Path | None = None) -> None:
        super().__init__(folder, durable=durable)
        self._programs = programs

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://{USER}:{self.password}@127.0.0.1:{self.port}/{DATABASE}"

    def connect(self, *, timeout_s: float = 10.0) -> Any:
        import psycopg

        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, password=self.password, dbname=DATABASE, connect_timeout=max(2, round(timeout_s))
        )

    def _initialise(self) -> None:
        user = _other_user()
        if user is not None:
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        programs = self._find_programs()
        password_file = self.folder / "password"
        password_file.write_text(self.password)
        password_file.chmod(0o600)
        if user is not None:
            os.chown(password_file, user.pw_uid, user.pw_gid)
        changed: dict[str, Any] = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        initdb = [str(programs / "initdb"), "-D", str(self.folder / "data"), "-U", USER, "--encoding=UTF8", "--no-locale", "--no-sync"]
        self._run([*initdb, "--auth=scram-sha-256", f"--pwfile={password_file}"], **changed)
        password_file.unlink()
        settings = {
            "listen_addresses": "'127.0.0.1'",
            "unix_socket_directories": "''",
            "max_connections": "100",
            "max_wal_size": "'2GB'",
            **({} if self.durable else {"fsync": "off", "full_page_writes": "off"}),
        }
        with (self.folder / "data/postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())
        single = [str(programs / "postgres"), "--single", "-D", str(self.folder / "data"), "postgres"]
        self._run(single, said=f"CREATE DATABASE {DATABASE}\n", **changed)

    def _find_programs(self) -> Path:
        """Return the programs, copied into the folder where the user that runs them could not get at them."""
        if self._programs is None:
            self._programs = binaries.find_postgres()
        user = _other_user()
        if user is not None and not _may_enter(self._programs, user):
            tree = self.folder / "programs"
            if not tree.exists():
                shutil.copytree(self._programs.parent, tree, symlinks=True)
                tree.chmod(0o755)
            self._programs = tree / self._programs.name
        return self._programs

    def _command(self) -> list[str]:
        user = _other_user()
        become = [] if user is None else ["--as", f"{user.pw_uid}:{user.pw_gid}"]
        return [*become, str(self._find_programs() / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port)]


class MariaDB(DatabaseServer):
    """MariaDB: the distribution's, or one that is fetched."""

    kind = "mariadb"

    def __init__(
        self, folder: Path | str | None = None, *, durable: bool = False, programs: tuple[Path, Path, Path | None] | None = None
    ) -> None:
        super().__init__(folder, durable=durable)
        self._programs = programs

    @property
    def url(self) -> str:
        return f"mariadb+pymysql://{USER}:{self.password}@127.0.0.1:{self.port}/{DATABASE}?charset=utf8mb4"

    def connect(self, *, timeout_s: float = 10.0) -> Any:
        import pymysql

        s = max(1, round(timeout_s))
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=self.password,
            database=DATABASE,
            charset="utf8mb4",
            connect_timeout=s,
            read_timeout=s,
        )

    def _initialise(self) -> None:
        _, install, base = self._find_programs()
        command = [
            str(install),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            *self._user(),
            "--skip-test-db",
            "--skip-name-resolve",
        ]
        self._run([*command, "--auth-root-authentication-method=normal", *([] if base is None else [f"--basedir={base}"])])

    def _find_programs(self) -> tuple[Path, Path, Path | None]:
        if self._programs is None:
            self._programs = binaries.find_mariadb()
        return self._programs

    @staticmethod
    def _user() -> list[str]:
        return ["--user=root"] if os.geteuid() == 0 else []

    def _command(self) -> list[str]:
        server, _, base = self._find_programs()
        account = f"'{USER}'@'127.0.0.1'"
        first = self.folder / "first.sql"  # run at every start: the only way in
        first.write_text(
            f"CREATE DATABASE IF NOT EXISTS {DATABASE} CHARACTER SET utf8mb4;\n"
            f"CREATE OR REPLACE USER {account} IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO {account};\n"
            f"ALTER USER 'root'@'localhost' IDENTIFIED BY '{self.password}';\n"
        )
        first.chmod(0o600)
        return [
            str(server),
            "--no-defaults",
            *self._user(),
            *([] if base is None else [f"--basedir={base}"]),
            f"--datadir={self.folder / 'data'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--skip-ssl",  # else it makes itself a key at each start, which takes seconds
            f"--socket={self.folder / 's'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--init-file={first}",
            f"--innodb-flush-log-at-trx-commit={1 if self.durable else 2}",
            "--innodb-buffer-pool-size=128M",
            "--max-allowed-packet=64M",
        ]


class MySQL(MariaDB):
    """MySQL 8.0, always fetched: a distribution that has `mysqld` often means MariaDB by it."""

    kind = "mysql"

    def __init__(self, folder: Path | str | None = None, *, durable: bool = False, base: Path | None = None) -> None:
        super().__init__(folder, durable=durable)
        self._base = base

    @property
    def url(self) -> str:
        return f"mysql+pymysql://{USER}:{self.password}@127.0.0.1:{self.port}/{DATABASE}?charset=utf8mb4"

    def _server(self) -> list[str]:
        if self._base is None:
            self._base = binaries.fetched_mysql()
        # Without the native I/O, since libaio is rarely there, and what would only cost memory.
        frugal = ["--innodb-use-native-aio=0", "--performance-schema=OFF", "--mysqlx=OFF", "--skip-log-bin", "--skip-ssl"]
        base = ["--no-defaults", *self._user(), f"--basedir={self._base}", f"--datadir={self.folder / 'data'}"]
        return [str(self._base / "bin/mysqld"), *base, *frugal]

    def _initialise(self) -> None:
        self._run([*self._server(), "--initialize-insecure"])

    def _command(self) -> list[str]:
        account = f"'{USER}'@'127.0.0.1'"
        first = self.folder / "first.sql"  # one statement a line
        first.write_text(
            f"CREATE DATABASE IF NOT EXISTS {DATABASE} CHARACTER SET utf8mb4;\n"
            f"CREATE USER IF NOT EXISTS {account};\n"
            f"ALTER USER {account} IDENTIFIED WITH mysql_native_password BY '{self.password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO {account};\n"
            f"ALTER USER 'root'@'localhost' IDENTIFIED WITH mysql_native_password BY '{self.password}';\n"
        )
        first.chmod(0o600)
        return [
            *self._server(),
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            f"--socket={self.folder / 's'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--init-file={first}",
            f"--innodb-flush-log-at-trx-commit={1 if self.durable else 2}",
            "--innodb-buffer-pool-size=128M",
            "--max-allowed-packet=64M",
        ]


def _other_user() -> pwd.struct_passwd | None:
    """Return the user that a server which refuses root runs as; None when this process is not root's."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise DevBrokerError(
        "PostgreSQL refuses to run as root, and this machine has neither a user postgres nor nobody; run this as another user"
    )


def _may_enter(path: Path, user: pwd.struct_passwd) -> bool:
    """Return whether *user* may go through every folder down to *path*, judged by what others may."""
    return all(each.stat().st_mode & 0o001 or each.stat().st_uid == user.pw_uid for each in [path, *path.resolve().parents])


def _family(head: int) -> list[int]:
    """Return *head* and all its descendants (Postgres has one for each connection), parents first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            parent = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [head]
    for pid in found:
        found += children.get(pid, [])
    return found
