"""The index files of a segment, as Kafka writes them: the positions of offsets and of times, and the aborted
transactions.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

from holdfast.core.kafka.producer_state import AbortedTransaction

_OFFSET, _TIME, _ABORTED = Struct(">ii"), Struct(">qi"), Struct(">hqqqq")
_VERSION = 0
NO_TIME = -1


class SegmentIndexes:
    """Grows with a segment from *base* on: an entry each *interval_bytes*, offsets relative to *base*."""

    def __init__(self, base: int, interval_bytes: int) -> None:
        self._base, self._interval = base, interval_bytes
        self._offsets, self._times = bytearray(), bytearray()
        self._since_bytes = 0
        self._noted_ms = NO_TIME
        self.largest_ms = NO_TIME
        """The highest time of a record in the segment."""
        self._largest_at = base

    def add(self, last_offset: int, max_ms: int, position: int, size: int) -> None:
        """Take note of a batch of *size* bytes at *position*."""
        if max_ms > self.largest_ms:
            self.largest_ms, self._largest_at = max_ms, last_offset
        if self._since_bytes > self._interval:
            self._offsets += _OFFSET.pack(last_offset - self._base, position)
            self._note_time()
            self._since_bytes = 0
        self._since_bytes += size

    def _note_time(self) -> None:
        if self.largest_ms > self._noted_ms:
            self._times += _TIME.pack(self.largest_ms, self._largest_at - self._base)
            self._noted_ms = self.largest_ms

    @property
    def offset_index(self) -> bytes:
        """The bytes of ``.index``."""
        return bytes(self._offsets)

    @property
    def time_index(self) -> bytes:
        """The bytes of ``.timeindex`` of a segment that is complete."""
        self._note_time()
        return bytes(self._times)


def transaction_index(aborted: Iterable[AbortedTransaction]) -> bytes:
    """Return the bytes of ``.txnindex``."""
    return b"".join(
        _ABORTED.pack(
            _VERSION, each.producer_id, each.first_offset, each.last_offset, each.last_stable_offset
        )
        for each in aborted
    )
