"""The deep check: the rows themselves, by the digests that the landing commits told of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.errors import LakeError, RepeatedOffsetError
from holdfast.pipeline.bronze.commits import LastLanding
from holdfast.pipeline.bronze.faults import FaultKind, LakeFault
from holdfast.pipeline.bronze.files import File, FileReader
from holdfast.pipeline.bronze.layout import segments
from holdfast.pipeline.bronze.segment_rows import rows_of_segments, segment_faults


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
        yield from segment_faults(reader.where, partition, segment, each, files)
