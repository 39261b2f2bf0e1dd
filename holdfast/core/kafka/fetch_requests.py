"""A Fetch request to a partition leader and its answer, as bytes: version 12, which Kafka 2.7 and newer know.

The records of an answer are views into it: nothing is copied, and no batch is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from struct import Struct
from typing import NamedTuple

from holdfast.core.kafka.topic_partition import Place
from holdfast.core.kafka.wire import WireReader, WireReason, put_compact, put_uvarint
from holdfast.errors import WireError

FETCH = 1
FETCH_VERSIONS = range(12, 13)
READ_COMMITTED = 1
_NO_TAGS = b"\x00"
_BEFORE = Struct(">iiiibii")
_PARTITION = Struct(">iiqiqi")
_ANSWER = Struct(">ihi")
_ANSWERED = Struct(">ihqqq")
_ABORTED = Struct(">qq")


class Wanted(NamedTuple):
    """A request for a partition's records: from *offset* on, about *max_bytes*."""

    place: Place
    offset: int
    max_bytes: int


class Answered(NamedTuple):
    """A leader's answer for one partition. *aborted* are (producer id, first offset) of aborted transactions
    that reach into *records*.

    Offsets are -1 if the leader does not name them, as with most error codes.
    """

    place: Place
    code: int
    high_watermark: int
    last_stable: int
    log_start: int
    aborted: tuple[tuple[int, int], ...]
    records: memoryview


def fetch_request(wanted: Iterable[Wanted], *, max_wait_ms: int, max_bytes: int) -> bytes:
    """Return the body of a request: no session, committed records only, an answer as soon as there is a
    byte.
    """
    out = bytearray(_BEFORE.pack(-1, max_wait_ms, 1, max_bytes, READ_COMMITTED, 0, -1))
    topics = [(topic, list(found)) for topic, found in groupby(wanted, lambda each: each.place[0])]
    put_uvarint(out, len(topics) + 1)
    for topic, partitions in topics:
        put_compact(out, topic.encode())
        put_uvarint(out, len(partitions) + 1)
        for (_, partition), offset, size in partitions:
            out += _PARTITION.pack(partition, -1, offset, -1, -1, size) + _NO_TAGS
        out += _NO_TAGS
    return bytes(out + b"\x01\x01" + _NO_TAGS)  # no topics to forget, no rack


def fetched(answer: bytes, at: int = 0) -> tuple[int, list[Answered]]:
    """Return the error code of a whole answer, whose body begins at *at*, and what it holds of each
    partition.
    """
    reader, view = WireReader(answer, at), memoryview(answer)
    _, code, _ = _ANSWER.unpack_from(view, _step(reader, _ANSWER.size))
    return code, list(_partitions(reader, view))


def _step(reader: WireReader, size: int) -> int:
    at = reader.at
    if size > reader.left:
        raise reader.error(
            f"a fetch response needs {size} bytes, {reader.left} are left", WireReason.TRUNCATED
        )
    reader.at = at + size
    return at


def _partitions(reader: WireReader, view: memoryview) -> Iterator[Answered]:
    for _ in range(reader.compact_array("topics")):
        topic = reader.compact_text("topic")
        for _ in range(reader.compact_array("partitions")):
            partition, code, high, stable, start = _ANSWERED.unpack_from(view, _step(reader, _ANSWERED.size))
            aborted = tuple(_aborted(reader, view))
            _step(reader, 4)  # the replica to read from, for clients that name their rack
            size = max(0, reader.uvarint("records") - 1)
            begin = _step(reader, size)
            reader.tags("partition")
            yield Answered((topic, partition), code, high, stable, start, aborted, view[begin : begin + size])
        reader.tags("topic")
    reader.tags("answer")


def _aborted(reader: WireReader, view: memoryview) -> Iterator[tuple[int, int]]:
    for _ in range(reader.compact_array("aborted transactions")):
        yield _ABORTED.unpack_from(view, _step(reader, _ABORTED.size))
        reader.tags("aborted transaction")


def whole_batches(records: bytes | memoryview) -> tuple[int, int] | None:
    """Return where the last whole batch of *records* ends, and the offset after its last record; None without
    a whole batch.

    WireError when what comes first is no batch.
    """
    at, last, size = 0, -1, len(records)
    while size - at >= _HOP_BYTES:
        offset, length, _, magic = _HOP.unpack_from(records, at)
        if length < _LEAST_LENGTH or magic != _MAGIC:
            if last >= 0:
                break
            raise WireError(
                f"offset {offset}, length {length}, format {magic} begin no batch",
                offset=at,
                reason=WireReason.LENGTH,
            )
        if length > size - at - _OVERHEAD:
            break
        last, at = at, at + _OVERHEAD + length
    if last < 0:
        return None
    return at, _HOP.unpack_from(records, last)[0] + max(0, _LAST.unpack_from(records, last + _LAST_AT)[0]) + 1


_HOP, _LAST = Struct(">qiib"), Struct(">i")
_HOP_BYTES, _OVERHEAD, _LEAST_LENGTH, _LAST_AT, _MAGIC = _HOP.size, 12, 49, 23, 2
