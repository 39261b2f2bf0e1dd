"""How much of what was fetched is not yet committed: the feed pauses above a limit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from holdfast.clock import Clock, system_clock
from holdfast.kafka.fetching.records import Records
from holdfast.kafka.fetching.source_fetcher import Fetched


class FlowControl:
    """Counts fetched bytes from the moment agents have them until they are committed. *sources* are those of
    all processors, one each.

    `room` is set while more may be fetched; `progress_s` is when something last moved, by the monotonic
    clock.
    """

    def __init__(self, limit_bytes: int, sources: Iterable[str], *, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._limit_bytes, self._readers = limit_bytes, Counter(sources)
        self._inflight_bytes, self.room = 0, asyncio.Event()
        self.room.set()
        self.progress_s = self._clock.monotonic_s()

    @property
    def busy(self) -> bool:
        return self._inflight_bytes > 0

    def void(self) -> None:
        """Count nothing of what was taken so far: a revocation makes all of it void."""
        self._inflight_bytes = 0
        self.room.set()

    def taken(self, fetched: Fetched) -> None:
        """Count records handed to agents, once for each processor that reads them."""
        fetched.readers = self._readers[fetched.topic]
        self._inflight_bytes += fetched.size_bytes * fetched.readers
        if self._inflight_bytes >= self._limit_bytes:
            self.room.clear()

    def parked(self, fetched: Fetched) -> None:
        """Count records no more that wait for other sources: the worker is not stuck, and what they wait for
        must be fetched. One processor, of those that read them, has them.
        """
        self._inflight_bytes -= fetched.size_bytes
        if self._inflight_bytes < self._limit_bytes:
            self.room.set()

    def released(self, fetched: Fetched, *, current: bool) -> None:
        """Note that one processor is done with *fetched*; *current* says whether it was taken since the
        last revocation.
        """
        self.progressed()
        fetched.readers -= 1
        if not fetched.readers:
            fetched.records = Records()  # Faust keeps the last event of each stream until there is another
        if current:
            self._inflight_bytes -= fetched.size_bytes
            if self._inflight_bytes < self._limit_bytes:
                self.room.set()

    def progressed(self) -> None:
        """Note that a transaction was committed: a fetch that takes many is not stuck."""
        self.progress_s = self._clock.monotonic_s()
