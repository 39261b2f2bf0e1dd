"""Requests that wait for a partition to reach a position."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TypeAlias

from holdfast.tables.state import CommittedState

Reaching: TypeAlias = int | Mapping[str, int]
"""A source offset, or one for each of some sources."""


class Waiters:
    """Requests that wait until a partition's committed state holds a position."""

    def __init__(self, state: CommittedState) -> None:
        self._state = state
        self._waiting: list[tuple[Reaching, asyncio.Future[bool]]] = []

    def has_reached(self, wanted: Reaching) -> bool:
        """Return whether the committed state holds an offset, or one of each of some sources."""
        if isinstance(wanted, int):
            return self._state.applied >= wanted
        offsets = self._state.offsets
        return all(offsets[topic] >= offset for topic, offset in wanted.items())

    async def reached(self, wanted: Reaching, timeout_s: float) -> bool:
        """Wait until *wanted* is in the committed state; False when time ran out or the partition went away
        first.
        """
        if self.has_reached(wanted):
            return True
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        entry = (wanted, future)
        self._waiting.append(entry)
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            return False
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    def wake(self) -> None:
        """Answer those whose position is reached. On the event loop only."""
        if self._waiting:
            applied = self._state.applied
            for wanted, future in self._waiting:
                reached = applied >= wanted if isinstance(wanted, int) else self.has_reached(wanted)
                if reached and not future.done():
                    future.set_result(True)
            self._waiting = [entry for entry in self._waiting if not entry[1].done()]

    def release(self) -> None:
        for _, future in self._waiting:
            if not future.done():
                future.get_loop().call_soon_threadsafe(_answer_no, future)
        self._waiting = []


def _answer_no(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
