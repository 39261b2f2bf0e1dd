"""Fetches records from exact positions with our own fetcher, and returns them as columns, pulled from the
event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field

from aiokafka.client import AIOKafkaClient

from holdfast.clock import system_clock
from holdfast.core.engine.fold.skips import OffsetRanges, behind
from holdfast.core.kafka.compression import LIMIT_UNPACKED_BYTES
from holdfast.core.kafka.topic_partition import Place
from holdfast.core.kafka.unreadable import Unreadable
from holdfast.core.kafka.wire import WireReason
from holdfast.errors import WireError
from holdfast.kafka.fetching.batch_reader import BatchReader
from holdfast.kafka.fetching.fetched_partition import Chunk, FetchedPartition
from holdfast.kafka.fetching.fetcher import Fetcher
from holdfast.kafka.fetching.records import Records

logger = logging.getLogger(__name__)

HANDFUL = 2_000
"""Records decoded at once: 2 to 5 ms, for which the event loop runs nothing else."""
HANDFUL_S = 0.005
"""A handful of many small batches ends after so long."""
TAKE_S = 0.1
"""Records already decoded are returned after so long: batches that are slow to unpack delay no others."""
ATTEMPTS = 3
"""Fetches of a corrupt batch before it counts as unreadable: damage in transit goes away, damage in the log
does not.
"""
RETRY_S = 0.1


@dataclass(slots=True)
class Fetched:
    """Records of one partition as one fetch brought them. *first* is the position before it: nothing between
    it and the records exists.

    *broker_time* says whether the broker's clock stamped the last of them. *readers* counts the processors
    that still use them; after the last, the records are released.
    """

    epoch: int
    topic: str
    partition: int
    first: int
    records: Records = field(default_factory=Records)
    broker_time: bool = False
    last: int = -1
    size_bytes: int = 0
    readers: int = 0

    def __len__(self) -> int:
        return len(self.records)


@dataclass(slots=True)
class _Reading:
    """The progress of reading one partition.

    *following* is the offset after the last record taken, *position* after all that was read.
    """

    source: FetchedPartition
    following: int
    position: int
    attempts: int = 0
    skips: OffsetRanges = ()


class SourceFetcher:
    """Reads the source partitions this worker folds, from positions that come from the state, never from
    committed offsets.

    The fetcher fetches ahead, within *queue_bytes* over all partitions. `fetch` is called from the event loop
    only. No record of an older assignment comes out after `assign`. One batch is unpacked at a time, to
    *unpacked_batch_bytes* at most.
    """

    def __init__(
        self,
        connect: Callable[[], AIOKafkaClient],
        executor: Executor,
        *,
        fetch_records: int,
        fetch_bytes: int,
        queue_bytes: int,
        unpacked_batch_bytes: int = LIMIT_UNPACKED_BYTES,
        timeout_s: float = 30.0,
        exact: bool = False,
    ) -> None:
        self._executor, self._unpacked_batch_bytes = executor, unpacked_batch_bytes
        self._fetch_records, self._fetch_bytes = fetch_records, fetch_bytes
        self._fetcher = Fetcher(connect, queue_bytes=queue_bytes, timeout_s=timeout_s, exact=exact)
        self._readings: dict[Place, _Reading] = {}
        self._assigned = 0
        self._current: tuple[Chunk, BatchReader] | None = None
        self.unreadable: dict[Place, Unreadable] = {}
        """Partitions whose next batch cannot be read; all records before it were fetched."""
        self._met: dict[Place, Unreadable] = {}
        self.met = asyncio.Event()
        """Set when one more is met; who waits for it clears it."""

    @property
    def broker_down(self) -> bool:
        """Return whether the last word of every broker was none."""
        return self._fetcher.broker_down

    @property
    def standing(self) -> Mapping[Place, Unreadable]:
        """Return the unreadable batches that were met and not yet passed, also right after `assign`, before
        they are met again.
        """
        return {
            place: met
            for place, met in self._met.items()
            if place in self._readings and self._readings[place].position <= met.first
        }

    async def assign(
        self,
        positions: Mapping[Place, int],
        advised: Mapping[Place, int] | None = None,
        skips: Callable[[str, int], OffsetRanges] = lambda topic, partition: (),
    ) -> None:
        """Read from *positions* (the next offset of each partition; 0 means from the beginning) and nothing
        else.

        *advised* are positions that no state depends on: one that the log no longer holds moves to the log's
        beginning. *skips* returns the offsets of a partition to leave out, readable or not.
        """
        advised = advised or {}
        self._assigned += 1
        self._drop_current()
        self.unreadable.clear()
        sources = {
            place: FetchedPartition(place, offset, advised=place in advised)
            for place, offset in {**positions, **advised}.items()
        }
        self._readings = {
            place: _Reading(source, source.following, source.following, skips=skips(*place))
            for place, source in sources.items()
        }
        self._fetcher.assign(sources)

    async def fetch(self, epoch: int, wait_s: float) -> list[Fetched]:
        """Return the records that have arrived, one item per partition; wait up to *wait_s* for the first.

        At most *fetch_records*, and no more of them once they have *fetch_bytes*.
        """
        assigned, fetches, began_s = self._assigned, dict[Place, Fetched](), system_clock.monotonic_s()
        until_s = began_s + wait_s
        taken = taken_bytes = 0
        while taken < self._fetch_records and taken_bytes < self._fetch_bytes:
            if self._fetcher.failure is not None:
                raise self._fetcher.failure
            if not self._something():
                if taken or not await self._wait(until_s):
                    break
                if assigned != self._assigned:
                    return []
                continue
            records, size = self._take_handful(fetches, epoch, min(HANDFUL, self._fetch_records - taken))
            taken, taken_bytes = taken + records, taken_bytes + size
            if self._current is not None and self._current[1].packed is not None:
                await self._unpack(*self._current)
                if taken and system_clock.monotonic_s() - began_s > TAKE_S:
                    break
            elif taken < self._fetch_records and taken_bytes < self._fetch_bytes and self._something():
                await asyncio.sleep(0)
            if assigned != self._assigned:
                return []
        return list(fetches.values())

    def _something(self) -> bool:
        return self._current is not None or bool(self._fetcher.chunks)

    async def _wait(self, until_s: float) -> bool:
        """Wait for something to take; return whether there is something before *until_s*."""
        arrived = self._fetcher.arrived
        arrived.clear()
        try:
            async with asyncio.timeout(max(0.0, until_s - system_clock.monotonic_s())):
                await arrived.wait()
        except TimeoutError:
            return False
        return True

    def _take_handful(self, fetches: dict[Place, Fetched], epoch: int, limit: int) -> tuple[int, int]:
        """Add up to *limit* records to *fetches*; return how many, and about how many bytes they have."""
        records = size = 0
        until_s = system_clock.monotonic_s() + HANDFUL_S
        while records < limit and size < self._fetch_bytes and self._something():
            chunk, reader = self._current or self._next_chunk()
            reading = self._readings[chunk.source.place]
            try:
                more, more_bytes = self._take(fetches, epoch, chunk, reader, limit - records)
            except WireError as error:
                self._unread(reading, chunk, reader, error)
                continue
            records, size = records + more, size + more_bytes
            if reader.packed is not None or system_clock.monotonic_s() > until_s:
                break
        return records, size

    def _next_chunk(self) -> tuple[Chunk, BatchReader]:
        chunk = self._fetcher.chunks.popleft()
        reading, limit_bytes = self._readings[chunk.source.place], self._unpacked_batch_bytes
        position = max(chunk.first, reading.position)
        self._current = (
            chunk,
            BatchReader(chunk.data, chunk.aborted, position, limit_bytes=limit_bytes, skips=reading.skips),
        )
        return self._current

    def _take(
        self, fetches: dict[Place, Fetched], epoch: int, chunk: Chunk, reader: BatchReader, limit: int
    ) -> tuple[int, int]:
        place = chunk.source.place
        reading = self._readings[place]
        fetched = fetches.get(place) or Fetched(epoch, *place, reading.following)
        before = len(fetched.records)
        size = reader.take(fetched.records, limit)
        if more := len(fetched.records) - before:
            fetches[place] = fetched
            fetched.last = fetched.records.offsets[-1]
            fetched.broker_time = reader.broker_time
            fetched.size_bytes += size
            reading.following, reading.attempts = fetched.last + 1, 0
        reading.position = reader.position
        if reader.done:
            self._drop_current()
        return more, size

    def _drop_current(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            self._fetcher.done(current[0])

    async def _unpack(self, chunk: Chunk, reader: BatchReader) -> None:
        """Unpack a large batch in a thread; the event loop has other things to do."""
        unpacked: bytes | WireError
        try:
            unpacked = await asyncio.get_running_loop().run_in_executor(self._executor, reader.unpack)
        except WireError as error:
            unpacked = error
        if self._current is None or self._current[1] is not reader:
            return  # an assignment came between
        try:
            if isinstance(unpacked, WireError):
                raise unpacked
            reader.unpacked(unpacked)
        except WireError as error:
            self._unread(self._readings[chunk.source.place], chunk, reader, error)

    # -- what cannot be read

    def _unread(self, reading: _Reading, chunk: Chunk, reader: BatchReader, error: WireError) -> None:
        """Fetch a corrupt batch again; stop before it if it stays corrupt, or is too large."""
        place, source = chunk.source.place, chunk.source
        reading.position = max(reading.position, reader.position)
        reading.attempts += 1
        self._drop_current()
        if error.reason != WireReason.SIZE and reading.attempts < ATTEMPTS:
            self._fetcher.restart(source, reading.position, RETRY_S)
            return
        found = reader.unreadable(*place, error)
        if (
            position := behind(reading.skips, found.first)
        ) > found.first:  # its header is no better than the rest of it
            reading.position, reading.attempts = position, 0
            self._fetcher.restart(source, position)
            return
        if found != self._met.get(place):
            logger.error(
                "%(found)s",
                {"found": found, "topic": found.topic, "partition": found.partition, "offset": found.first},
            )
        self.unreadable[place] = self._met[place] = found
        self.met.set()
        source.stopped = True
        self._fetcher.restart(source, found.first)

    def skip(self, place: Place, last: int) -> None:
        """Resume after offset *last* of a partition whose next batch is unreadable and skipped."""
        found = self.unreadable.get(place)
        if found is None or last < found.first:
            return
        del self.unreadable[place]
        reading = self._readings[place]
        reading.position, reading.attempts = last + 1, 0
        reading.source.stopped = False
        self._fetcher.restart(reading.source, last + 1)

    def hold(self, place: Place, held: bool) -> None:
        """Pause or resume fetching a partition: records that its reader cannot take must not fill the queue
        that all partitions share.
        """
        reading = self._readings.get(place)
        if reading is not None and place not in self.unreadable:
            reading.source.stopped = held
            self._fetcher.wake()

    def position(self, place: Place) -> int:
        """Return the next offset to be read of a partition: all before it was taken, or holds nothing for
        a consumer.
        """
        return self._readings[place].position

    def head(self, place: Place) -> int:
        """Return where the log of a partition began that was to be read from 0 and had lost its head, else
        0.
        """
        reading = self._readings.get(place)
        return 0 if reading is None else reading.source.head

    def passed(self, place: Place, following: int) -> int:
        """Return the next offset to read of a partition whose records before *following* are all done.

        It is past markers of transactions and skipped batches if no record was taken since.
        """
        reading = self._readings.get(place)
        return reading.position if reading is not None and reading.following == following else following

    # -- positions that brokers report

    def ends(self) -> dict[Place, int]:
        """Return the end of each partition's committed log, as the last fetch gave it; where all of it is
        read, the offset after the last record.

        So a log that ends with markers has an end that a reader can come to.
        """
        out: dict[Place, int] = {}
        for place, reading in self._readings.items():
            stable = reading.source.last_stable
            if stable >= 0:
                out[place] = reading.following if reading.position >= stable else stable
        return out

    async def probe(self) -> None:
        """Ask at once whether the broker answers again, when the last word was that it does not."""
        self._fetcher.wake()

    async def close(self) -> None:
        self._assigned += 1
        self._drop_current()
        self._readings.clear()
        await self._fetcher.close()
