"""One line about a command's progress: kept at the bottom of a terminal, and now and then a plain line in a
log.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.clock import system_clock

LINE_S = 1.0
LOG_S = 30.0
Tell = Callable[[float], str | None]
"""Returns the line, or None for none yet; gets how many seconds have passed since the beginning."""


@contextmanager
def status_line(tell: Tell, *, in_logs: bool = True) -> Iterator[None]:
    """Show what *tell* says while the context lasts: each second on a terminal, else each LOG_S if
    *in_logs*.
    """
    terminal = sys.stderr.isatty()
    if not terminal and not in_logs:
        yield
        return
    ended = threading.Event()
    line = _Rewritten() if terminal else _Logged()
    thread = threading.Thread(target=_draw, args=(tell, ended, line), name="holdfast-status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(2 * LINE_S)
        line.close()


def erase() -> None:
    """Erase the line that is kept, if there is one: the next output begins at the left."""
    if _Rewritten.kept:
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


class _Rewritten:
    """Writes each line over the one before; nothing stays of it."""

    period_s = LINE_S
    kept = False

    def write(self, line: str) -> None:
        _Rewritten.kept = True
        print(f"\r\x1b[2K{line}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        erase()
        _Rewritten.kept = False


class _Logged:
    """Writes each line below the one before."""

    period_s = LOG_S

    def write(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing is left over."""


def _draw(tell: Tell, ended: threading.Event, line: _Rewritten | _Logged) -> None:
    began_s = system_clock.monotonic_s()
    while not ended.wait(line.period_s):
        told = tell(system_clock.monotonic_s() - began_s)
        if told is not None:
            line.write(told)
