"""The first row at which a live partition differs from its replay, found in bounded memory on either engine.

A replay may have more rows than memory takes, so none of them is kept. A first replay returns one digest for
each some thousand live rows, and a second one the rows of the first of these ranges that differs.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pyarrow as pa

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.pipeline.folds.result_rows import RESULT, STATE
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.verify.live_rows import LiveRows, apart

RANGE_ROWS = 20_000
"""The number of live rows that one digest covers."""


@dataclass(frozen=True, slots=True)
class RangeDigests:
    """Returns, instead of the rows of a replayed partition, the digest of those in each of the ranges that
    begin at *starts*. It can be pickled.
    """

    starts: Sequence[bytes]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        hashes = [hashlib.sha256() for _ in self.starts]
        partition: int | None = None
        for batch in batches:
            rows, rest = _apart(batch)
            if rest.num_rows:
                yield rest
            for at, key, value in _rows(rows):
                partition = at
                _note(hashes[bisect_right(self.starts, key) - 1], key, value)
        if partition is not None:  # of Spark's tasks one has the rows
            digests = [each.digest() for each in hashes]
            yield _told([(partition, *each) for each in zip(self.starts, digests, strict=True)])


@dataclass(frozen=True, slots=True)
class RangeRows:
    """Returns of the rows of a replayed partition those from *first* to before *end* (None: to the last), at
    most *limit_rows*. It can be pickled.
    """

    first: bytes
    end: bytes | None
    limit_rows: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        left = self.limit_rows
        for batch in batches:
            rows, rest = _apart(batch)
            if rest.num_rows:
                yield rest
            wanted = (
                row for row in _rows(rows) if row[1] >= self.first and (self.end is None or row[1] < self.end)
            )
            some = list(islice(wanted, left))
            left -= len(some)
            if some:
                yield _told(some)


def first_apart(
    processor: Processor[Any, Any],
    settings: Settings,
    options: ReplayOptions,
    partition: int,
    live: LiveRows,
) -> tuple[bytes, bytes | None, bytes | None] | None:
    """Return the first key, and the live and the replayed value, at which *live* is not what *options* make
    of a partition; None where it is.
    """
    asked = replace(options, partitions=(partition,), rows=True)
    starts = _starts(live)
    at = 0
    if len(starts) > 1:
        told = replay(processor, settings, replace(asked, through=RangeDigests(starts))).state(partition)
        theirs = dict(told)
        ends: list[bytes | None] = [*starts[1:], None]
        differing = (
            number
            for number, (first, end) in enumerate(zip(starts, ends, strict=True))
            if _digest(_between(live, first, end)) != theirs.get(first, _digest(()))
        )
        at = next(differing, -1)
        if at < 0:
            return None
    first, end = starts[at], starts[at + 1] if at + 1 < len(starts) else None
    ours = list(_between(live, first, end))
    # With one replayed row more than there are live ones, one at least is another: rows after it need not be
    # known.
    found = replay(
        processor, settings, replace(asked, through=RangeRows(first, end, limit_rows=len(ours) + 1))
    ).state(partition)
    return apart(ours, found)


def _starts(live: LiveRows) -> list[bytes]:
    """Return the first keys of the ranges, the first at the beginning of all keys."""
    return [b"", *islice(live, RANGE_ROWS, None, RANGE_ROWS)]


def _between(live: LiveRows, first: bytes, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    for key, value in live.scan(first):
        if end is not None and key >= end:
            return
        yield key, value


def _digest(rows: Iterable[tuple[bytes, bytes]]) -> bytes:
    sha = hashlib.sha256()
    for key, value in rows:
        _note(sha, key, value)
    return sha.digest()


def _note(sha: Any, key: bytes, value: bytes) -> None:
    sha.update(b"%d:%d:" % (len(key), len(value)) + key + value)


def _apart(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the rows in a replay's results, and all else."""
    import pyarrow.compute as pc

    is_row = pc.equal(batch.column("kind"), STATE)
    return batch.filter(is_row), batch.filter(pc.invert(is_row))


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[int, bytes, bytes]]:
    columns = (batch.column(name).to_pylist() for name in ("partition", "key", "value"))
    return zip(*columns, strict=True)


def _told(rows: Sequence[tuple[int, bytes, bytes]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"kind": STATE, "partition": at, "key": key, "value": value} for at, key, value in rows],
        schema=RESULT,
    )
