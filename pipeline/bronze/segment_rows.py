"""What the rows of a bronze table come to, by the segments that its commits tell of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from holdfast.pipeline.bronze.digests import DIGESTED, digest_of, hashes_in
from holdfast.pipeline.bronze.files import File, FileReader
from holdfast.pipeline.bronze.layout import Segment
from holdfast.pipeline.bronze.ordered import in_order

GAPS_TOLD = 10


@dataclass(slots=True)
class SegmentRows:
    """What the rows of a segment come to."""

    rows: int = 0
    digest: int = 0
    reached: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)
    gap_offsets: int = 0

    def take(self, offsets: Any, hashes: Any, digest_first: int) -> None:
        """Take rows into account that come in the order of their offsets."""
        self.rows += len(offsets)
        self.digest ^= digest_of(hashes[np.searchsorted(offsets, digest_first) :])
        before = np.concatenate(([self.reached - 1], offsets[:-1]))
        for at in np.flatnonzero(offsets - before > 1):
            self.note_gap(int(before[at]) + 1, int(offsets[at]))
        self.reached = int(offsets[-1]) + 1

    def note_gap(self, first: int, end: int) -> None:
        if end > first:
            self.gap_offsets += end - first
            if len(self.gaps) < GAPS_TOLD:
                self.gaps.append((first, end - 1))


def rows_of_segments(reader: FileReader, files: Sequence[File], told: Sequence[Segment]) -> list[SegmentRows]:
    """Read the rows of *files* and return what those of each segment come to; rows behind the last segment
    are left out.
    """
    found = [SegmentRows(reached=each.first) for each in told]
    ends = [each.end for each in told]
    for rows in in_order(reader, files, DIGESTED):
        offsets, hashes = rows.column("offset").to_numpy(), hashes_in(rows)
        if len(offsets) == 0:
            continue
        at = bisect_right(ends, int(offsets[0]))
        while len(offsets) and at < len(ends):
            stop = int(np.searchsorted(offsets, ends[at]))
            if stop:
                found[at].take(offsets[:stop], hashes[:stop], told[at].digest_first)
            offsets, hashes, at = offsets[stop:], hashes[stop:], at + 1
    return found
