"""The broker's recurring work: an unexpected failure is logged, and ends neither the rest of the round nor
the rounds to come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from holdfast.errors import BrokerFolderError

_logger = logging.getLogger(__name__)


@contextmanager
def set_apart(what: str, again_s: float) -> Iterator[None]:
    """Log a failure of the body, as that of *what*, which is tried again in *again_s* seconds: the caller
    continues, as in Kafka.
    """
    try:
        yield
    except BrokerFolderError:
        return  # the disk has reported it, and the broker stops
    except Exception:
        _logger.exception(
            "%(what)s failed: it is tried again in %(again_s)g s", {"what": what, "again_s": again_s}
        )


class Recurring:
    """Calls *do* each *every_s* seconds on the running loop, from `start` until `close`; *what* names it in
    the log.
    """

    def __init__(self, what: str, every_s: float, do: Callable[[], Awaitable[None] | None]) -> None:
        self._what, self.every_s, self._do = what, every_s, do
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._rounds())

    async def _rounds(self) -> None:
        while True:
            await asyncio.sleep(self.every_s)
            with set_apart(self._what, self.every_s):
                if (rest := self._do()) is not None:
                    await rest

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
