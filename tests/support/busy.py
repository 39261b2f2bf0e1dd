"""Run a command on a machine that other programs keep busy: `python -P -m tests.support.busy TIMES COMMAND…`.

With TIMES processes for each core that never rest, the command gets one part in TIMES + 1 of the machine. It
may take that much longer; it must not fail. The processes end with the command, and with this one, by
whatever that ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from holdfast.dev import parent_death

PYTHON = (sys.executable, "-I", "-S")


@contextmanager
def busy(times: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Give *times* processes for each core that take all they get, until the block ends."""
    bound = [*PYTHON, parent_death.__file__, str(os.getpid()), *PYTHON, "-c", "while True: pass"]
    spinning: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(times * (os.cpu_count() or 1)):
            # A session of its own: a Ctrl-C at the terminal is for the command.
            spinning.append(subprocess.Popen(bound, stdin=subprocess.DEVNULL, start_new_session=True))
        yield spinning
    finally:
        for each in spinning:
            each.kill()
        for each in spinning:
            each.wait()


def main(arguments: Sequence[str]) -> int:
    """Return the command's exit code."""
    if len(arguments) < 2 or not arguments[0].isdigit():
        print("usage: python -P -m tests.support.busy TIMES COMMAND…", file=sys.stderr)
        return 2
    with busy(int(arguments[0])):
        return subprocess.call(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
