"""Start a program that cannot outlive the process it was started for, SIGKILL included.

``python parent_death.py OWNER_PID [--as UID:GID] PROGRAM ARGUMENTS…`` asks Linux for a SIGKILL at the owner's
death and then becomes the program. It is a program of its own because the request must be made between fork
and exec, and running Python code there (``preexec_fn``) can deadlock in a process with threads, which every
process with a Kafka client is. Standard library only: it runs under ``python -I -S``.

``--as`` becomes another user first, for programs that refuse to run as root.

Two things to know. The kernel watches the *thread* that forked, so its caller must keep that thread. Other
systems have no such request: there the program simply runs on, and `holdfast dev down` ends it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Become the program in the arguments, bound to its owner."""
    owner_pid, program = int(sys.argv[1]), sys.argv[2:]
    if program[0] == "--as":  # before the request, which a change of user would cancel
        uid, gid = map(int, program[1].split(":"))
        program = program[2:]
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
        if os.getppid() != owner_pid:  # the owner died before the request was made, so no signal will come
            sys.exit("the owner is gone")
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
