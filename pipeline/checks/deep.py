"""The deep check: the rows themselves, by the digests of the landing commits, and each file by the metadata
about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.errors import LakeError, RepeatedOffsetError
from holdfast.pipeline.bronze.digests import DIGESTED
from holdfast.pipeline.bronze.faults import FaultKind, LakeFault
from holdfast.pipeline.bronze.files import File, FileReader
from holdfast.pipeline.bronze.layout import Segment
from holdfast.pipeline.bronze.ordered import in_order, overlapping
from holdfast.pipeline.bronze.segment_rows import SegmentRows, segment_faults, take_rows
from holdfast.pipeline.checks.statistics import file_faults


def deep_faults(
    reader: FileReader,
    partition: int,
    files: Sequence[File],
    told: Sequence[Segment],
    logged: Mapping[str, Mapping[str, Any]],
) -> Iterator[LakeFault]:
    """Read all rows of a partition and yield where they differ from the landed ones: *told* are the landed
    segments, *logged* the log's entry on each file, by its path.

    An unreadable file hides nothing else: the other files are compared.
    """
    unreadable = list[File]()
    for file in files:
        for fault in file_faults(reader, partition, file, logged.get(file.path, {}), told):
            yield fault
            if fault.kind == "unreadable":
                unreadable.append(file)
    found = [SegmentRows(reached=each.first) for each in told]
    for group in overlapping([each for each in files if each not in unreadable]):
        try:
            take_rows(found, told, in_order(reader, group, DIGESTED))
        except LakeError as error:
            kind: FaultKind = "twice" if isinstance(error, RepeatedOffsetError) else "unreadable"
            yield LakeFault(kind=kind, table=reader.where, partition=partition, told=str(error))
            unreadable += group
    for segment, each in zip(told, found, strict=True):
        if any(_reaches(file, segment) for file in unreadable):
            continue
        each.note_gap(each.reached, segment.end)
        yield from segment_faults(reader.where, partition, segment, each, files)


def _reaches(file: File, segment: Segment) -> bool:
    if file.first is None or file.last is None:
        return True
    return file.first < segment.end and file.last >= segment.first
