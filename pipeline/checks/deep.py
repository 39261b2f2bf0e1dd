"""The deep check: the rows themselves, by the digests that the landing commits told of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.errors import LakeError, RepeatedOffsetError
from holdfast.pipeline.bronze.commits import LastLanding
from holdfast.pipeline.bronze.faults import FaultKind, LakeFault
from holdfast.pipeline.bronze.files import File, FileReader
from holdfast.pipeline.bronze.layout import Segment, segments
from holdfast.pipeline.bronze.segment_rows import SegmentRows, rows_of_segments


def deep_faults(
    reader: FileReader, partition: int, files: Sequence[File], chain: Sequence[LastLanding]
) -> Iterator[LakeFault]:
    """Read all rows of a partition and yield where they are not those that were landed."""
    told = segments(chain, partition)
    try:
        found = rows_of_segments(reader, files, told)
    except LakeError as error:
        kind: FaultKind = "twice" if isinstance(error, RepeatedOffsetError) else "unreadable"
        yield LakeFault(kind=kind, table=reader.where, partition=partition, told=str(error))
        return
    for segment, each in zip(told, found, strict=True):
        each.note_gap(each.reached, segment.end)
        yield from _judged(reader.where, partition, segment, each, files)


def _judged(
    where: str, partition: int, segment: Segment, found: SegmentRows, files: Sequence[File]
) -> Iterator[LakeFault]:
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
