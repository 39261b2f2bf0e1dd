"""Order-free digests of rows: a commit's digest of its rows holds whatever file they are moved to later.

The digest of some rows is the XOR of their hashes, so those of two lots make that of both, and taking a row
away is adding it again. Rows are counted as well, since a row that is there twice more changes nothing. A
row's hash is xxHash64, as Spark has it, of its offset and timestamp type, its timestamp in ms, and the CRC-32
of its key, value and headers: Spark and this process come to the same. Columns that follow from these, or
describe the landing, are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from holdfast.core.engine.declared.processor import Headers
from holdfast.kafka.fetching.records import Records

DIGESTED = ["offset", "timestamp_type", "timestamp_ms", "key", "value", "headers"]
"""The columns of which a row's hash is made."""
_ABSENT = -1
_SEED = np.uint64(42)
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)


def hashes_of(records: Records) -> Any:
    """Return the hash of each record, as uint64."""
    stops = np.diff([0, *(stop for stop, _ in records.origins)])
    types = np.repeat([int(origin.broker_time) for _, origin in records.origins], stops)
    offsets = records.offsets
    numbers = np.arange(offsets.start, offsets.stop) if isinstance(offsets, range) else np.array(offsets)
    return _hashes(numbers, types, records.times_ms, records.keys, records.values, records.headers)


def hashes_in(rows: pa.RecordBatch) -> Any:
    """Return the hash of each row, as uint64; *rows* has the columns `DIGESTED`."""
    offsets, types, times = (
        rows.column(name).to_numpy(zero_copy_only=False)
        for name in ("offset", "timestamp_type", "timestamp_ms")
    )
    headers = rows.column("headers")
    told: list[Any] = (
        [()] * rows.num_rows
        if headers.null_count == rows.num_rows
        else [[(each["key"], each["value"]) for each in of or ()] for of in headers.to_pylist()]
    )
    keys, values = (rows.column(name).to_pylist() for name in ("key", "value"))
    return _hashes(offsets, types, times, keys, values, told)


def _hashes(
    offsets: Any,
    types: Any,
    times_ms: Sequence[int],
    keys: Iterable[bytes | None],
    values: Iterable[bytes | None],
    headers: Sequence[Headers],
) -> Any:
    hashes = np.full(len(offsets), _SEED)
    place = offsets.astype(np.int64) * 4 + types.astype(np.int64) + 1
    columns = (place, np.asarray(times_ms, np.int64), _sums(keys), _sums(values), _sums_of_headers(headers))
    for column in columns:
        hashes = _xxh64(column.view(np.uint64), hashes)
    return hashes


def _sums(column: Iterable[bytes | None]) -> Any:
    return np.array([_ABSENT if each is None else crc32(each) for each in column], np.int64)


def _sums_of_headers(column: Sequence[Headers]) -> Any:
    if not any(column):
        return np.full(len(column), _ABSENT, np.int64)
    return np.array([crc32(_text(each)) if each else _ABSENT for each in column], np.int64)


def _text(headers: Headers) -> bytes:
    told = (
        f"{name.encode().hex().upper()}={'-' if value is None else value.hex().upper()}"
        for name, value in headers
    )
    return ",".join(told).encode()


def _xxh64(numbers: Any, seeds: Any) -> Any:
    """Return xxHash64 of each number's 8 bytes, each with its own seed."""
    found = seeds + _P5 + np.uint64(8)
    found ^= _rotated(numbers * _P2, 31) * _P1
    found = _rotated(found, 27) * _P1 + _P4
    found ^= found >> np.uint64(33)
    found *= _P2
    found ^= found >> np.uint64(29)
    found *= _P3
    found ^= found >> np.uint64(32)
    return found


def _rotated(numbers: Any, bits: int) -> Any:
    return (numbers << np.uint64(bits)) | (numbers >> np.uint64(64 - bits))


def digest_of(hashes: Any) -> int:
    """Return the digest of rows with these hashes; 0 of none."""
    return int(np.bitwise_xor.reduce(hashes)) if len(hashes) else 0


def told(digests: Mapping[int, int]) -> dict[int, str]:
    """Return digests as commits write them.

    >>> told({0: 255})
    {0: '00000000000000ff'}
    """
    return {partition: f"{digest:016x}" for partition, digest in digests.items()}


def joined(one: Mapping[int, str], other: Mapping[int, str]) -> dict[int, str]:
    """Return the digests of the rows of both.

    >>> joined({0: '00000000000000ff'}, {0: '000000000000000f', 1: '0000000000000001'})
    {0: '00000000000000f0', 1: '0000000000000001'}
    """
    both = dict(one)
    for partition, digest in other.items():
        both[partition] = f"{int(both.get(partition, '0'), 16) ^ int(digest, 16):016x}"
    return both
