"""Commands that look again and again: they outlive what passes, and end on what does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from holdfast.cli.output import note, utc
from holdfast.clock import Clock, system_clock
from holdfast.errors import (
    BrokerError,
    LostRecordsError,
    MovedError,
    NotReadyError,
    OffsetTimeoutError,
    TopicError,
)

T = TypeVar("T")

PASSING = (BrokerError, TopicError, LostRecordsError, NotReadyError, MovedError, OffsetTimeoutError)
"""Errors that the next look may not meet: brokers and workers come and go, and so do topics, and records
between two looks.
"""


class WatchedLooks:
    """Takes looks, and reports passing trouble once, and once when a look succeeds again.

    The first look decides whether there is anything to watch: what it raises is raised.
    """

    def __init__(self, *, clock: Clock = system_clock) -> None:
        self._clock, self._has_looked, self._is_away = clock, False, False

    def take(self, look: Callable[[], T]) -> T | None:
        """Return the result of *look*, None if it fails with a passing error; any other error is raised."""
        try:
            found = look()
        except PASSING as error:
            if not self._has_looked:
                raise
            if not self._is_away:
                note(f"{self.when()}  not read: {error}")
            self._is_away = True
            return None
        if self._is_away:
            note(f"{self.when()}  read again")
        self._has_looked, self._is_away = True, False
        return found

    def when(self) -> str:
        """Return the present time, as it begins each line."""
        return utc(self._clock.now_ms() // 1000) or ""
