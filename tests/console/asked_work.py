"""The work of processes of their own in tests: each function is here, where such a process finds it too."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from holdfast.errors import LakeError


def add(one: int, other: int) -> int:
    print("an application may print what it likes")
    return one + other


def fail() -> None:
    raise LakeError("no Delta table at x")


def lack() -> None:
    raise ModuleNotFoundError("No module named 'pyarrow'")


def die() -> None:
    print("killed by the machine", file=sys.stderr, flush=True)
    os._exit(9)


def break_down() -> None:
    raise RuntimeError("a fold that cannot be called")


def grow(size_bytes: int) -> int:
    """Hold so much memory, and answer only after a while: a caller that sees it grow does not wait for
    that.
    """
    held = bytearray(size_bytes)
    held[:: 1 << 12] = b"x" * len(held[:: 1 << 12])  # each page is one of its own
    time.sleep(600)
    return len(held)


def linger(noted: str) -> None:
    """Write the number of this process to the file *noted*, and never end."""
    Path(noted).write_text(str(os.getpid()))
    time.sleep(600)


def long_answer(size_bytes: int) -> bytes:
    return b"x" * size_bytes
