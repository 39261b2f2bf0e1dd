"""Background threads of the demo: they write, or ask, while workers are killed and replaced."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from holdfast.errors import DemoError


class Beside(ABC):
    """A thread that works as long as the block lasts, or until it is stopped; an error names its task,
    *what*.

    Each kind has a `work` that ends soon after `stopping` is set. *within_s* is how long that may take.
    """

    def __init__(self, what: str, *, within_s: float) -> None:
        self._what, self._within_s = what, within_s
        self.stopping = threading.Event()
        self.failed: BaseException | None = None
        """The error that has ended the work, or must end it."""
        self._thread = threading.Thread(target=self._run, name=f"holdfast-{what}", daemon=True)

    @abstractmethod
    def work(self) -> None:
        """Do the thread's task; `check` and `finish` raise its errors."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        self._thread.join(self._within_s)

    def check(self) -> None:
        """Raise DemoError with what ended the thread, if anything did."""
        if self.failed is not None:
            raise DemoError(f"{self._what}: {self.failed}") from self.failed

    def finish(self) -> None:
        """Have the work end and wait for that; DemoError where it failed, or does not end in time."""
        self.stopping.set()
        self._thread.join(self._within_s)
        self.check()
        if self._thread.is_alive():
            raise DemoError(f"{self._what}: not done within {self._within_s:g} s; is the machine overloaded?")

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001  the waiting thread raises it
            self.failed = self.failed or error
