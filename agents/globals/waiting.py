"""Folds a global table's copy on a thread of its own, which waits there for the needs of its fold."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, get_ident
from typing import Any

from holdfast.errors import GlobalsError

TICK_S = 0.2
"""The delay after which a waiting thread sees that the worker is stopping."""


class Folding:
    """A call that folds the table *name* on a thread, and cannot be interrupted; `thread` is which, while it
    runs. `ManagerService` watches whether it returns.
    """

    def __init__(self, name: str, call: Callable[..., Any], *args: Any) -> None:
        self.name, self._call, self._args = name, call, args
        self.thread: int | None = None

    def __call__(self) -> Any:
        """Make the call."""
        self.thread = get_ident()
        try:
            return self._call(*self._args)
        finally:
            self.thread = None


class ThreadPause:
    """Pauses on a thread until `stopped` is set, and reports all the while that the worker is not stuck, and
    why it waits.

    Give it as the *pause* of a `Waiting`.
    """

    def __init__(self, tell: Callable[[str], None], progressed: Callable[[], None]) -> None:
        self._tell, self._progressed, self.stopped = tell, progressed, Event()
        self.ticks = 0
        """The number of pauses so far: a thread that pauses does not hang."""

    def __call__(self, seconds: float, why: str) -> None:
        """Wait; raises GlobalsError when the worker stops in that time."""
        self._tell(why)
        while seconds > 0:
            self._progressed()
            self.ticks += 1
            if self.stopped.wait(min(seconds, TICK_S)):
                raise GlobalsError(f"the worker stops: {why}")
            seconds -= TICK_S
