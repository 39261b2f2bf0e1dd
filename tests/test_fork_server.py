"""Forked workers behave as ordinary ones: in how they begin, their output, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO

import pytest

from holdfast.dev import parent_death, processes
from tests.support import fork_server
from tests.support.fork_server import ForkedProcess, Process
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are ordinary processes"),
]

PROBE = "tests.support.start_probe"
ENVIRONMENT = {
    **fork_server.BEGUN,  # not os.environ: a Spark session of this process sets PYTHONSAFEPATH there
    "PYTHONPATH": str(ROOT),
    "HOLDFAST_APP": "probed",
    "CHAOS_SOURCE": "of-this-test",
}

Start = Callable[..., Process]


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Heed SIGINT here: a shell's background job ignores it, and so would the ordinary processes it
    starts.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def command(*words: str, module: str = PROBE) -> list[str]:
    return [*fork_server.INTERPRETER, module, *fork_server.LOOP, *words]


def ordinary(line: list[str], *, env: Mapping[str, str], cwd: Path, out: IO[bytes]) -> Process:
    """Start a worker without a fork server."""
    bound = [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid()), *line]
    return subprocess.Popen(bound, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def ran(
    start: Start,
    line: list[str],
    folder: Path,
    *,
    forked: bool | None = None,
    more: Mapping[str, str] = MappingProxyType({}),
) -> tuple[int, str]:
    """Return the exit code and the output of a command."""
    log = folder / "out.log"
    with log.open("wb") as out:
        process = start(line, env={**ENVIRONMENT, **more}, cwd=folder, out=out)
    assert isinstance(process, ForkedProcess) == (start is fork_server.start if forked is None else forked)
    return process.wait(DEADLINE_S), log.read_text()


@pytest.mark.variant
@pytest.mark.parametrize("hangup", [signal.SIG_DFL, signal.SIG_IGN], ids=["heeds hangup", "ignores hangup"])
def test_a_forked_worker_begins_as_an_ordinary_one(hangup: signal.Handlers, tmp_path: Path) -> None:
    """A server may have begun under `nohup`, and an event loop has heeded SIGHUP here since; or the other
    way.
    """
    for _ in range(fork_server.SEEDS):
        fork_server._next_server()  # begun by now, with what SIGHUP does now
    before = signal.signal(signal.SIGHUP, hangup)
    try:
        _begins_as_an_ordinary_one(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)


def _begins_as_an_ordinary_one(tmp_path: Path) -> None:
    (one, told), (other, wanted) = (
        ran(start, command("tell"), tmp_path) for start in (fork_server.start, ordinary)
    )
    assert (one, other) == (0, 0), told
    assert json.loads(told.splitlines()[1]) == json.loads(wanted.splitlines()[1])


@pytest.mark.variant
@pytest.mark.parametrize(
    "line",
    [
        *(command(way) for way in ("code", "text", "error", "chain", "interrupt", "killed", "thread")),
        command("worker", module="tests.support.no_such_module"),
        command("worker", module="tests.support.fork_server.no_package"),
        command("worker", "--no-such-option", module="tests.chaos.worker"),
        command("no-such-command", module="tests.chaos.worker"),
        command("worker", "--help", module="tests.chaos.worker"),
    ],
    ids=lambda line: " ".join(line[3:]),
)
def test_a_forked_worker_ends_as_an_ordinary_one(line: list[str], tmp_path: Path) -> None:
    assert ran(fork_server.start, line, tmp_path) == ran(ordinary, line, tmp_path)


def test_a_failing_import_has_the_code_and_the_output_of_an_ordinary_process(tmp_path: Path) -> None:
    line = command("worker", module="tests.chaos.worker")
    environment = {"CHAOS_FAULT": "committing:no-number", "CHAOS_OUT": "out"}
    code, said = ran(fork_server.start, line, tmp_path, more=environment)
    assert (code, said) == ran(ordinary, line, tmp_path, more=environment)
    assert code == 1
    assert "ValueError" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_forked_worker_dies_of_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    codes = []
    for start in (fork_server.start, ordinary):
        process = waiting(start, tmp_path)
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(number)
        codes.append(process.wait(DEADLINE_S))
        assert process.poll() == process.returncode == codes[-1]
        process.kill()  # nothing is there: no error, no signal
    assert codes == [-number, -number]


def waiting(start: Start, folder: Path) -> Process:
    """Return a probe that has begun and waits."""
    log = folder / "out.log"
    with log.open("wb") as out:
        process = start(command("wait"), env=ENVIRONMENT, cwd=folder, out=out)
    wait_for("the probe", lambda: "begins" in log.read_text(), DEADLINE_S, log.read_text)
    return process


def test_a_paused_worker_continues(tmp_path: Path) -> None:
    process = waiting(fork_server.start, tmp_path)
    birth = processes.birth_of(process.pid)
    assert birth is not None
    assert processes.pause(process.pid, birth)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    process.send_signal(signal.SIGCONT)
    assert process.wait(DEADLINE_S) == -signal.SIGTERM


def test_a_pid_is_not_free_before_the_code_is_known(tmp_path: Path) -> None:
    process = waiting(fork_server.start, tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    stat = Path(f"/proc/{process.pid}/stat")
    wait_for("a zombie", lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", DEADLINE_S)
    assert processes.birth_of(process.pid) is None
    assert process.wait(DEADLINE_S) == -signal.SIGKILL
    wait_for("its pid to be free", lambda: not stat.exists(), DEADLINE_S)


def test_two_workers_in_turn_have_different_hash_seeds(tmp_path: Path) -> None:
    seeds = [ran(fork_server.start, command("hash"), tmp_path)[1] for _ in range(4)]
    assert seeds[0] != seeds[1]
    assert seeds[:2] == seeds[2:]


def test_what_imports_read_is_read_by_an_ordinary_process(tmp_path: Path) -> None:
    with (tmp_path / "out.log").open("wb") as out:
        started = fork_server.start(
            command("hash"), env={**ENVIRONMENT, "PYTHONHASHSEED": "7"}, cwd=tmp_path, out=out
        )
    assert isinstance(started, subprocess.Popen)
    assert started.wait(DEADLINE_S) == 0
    server = fork_server._next_server()
    assert server.serves({**ENVIRONMENT, "HOLDFAST_WEB_PORT": "1", "CHAOS_FAULT": "begin:1", "HOME": "/"})
    for changed in (
        {"PYTHONPATH": f"{ROOT}{os.pathsep}/tmp"},
        {"NO_CYTHON": "1"},
        {"AIOKAFKA_NO_EXTENSIONS": "1"},
        {"F_DEBUG": "1"},
        {"TZ": "Asia/Tokyo"},
    ):
        assert not server.serves({**ENVIRONMENT, **changed}), changed


@pytest.mark.parametrize(
    "line",
    [
        [sys.executable, "-m", PROBE, *fork_server.LOOP, "hash"],
        [sys.executable, "-P", "-m", PROBE, "--loop", "aio", "hash"],
        command("--datadir", "/tmp/elsewhere", "hash"),
    ],
    ids=lambda line: " ".join(line[1:]),
)
def test_commands_of_another_form_are_ordinary_processes(line: list[str], tmp_path: Path) -> None:
    assert ran(fork_server.start, line, tmp_path, forked=False)[0] == 0


def test_a_server_and_its_workers_end_with_the_tests_even_by_sigkill(tmp_path: Path) -> None:
    program = f"""
import os, sys, time
from pathlib import Path
from tests.support import fork_server
with open({str(tmp_path / "worker.log")!r}, "wb") as out:
    process = fork_server.start(
        {command("wait")!r}, env={{**os.environ}}, cwd=Path({str(ROOT)!r}), out=out
    )
print(fork_server._servers[0].pid, process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pids = [int(each) for each in owner.stdout.readline().split()]
        births = {pid: processes.birth_of(pid) for pid in pids}
        owner.kill()
    assert len(births) == 2
    for pid, birth in births.items():
        assert birth is not None
        assert processes.wait_gone(pid, birth, deadline_s=DEADLINE_S)


def test_a_worker_is_gone_with_its_server(tmp_path: Path) -> None:
    server = fork_server.ForkServer("PRELOADED", *fork_server.LOOP)
    log = tmp_path / "out.log"
    with log.open("wb") as out:
        process = server.fork(command("wait"), env=ENVIRONMENT, cwd=tmp_path, out=out, errors=out)
    wait_for("the probe", lambda: "begins" in log.read_text(), DEADLINE_S, log.read_text)
    birth = processes.birth_of(process.pid)
    server.close()
    assert birth is not None
    assert processes.wait_gone(process.pid, birth, deadline_s=DEADLINE_S)
    assert process.wait(DEADLINE_S) == -signal.SIGKILL
    with log.open("wb") as out, pytest.raises((RuntimeError, OSError)):
        server.fork(command("tell"), env=ENVIRONMENT, cwd=tmp_path, out=out, errors=out)


def holdfast(*words: str) -> list[str]:
    return [*fork_server.INTERPRETER, fork_server.COMMAND, *words]


@pytest.mark.variant
@pytest.mark.parametrize(
    "line",
    [
        holdfast("config", "-o", "json"),
        holdfast("topics", "list", "--no-such-option"),
        holdfast("--bootstrap", "127.0.0.1:1", "--set", "request_timeout_s=1", "topics", "list", "--all"),
        holdfast("-A", "no_such_module", "topics", "list"),
        holdfast(),
    ],
    ids=lambda line: " ".join(line[4:]),
)
def test_a_forked_command_ends_as_an_ordinary_one(line: list[str], tmp_path: Path) -> None:
    done = fork_server.run(line, env=ENVIRONMENT, cwd=tmp_path, timeout=DEADLINE_S)
    wanted = subprocess.run(
        line,
        env=ENVIRONMENT,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (wanted.returncode, wanted.stdout, wanted.stderr)
    assert done.stdout or done.stderr


def test_a_forked_command_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "pid"
    (tmp_path / "waiting.py").write_text(
        "import os, time\nprint(os.getpid(), file=open('pid', 'w'), flush=True)\ntime.sleep(600)\n"
    )
    usual = ForkedProcess.wait

    def wait(process: ForkedProcess, timeout: float | None = None) -> int:
        wait_for("its begin", lambda: pid.exists() and pid.read_text(), DEADLINE_S)
        return usual(process, timeout)

    monkeypatch.setattr(ForkedProcess, "wait", wait)
    line = holdfast("-A", "waiting", "topics", "list")
    # What other tests have left in the environment would make this an ordinary process.
    with pytest.raises(subprocess.TimeoutExpired):
        fork_server.run(line, env=fork_server.BEGUN, cwd=tmp_path, timeout=0.01)
    wait_for("its end", lambda: processes.birth_of(int(pid.read_text())) is None, DEADLINE_S)
