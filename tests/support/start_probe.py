"""A program with the form of a worker that reports how it was started and then ends in the way it is asked
to: `python -P -m tests.support.start_probe --loop uvloop WAY`. For tests of `fork_server`.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path


def started() -> dict[str, object]:
    """Return the properties of its start that a program can observe."""
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "flags": repr(sys.flags),
        "cwd": os.getcwd(),
        "env": dict(os.environ),
        "main": sorted(vars(sys.modules["__main__"])),
        "descriptors": sorted(_descriptors()),
        "signals": {each.name: str(signal.getsignal(each)) for each in signal.valid_signals() if each < 32},
        "group": os.getpgid(0),
        "session": os.getsid(0),
        "streams": [
            (each.encoding, each.errors, each.line_buffering, each.write_through)  # type: ignore[union-attr]
            for each in (sys.stdin, sys.stdout, sys.stderr)
        ],
        "stdin": os.readlink("/proc/self/fd/0"),
        "policy": type(asyncio.get_event_loop_policy()).__module__,
        "threads": threading.active_count(),
        "collecting": (gc.isenabled(), gc.get_threshold()),
    }


def _descriptors() -> list[int]:
    """Return the open descriptors, without that of looking for them."""
    return [int(each) for each in os.listdir("/proc/self/fd") if Path(f"/proc/self/fd/{each}").exists()]


def main(way: str) -> None:
    """End as *way* says."""
    atexit.register(print, "the last words")
    print("begins")
    match way:
        case "tell":
            import holdfast.agents.app  # noqa: F401  # as each worker does: it chooses the loop

            print(json.dumps(started()))
        case "code":
            sys.exit(3)
        case "text":
            sys.exit("a reason")
        case "error":
            raise ValueError("nobody catches this")
        case "chain":
            try:
                raise KeyError("first")
            except KeyError as error:
                raise RuntimeError("then") from error
        case "interrupt":
            raise KeyboardInterrupt
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "thread":
            threading.Timer(0.2, print, ("the thread ends",)).start()
        case "hash":
            print(hash("seed"))
        case "wait":
            sys.stdout.flush()
            time.sleep(600)
        case _:
            raise AssertionError(way)


if __name__ == "__main__":
    main(sys.argv[-1])
