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
    """Give an event that SIGTERM or Ctrl-C sets, so that what is under way is finished; a second signal ends
    at once.
    """
    stop = StopRequest()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def undone_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end what is under way as Ctrl-C does: what it undoes on its way out is undone."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
