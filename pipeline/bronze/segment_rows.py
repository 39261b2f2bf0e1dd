"""The totals of a bronze table's rows, by the segments of its commits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.pipeline.bronze.digests import DIGESTED, digest_of, hashes_in
from holdfast.pipeline.bronze.faults import LakeFault
from holdfast.pipeline.bronze.files import File, FileReader
from holdfast.pipeline.bronze.layout import Segment
from holdfast.pipeline.bronze.ordered import in_order

GAPS_TOLD = 10


@dataclass(slots=True)
class SegmentRows:
    """The totals of a segment's rows."""

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
    """Read the rows of *files* and return the totals of each segment; rows before the first segment and after
    the last one are left out.
    """
    found = [SegmentRows(reached=each.first) for each in told]
    take_rows(found, told, in_order(reader, files, DIGESTED))
    return found


def take_rows(
    found: Sequence[SegmentRows], told: Sequence[Segment], batches: Iterable[pa.RecordBatch]
) -> None:
    """Add rows, which come in the order of their offsets, to the totals *found* of each segment."""
    ends = [each.end for each in told]
    for rows in batches if told else ():
        offsets, hashes = rows.column("offset").to_numpy(), hashes_in(rows)
        before = int(np.searchsorted(offsets, told[0].first))
        offsets, hashes = offsets[before:], hashes[before:]
        if len(offsets) == 0:
            continue
        at = bisect_right(ends, int(offsets[0]))
        while len(offsets) and at < len(ends):
            stop = int(np.searchsorted(offsets, ends[at]))
            if stop:
                found[at].take(offsets[:stop], hashes[:stop], told[at].digest_first)
            offsets, hashes, at = offsets[stop:], hashes[stop:], at + 1


def segment_faults(
    where: str, partition: int, segment: Segment, found: SegmentRows, files: Sequence[File]
) -> Iterator[LakeFault]:
    """Yield in what the rows that were *found* are not those of *segment*; *files* are the partition's."""
    place = f"{where} offsets {segment.first} to {segment.end - 1}"
    if segment.rows is not None and found.rows != segment.rows:
        fewer = found.rows < segment.rows
        told = f"{place} have {found.rows} rows, where {segment.rows} were landed"
        told += _gaps(segment, found) if fewer else ""
    elif segment.digest is not None and found.digest != segment.digest:
        fewer = None
        told = (
            f"{place} have as many rows as were landed, but not the same: their digest is"
            f" {found.digest:016x}, where {segment.digest:016x} was landed"
        )
    else:
        return
    inside = [
        file.path
        for file in files
        if file.first is None
        or file.last is None
        or (file.first < segment.end and file.last >= segment.first)
    ]
    yield LakeFault(
        kind="changed" if fewer is None else "missing" if fewer else "extra",
        table=where,
        partition=partition,
        first=segment.first,
        last=segment.end - 1,
        file=inside[0] if len(inside) == 1 else None,
        told=told + (f" (file {inside[0]})" if len(inside) == 1 else f" ({len(inside)} files)"),
    )


def _gaps(segment: Segment, found: SegmentRows) -> str:
    """Say which offsets have no row: those that are missing, and those that had none when they were
    landed.
    """
    assert segment.rows is not None
    before = segment.end - segment.first - segment.rows
    ranges = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in found.gaps)
    more = " and more" if found.gap_offsets > sum(b - a + 1 for a, b in found.gaps) else ""
    return f": there is none at {ranges}{more}" + (f"; of these, {before} had none before" if before else "")
