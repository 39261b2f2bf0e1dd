"""A real PostgreSQL, MariaDB or MySQL on this machine, for development and tests.

    with Postgres(folder) as postgres:
        engine = create_engine(postgres.url)

Servers listen on loopback only, on a free port, with a password. They keep their data in their folder, end
with the process that started them (on Linux, even by SIGKILL; the password stays in the folder, in `secret`),
and can be frozen, killed and started again to see what a client makes of it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
from pathlib import Path
from typing import Any

from holdfast.dev.databases import binaries
from holdfast.dev.databases.server import DatabaseServer
from holdfast.errors import DevBrokerError

__all__ = ["DatabaseServer", "MariaDB", "MySQL", "Postgres"]

USER = "holdfast"
DATABASE = "holdfast"


class Postgres(DatabaseServer):
    """PostgreSQL: the distribution's, or one that is fetched.

    Run by root, it runs as `postgres` or `nobody`, for it refuses root.
    """

    kind = "postgres"
    stop_signal = signal.SIGINT  # does not wait for clients to leave
    sets_password = False

    def __init__(
        self, folder: Path | str | None = None, *, durable: bool = False, programs: Path | None = None
    ) -> None:
        super().__init__(folder, durable=durable)
        self._programs = programs

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://{USER}:{self.password}@127.0.0.1:{self.port}/{DATABASE}"

    def connect(self, *, timeout_s: float = 10.0) -> Any:
        import psycopg

        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=self.password,
            dbname=DATABASE,
            connect_timeout=max(2, round(timeout_s)),
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
        changed: dict[str, Any] = (
            {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        )
        initdb = [
            str(programs / "initdb"),
            "-D",
            str(self.folder / "data"),
            "-U",
            USER,
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
        ]
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
        self._run(single, input_text=f"CREATE DATABASE {DATABASE}\n", **changed)

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
        return [
            *become,
            str(self._find_programs() / "postgres"),
            "-D",
            str(self.folder / "data"),
            "-p",
            str(self.port),
        ]


class MariaDB(DatabaseServer):
    """MariaDB: the distribution's, or one that is fetched."""

    kind = "mariadb"

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        durable: bool = False,
        programs: tuple[Path, Path, Path | None] | None = None,
    ) -> None:
        super().__init__(folder, durable=durable)
        self._programs = programs

    @property
    def url(self) -> str:
        return f"mariadb+pymysql://{USER}:{self.password}@127.0.0.1:{self.port}/{DATABASE}?charset=utf8mb4&ssl_disabled=true"

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
            # the server has none, and the client would read all of the machine's authorities first
            ssl_disabled=True,
            connect_timeout=s,
            read_timeout=s,
        )

    def _initialise(self) -> None:
        _, install, base = self._find_programs()
        command = [
            str(install),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--tmpdir={self.folder}",
            *self._user(),
            "--skip-test-db",
            "--skip-name-resolve",
        ]
        self._run(
            [
                *command,
                "--auth-root-authentication-method=normal",
                *([] if base is None else [f"--basedir={base}"]),
            ]
        )

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
            # a server that starts removes the temporary tables of all whose folder it shares
            f"--tmpdir={self.folder}",
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

    def __init__(
        self, folder: Path | str | None = None, *, durable: bool = False, base: Path | None = None
    ) -> None:
        super().__init__(folder, durable=durable)
        self._base = base

    @property
    def url(self) -> str:
        return f"mysql+pymysql://{USER}:{self.password}@127.0.0.1:{self.port}/{DATABASE}?charset=utf8mb4&ssl_disabled=true"

    def _server(self) -> list[str]:
        if self._base is None:
            self._base = binaries.fetched_mysql()
        # Without the native I/O, since libaio is rarely there, and what would only cost memory.
        frugal = [
            "--innodb-use-native-aio=0",
            "--performance-schema=OFF",
            "--mysqlx=OFF",
            "--skip-log-bin",
            "--skip-ssl",
        ]
        base = [
            "--no-defaults",
            *self._user(),
            f"--basedir={self._base}",
            f"--datadir={self.folder / 'data'}",
        ]
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
        "PostgreSQL refuses to run as root, and this machine has neither a user postgres nor nobody; run this"
        " as another user"
    )


def _may_enter(path: Path, user: pwd.struct_passwd) -> bool:
    """Return whether *user* may go through every folder down to *path*, judged by what others may."""
    return all(
        each.stat().st_mode & 0o001 or each.stat().st_uid == user.pw_uid
        for each in [path, *path.resolve().parents]
    )
