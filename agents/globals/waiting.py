"""How a copy of a global table folds on a thread of its own, and waits there for what its fold needs."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, get_ident
from typing import Any

from holdfast.errors import GlobalsError

TICK_S = 0.2
"""How soon a thread that waits sees that the worker is stopping."""


class Folding:
    """A call that folds the table *name* on a thread, which nobody can interrupt; `thread` is which, while it
    runs. `ManagerService` looks whether it returns.
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
    """Pauses on a thread until `stopped` is set, and tells all the while that the worker is not stuck, and
    why it waits.

    Give it as the *pause* of a `Waiting`.
    """

    def __init__(self, tell: Callable[[str], None], progressed: Callable[[], None]) -> None:
        self._tell, self._progressed, self.stopped = tell, progressed, Event()
        self.ticks = 0
        """How often it has paused: whoever pauses does not hang."""

    def __call__(self, seconds: float, why: str) -> None:
        """Wait; raises GlobalsError when the worker stops meanwhile."""
        self._tell(why)
        while seconds > 0:
            self._progressed()
            self.ticks += 1
            if self.stopped.wait(min(seconds, TICK_S)):
                raise GlobalsError(f"the worker stops: {why}")
            seconds -= TICK_S
