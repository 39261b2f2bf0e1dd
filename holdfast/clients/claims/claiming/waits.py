"""Callers that wait for the engine of a claim consumer to do something, each with a deadline."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from holdfast.errors import HoldfastError


class _Wait(NamedTuple):
    condition: Callable[[], bool]
    future: Future[None]
    until_s: float
    what: str


class Waits:
    """Conditions that are looked at after every turn of the engine.

    Not locked: the engine's lock is held around every call.
    """

    def __init__(self) -> None:
        self._waits: list[_Wait] = []

    def __bool__(self) -> bool:
        return bool(self._waits)

    def add(self, condition: Callable[[], bool], future: Future[None], until_s: float, what: str) -> None:
        """Have *future* done as soon as *condition* holds, or failed when it does not at *until_s* or
        raises.
        """
        self._waits.append(_Wait(condition, future, until_s, what))

    def look(self, now_s: float, failure: BaseException | None, late: Callable[[str], BaseException]) -> None:
        """Settle what can be settled; *late* makes the error of a wait that has run out, from what it
        waited for.
        """
        for wait in list(self._waits):
            try:
                if failure is not None:
                    _refuse(wait.future, failure)
                elif wait.condition():
                    if not wait.future.done():
                        wait.future.set_result(None)
                elif now_s >= wait.until_s:
                    _refuse(wait.future, late(wait.what))
                elif not wait.future.done():  # its caller has given up
                    continue
            except HoldfastError as error:  # of the condition: it will never hold
                _refuse(wait.future, error)
            self._waits.remove(wait)

    def refuse_all(self, why: Callable[[str], BaseException]) -> None:
        """Fail every wait: nothing will happen any more."""
        waits, self._waits = self._waits, []
        for wait in waits:
            _refuse(wait.future, why(wait.what))


def _refuse(future: Future[None], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
