"""Calls in processes of their own: one at a time, few waiting, each with a deadline at which its process is
killed.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from holdfast.console.asking.child import framed
from holdfast.errors import BrokerError, HoldfastError

T = TypeVar("T")

LIMIT_WAITING = 4
ANSWER_S = 120.0
"""Long for a machine that serves others first (see `NICER` of the child): what the child asks has shorter
deadlines of its own.
"""
LIMIT_ANSWER_BYTES = 32 << 20
LIMIT_TOLD = 300
LIMIT_MEMORY_BYTES = 1 << 30
MEMORY_EVERY_S = 0.2
END_S = 5.0


class ChildError(HoldfastError):
    """A process that was asked could not answer; the text says why."""


class ChildCalls:
    """Runs calls that can be pickled in processes of their own, from the start of this object to `close`."""

    def __init__(self, answer_s: float = ANSWER_S, memory_bytes: int = LIMIT_MEMORY_BYTES) -> None:
        self._answer_s, self._memory_bytes = answer_s, memory_bytes
        self._one = asyncio.Lock()
        self._waiting = 0
        self._closed = False
        self._running: Process | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of *work*. ChildError when that fails, takes too long or too much memory,
        BrokerError when too many wait already.
        """
        if self._waiting >= LIMIT_WAITING:
            raise BrokerError(f"{LIMIT_WAITING} such questions wait already; ask again later")
        self._waiting += 1
        try:
            async with self._one:
                if self._closed:
                    raise ChildError("the console ends")
                return await self._ask(pickle.dumps(work))
        finally:
            self._waiting -= 1

    async def _ask(self, work: bytes) -> T:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "holdfast.console.asking.child",
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(each or str(Path.cwd()) for each in sys.path)},
        )
        self._running, complaints = child, asyncio.create_task(_last(child.stderr))
        grown = asyncio.create_task(_kill_once_grown(child, self._memory_bytes))
        try:
            async with asyncio.timeout(self._answer_s):
                told, said = await _answer(child, work), await complaints
        except TimeoutError:
            raise ChildError(f"there was no answer within {self._answer_s:g} s") from None
        finally:
            self._running = None
            too_large = grown.done()
            for task in (complaints, grown):
                task.cancel()
            await asyncio.gather(complaints, grown, return_exceptions=True)
            await _end(child)
        if too_large:
            raise ChildError(
                f"the answer took more than {self._memory_bytes >> 20} MiB of memory; the command line has no"
                " such limit"
            )
        if not told:
            raise ChildError(
                f"the process that was asked ended without an answer: {said or 'it said nothing'}"
            )
        succeeded, value = pickle.loads(told)
        if not succeeded:
            raise ChildError(value)
        return value  # type: ignore[no-any-return]

    async def close(self) -> None:
        """End the process that runs; waiting callers get the error that the console ends."""
        self._closed = True
        if self._running is not None:
            _kill(self._running)
        async with self._one:
            pass  # it has ended, and its caller has the error


async def _answer(child: Process, work: bytes) -> bytes:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(framed(work))
    pieces, size_bytes = list[bytes](), 0
    while piece := await child.stdout.read(1 << 16):
        size_bytes += len(piece)
        if size_bytes > LIMIT_ANSWER_BYTES:
            raise ChildError(f"the answer has more than {LIMIT_ANSWER_BYTES >> 20} MiB")
        pieces.append(piece)
    return b"".join(pieces)


async def _kill_once_grown(child: Process, limit_bytes: int) -> None:
    """Return once a process has taken more memory, and was killed for it; never where the machine does not
    show its memory.
    """
    while True:
        if (held_bytes(child.pid) or 0) > limit_bytes:
            _kill(child)
            return
        await asyncio.sleep(MEMORY_EVERY_S)


def held_bytes(pid: int) -> int | None:
    """Return how much memory a process holds for itself alone, without files and shared memory; None where
    Linux does not show it.
    """
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return None
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


async def _last(stream: asyncio.StreamReader | None) -> str:
    """Return the last line of a stream, once that has ended."""
    assert stream is not None
    kept = b""
    while piece := await stream.read(1 << 16):
        kept = (kept + piece)[-(1 << 12) :]
    lines = kept.decode(errors="replace").strip().splitlines()
    return lines[-1][:LIMIT_TOLD] if lines else ""


def _kill(child: Process) -> None:
    try:
        child.kill()
    except ProcessLookupError:
        pass  # it has ended by itself since


async def _end(child: Process) -> None:
    """End a process, and read the rest of its pipes, so that these end too."""
    if child.returncode is None:
        _kill(child)
    try:
        async with asyncio.timeout(END_S):
            await child.communicate()
    except TimeoutError:
        pass  # a process that it has started holds them open
    await child.wait()
