"""A database server as a process of this one: started, waited for, killed, frozen and started again on its
data.
"""

from __future__ import annotations

import contextlib
import os
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
from holdfast.dev import parent_death, ports
from holdfast.dev.processes import birth_of, pause
from holdfast.errors import DevBrokerError

START_DEADLINE_S = 90.0  # for machines under load; a server that ends is noticed at once
INIT_DEADLINE_S = 120.0
STOP_GRACE_S = 10.0
PASSWORD_FILE = "secret"
_POLL_S = 0.05
_LOG_LINES = 15


class DatabaseServer(ABC):
    """One server in one folder (by default a temporary one, removed at `stop`). Nothing runs before `start`.

    With *durable*, a commit is on disk before it is answered, as in production; without, it has left the
    process: a kill loses nothing.
    """

    kind: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    sets_password: ClassVar[bool] = True
    """True if each start sets the password of the data again."""

    def __init__(self, folder: Path | str | None = None, *, durable: bool = False) -> None:
        self._own: Path | None = None
        self._given = None if folder is None else Path(folder).absolute()
        self.durable = durable
        self.port = 0
        self.password = self._kept_password() or secrets.token_urlsafe(18)
        """The password of its folder, from its file `secret`: a server on these data needs the password that
        made them.
        """
        self._forker: ThreadPoolExecutor | None = None
        self._child: subprocess.Popen[bytes] | None = None

    # --- what it is -----------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def url(self) -> str:
        """The address of its database for SQLAlchemy, with the password."""

    @abstractmethod
    def connect(self, *, timeout_s: float = 10.0) -> Any:
        """Return a new DB-API connection to its database."""

    @property
    def folder(self) -> Path:
        """Return the folder of its data and its log."""
        if self._given is not None:
            return self._given
        if self._own is None:
            self._own = Path(tempfile.mkdtemp(prefix=f"holdfast-{self.kind}-"))
        return self._own

    @property
    def is_running(self) -> bool:
        """Return whether its process exists, frozen or not."""
        return self._child is not None and self._child.poll() is None

    # --- start and stop -------------------------------------------------------------------------------------

    def start(self, *, deadline_s: float = START_DEADLINE_S) -> Self:
        """Start the server, on the data of its folder or on new data, and return when it answers.

        A start that fails leaves nothing running.
        """
        if self.is_running:
            raise DevBrokerError(f"{self.kind} in {self.folder} runs already")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._settle_password()
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

    def _kept_password(self) -> str | None:
        """Return the password that the data of a given folder were made with; None where there is none
        yet.
        """
        if (folder := self._given or self._own) is None:
            return None
        with contextlib.suppress(FileNotFoundError):
            return (folder / PASSWORD_FILE).read_text().strip() or None
        return None

    def _settle_password(self) -> None:
        """Take the password that the data know, or leave the own one with data that are made now; only
        this user may read it.
        """
        if kept := self._kept_password():
            self.password = kept
            return
        if (self.folder / "data").exists() and not self.sets_password:
            raise DevBrokerError(
                f"{self.folder} has data of {self.kind} and no file {PASSWORD_FILE} with their password;"
                " remove the folder"
            )
        descriptor = os.open(self.folder / PASSWORD_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, 0o600)
            file.write(self.password)

    @abstractmethod
    def _initialise(self) -> None:
        """Make the data folder."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command that runs the server."""

    def _run(self, command: list[str], *, input_text: str = "", **more: Any) -> None:
        """Run a program that prepares data, and raise DevBrokerError with its output when it fails."""
        try:
            done = subprocess.run(
                command,
                cwd="/",
                input=input_text,
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
            raise DevBrokerError(
                f"{command[0]} exited with {done.returncode}:"
                f" {' | '.join(done.stdout.splitlines()[-_LOG_LINES:])}"
            )

    def _launch(self) -> None:
        bound = [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid()), *self._command()]

        def fork() -> None:
            with (self.folder / "server.log").open("ab") as log:
                self._child = subprocess.Popen(
                    bound,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd="/",
                    start_new_session=True,
                )

        # A bound server dies with the thread that forked it, so one thread forks and lives as long as this
        # object.
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
                    raise DevBrokerError(
                        f"{self.kind} ended at its start; its log says: {self._log_tail()}"
                    ) from error
                if system_clock.monotonic_s() > until_s:
                    raise DevBrokerError(
                        f"{self.kind} did not answer within {deadline_s:.0f} s: {error}; {self._log_tail()}"
                    ) from error
            time.sleep(_POLL_S)

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return " | ".join(
                (self.folder / "server.log").read_text(errors="replace").splitlines()[-_LOG_LINES:]
            )
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- trouble on demand ----------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the server by SIGKILL, as a crash would; returns when all of it is gone.

        `restart` brings it back.
        """
        self._end(0)
        self._wait_silent()

    def restart(self, *, deadline_s: float = START_DEADLINE_S) -> None:
        """Start the server again on its old port and data, ending it first when it runs; returns when it
        answers.
        """
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
        """Stop every process of the server by SIGSTOP: connections stay open, and nothing is answered
        until `thaw`.
        """
        for pid in self.processes():  # the head first, so that it forks no more
            if (birth := birth_of(pid)) is not None:
                pause(pid, birth)

    def thaw(self) -> None:
        """Let a frozen server continue."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def processes(self) -> list[int]:
        """Return the ids of the server's processes, the head first; Postgres has one for each connection."""
        return _family(self._process().pid)

    def _process(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            raise DevBrokerError(f"{self.kind} in {self.folder} does not run; call start() first")
        return self._child


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
