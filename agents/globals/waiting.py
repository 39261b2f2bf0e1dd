"""How a copy of a global table waits, on its thread, for what its fold needs."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

from holdfast.errors import GlobalsError

TICK_S = 0.2
"""How soon a thread that waits sees that the worker is stopping."""


class ThreadPause:
    """Pauses on a thread until `stopped` is set, and tells all the while that the worker is not stuck, and
    why it waits.

    Give it as the *pause* of a `Waiting`.
    """

    def __init__(self, tell: Callable[[str], None], progressed: Callable[[], None]) -> None:
        self._tell, self._progressed, self.stopped = tell, progressed, Event()

    def __call__(self, seconds: float, why: str) -> None:
        """Wait; raises GlobalsError when the worker stops meanwhile."""
        self._tell(why)
        while seconds > 0:
            self._progressed()
            if self.stopped.wait(min(seconds, TICK_S)):
                raise GlobalsError(f"the worker stops: {why}")
            seconds -= TICK_S
