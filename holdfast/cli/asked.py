"""Requests to end, by signal, for loops that then finish their current work."""

from __future__ import annotations

import threading
import time

from holdfast.clock import system_clock

_SLICE_S = 0.05


class StopRequest(threading.Event):
    """An event that a signal's handler may set.

    `threading.Event.set` takes a lock, and a handler runs in the middle of what it interrupts: when that is `wait`, which holds the
    lock, neither ever ends. This one has no lock; its `wait` looks twenty times a second.
    """

    def __init__(self) -> None:
        super().__init__()
        self._asked = False

    def set(self) -> None:
        self._asked = True

    def clear(self) -> None:
        self._asked = False

    def is_set(self) -> bool:
        return self._asked

    def wait(self, timeout: float | None = None) -> bool:
        until_s = None if timeout is None else system_clock.monotonic_s() + timeout
        while not self._asked:
            left_s = _SLICE_S if until_s is None else until_s - system_clock.monotonic_s()
            if left_s <= 0:
                break
            time.sleep(min(_SLICE_S, left_s))
        return self._asked
