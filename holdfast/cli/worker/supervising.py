"""Keeps several workers running: what they print is passed on under their names, and one that ends is started
again.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Sequence
from contextlib import suppress

from holdfast.cli.output import note
from holdfast.cli.worker.launching import Launch
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.dev import parent_death
from holdfast.errors import WorkersError

STEADY_S = 30.0
"""A worker that ran for longer did not fail to start."""
MOST_FAILURES = 5
"""The failures in a row to start a worker after which all are ended: so many need a person."""
WRONG = 2
"""The exit code of a worker whose command line or settings are wrong: another start meets the same."""
LONGEST_PAUSE_S = 30.0
LAST_WORDS_S = 5.0
CHUNK, LONGEST_LINE = 1 << 16, 1 << 20
LEAVING, REFUSED = "leaving: ", "holdfast: "
"""Beginnings of the last line of a worker, which says why it left: one that ran, and one that did not
start.
"""
LONGEST_CAUSE = 1_000
"""Characters of a worker's last line in the error that ends all."""

Print = Callable[[str], None]


def supervise(launches: Sequence[Launch], settings: Settings) -> int:
    """Run the workers until SIGTERM, SIGINT or SIGHUP; return the exit code.

    Each is given the time that its last commit and leaving the group may take, then it is killed. Workers end
    with this process, however it ends (on Linux). Raises WorkersError when one fails to start again and
    again.
    """
    grace_s = settings.commit_timeout_s + settings.rebalance_timeout_s
    supervisor = WorkerProcesses(launches, grace_s=grace_s, named=settings.log_format == "text")
    return asyncio.run(supervisor.run())


class WorkerProcesses:
    """Owns the worker processes of *launches*; *named* puts a worker's name before each line of its
    output.
    """

    def __init__(
        self,
        launches: Sequence[Launch],
        *,
        grace_s: float,
        named: bool,
        clock: Clock = system_clock,
        steady_s: float = STEADY_S,
        tell: Print = note,
    ) -> None:
        self._launches = launches
        self._grace_s = grace_s
        self._width = max(len(launch.name) for launch in launches) if named else 0
        self._clock = clock
        self._steady_s = steady_s
        self._tell = tell
        self._ending = asyncio.Event()
        self._failed: WorkersError | None = None
        self._last_lines = dict[str, bytes]()
        self._told_unheard = False

    async def run(self) -> int:
        """Run until asked to end. Return 0, or a shell's code for the signal of an interruption."""
        loop, numbers = asyncio.get_running_loop(), list[int]()

        def end(number: int) -> None:
            numbers.append(number)
            self._ending.set()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, end, number)
        async with asyncio.TaskGroup() as group:
            for launch in self._launches:
                group.create_task(self._keep(launch))
        if self._failed is not None:
            raise self._failed
        return 128 + numbers[0] if numbers and numbers[0] != signal.SIGTERM else 0

    async def _keep(self, launch: Launch) -> None:
        """Keep one worker running; what ends within `steady_s` waits twice as long each time before it starts
        again.
        """
        failures = 0
        while not self._ending.is_set():
            began_s = self._clock.monotonic_s()
            code = await self._one_life(launch)
            if self._ending.is_set():
                return
            was_steady = self._clock.monotonic_s() - began_s >= self._steady_s
            failures = 1 if was_steady else failures + 1
            if code == WRONG:  # of the first life or a later one: the settings have become wrong since
                self._give_up(launch, f"cannot start ({_said(code)})")
                return
            if failures > MOST_FAILURES:
                self._give_up(
                    launch,
                    f"has ended {failures} times in a row soon after its start, the last time with"
                    f" {_said(code)}",
                )
                return
            pause_s = min(2.0 ** (failures - 1), LONGEST_PAUSE_S)
            self._say(f"{launch.name} ended with {_said(code)}: it is started again in {pause_s:.0f} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), pause_s)

    def _give_up(self, launch: Launch, how: str) -> None:
        """Have the others commit and leave the group, and the command end with an error."""
        cause = cause_of(self._last_lines.get(launch.name, b""))
        self._failed = WorkersError(f"{launch.name} {how}: {cause}; the other workers were ended too")
        self._ending.set()

    async def _one_life(self, launch: Launch) -> int:
        """Run one process of a worker until it ends by itself or is asked to; return its exit code."""
        self._last_lines.pop(launch.name, None)
        bound = (sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid()))
        process = await asyncio.create_subprocess_exec(
            *bound,
            *launch.arguments,
            env=os.environ | launch.variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            # Ctrl-C in a terminal reaches the supervisor alone, which ends them in its way
            start_new_session=True,
        )
        passing = asyncio.create_task(self._pass_on(process, launch.name))
        ended = asyncio.create_task(process.wait())
        try:
            await self._until_ended(process, ended)
            with suppress(TimeoutError):  # a child of the worker may have its output still open
                await asyncio.wait_for(passing, LAST_WORDS_S)
        finally:
            if process.returncode is None:
                process.kill()
            await ended
            passing.cancel()
        return ended.result()

    async def _until_ended(self, process: Process, ended: asyncio.Task[int]) -> None:
        asked = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait({ended, asked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        if not ended.done():
            process.terminate()
            await asyncio.wait({ended}, timeout=self._grace_s)
        if not ended.done():
            self._say(f"process {process.pid} has not ended within {self._grace_s:.0f} s: it is killed")
            process.kill()
            await ended

    async def _pass_on(self, process: Process, name: str) -> None:
        assert process.stdout is not None
        head = f"{name:<{self._width}} | ".encode() if self._width else b""
        begun = b""
        while piece := await process.stdout.read(CHUNK):
            *lines, begun = (begun + piece).split(b"\n")
            if len(begun) > LONGEST_LINE:
                lines, begun = [*lines, begun], b""
            self._write(name, head, lines)
        if begun:
            self._write(name, head, [begun])

    def _say(self, text: str) -> None:
        with suppress(OSError):  # stderr has no reader any more
            self._tell(text)

    def _unheard(self, error: OSError) -> None:
        if not self._told_unheard:
            self._told_unheard = True
            self._say(
                f"stdout takes no lines ({error.strerror}): what workers write is lost while that is so"
            )

    def _write(self, name: str, head: bytes, lines: Sequence[bytes]) -> None:
        try:
            sys.stdout.buffer.write(b"".join(head + line + b"\n" for line in lines))
            sys.stdout.buffer.flush()
        except OSError as error:
            # There is no reader any more, or the disk is full. Workers without a reader continue: if their
            # output was not read, they would wait for that for ever.
            self._unheard(error)
        self._last_lines[name] = next(filter(bytes.strip, reversed(lines)), self._last_lines.get(name, b""))


def cause_of(line: bytes) -> str:
    """Return why a worker left, from the last line that it printed; the line itself where that does not say.

    >>> cause_of(b"[2026-11-27 08:08:10] [CRITICAL] leaving: cannot listen on port 6066")
    'cannot listen on port 6066'
    >>> cause_of(b'{"event": "leaving: %(reason)s", "message": "leaving: disk full"}')
    'disk full'
    >>> cause_of(b"Killed"), cause_of(b"")
    ('its last line is "Killed"', 'it printed nothing')
    """
    text = " ".join(line.decode(errors="replace").split())
    with suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(text)["message"])
    for mark in (LEAVING, REFUSED):
        _, marked, cause = text.partition(mark)
        if marked:
            return cause[:LONGEST_CAUSE]
    return f'its last line is "{text[:LONGEST_CAUSE]}"' if text else "it printed nothing"


def _said(code: int) -> str:
    """Return an exit code for people.

    >>> _said(1), _said(-9)
    ('exit code 1', 'SIGKILL')
    """
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
