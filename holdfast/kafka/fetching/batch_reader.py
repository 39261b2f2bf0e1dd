"""Fetched bytes of one partition as columns: batch by batch, a handful at a time, and never more unpacked
than a limit.

aiokafka's reader decodes records, in C. Unsafe input is kept from it here: it believes lengths and offsets,
makes every header of a record at once, and reads some bytes past the end of its input.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from operator import lt
from struct import Struct
from struct import error as StructError
from typing import Any

import google_crc32c
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecord, DefaultRecordBatch

from holdfast.core.engine.fold.skips import LIMIT_OFFSETS, OffsetRanges, behind
from holdfast.core.kafka.compression import Compression, decompress
from holdfast.core.kafka.record_batch import (
    COMPRESSION_BITS,
    CRC_FROM,
    HEADER_BYTES,
    LEAST_RECORD_BYTES,
    BatchHeader,
    ControlType,
    control_of,
    decode_batch,
    decode_header,
)
from holdfast.core.kafka.unreadable import Unreadable
from holdfast.core.kafka.wire import WireReader, WireReason
from holdfast.errors import WireError
from holdfast.kafka.fetching.records import BatchOrigin, Records

INLINE_BYTES, INLINE_PARTS = 1 << 20, 1_000
"""Batches up to this size, packed and unpacked, and up to so many parts are unpacked at once: some 2 ms of
the event loop. Larger ones go to a thread.
"""
PIECE_BYTES = 1 << 20
"""A larger batch is decoded in pieces of this size, each of whole records: decoded records may take 50 times
the memory of a piece.
"""
PIECE_RECORDS = 4_000
"""Nor has a piece more records: to find where they end takes a microsecond for each."""
LIMIT_HEADERS = 100_000
"""So many headers may a record have that is larger than a piece."""
HEADER_COST_BYTES = 100
RECORD_OVERHEAD_BYTES, LEAST_COST_BYTES = 8, 24
PASSED_AT_ONCE = 500
"""So many batches that hold nothing for a consumer are passed before others of the event loop have their
turn.
"""
_SLACK_BYTES = 32
_LENGTH_AT, _ATTRIBUTES_AT, _COUNT_AT = 8, 21, 57
_INT16, _INT32 = Struct(">h"), Struct(">i")

_offset, _timestamp = DefaultRecord.offset.__get__, DefaultRecord.timestamp.__get__
_key, _value, _headers = DefaultRecord.key.__get__, DefaultRecord.value.__get__, DefaultRecord.headers.__get__


class BatchReader:
    """Reads *data*, whole batches as a leader sent them with *aborted*, from *position* on. `position` is the
    next offset to be read.

    `take` appends records, at most as many as asked for. It never waits. A large batch is *packed* first: the
    caller unpacks its bytes elsewhere and passes them to `unpacked`. A WireError ends the reading;
    `unreadable` then describes the batch at which it ended. All records before a corrupt one are read,
    whatever the number taken at once, so every reader comes to the same offset. *skips* are offsets that are
    left out.
    """

    def __init__(
        self,
        data: memoryview,
        aborted: Sequence[tuple[int, int]],
        position: int,
        *,
        limit_bytes: int,
        skips: OffsetRanges = (),
    ) -> None:
        self._data, self._at, self._limit_bytes, self._skips = data, 0, limit_bytes, skips
        self._aborted, self._dropped = deque(sorted(aborted, key=lambda each: each[1])), set[int]()
        self.position = position
        self.header: BatchHeader | None = None
        self.packed: bytes | None = None
        self.broker_time = False
        self._pieces: Iterator[tuple[int, memoryview]] | None = None
        self._piece: Any = None
        self._left, self._made, self._least, self._each_bytes = 0, 0, 0, 0
        self._corrupt: WireError | None = None

    @property
    def done(self) -> bool:
        return not self._left and self._at >= len(self._data) and self.packed is None and self.header is None

    def take(self, records: Records, limit: int) -> int:
        """Append up to *limit* records, all of one batch; return about how many bytes they have.

        Nothing is appended where batches hold nothing for a consumer, or while one is `packed`.
        """
        try:
            if self.header is None:
                self._open()
            elif self._piece is None and self.packed is None:
                self._next_piece()
            return 0 if self._piece is None else self._take(records, min(limit, self._left))
        except WireError:
            if self.header is None or not self._skips or not self._is_skipped(self.header):
                raise
            self._close()  # the corrupt part begins where the skip does
            return 0

    def _take(self, records: Records, count: int) -> int:
        header = self.header
        assert header is not None
        if self._corrupt is not None:
            raise self._corrupt
        found = self._taken_apart(count)
        self._left -= count
        offsets = self._offsets(header, found)
        if len(offsets) < len(found):
            found = found[: len(offsets)]
        if not found:
            assert self._corrupt is not None
            raise self._corrupt
        last = offsets[-1]
        if offsets[0] < self.position:  # a fetch begins with the batch that holds the position
            below = bisect_left(offsets, self.position)
            found, offsets = found[below:], offsets[below:]
        if self._skips:
            left = [at for at, offset in enumerate(offsets) if behind(self._skips, offset) == offset]
            found, offsets = [found[at] for at in left], [offsets[at] for at in left]
        size = self._append(records, header, offsets, found) if found else 0
        self.position = max(self.position, last + 1)
        if self._left == 0 and self._corrupt is None:
            self._piece = None
            if self._pieces is None:
                self._close()
            elif self._made == header.records_count:
                self._finish()
        return size

    def _finish(self) -> None:
        """Release a large batch with its last record, so that it is not kept until the next read."""
        try:
            self._next_piece()
        except WireError as error:
            self._corrupt = error  # raised by the next read

    def _taken_apart(self, count: int) -> list[Any]:
        """Return the next *count* records, or those before one that is `_corrupt` from here on."""
        found: list[Any] = []
        try:
            found.extend(islice(self._piece, count))  # keeps what came before a failure
            if count == self._left:
                next(self._piece, None)  # fails on bytes that follow the last record
        except (CorruptRecordException, ValueError, OverflowError, MemoryError) as error:
            self._corrupt = WireError(
                f"a record is corrupt: {error}", offset=self._at, reason=WireReason.LENGTH
            )
            if len(found) == count:
                found.pop()  # so that the batch is not read whole before it is found corrupt
        return found

    def _offsets(self, header: BatchHeader, found: list[Any]) -> Sequence[int]:
        """Return the offsets of records just taken apart, up to the first that is out of order."""
        if not found:
            return ()
        count, first, last = len(found), found[0].offset, found[-1].offset
        begin, self._made = header.base_offset + self._made, self._made + count
        least, self._least = header.base_offset + self._least, last - header.base_offset + 1
        if (
            header.records_count == header.last_offset_delta + 1
            and first == begin
            and last == begin + count - 1
        ):
            return range(begin, begin + count)
        offsets = list(map(_offset, found))
        if first >= least and last <= header.last_offset and all(map(lt, offsets, offsets[1:])):
            return offsets
        self._corrupt = WireError(
            f"offsets {first} to {last} out of order", offset=self._at, reason=WireReason.ORDER
        )
        good = 0
        for offset in offsets:
            if not least <= offset <= header.last_offset:
                break
            good, least = good + 1, offset + 1
        return offsets[:good]

    def _append(self, records: Records, header: BatchHeader, offsets: Sequence[int], found: list[Any]) -> int:
        count = len(found)
        times: Sequence[int]
        if header.is_log_append_time:
            times = [header.max_timestamp_ms] * count
        else:
            times = list(map(_timestamp, found))
            if None in times:
                times = [-1 if at_ms is None else at_ms for at_ms in times]
        origin = BatchOrigin(header.is_log_append_time, header.partition_leader_epoch)
        headers = list(map(_headers, found))
        size = max(self._each_bytes - RECORD_OVERHEAD_BYTES, LEAST_COST_BYTES) * count
        if any(headers):
            size += HEADER_COST_BYTES * sum(map(len, headers))
            told = list(map(tuple, headers))
            records.append(offsets, times, map(_value, found), map(_key, found), told, origin)
        else:
            records.append(offsets, times, map(_value, found), map(_key, found), None, origin)
        return size

    # -- batches

    def _open(self) -> None:
        """Go to the next batch that holds records for a consumer, or to the end."""
        for _ in range(PASSED_AT_ONCE):
            if self._at >= len(self._data):
                return
            header = decode_header(self._data, self._at)
            if (
                header.base_offset < self.position <= header.last_offset
                and 0 <= self._next_base() <= self.position
            ):
                self._at += (
                    header.size_bytes
                )  # it claims offsets that are another batch's, and those before the position are passed
                continue
            if self._is_wanted(header):
                self.header, self.broker_time = header, header.is_log_append_time
                self._begin(header)
                return
            self._pass(header)

    def _is_wanted(self, header: BatchHeader) -> bool:
        while self._aborted and self._aborted[0][1] <= header.last_offset:
            self._dropped.add(self._aborted.popleft()[0])
        if header.is_control:
            end = self._at + header.size_bytes
            batch = decode_batch(self._data[self._at : end], limit_bytes=INLINE_BYTES)
            if any(control_of(batch, record).type is ControlType.ABORT for record in batch.records):
                self._dropped.discard(header.producer_id)
            return False
        if self._skips and self._is_skipped(header):
            return False
        return header.last_offset >= self.position and not (
            header.is_transactional and header.producer_id in self._dropped
        )

    def _is_skipped(self, header: BatchHeader) -> bool:
        """Return whether all that is left of a batch is skipped."""
        return behind(self._skips, max(self.position, header.base_offset)) > header.last_offset

    def _pass(self, header: BatchHeader) -> None:
        self._at += header.size_bytes
        self.position = max(self.position, header.last_offset + 1)

    def _close(self) -> None:
        header, self.header, self._piece, self._pieces, self._left = self.header, None, None, None, 0
        self._corrupt = None
        assert header is not None
        self._pass(header)

    def _begin(self, header: BatchHeader) -> None:
        end = self._at + header.size_bytes
        if end > len(self._data):
            raise WireError(
                f"a batch of {header.size_bytes} bytes is cut short",
                offset=self._at,
                reason=WireReason.TRUNCATED,
            )
        body = self._data[self._at + CRC_FROM : end].tobytes()
        if (found := int(google_crc32c.value(body))) != header.crc32c:
            raise WireError(
                f"checksum {found:08x}, the batch says {header.crc32c:08x}",
                offset=self._at + 17,
                reason=WireReason.CHECKSUM,
            )
        if not header.compression:
            self._unpacked(header, self._data[self._at + HEADER_BYTES : end])
            return
        packed = body[HEADER_BYTES - CRC_FROM :]
        if (records := self._unpacked_at_once(header, packed)) is None:
            self.packed = packed
        else:
            self._unpacked(header, memoryview(records))

    def _unpacked_at_once(self, header: BatchHeader, packed: bytes) -> bytes | None:
        """Return *packed* unpacked; None if that takes long, or exceeds the limit."""
        if len(packed) > INLINE_BYTES:
            return None
        try:
            return decompress(
                header.compression,
                packed,
                limit_bytes=min(INLINE_BYTES, self._limit_bytes),
                limit_parts=INLINE_PARTS,
            )
        except WireError as error:
            if error.reason != WireReason.SIZE:
                raise
            return None

    def unpack(self) -> bytes:
        """Unpack `packed`, from any thread; WireError when it is corrupt or exceeds the limit."""
        assert self.packed is not None
        assert self.header is not None
        return decompress(self.header.compression, self.packed, limit_bytes=self._limit_bytes)

    def unpacked(self, records: bytes) -> None:
        """Continue reading with the bytes that `unpack` returned."""
        assert self.packed is not None
        assert self.header is not None
        self.packed = None
        self._unpacked(self.header, memoryview(records))

    def _unpacked(self, header: BatchHeader, records: memoryview) -> None:
        if header.records_count * LEAST_RECORD_BYTES > len(records):
            text = f"{header.records_count} records do not fit {len(records)} bytes"
            raise WireError(text, offset=self._at + _COUNT_AT, reason=WireReason.LENGTH)
        if not header.records_count and len(records):
            raise WireError(f"{len(records)} bytes of no record", offset=self._at, reason=WireReason.TRAILING)
        self._made = self._least = 0
        if len(records) > PIECE_BYTES:
            self._pieces = pieces(records, header.records_count)
            self._next_piece()
        elif header.records_count:
            self._take_apart(header.records_count, records)
        else:
            self._close()

    def _next_piece(self) -> None:
        assert self._pieces is not None
        if self._corrupt is not None:
            raise self._corrupt
        count, records = next(self._pieces, (0, memoryview(b"")))
        if count:
            self._take_apart(count, records)
        else:
            self._close()

    def _take_apart(self, count: int, records: memoryview) -> None:
        assert self.header is not None
        self._left = count
        self._each_bytes = len(records) // count
        self._piece = chain(
            DefaultRecordBatch(self._plain(self.header, count, records))
        )  # which may be begun but once

    def _plain(self, header: BatchHeader, count: int, records: memoryview) -> memoryview:
        """Return a batch of *records* as if they had never been packed, with spare bytes at its end."""
        end = self._at + header.size_bytes
        if not header.compression and count == header.records_count and len(self._data) - end >= _SLACK_BYTES:
            return self._data[self._at : end]
        out = bytearray(self._data[self._at : self._at + HEADER_BYTES])
        _INT16.pack_into(out, _ATTRIBUTES_AT, header.attributes & ~COMPRESSION_BITS)
        _INT32.pack_into(out, _COUNT_AT, count)
        out += records
        size = len(out)
        out += bytes(_SLACK_BYTES)
        return memoryview(out)[:size]

    # -- what cannot be read

    def unreadable(self, topic: str, partition: int, error: WireError) -> Unreadable:
        """Describe the batch at which *error* ended the reading, from its header if that can be decoded."""
        header = self.header
        if header is None:
            try:
                header = decode_header(self._data, self._at)
            except WireError:
                header = None
        kind = error.reason.title().replace(" ", "") or "Corrupt"
        first, last = max(self.position, 0), self._last_offset(header, error)
        if header is None:
            size = len(self._data) - self._at
            return Unreadable(
                topic,
                partition,
                first,
                max(first, last),
                str(error),
                f"{kind}Error",
                "unknown",
                size,
                -1,
                -1,
                -1,
                -1,
            )
        first = max(first, header.base_offset)
        return Unreadable(
            topic,
            partition,
            first,
            max(first, last),
            str(error),
            f"{kind}Error",
            Compression(header.compression).name.lower(),
            header.size_bytes,
            header.records_count,
            header.producer_id,
            header.producer_epoch,
            header.max_timestamp_ms,
        )

    def _last_offset(self, header: BatchHeader | None, error: WireError) -> int:
        """Return the last offset of the batch, judged by the next batch since its own header may be damaged;
        -1 if unknown.
        """
        begin, last = self._next_base(), -1 if header is None else header.last_offset
        if header is None or (
            error.reason == WireReason.CHECKSUM and header.records_count != header.last_offset_delta + 1
        ):
            last = -1
        if begin > self.position and (last < 0 or error.reason == WireReason.CHECKSUM or begin <= last):
            last = begin - 1
        return (
            last if last - self.position < LIMIT_OFFSETS else -1
        )  # more than any batch has, and than a skip may have

    def _next_base(self) -> int:
        """Return the first offset of the batch that follows this one; -1 when it was not fetched."""
        with contextlib.suppress(WireError, StructError):
            (length,) = _INT32.unpack_from(self._data, self._at + _LENGTH_AT)
            return decode_header(self._data, self._at + _LENGTH_AT + _INT32.size + max(length, 0)).base_offset
        return -1


def pieces(records: memoryview, count: int) -> Iterator[tuple[int, memoryview]]:
    """Yield (count, records) of each piece of a large batch; WireError where a record does not fit, or has
    too many headers.
    """
    reader, begin, inside = WireReader(records), 0, 0
    for number in range(count):
        at = reader.at
        length = reader.varint(f"length of record {number}")
        if not 0 <= length <= reader.left:
            raise reader.error(
                f"record {number} of {length} bytes, {reader.left} are left", WireReason.LENGTH, at
            )
        end = reader.at + length
        if inside and (end - begin > PIECE_BYTES or inside >= PIECE_RECORDS):
            yield inside, records[begin:at]
            begin, inside = at, 0
        if length > PIECE_BYTES:
            _check_headers(WireReader(records, reader.at, end), number)
        reader.at, inside = end, inside + 1
    reader.finish("the last record")
    if inside:
        yield inside, records[begin:]


def _check_headers(reader: WireReader, number: int) -> None:
    reader.int8("record attributes")
    reader.varlong("timestamp delta")
    reader.varint("offset delta")
    for what in ("key", "value"):
        size = max(0, reader.varint(what))
        if size > reader.left:
            raise reader.error(f"{what} of {size} bytes, {reader.left} are left", WireReason.LENGTH)
        reader.at += size
    if (headers := reader.varint("count of headers")) > LIMIT_HEADERS:
        raise reader.error(
            f"record {number} has {headers} headers, more than {LIMIT_HEADERS}", WireReason.SIZE
        )
