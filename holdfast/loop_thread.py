"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
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
        self._stopping = False

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(_ended())

    def start(self) -> None:
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Return whether `stop` has ended the thread."""
        return self._loop.is_closed()

    def wait(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Return the result of *coroutine*; NotReadyError when the loop itself does not answer, was never
        started, or is stopped in the meantime.
        """
        if self._thread.ident is None or self._stopping:
            coroutine.close()
            raise _not_open()
        return self._given(coroutine, timeout_s)

    def _given(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:  # it was stopped a moment ago
            coroutine.close()
            raise _not_open() from None
        try:
            return future.result(timeout_s + _SLACK_S)
        except CancelledError:
            raise _not_open() from None
        except TimeoutError as error:
            raise NotReadyError(
                f"the client's own event loop did not answer within {timeout_s + _SLACK_S:g} s"
            ) from error
        finally:
            future.cancel()

    def stop(self, last: Coroutine[Any, Any, None], timeout_s: float = CLOSE_S) -> None:
        """Run *last*, end scans that were not read to their end and what other threads still wait for, and
        end the thread, whatever fails.
        """
        if self._thread.ident is None or self._stopping:
            last.close()
            return
        self._stopping = True
        try:
            self._given(last, timeout_s)
            self._given(self._loop.shutdown_asyncgens(), CLOSE_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_S)
            if not self._thread.is_alive():
                self._loop.close()


def _not_open() -> NotReadyError:
    return NotReadyError("the client is not open: use it in a `with` statement, and not after it")


async def _ended() -> None:
    """Cancel the remaining tasks on this loop, and wait for their end."""
    for _ in range(2):  # a call that came while it was stopped begins only now
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.sleep(0)
        if left:
            await asyncio.wait(left, timeout=CLOSE_S / 2)
