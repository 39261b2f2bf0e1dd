"""Answers wait until all that was written before them is on the disk. Those of one round share one sync."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from holdfast.embedded.storage.disk import Disk
from holdfast.errors import BrokerFolderError


class DurableAnswers:
    """Lets answers out in the order in which they came. A thread syncs, so that requests are answered at the
    same time, which the next round lets out. After a failure no answer is let out any more. Its creator must
    call `close`.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._waiting: list[Callable[[], None]] = []
        self._round: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "embedded-kafka-sync")

    def hold(self, send: Callable[[], None]) -> bool:
        """Have *send* called once everything written so far is on the disk; False when that is so already."""
        if self._disk.failure is not None:
            return True  # a second sync may succeed that has written nothing
        if self._round is None and not self._disk.is_unsynced:
            return False
        self._waiting.append(send)
        if self._round is None:
            self._round = asyncio.ensure_future(self._rounds())
        return True

    async def _rounds(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                written = self._disk.take_unsynced()
                await loop.run_in_executor(self._thread, self._disk.sync_files, written)
                self._disk.synced()
                for send in waiting:
                    send()
        except BrokerFolderError as error:
            self._disk.fail(error)
        finally:
            self._round = None

    def close(self) -> None:
        """Let no answer out any more."""
        self._waiting.clear()
        if self._round is not None:
            self._round.cancel()
        self._thread.shutdown(wait=True)
