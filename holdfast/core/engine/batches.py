"""Batches: consecutive records of one partition in columns, folded together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive records of one partition as columns of equal length, offsets ascending.

    *columns* are the processor's inputs in its order. *times_ms* are append times as the broker gave them (-1
    for none).
    """

    offsets: Sequence[int]
    times_ms: Sequence[int]
    columns: tuple[Sequence[Any], ...]

    def after(self, applied: int) -> Batch:
        """Return the part of the batch whose offsets are above *applied*."""
        if not self.offsets or self.offsets[0] > applied:
            return self
        cut = bisect_right(self.offsets, applied)
        return self.slice(cut, len(self.offsets))

    @property
    def records(self) -> int:
        return len(self.offsets)

    def slice(self, start: int, stop: int) -> Batch:
        return Batch(
            self.offsets[start:stop],
            self.times_ms[start:stop],
            tuple(column[start:stop] for column in self.columns),
        )
