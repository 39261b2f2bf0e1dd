"""Worker processes without the half second of imports: forked from a process that has imported the modules of
every worker. Commands of `holdfast` likewise.

`start` takes the command of a worker and returns a process with the interface of `subprocess.Popen`; `run`
takes one of `holdfast` and returns the result of `subprocess.run`. The process has the command's environment,
folder and output, and ends with the test process, however that ends.

A fork server starts no thread, event loop, client or store, so that a fork copies none; it checks before each
fork. Values that modules read from the environment on import are the same for all children of a server: a
command that would have them read others gets an ordinary process, and so do commands of another form. Tests
of the start itself (entry points, `faust -A`, interpreters) use `subprocess`.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import io
import itertools
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, NamedTuple, Protocol

from holdfast.dev import parent_death
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

PRELOADED = (
    "holdfast.agents.app",
    "holdfast.agents.faust.transport.transport",
    "faust.cli.faust",
    "faust.fixups.django",
    "faust.stores.memory",
    "faust.tables.objects",
    "faust.tables.sets",
    "faust.topics",
    "faust.transport.conductor",
    "faust.transport.drivers.aiokafka",
    "faust.web.apps.production_index",
    "faust.web.drivers.aiohttp",
)
"""Modules that each worker imports before it is ready, apart from its own. They create no application, so
they read no settings.
"""

COMMAND = "holdfast.cli"
PRELOADED_COMMAND = (
    "holdfast.agents.app",
    "holdfast.cli.options.application",
    "holdfast.cli.output",
    "holdfast.cli.tables.tables",
    "holdfast.clients.groups.broker",
    "holdfast.clients.topics.application",
    "holdfast.pipeline.spark.errors",
    "typer._adapters",
)
"""Modules imported by most `holdfast` commands that work on a cluster. None of them starts a thread; pyarrow,
which does, is left out. The last is imported by typer when it reads the first option: it is pydantic, a third
of such a command's start.
"""

COPYING = ("croniter", "wsgiref.handlers")
"""Modules that copy the whole environment as they are imported: to ask the program `file` about the machine,
and for CGI, which no worker has. They are imported before the variables that are read are noted.
"""

INTERPRETER = (sys.executable, "-P", "-m")
LOOP = ("--loop", "uvloop")
"""Faust chooses its event loop as it is imported, from its arguments."""

STARTING = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "OPENSSL_", "SSL_")
"""Beginnings of the variables that C code reads, at the start of a process or later."""

SEEDS = 2
"""Servers that take turns. Children of one server share its hash seed, and thereby the order of their sets: a
fold that depends on it would give two such workers the same rows.
"""

_MESSAGE_BYTES = 1 << 20
_POLL_S, _POLL_MAX_S = 0.0005, 0.05


class Process(Protocol):
    """The part of `subprocess.Popen` that tests use."""

    pid: int
    returncode: int | Any  # None while it runs, as typeshed has it for Popen

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


def start(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    out: IO[bytes],
    errors: IO[bytes] | None = None,
) -> Process:
    """Start *command* with its output in *out*, and its errors there too if not in *errors*, and without
    input; it cannot outlive this process.
    """
    errors = out if errors is None else errors
    if sys.platform == "linux" and _has_form(command) and (server := _next_server()).serves(env):
        return server.fork(command, env=env, cwd=cwd, out=out, errors=errors)
    return subprocess.Popen(
        [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid()), *command],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=errors,
    )


def run(
    command: Sequence[str], *, env: Mapping[str, str], cwd: Path, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a *command* `python -P -m holdfast.cli …` to its end, without input; return its code and its texts.

    It can import the tests' modules, as the server can. Raises `subprocess.TimeoutExpired` after *timeout*
    seconds; it has ended then.
    """
    assert tuple(command[:4]) == (*INTERPRETER, COMMAND), command
    env = {**env, "PYTHONPATH": str(ROOT)}
    if sys.platform != "linux" or not (server := _command_server()).serves(env):
        return subprocess.run(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    with tempfile.TemporaryFile("w+b") as out, tempfile.TemporaryFile("w+b") as errors:
        process = server.fork(command, env=env, cwd=cwd, out=out, errors=errors)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        texts = [_text(each) for each in (out, errors)]
    return subprocess.CompletedProcess(list(command), code, *texts)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return io.TextIOWrapper(io.BytesIO(file.read()), encoding="utf-8").read()


def _has_form(command: Sequence[str]) -> bool:
    """Return whether a server can run *command*: its options of the interpreter and of the loop are the
    server's, and Faust finds no others that it reads as it is imported.

    >>> _has_form([*INTERPRETER, "shop", *LOOP, "worker"])
    True
    >>> [_has_form([*INTERPRETER, "shop", *rest]) for rest in (["worker"], [*LOOP, "--datadir=d", "worker"])]
    [False, False]
    """
    return (
        tuple(command[:3]) == INTERPRETER
        and tuple(command[4:6]) == LOOP
        and not any(word.startswith(("-L", "--loop", "-D", "--datadir")) for word in command[6:])
    )


BEGUN = dict(os.environ)
"""The environment before any test: the one during which a server starts may have set a variable for itself.
"""

_servers: list[ForkServer] = []
_command_servers: list[ForkServer] = []
_turns = itertools.count()
_starting = threading.Lock()


def _next_server() -> ForkServer:
    """Return the server whose turn it is; each starts with its first turn."""
    with _starting:
        turn = next(_turns) % SEEDS
        if turn == len(_servers):
            _servers.append(ForkServer("PRELOADED", *LOOP))
        return _servers[turn]


def _command_server() -> ForkServer:
    """Return the server of commands, which starts with the first of them."""
    with _starting:
        if not _command_servers:
            _command_servers.append(ForkServer("PRELOADED_COMMAND"))
        return _command_servers[0]


class _Request(NamedTuple):
    """A request to a server. *ignores_hangup*: the requesting process ignores SIGHUP, because of `nohup` or a
    test.
    """

    command: list[str]
    env: dict[str, str]
    cwd: str
    ignores_hangup: bool


# --- in the test process


class ForkServer:
    """A server as the test process sees it. It ends with that process: it reads the end of its socket.

    It imports the modules named here under *preloaded*, with *arguments* on its command line.
    """

    def __init__(self, preloaded: str = "PRELOADED", *arguments: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._env = {**BEGUN, "PYTHONPATH": str(ROOT)}
        program = f"import {__name__} as it; it.serve({theirs.fileno()}, it.{preloaded})"
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-P", "-c", program, *arguments],
                env=self._env,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._socket.settimeout(DEADLINE_S)
        if not (ready := self._socket.recv(_MESSAGE_BYTES)):
            raise RuntimeError(
                f"the fork server of workers ended at its start with {self._server.wait(DEADLINE_S)}"
            )
        self._read_at_import = frozenset(json.loads(ready))
        self._socket.settimeout(None)

    @property
    def pid(self) -> int:
        return self._server.pid

    def serves(self, env: Mapping[str, str]) -> bool:
        """Return whether imports under *env* would have had the same result as this server's imports."""
        changed = {name for name in {*env, *self._env} if env.get(name) != self._env.get(name)}
        return not any(name in self._read_at_import or name.startswith(STARTING) for name in changed)

    def fork(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        out: IO[bytes],
        errors: IO[bytes],
    ) -> ForkedProcess:
        """Start *command*, which must be one that `start` or `run` forks."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        asked = _Request(
            list(command), dict(env), str(cwd), signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        )
        request = json.dumps(asked._asdict()).encode()
        with theirs:
            socket.send_fds(self._socket, [request], [out.fileno(), errors.fileno(), theirs.fileno()])
        pid = ours.recv(_MESSAGE_BYTES)
        if not pid:
            ours.close()
            raise RuntimeError(f"the fork server {self._server.pid} of workers is gone")
        return ForkedProcess(command, int(pid), ours)

    def close(self) -> None:
        """End the server and its children."""
        self._socket.close()
        self._server.wait(DEADLINE_S)


class ForkedProcess:
    """A child of a fork server, with the interface of `subprocess.Popen`.

    The server leaves a child that ended a zombie until `poll` or `wait` has returned its code, so a signal
    never goes to another process that got its pid.
    """

    def __init__(self, args: Sequence[str], pid: int, status: socket.socket) -> None:
        self.args, self.pid, self.returncode = args, pid, None
        self._status, self._lock = status, threading.Lock()

    returncode: int | Any  # None while it runs, as typeshed has it for Popen

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        with self._lock:
            if self.returncode is None:
                try:
                    code = self._status.recv(_MESSAGE_BYTES, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    return None
                # Without a code the server is gone: the kernel has killed its children.
                self.returncode = int(code) if code else -signal.SIGKILL
                self._status.close()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once there is one; raises `subprocess.TimeoutExpired` after *timeout*
        seconds.
        """
        until_s = None if timeout is None else time.monotonic() + timeout
        delay_s = _POLL_S
        while (code := self.poll()) is None:
            if until_s is not None and timeout is not None and time.monotonic() >= until_s:
                raise subprocess.TimeoutExpired(list(self.args), timeout)
            delay_s = min(2 * delay_s, _POLL_MAX_S)
            time.sleep(delay_s)
        return code

    def send_signal(self, sig: int) -> None:
        """Send *sig* unless it is known to have ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


# --- in the server


class _Recording(type(os.environ)):  # type: ignore[misc]  # the class of os.environ has no public name
    """An environment that notes which variables are read; `*` stands for all of them."""

    names: ClassVar[set[str]] = set()

    def __getitem__(self, key: str) -> str:
        self.names.add(key)
        return super().__getitem__(key)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[str]:
        self.names.add("*")
        return super().__iter__()  # type: ignore[no-any-return]


def preload(modules: Sequence[str] = PRELOADED) -> tuple[set[str], dict[str, str]]:
    """Import *modules*; return the names of the variables they read, and the variables they set."""
    for each in COPYING:
        importlib.import_module(each)
    before, usual = dict(os.environ), os.environ.__class__
    os.environ.__class__ = _Recording
    try:
        for each in modules:
            importlib.import_module(each)
    finally:
        os.environ.__class__ = usual
    return _Recording.names, {name: it for name, it in os.environ.items() if before.get(name) != it}


def serve(descriptor: int, modules: Sequence[str] = PRELOADED) -> None:
    """Fork a child for each request until the test process is gone. In a child, run the command asked for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C at the terminal is for the tests and for workers
    read, exported = preload(modules)
    assert "*" not in read, "a module reads the whole environment as it is imported"
    gc.collect()
    gc.freeze()  # or the collector of each child would write to, and copy, every page
    asked = socket.socket(fileno=descriptor)
    asked.send(json.dumps(sorted(read)).encode())
    command = _Server(asked, exported).run()
    _run(command)


class _Server:
    """The loop of a server: requests, children that ended, and test processes that know of it."""

    def __init__(self, asked: socket.socket, exported: Mapping[str, str]) -> None:
        self._asked, self._exported = asked, exported
        self._pid = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._selector.register(asked, selectors.EVENT_READ)
        self._running: dict[int, tuple[int, socket.socket]] = {}
        self._ended: dict[socket.socket, int] = {}

    def run(self) -> list[str]:
        """Return in a child only, with the command it is to run."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._asked:
                    if command := self._on_request():
                        return command
                elif isinstance(key.fileobj, socket.socket):
                    self._on_known(key.fileobj)
                else:
                    self._on_end(key.fd)

    def _on_request(self) -> list[str] | None:
        """Fork; return the command in the child, None in the server."""
        message, descriptors, _, _ = socket.recv_fds(self._asked, _MESSAGE_BYTES, 3)
        if not message:
            os._exit(0)  # the test process is gone; the kernel kills the children
        threads = os.listdir("/proc/self/task")
        assert len(threads) == 1, (
            f"{len(threads)} threads: a fork would copy one of them, and locks of the others"
        )
        out, errors, status = *descriptors[:2], socket.socket(fileno=descriptors[2])
        pid = os.fork()
        if pid == 0:
            request = _Request(**json.loads(message))
            self._become(request, (out, errors), status)
            return request.command
        os.close(out)
        os.close(errors)
        status.send(str(pid).encode())
        ends = os.pidfd_open(pid)
        self._running[ends] = pid, status
        self._selector.register(ends, selectors.EVENT_READ)
        return None

    def _become(self, request: _Request, outputs: tuple[int, int], status: socket.socket) -> None:
        """Give this child the files of a `subprocess` child, and none of the server."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(parent_death.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
        if os.getppid() != self._pid:
            sys.exit("the owner is gone")
        with ExitStack() as stack:  # closed as objects: a second close later would close a worker's file
            stack.callback(self._selector.close)
            for each in (self._asked, status, *self._ended):
                stack.callback(each.close)
            for ends, (_, of_another) in self._running.items():
                stack.callback(os.close, ends)
                stack.callback(of_another.close)
        for standard, output in enumerate(outputs, 1):
            os.dup2(output, standard)
            os.close(output)
        os.chdir(request.cwd)
        os.environ.clear()
        os.environ.update({**request.env, **self._exported})
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if request.ignores_hangup else signal.SIG_DFL)

    def _on_end(self, ends: int) -> None:
        """Report the exit code of a child and leave it a zombie."""
        pid, status = self._running.pop(ends)
        self._selector.unregister(ends)
        os.close(ends)
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert found is not None
        code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        self._ended[status] = pid
        self._selector.register(status, selectors.EVENT_READ)
        try:
            status.send(str(code).encode())
        except OSError:
            pass  # no client holds the process any more: its socket has closed too

    def _on_known(self, status: socket.socket) -> None:
        """Let the pid of a child go whose exit code the test process has."""
        self._selector.unregister(status)
        status.close()
        os.waitpid(self._ended.pop(status), 0)


def _run(command: Sequence[str]) -> None:
    """Run *command* as `python -P -m` does, including the traceback of an uncaught error."""
    sys.orig_argv[:] = command
    sys.argv[:] = ["-m", *command[4:]]
    usual = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        while (
            trace is not None and trace.tb_frame.f_code.co_filename != runpy.run_module.__code__.co_filename
        ):
            trace = trace.tb_next
        usual(kind, error.with_traceback(trace), trace)

    sys.excepthook = hook
    main = vars(sys.modules["__main__"])
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]
    runpy._run_module_as_main(command[3], alter_argv=True)  # type: ignore[attr-defined]  # what `-m` calls
