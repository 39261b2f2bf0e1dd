"""Clocks that tests pass to code that reads the time."""

from __future__ import annotations

from itertools import count

from holdfast.clock import SystemClock


class TickingClock(SystemClock):
    """A clock that is *step_s* further at each reading, however busy the machine is."""

    def __init__(self, step_s: float) -> None:
        self._seconds = count(step=step_s)

    def monotonic_s(self) -> float:
        return float(next(self._seconds))
