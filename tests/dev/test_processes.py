"""Processes known by more than a pid; ports that clients cannot steal; a bond that SIGKILL cannot break."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.dev import parent_death, ports, processes
from tests.support.patience import DEADLINE_S

LINUX = sys.platform.startswith("linux")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Give a process that runs until it is ended."""
    with subprocess.Popen(["sleep", "600"]) as child:
        yield child
        child.kill()


def birth(pid: int) -> str:
    found = processes.birth_of(pid)
    assert found is not None
    return found


def test_a_process_is_known_until_it_ends_even_as_a_zombie(sleeper: subprocess.Popen[bytes]) -> None:
    born = birth(sleeper.pid)
    assert processes.is_alive(sleeper.pid, born)
    processes.kill(sleeper.pid, born)
    # It has not been waited for yet: the kernel still lists the pid, and it counts as gone.
    assert os.path.exists(f"/proc/{sleeper.pid}") == LINUX
    assert not processes.is_alive(sleeper.pid, born)
    assert processes.birth_of(sleeper.pid) is None


def test_a_recycled_pid_is_never_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    someone_else = birth(os.getpid())
    assert birth(sleeper.pid) != someone_else
    assert not processes.send(sleeper.pid, someone_else, signal.SIGKILL)
    processes.kill(sleeper.pid, someone_else)
    processes.end(sleeper.pid, someone_else, grace_s=1)
    assert sleeper.poll() is None
    assert processes.send(sleeper.pid, birth(sleeper.pid), signal.SIGKILL), (
        "the same call with the right identity does end it"
    )
    assert sleeper.wait(DEADLINE_S) == -signal.SIGKILL


def test_a_process_that_ignores_sigterm_is_killed_after_its_grace() -> None:
    code = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True);"
        " signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as deaf:
        assert deaf.stdout is not None
        deaf.stdout.readline()
        processes.end(deaf.pid, birth(deaf.pid), grace_s=0.2)
        assert deaf.wait(DEADLINE_S) == -signal.SIGKILL


def test_a_paused_process_hears_sigterm(sleeper: subprocess.Popen[bytes]) -> None:
    born = birth(sleeper.pid)
    processes.send(sleeper.pid, born, signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
    assert processes.is_stopped(sleeper.pid) == LINUX
    processes.end(sleeper.pid, born, grace_s=DEADLINE_S)
    assert sleeper.wait(DEADLINE_S) == -signal.SIGTERM


@pytest.mark.skipif(not LINUX, reason="only Linux has a signal for the death of a parent")
@pytest.mark.parametrize("bound", [True, False])
def test_a_bound_program_ends_with_its_owner_and_another_does_not(bound: bool) -> None:
    program = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]
    leading = (
        f"[{sys.executable!r}, '-I', '-S', {parent_death.__file__!r}, str(os.getpid())]" if bound else "[]"
    )
    code = (
        f"import os, subprocess, signal; print(subprocess.Popen({leading} + {program!r}).pid, flush=True);"
        " signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        lines = {owner.stdout.readline().strip(), owner.stdout.readline().strip()}
        (pid,) = (int(line) for line in lines - {"up"})
        born = birth(pid)
        try:
            owner.kill()
            owner.wait(DEADLINE_S)
            assert processes.wait_gone(pid, born, deadline_s=DEADLINE_S if bound else 0.5) == bound
        finally:
            processes.kill(pid, born)


@pytest.mark.skipif(not LINUX, reason="only Linux has a signal for the death of a parent")
def test_a_program_whose_owner_is_gone_already_does_not_start() -> None:
    ran = subprocess.run(
        [sys.executable, "-I", "-S", parent_death.__file__, "1", "/bin/echo", "started"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "the owner is gone" in ran.stderr


def test_free_ports_differ_are_free_and_lie_where_no_client_gets_its_own_from() -> None:
    found = ports.free_ports(50)
    assert len(set(found)) == 50
    if LINUX:
        lowest_of_clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        assert max(found) < lowest_of_clients
    with socket.create_server(("127.0.0.1", found[0])):
        assert not ports.is_free(found[0])
    assert ports.is_free(found[0])


OF_TWO = """
import sys
from holdfast.dev import ports
ports._LOWEST, ceiling = int(sys.argv[1]), int(sys.argv[1]) + 2
ports._ephemeral_floor = lambda: ceiling
print(ports.free_ports(int(sys.argv[2])), flush=True)
sys.stdin.read()
"""


@contextmanager
def of_two(first: int, count: int) -> Iterator[subprocess.Popen[str]]:
    """Run a process that takes *count* of two ports and keeps them until the context ends."""
    command = [sys.executable, "-P", "-c", OF_TWO, str(first), str(count)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.communicate(timeout=DEADLINE_S)


@pytest.mark.long
def test_a_port_is_given_to_one_process_alone_until_that_ends() -> None:
    first = 2 * random.randrange(9_000, 10_000)  # below those of all others
    with of_two(first, 1) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() in (f"[{first}]\n", f"[{first + 1}]\n")
        with of_two(first, 2) as late:
            _, told = late.communicate(timeout=DEADLINE_S)
        assert "found only 1 of 2 free ports" in told, "though nothing listens"
    with of_two(first, 2) as next_one:
        assert next_one.stdout is not None
        assert sorted(json.loads(next_one.stdout.readline())) == [first, first + 1]


def test_a_process_that_has_given_all_ports_gives_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_ephemeral_floor", lambda: ports._LOWEST + 1)
    monkeypatch.setattr(ports, "is_free", lambda port: True)
    monkeypatch.setattr(ports, "_reserve", lambda port: True)
    monkeypatch.setattr(ports, "_given", set())
    assert ports.free_ports(1) == ports.free_ports(1) == [ports._LOWEST]
