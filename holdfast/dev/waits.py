"""Waits for a condition, with a deadline and a check that it can still come true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from holdfast.clock import Clock, system_clock
from holdfast.errors import DemoError

POLL_S = 0.03
T = TypeVar("T")


def wait_until(
    what: str,
    found: Callable[[], T | None],
    within_s: float,
    *,
    check: Callable[[], None] = lambda: None,
    clock: Clock = system_clock,
) -> T:
    """Return the first true value of *found*; DemoError when there is none within *within_s*. *check* raises
    when waiting is in vain.

    >>> wait_until("something", lambda: "here", 1.0)
    'here'
    """
    until_s = clock.monotonic_s() + within_s
    while not (value := found()):
        check()
        if clock.monotonic_s() > until_s:
            raise DemoError(f"waited {within_s:g} s in vain: {what}; is the machine overloaded?")
        time.sleep(POLL_S)
    return value
