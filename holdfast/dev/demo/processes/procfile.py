"""The processes of a Procfile, started by a program that must be able to kill them and must leave no process
running.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from honcho.environ import expand_processes, parse_procfile

from holdfast.dev import parent_death, processes
from holdfast.errors import DemoError

WORKER = (
    "HOLDFAST_WEB_PORT=${PORT:-6066}"
    " HOLDFAST_DATA_DIR=${HOLDFAST_DATA_DIR:-.holdfast/data}/${HONCHO_PROCESS_NAME:-worker.1} exec python -P"
    " -m holdfast.agents --loop uvloop worker -l info"
)
"""The content of the repository's Procfile; an installed wheel has no Procfile."""

KILL_DEADLINE_S = 60.0


def read_commands(path: Path | None = None) -> dict[str, str]:
    """Return the commands of the Procfile at *path*, by process name; of the repository's own, or its
    built-in twin, by default.
    """
    found = Path(__file__).resolve().parents[4] / "Procfile" if path is None else path
    if path is None and not found.exists():
        return {"worker": WORKER}
    try:
        commands: dict[str, str] = dict(parse_procfile(found.read_text(encoding="utf-8")).processes)
    except OSError as error:
        raise DemoError(f"cannot read {found}: {error.strerror}") from error
    if "worker" not in commands:
        raise DemoError(
            f"{found} declares no `worker`; its processes are: {', '.join(sorted(commands)) or 'none'}"
        )
    return commands


@dataclass(slots=True)
class Process:
    """One process of a Procfile. Its starter ends it; unless *detached* it also dies with this process
    (Linux).

    The command replaces the shell that reads it (`exec`), so that a signal meets the program and not its
    shell; what it starts in turn is in its process group and gets the same signals.
    """

    name: str
    command: str
    env: Mapping[str, str]
    port: int
    folder: Path
    detached: bool = False
    _child: subprocess.Popen[bytes] | None = None
    _birth: str | None = None
    # A bound process dies with the thread that forked it, so that thread stays. And what an interrupted
    # `start` forks is known to `kill` all the same, since signals reach the main thread only.
    _forker: ThreadPoolExecutor = field(
        default_factory=partial(ThreadPoolExecutor, max_workers=1, thread_name_prefix="holdfast-procfile")
    )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int:
        assert self._child is not None, f"{self.name} was never started"
        return self._child.pid

    @property
    def birth(self) -> str | None:
        """Return the mark that distinguishes the process from a later one of the same pid."""
        return self._birth

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Start it; its output is appended to `log`."""
        assert not self.running, f"{self.name} runs already"
        self._forker.submit(self._fork).result()

    def _fork(self) -> None:
        bound = [] if self.detached else [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid())]
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C at the terminal reaches the owner alone, who ends everything in
            # order.
            self._child = subprocess.Popen(
                [*bound, "/bin/sh", "-c", self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=dict(self.env),
                start_new_session=True,
            )
        self._birth = processes.birth_of(self._child.pid)

    def kill(self) -> None:
        """End it at once, by SIGKILL to its group, as the kernel's out-of-memory killer would."""
        self._forker.submit(lambda: None).result()  # one that is being forked right now is known after this
        self._signal(signal.SIGKILL)
        self._wait(KILL_DEADLINE_S)

    def stop(self, *, grace_s: float) -> None:
        """End it in order: SIGTERM, and SIGKILL after *grace_s*. Harmless when it has ended."""
        self._forker.submit(lambda: None).result()
        self._signal(signal.SIGTERM)
        if not self._wait(grace_s):
            self.kill()

    def check(self) -> None:
        """Raise DemoError with its last words if it has ended."""
        if not self.running:
            code = None if self._child is None else self._child.returncode
            raise DemoError(
                f"{self.name} ended with code {code}; the end of {self.log} says: {self.last_words()}"
            )

    def last_words(self) -> str:
        """Return the end of its log."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return "nothing"
        return " | ".join(line.strip() for line in lines[-6:] if line.strip())[-1500:] or "nothing"

    def _signal(self, number: signal.Signals) -> None:
        # Until it is waited for, a child's pid (which is its group's id) cannot be another process's.
        if self._child is not None and self.running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, number)

    def _wait(self, deadline_s: float) -> bool:
        if self._child is None:
            return True
        try:
            self._child.wait(deadline_s)
        except subprocess.TimeoutExpired:
            return False
        return True


def workers(
    count: int,
    *,
    ports: list[int],
    folder: Path,
    settings: Path,
    commands: Mapping[str, str] | None = None,
    detached: bool = False,
) -> list[Process]:
    """Return *count* workers of the Procfile, not yet started, each with its own port and data folder under
    *folder*.

    They read their settings from the file *settings*; HOLDFAST_ variables of this process do not reach them.
    """
    assert len(ports) == count
    command = (read_commands() if commands is None else commands)["worker"]
    env = _environment(folder, settings)
    declared = expand_processes({"worker": command}, concurrency={"worker": count}, env=env)
    return [
        Process(
            name=each.name,
            command=each.cmd,
            env=each.env | {"PORT": str(port)},
            port=port,
            folder=folder,
            detached=detached,
        )
        for each, port in zip(declared, ports, strict=True)
    ]


def program(name: str, *arguments: str, folder: Path, settings: Path) -> Process:
    """Return `python -P -m ARGUMENTS`, not yet started, with the environment that workers have.

    It serves no port.
    """
    command = f"exec {shlex.join((sys.executable, '-P', '-m', *arguments))}"
    return Process(name=name, command=command, env=_environment(folder, settings), port=0, folder=folder)


def worker(name: str, module: str, *, port: int, folder: Path, settings: Path) -> Process:
    """Return a worker of the application in *module*, not yet started, with its own data folder under
    *folder*.
    """
    arguments = (sys.executable, "-P", "-m", module, "--loop", "uvloop", "worker", "-l", "info")
    env = _environment(folder, settings) | {
        "HOLDFAST_WEB_PORT": str(port),
        "HOLDFAST_DATA_DIR": str(folder / "data" / name),
    }
    return Process(name=name, command=f"exec {shlex.join(arguments)}", env=env, port=port, folder=folder)


def _environment(folder: Path, settings: Path) -> dict[str, str]:
    """Return the environment of this process but for what it says of holdfast, which *settings* says
    instead.
    """
    python = Path(sys.executable).parent
    path = os.pathsep.join([str(python), os.environ.get("PATH", os.defpath)])
    if shutil.which("python", path=path) is None:
        raise DemoError(
            f"there is no `python` in {python} or on PATH, which the Procfile starts: use a virtual"
            " environment"
        )
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOLDFAST_", "HONCHO_")) and name != "PORT"
    }
    return env | {
        "PATH": path,
        "HOLDFAST_CONFIG": str(settings),
        "HOLDFAST_DATA_DIR": str(folder / "data"),
        "PYTHONUNBUFFERED": "1",
    }
