"""Flow control by the fetched bytes that are not yet committed: the feed pauses above a limit."""

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
        """Reset the count: a revocation makes all records void that were taken so far."""
        self._inflight_bytes = 0
        self.room.set()

    def taken(self, fetched: Fetched) -> None:
        """Count records handed to agents, once for each processor that reads them."""
        fetched.readers = self._readers[fetched.topic]
        self._inflight_bytes += fetched.size_bytes * fetched.readers
        if self._inflight_bytes >= self._limit_bytes:
            self.room.clear()

    def parked(self, fetched: Fetched) -> None:
        """Stop counting records that wait for other sources: the worker is not stuck, and the records that
        they wait for must be fetched. One processor, of those that read them, has them.
        """
        self._inflight_bytes -= fetched.size_bytes
        if self._inflight_bytes < self._limit_bytes:
            self.room.set()

    def released(self, fetched: Fetched, *, current: bool) -> None:
        """Stop counting *fetched* for one processor, which is done with it; *current* says whether it was
        taken since the last revocation.
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
        """Report progress: a fetch whose records need many transactions is not stuck."""
        self.progress_s = self._clock.monotonic_s()
