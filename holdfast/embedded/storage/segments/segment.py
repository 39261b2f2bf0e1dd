"""One segment of a partition: a file of batches, named for its first offset, and its index files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.core.kafka.producer_state import AbortedTransaction
from holdfast.embedded.logs.stored_batch import LogBatch
from holdfast.embedded.storage.disk import Disk
from holdfast.embedded.storage.segments.segment_indexes import SegmentIndexes, transaction_index

LOG, INDEX, TIME_INDEX, ABORTED, SNAPSHOT = ".log", ".index", ".timeindex", ".txnindex", ".snapshot"
INDEXES = INDEX, TIME_INDEX, ABORTED
_DIGITS = 20


def named(offset: int, suffix: str) -> str:
    """Return the name of a file that begins at *offset*: ``00000000000000000042.log``."""
    return f"{offset:0{_DIGITS}d}{suffix}"


class FiledBatch(NamedTuple):
    """A batch in a segment, read when it is asked for."""

    first_offset: int
    last_offset: int
    max_timestamp_ms: int
    leader_epoch: int
    size: int
    position: int
    segment: LogSegment

    @property
    def data(self) -> bytes:
        return self.segment.read(self.position, self.size)


class LogSegment:
    """Batches from offset *base* on; `end` is that of the record after the last one."""

    def __init__(self, disk: Disk, folder: Path, base: int, *, made_ms: int, index_bytes: int) -> None:
        self._disk, self._folder = disk, folder
        self.base, self.end, self.size = base, base, 0
        self.made_ms = made_ms
        self.first_ms = -1
        """The time of the first batch, from which on the segment ages."""
        self._indexes = SegmentIndexes(base, index_bytes)

    @property
    def path(self) -> Path:
        return self.beside(LOG)

    @property
    def largest_ms(self) -> int:
        """The highest time in it, -1 for none."""
        return self._indexes.largest_ms

    def beside(self, suffix: str) -> Path:
        return self._folder / named(self.base, suffix)

    def found(
        self, first_offset: int, last_offset: int, max_ms: int, leader_epoch: int, size: int
    ) -> FiledBatch:
        """Take note of the next batch, which is in the file, and return it."""
        position = self.size
        if position == 0:
            self.first_ms = max_ms
        self._indexes.add(last_offset, max_ms, position, size)
        self.size += size
        self.end = last_offset + 1
        return FiledBatch(first_offset, last_offset, max_ms, leader_epoch, size, position, self)

    def append(self, batch: LogBatch) -> FiledBatch:
        """Write a batch at the end."""
        data = batch.data
        self._disk.append(self.path, data)
        return self.found(
            batch.first_offset, batch.last_offset, batch.max_timestamp_ms, batch.leader_epoch, len(data)
        )

    def read(self, position: int, size: int) -> bytes:
        return self._disk.read(self.path, position, size)

    def damage(self, batch: FiledBatch) -> None:
        """Flip the last bit of a batch, as a disk may."""
        at = batch.position + batch.size - 1
        self._disk.overwrite(self.path, at, bytes([self.read(at, 1)[0] ^ 1]))

    def write_indexes(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Write its index files, as it is complete for now; *aborted* are those of its log."""
        self._disk.write(self.beside(INDEX), self._indexes.offset_index)
        self._disk.write(self.beside(TIME_INDEX), self._indexes.time_index)
        own = [each for each in aborted if self.base <= each.last_offset < self.end]
        if own:
            self._disk.write(self.beside(ABORTED), transaction_index(own))

    def mend_indexes(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Write those files again where a crash has left only a part of them, or none."""
        wanted = len(self._indexes.offset_index), len(self._indexes.time_index)
        paths = self.beside(INDEX), self.beside(TIME_INDEX)
        if wanted != tuple(each.stat().st_size if each.exists() else -1 for each in paths):
            self.write_indexes(aborted)

    def remove_indexes(self) -> None:
        for suffix in INDEXES:
            self._disk.remove(self.beside(suffix))

    def remove(self) -> None:
        """Remove it with all its index files."""
        for suffix in (LOG, *INDEXES, SNAPSHOT):
            self._disk.remove(self.beside(suffix))


def read_together(batches: Sequence[FiledBatch]) -> list[bytes]:
    """Return the bytes of batches, adjacent ones in one piece."""
    pieces: list[tuple[LogSegment, int, int]] = []
    for each in batches:
        if pieces and pieces[-1][0] is each.segment and sum(pieces[-1][1:]) == each.position:
            segment, position, size = pieces[-1]
            pieces[-1] = segment, position, size + each.size
        else:
            pieces.append((each.segment, each.position, each.size))
    return [segment.read(position, size) for segment, position, size in pieces]
