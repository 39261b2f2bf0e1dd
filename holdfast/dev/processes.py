"""Processes that are known by more than a number, so that a recycled pid is never signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from holdfast.clock import system_clock
from holdfast.errors import DevBrokerError

_POLL_S = 0.02
_PAUSE_DEADLINE_S = 60.0


def birth_of(pid: int) -> str | None:
    """Return a mark that distinguishes this process from any other that has had or will have its pid; None
    when it is gone or a zombie.
    """
    if not sys.platform.startswith("linux"):
        return _birth_by_ps(pid)
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name is in parentheses and may hold spaces and parentheses itself.
    fields = text.rpartition(")")[2].split()
    state, ticks_since_boot = fields[0], fields[19]
    if state in "ZXx":
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{ticks_since_boot}"


def _birth_by_ps(pid: int) -> str | None:
    ran = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False, timeout=10
    )
    state, _, started = ran.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


def is_alive(pid: int, birth: str) -> bool:
    """Return whether the process recorded as (*pid*, *birth*) still runs."""
    return birth_of(pid) == birth


def is_stopped(pid: int) -> bool:
    """Return whether every thread of the process is paused by SIGSTOP (always False where there is no
    /proc).
    """
    try:
        stats = [
            path.read_text(encoding="utf-8", errors="replace")
            for path in Path(f"/proc/{pid}/task").glob("*/stat")
        ]
    except (FileNotFoundError, ProcessLookupError):  # a thread that ended since: so it was not paused
        return False
    return bool(stats) and all(text.rpartition(")")[2].split()[0] == "T" for text in stats)


def send(pid: int, birth: str, number: signal.Signals) -> bool:
    """Signal the recorded process; return False, without any signal, when it is no longer that process."""
    if not is_alive(pid, birth):
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def pause(pid: int, birth: str) -> bool:
    """Freeze the recorded process; return, once no thread of it runs any more, whether it was there."""
    until_s = system_clock.monotonic_s() + _PAUSE_DEADLINE_S
    if not send(pid, birth, signal.SIGSTOP):
        return False
    while (
        sys.platform.startswith("linux") and is_alive(pid, birth) and not is_stopped(pid)
    ):  # the kernel stops it soon, not at once
        if system_clock.monotonic_s() > until_s:
            raise DevBrokerError(
                f"process {pid} did not stop within {_PAUSE_DEADLINE_S:.0f} s of SIGSTOP; it hangs in the"
                " kernel"
            )
        time.sleep(_POLL_S)
    return True


def wait_gone(pid: int, birth: str, *, deadline_s: float) -> bool:
    """Return whether the recorded process ended within *deadline_s*."""
    until_s = system_clock.monotonic_s() + deadline_s
    while is_alive(pid, birth):
        if system_clock.monotonic_s() >= until_s:
            return False
        time.sleep(_POLL_S)
    return True


def end(pid: int, birth: str, *, grace_s: float) -> None:
    """End the recorded process: SIGTERM, then SIGKILL after *grace_s*. A paused one is woken to hear it."""
    if send(pid, birth, signal.SIGTERM):
        send(pid, birth, signal.SIGCONT)
        if not wait_gone(pid, birth, deadline_s=grace_s):
            kill(pid, birth)


def kill(pid: int, birth: str) -> None:
    """End the recorded process at once by SIGKILL and wait until it is gone."""
    if send(pid, birth, signal.SIGKILL) and not wait_gone(pid, birth, deadline_s=10.0):
        raise DevBrokerError(
            f"process {pid} did not end within 10 s of SIGKILL; it hangs in the kernel, look at `ps -o"
            f" stat,wchan -p {pid}`"
        )
