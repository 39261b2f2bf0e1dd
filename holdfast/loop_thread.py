"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from holdfast.errors import NotReadyError

T = TypeVar("T")

CLOSE_S = 10.0
_SLACK_S = 5.0
"""Each call ends by its own deadline; this is only for a loop that does not run any more."""


class LoopThread:
    """Runs coroutines for threads that wait for them. The thread is a daemon: a script that forgets to close
    its client ends all the same, which a portal of anyio would keep from it.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def start(self) -> None:
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether `stop` has ended the thread."""
        return self._loop.is_closed()

    def wait(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Return what *coroutine* gives; NotReadyError when the loop itself does not answer, or was never
        started.
        """
        if self._thread.ident is None:
            coroutine.close()
            raise NotReadyError("the client is not open: use it in a `with` statement")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_s + _SLACK_S)
        except TimeoutError as error:
            raise NotReadyError(
                f"the client's own event loop did not answer within {timeout_s + _SLACK_S:g} s"
            ) from error
        finally:
            future.cancel()

    def stop(self, last: Coroutine[Any, Any, None], timeout_s: float = CLOSE_S) -> None:
        """Run *last*, end scans that were not read to their end, and end the thread, whatever fails."""
        try:
            self.wait(last, timeout_s)
            self.wait(self._loop.shutdown_asyncgens(), CLOSE_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_S)
            if not self._thread.is_alive():
                self._loop.close()
