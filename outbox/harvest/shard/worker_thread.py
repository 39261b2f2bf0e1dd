"""A thread that does one job after the other for a caller that must not wait for ever."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Generic, TypeVar

T = TypeVar("T")

SLICE_S = 0.25


class Abandoned(Exception):
    """The wait was stopped; what the thread does may still happen."""


class Pending(Generic[T]):
    """Something the lane was asked to do."""

    def __init__(self, future: Future[T], abandoned: Callable[[], bool]) -> None:
        self._future, self._abandoned = future, abandoned

    @property
    def done(self) -> bool:
        return self._future.done()

    def result(self) -> T:
        """Return the job's result, or raise its error; raises Abandoned when waiting has become pointless."""
        while True:
            try:
                return self._future.result(SLICE_S)
            except FutureTimeoutError:
                if self._future.done():
                    raise
                if self._abandoned():
                    raise Abandoned from None


class WorkerThread:
    """One daemon thread and a queue before it.

    A call that hangs for ever keeps neither the process nor its owner.
    """

    def __init__(self, name: str, abandoned: Callable[[], bool]) -> None:
        self._abandoned = abandoned
        self._jobs: queue.SimpleQueue[
            tuple[Future[Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None
        ] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> Pending[T]:
        """Queue *call*; its owner has at most a few outstanding, so the queue needs no limit of its own."""
        future: Future[T] = Future()
        self._jobs.put((future, call, args, kwargs))
        return Pending(future, self._abandoned)

    def call(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Do it and wait for it."""
        return self.submit(call, *args, **kwargs).result()

    def close(self, timeout_s: float) -> bool:
        """End the thread once it has done the queued jobs; False when that takes longer."""
        self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call, args, kwargs = job
            try:
                future.set_result(call(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  the caller gets it
                future.set_exception(error)
            del job, future, call, args, kwargs
