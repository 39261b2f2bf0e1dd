"""Waiting for a service that a fold needs: the pauses between tries, and the limit. The clock is the
caller's.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import Later, StillWaitingError

FIRST_S, MOST_S = 0.1, 5.0
"""The pause before the first try again, and the longest one: each is twice the one before."""


class Patience:
    """The waiting of one partition for what its folds need, up to *timeout_s* without anything folded.

    >>> patience = Patience(1.0)
    >>> later = Later("nobody answers", needs="registry http://r:8081")
    >>> [patience.pause_s(later, "orders/0/7", waited_s) for waited_s in (0.0, 0.1, 0.3)]
    [0.1, 0.2, 0.4]
    >>> patience.pause_s(later, "orders/0/7", 1.1)
    Traceback (most recent call last):
    holdfast.errors.StillWaitingError: orders/0/7 has waited 1 s for registry http://r:8081 (nobody answers), longer than later_timeout_s: see that it answers
    >>> patience.over()
    >>> patience.pause_s(later, "orders/0/8", 0.0)
    0.1
    """  # noqa: E501

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s, self._next_s = timeout_s, FIRST_S

    def pause_s(self, later: Later, where: str, waited_s: float) -> float:
        """Return how long to pause before the next try; StillWaitingError once *waited_s* is too much."""
        if waited_s >= self._timeout_s:
            raise StillWaitingError(
                f"{where} has waited {waited_s:.0f} s for {later.needs} ({later}), longer than"
                " later_timeout_s: see that it answers",
                needs=later.needs,
            ) from later
        pause_s, self._next_s = self._next_s, min(MOST_S, 2 * self._next_s)
        return pause_s

    def over(self) -> None:
        """Note that something was folded: the next wait begins with the shortest pause."""
        self._next_s = FIRST_S


OnLater = Callable[[Later, str], None]
"""Called with the error, which names the missing service, and the record that waits: it returns when the
record is to be folded again, or raises.
"""


def never_wait(later: Later, where: str) -> None:
    """Raise *later*: this caller does not wait."""
    raise later


class Waiting:
    """An `OnLater` that waits: *pause* gets the seconds, and a line that names the record and the awaited
    service. A wait ends when another record waits.

    >>> from holdfast.clock import ManualClock
    >>> clock, slept = ManualClock(), []
    >>> waiting = Waiting(1.0, clock.monotonic_s, lambda seconds, why: slept.append(why) or clock.advance_ms(int(seconds * 1000)))
    >>> later = Later("nobody answers", needs="registry http://r:8081")
    >>> for offset in (7, 7, 7, 8): waiting(later, f"orders/0/{offset}")
    >>> len(slept), slept[0]
    (4, 'orders/0/7 waits for registry http://r:8081: nobody answers')
    """  # noqa: E501

    def __init__(
        self, timeout_s: float, monotonic_s: Callable[[], float], pause: Callable[[float, str], None]
    ) -> None:
        self._monotonic_s, self._pause, self._patience = monotonic_s, pause, Patience(timeout_s)
        self._where, self._since_s = "", 0.0

    def __call__(self, later: Later, where: str) -> None:
        """Wait a little longer than before; StillWaitingError when that has lasted too long."""
        now_s = self._monotonic_s()
        if where != self._where:
            self._where, self._since_s = where, now_s
            self._patience.over()
        pause_s = self._patience.pause_s(later, where, now_s - self._since_s)
        self._pause(pause_s, f"{where} waits for {later.needs}: {later}")
