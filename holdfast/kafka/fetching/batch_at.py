"""The batch of a partition that holds an offset, read as workers read it: whatever it unpacks to, and however
broken it is.

No more is unpacked than a limit, and its records are taken a handful at a time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from holdfast.core.kafka.record_batch import BatchHeader, Record, claimed_header, decode_header
from holdfast.core.kafka.unreadable import Unreadable
from holdfast.core.kafka.wire import WireReason
from holdfast.errors import TopicError, WireError
from holdfast.kafka.fetching.batch_reader import BatchReader
from holdfast.kafka.fetching.records import Records
from holdfast.kafka.requests.raw_log import FETCH_BYTES, LIMIT_BATCH_BYTES, RawFetch, RawLog

ATTEMPTS = 3
"""Fetches of a batch that is corrupt: damage in transit goes away, damage in the log does not."""
HANDFUL = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAt:
    """The batch that holds an offset, with its decoded *header*, None if it cannot be decoded.

    *records* counts the readable records, 0 in an aborted transaction; *record* is the one asked for.
    *unreadable* describes the part that cannot be read, and *error* the reason.
    """

    fetched: RawFetch
    data: memoryview
    header: BatchHeader | None
    records: int
    record: Record | None
    unreadable: Unreadable | None
    error: WireError | None


async def batch_at(
    log: RawLog, topic: str, partition: int, offset: int, *, limit_bytes: int, committed: bool = False
) -> BatchAt:
    """Return the batch that holds *offset*, as readers of committed records see it if *committed*.

    Raises TopicError if the log does not hold *offset*, or, with *committed*, if a transaction that began
    before it is open.
    """
    max_bytes = FETCH_BYTES
    for _ in range(ATTEMPTS):
        fetched, data = await _held(log, topic, partition, offset, max_bytes, committed=committed)
        found = await asyncio.to_thread(_read, topic, partition, offset, fetched, data, limit_bytes)
        if found.error is None or found.error.reason == WireReason.SIZE:
            break
        # Also fetch what follows it: only the next batch shows where a damaged one ends.
        max_bytes = min(LIMIT_BATCH_BYTES, len(fetched.data) + FETCH_BYTES)
    return found


async def _held(
    log: RawLog, topic: str, partition: int, offset: int, max_bytes: int, *, committed: bool
) -> tuple[RawFetch, memoryview]:
    """Fetch from the batch that holds *offset* on; return the answer and the bytes that begin with that
    batch.
    """
    while True:
        fetched = await log.fetch(topic, partition, offset, committed=committed, max_bytes=max_bytes)
        data = memoryview(fetched.data)
        at = _begin(data, offset)
        if at < len(data):
            header = claimed_header(data, at)
            if header is not None and offset < header.base_offset:
                raise _absent(
                    topic, partition, offset, fetched, f"; the next batch begins at {header.base_offset}"
                )
            return fetched, data[at:]
        if committed and fetched.last_stable <= offset < fetched.high_watermark:
            raise TopicError(
                f"{topic} partition {partition}: offset {offset} lies behind a transaction that is open from"
                f" {fetched.last_stable} on: no reader has come to it; look again when that has ended"
            )
        if not len(data) or max_bytes >= LIMIT_BATCH_BYTES:
            raise _absent(topic, partition, offset, fetched, "")
        max_bytes = min(LIMIT_BATCH_BYTES, 4 * max_bytes)


def _begin(data: memoryview, offset: int) -> int:
    """Return where the batch begins that holds *offset*, or may hold it; the end of *data* where none
    does.
    """
    at = 0
    while at < len(data):
        try:
            header = decode_header(data, at)
        except WireError:
            return at
        if header.last_offset >= offset:
            return at
        at += header.size_bytes
    return len(data)


def _absent(topic: str, partition: int, offset: int, fetched: RawFetch, more: str) -> TopicError:
    return TopicError(
        f"{topic} partition {partition}: offset {offset} is not in the log (it holds {fetched.log_start} to"
        f" {fetched.high_watermark - 1}), or compaction has removed it{more}"
    )


def _read(
    topic: str, partition: int, offset: int, fetched: RawFetch, data: memoryview, limit_bytes: int
) -> BatchAt:
    header = claimed_header(data)
    reading = Reading(data, offset, fetched.aborted, limit_bytes=limit_bytes)
    reading.run()
    broken = reading.error
    return BatchAt(
        fetched=fetched,
        data=data,
        header=header,
        records=reading.count,
        record=None if reading.wanted is None or header is None else _record(reading.wanted, header, offset),
        unreadable=None if broken is None else reading.reader.unreadable(topic, partition, broken),
        error=broken,
    )


class Reading:
    """Reads the batch at the beginning of *data*, and no further.

    `count` records were read before the `error`, if there is one.
    """

    def __init__(
        self, data: memoryview, offset: int, aborted: tuple[tuple[int, int], ...] = (), *, limit_bytes: int
    ) -> None:
        self._offset = offset
        try:
            header = decode_header(data)
            first, self._last = header.base_offset, header.last_offset
        except WireError:
            first = self._last = offset  # the position of the worker that met it
        self.reader = BatchReader(data, aborted, first, limit_bytes=limit_bytes)
        self.count = 0
        self.error: WireError | None = None
        self.wanted: Records | None = None

    def run(self) -> None:
        """Read it all."""
        try:
            while not self.reader.done and self.reader.position <= self._last:
                self._step()
        except WireError as error:
            if self.reader.position <= self._last:  # else it is a later batch's
                error.__context__ = None  # without the frames, which hold on to the data
                self.error = error.with_traceback(None)

    def _step(self) -> None:
        records = Records()
        self.reader.take(records, HANDFUL)
        if self.reader.packed is not None:
            self.reader.unpacked(self.reader.unpack())
        self.count += sum(each <= self._last for each in records.offsets)
        if self._offset in records.offsets:
            self.wanted = records


def _record(records: Records, header: BatchHeader, offset: int) -> Record:
    """Return one of *records* as its batch holds it."""
    found = records.at(offset)
    base_ms = header.max_timestamp_ms if header.is_log_append_time else header.base_timestamp_ms
    return Record(offset - header.base_offset, found.key, found.value, found.headers, found.at_ms - base_ms)
