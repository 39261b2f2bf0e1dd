"""The process that answers one question: it reads a call from its standard input, and writes the result. It
ends with its parent.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from holdfast.errors import HoldfastError

LENGTH_BYTES = 8
NICER = 5
"""The niceness of the process relative to the console and the workers of its machine. At 10 it had too little
of two busy cores to answer within half a minute.
"""


def framed(content: bytes) -> bytes:
    """Return *content* with its length before it."""
    return len(content).to_bytes(LENGTH_BYTES, "big") + content


def main() -> None:
    source, out = sys.stdin.buffer, os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what an application prints is no answer
    _step_back()
    work: Callable[[], Any] = pickle.loads(source.read(int.from_bytes(source.read(LENGTH_BYTES), "big")))
    threading.Thread(target=_end_with, args=(source,), daemon=True).start()
    with os.fdopen(out, "wb") as replies:
        replies.write(_reply(work))
        replies.flush()
    os._exit(0)  # threads of clients may run on


def _step_back() -> None:
    """Have the machine serve others first, and where it has no memory left, end this process before them."""
    os.nice(NICER)
    with contextlib.suppress(OSError):  # not Linux, or not allowed
        Path("/proc/self/oom_score_adj").write_text("1000")


def _reply(work: Callable[[], Any]) -> bytes:
    try:
        return pickle.dumps((True, work()))
    except HoldfastError as error:
        return pickle.dumps((False, str(error)))
    except ModuleNotFoundError as error:
        return pickle.dumps((False, str(error)))
    except Exception as error:  # noqa: BLE001  whatever an application's own code raises
        return pickle.dumps((False, f"{type(error).__name__}: {error}"))


def _end_with(source: BinaryIO) -> None:
    """End this process when its parent is gone, and the parent's end of the pipe with it."""
    source.read(1)
    os._exit(1)


if __name__ == "__main__":
    main()
