"""The progress of a replay in this process, for a watcher. By default there is none, and then it costs
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class Work:
    """A piece of work: *done* of *total* offsets; *total* is None where they are not counted, as with Spark's
    tasks.
    """

    what: str
    total: int | None
    done: int = 0


class Watcher:
    """Has the work of the moment, None before the first. Any thread may read it."""

    def __init__(self) -> None:
        self.work: Work | None = None


_watcher: ContextVar[Watcher | None] = ContextVar("holdfast_watcher", default=None)


@contextmanager
def watched() -> Iterator[Watcher]:
    """Give a watcher of all work that this context begins.

    >>> with watched() as watcher:
    ...     begin("replay of totals", 10)
    ...     advance(4)
    >>> watcher.work
    Work(what='replay of totals', total=10, done=4)
    """
    watcher = Watcher()
    before = _watcher.set(watcher)
    try:
        yield watcher
    finally:
        _watcher.reset(before)


def begin(what: str, total: int | None) -> None:
    """Say that *what* begins, of *total* offsets."""
    if (watcher := _watcher.get()) is not None:
        watcher.work = Work(what, total)


def advance(offsets: int) -> None:
    """Say that *offsets* more are done."""
    if (watcher := _watcher.get()) is not None and watcher.work is not None:
        watcher.work.done += offsets
