"""Requests to end, by signal, for loops that then finish their current work."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from holdfast.clock import system_clock

_SLICE_S = 0.05
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SAME_S = 1.0
"""Signals within this time count as one."""
INTERRUPTED = 130
"""The exit code of a command that a signal ended."""


class StopRequest(threading.Event):
    """An event that a signal's handler may set.

    `threading.Event.set` takes a lock, and a handler runs in the middle of what it interrupts: when that is
    `wait`, which holds the lock, neither ever ends. This one has no lock; its `wait` looks twenty times a
    second.
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


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Give an event that SIGTERM, Ctrl-C or the end of the terminal sets, so that work under way is finished;
    a second signal ends at once.

    A signal within `SAME_S` of the first does not count as the second: a program that ends a group of
    processes may reach one of them twice.
    """
    stop, first_s = StopRequest(), list[float]()
    before = {number: signal.getsignal(number) for number in ENDING}
    before = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}

    def on_signal(number: int, frame: FrameType | None) -> None:
        now_s = system_clock.monotonic_s()
        if not stop.is_set():
            stop.set()
            first_s.append(now_s)
        elif now_s > first_s[0] + SAME_S:
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
