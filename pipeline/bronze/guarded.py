"""Readers of bronze files that were landed: what pages with checksums do not prove is compared with the
digests of the commits, before any row is given out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import xor
from typing import Any

import pyarrow as pa

from holdfast.errors import LakeError
from holdfast.pipeline.bronze.columns import FILE_SCHEMA
from holdfast.pipeline.bronze.files import File, FileReader
from holdfast.pipeline.bronze.layout import Segment
from holdfast.pipeline.bronze.segment_rows import rows_of_segments, segment_faults

LIMIT_SEGMENTS = 64
"""So many of each partition are sent to a task."""


def bronze_reader(where: str, filesystem: Any, schema: pa.Schema = FILE_SCHEMA) -> FileReader:
    """Return a reader of bronze files that compares pages with their checksums alone: for callers that
    compare the rows.
    """
    return FileReader(where=where, filesystem=filesystem, schema=schema)


class DigestGuard:
    """Compares the rows of one partition with the digests of its *segments*, which are all that were landed
    of it, in the order of offsets; each is read once. *files* are all of the partition.
    """

    def __init__(
        self, reader: FileReader, partition: int, files: Sequence[File], segments: Sequence[Segment]
    ) -> None:
        self._reader, self._partition, self._files = reader, partition, files
        self._segments = segments
        self._firsts, self._ends = [each.first for each in segments], [each.end for each in segments]
        self._proved = set[int]()

    def check(self, file: File) -> None:
        """Compare the segments that *file* has rows of; LakeError where they are not as they were landed."""
        begin, end = 0, len(self._segments)
        if file.first is not None and file.last is not None:
            begin, end = bisect_right(self._ends, file.first), bisect_right(self._firsts, file.last)
        left = [
            at for at in range(begin, end) if at not in self._proved and self._segments[at].digest is not None
        ]
        if not left:
            return
        told = self._segments[left[0] : left[-1] + 1]
        self._proved.update(range(left[0], left[-1] + 1))
        touched = [each for each in self._files if _touches(each, told[0].first, told[-1].end)]
        found = rows_of_segments(self._reader, touched, told)
        for segment, rows in zip(told, found, strict=True):
            rows.note_gap(rows.reached, segment.end)
            for fault in segment_faults(self._reader.where, self._partition, segment, rows, touched):
                raise LakeError(f"{fault.told}: `holdfast pipeline check --deep` lists every fault")


class DigestGuards:
    """The guards of the partitions of a table, each made when it is asked for first; a pickled one begins
    again.
    """

    def __init__(self) -> None:
        self._guards = dict[int, DigestGuard]()

    def __reduce__(self) -> tuple[type[DigestGuards], tuple[()]]:
        return DigestGuards, ()

    def of(
        self, reader: FileReader, partition: int, files: Sequence[File], segments: Sequence[Segment]
    ) -> FileReader:
        """Return *reader*, guarded; otherwise as `DigestGuard`."""
        if partition not in self._guards:
            plain = bronze_reader(reader.where, reader.filesystem)
            self._guards[partition] = DigestGuard(plain, partition, files, segments)
        return replace(reader, exact=True, unchecked=self._guards[partition].check)


def in_few(segments: Sequence[Segment], limit: int = LIMIT_SEGMENTS) -> list[Segment]:
    """Return *segments* of a partition, at most about *limit*: neighbours are taken together where there are
    more.
    """
    size = -(-len(segments) // limit) or 1
    return [_together(segments[at : at + size]) for at in range(0, len(segments), size)]


def _together(some: Sequence[Segment]) -> Segment:
    rows, digests = [each.rows for each in some], [each.digest for each in some]
    known = [each for each in digests if each is not None]
    return Segment(
        first=some[0].first,
        end=some[-1].end,
        rows=None if None in rows else sum(each or 0 for each in rows),
        digest=reduce(xor, known, 0) if len(known) == len(some) else None,
        digest_first=some[0].digest_first,
    )


def _touches(file: File, first: int, end: int) -> bool:
    return file.first is None or file.last is None or (file.first < end and file.last >= first)
