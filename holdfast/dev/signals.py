"""Being asked to end: a signal becomes an exception, so that every owner on the way closes what it owns."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """The program was asked to end.

    Nothing on the way takes it for a failure; asyncio, too, lets this kind of exception through.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def exit_code(self) -> int:
        """Return the code by which a shell knows that a signal ended the program."""
        return 128 + self.number


class EndingSignals:
    """While the block lasts, the first of ENDING raises Interrupted in the main thread; further ones are
    ignored, so that clean-up finishes.
    """

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._interrupt) for number in ENDING}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)
