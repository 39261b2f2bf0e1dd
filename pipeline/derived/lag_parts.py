"""The join of some partitions of `lag.by_minute`, from the files of the tables that it is joined of into its
own. Spark's tasks run this as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyarrow import compute

from holdfast.pipeline.bronze.files import File, FileReader, filesystem_of, remove
from holdfast.pipeline.derived.lag_by_minute import (
    BY_MINUTE,
    LagMinute,
    LagTable,
    Series,
    Standing,
    joined,
    lag_rows,
    settled,
)
from holdfast.pipeline.derived.lag_tables import COMMITS, ENDS, MINUTE_MS
from holdfast.pipeline.histories.fold_commit import (
    PartitionCommit,
)
from holdfast.pipeline.histories.fold_tables import (
    AddedFile,
    PartFile,
)
from holdfast.pipeline.histories.partition_fold import FoldedPart, part_batch

_MINUTE_US = MINUTE_MS * 1000
NOTHING = -(1 << 62)
_COMMITTED = ["group_id", "topic", "topic_partition", "minute", "offset"]
_STANDING = ["group_id", "minute", "committed", "end_offset", "offsets_partition"]


class MinutesFile(NamedTuple):
    """A file of rows by the minute: *last* is the latest, None if its statistics do not show it."""

    file: File
    last: int | None

    def reaches(self, minute: int) -> bool:
        """Return whether it may have rows of *minute* or later."""
        return self.last is None or self.last >= minute


class _Group(NamedTuple):
    """The input of the join for a group in one partition: its rows so far, and its commits."""

    offsets_partition: int
    before: list[Standing]
    commits: list[tuple[int, int | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LagWork:
    """The join of *lots* of partitions. *ends*, *commits* and *current* are files by partition of their
    tables; *was* and *now* are the minutes up to which each log is known, by kind and partition, before and
    by now. It can be pickled.
    """

    table: LagTable
    lots: Mapping[int, Sequence[int]]
    uris: Mapping[str, str]
    ends: Mapping[int, Sequence[MinutesFile]]
    commits: Mapping[int, Sequence[MinutesFile]]
    current: Mapping[int, Sequence[File]]
    was: Mapping[str, Mapping[int, int]]
    now: Mapping[str, Mapping[int, int]]

    def __call__(self, lot: int) -> Iterator[pa.RecordBatch]:
        """Join a lot and yield what came of it: the work of an engine."""
        yield from map(part_batch, self.join(lot))

    def join(self, lot: int) -> list[FoldedPart]:
        """Join the partitions of a lot, and return what came of each; where that fails, no file of it is
        left.
        """
        parts = list[FoldedPart]()
        try:
            commits = self._commits(lot)
            for partition in self.lots[lot]:
                parts.append(self._partition(partition, commits[partition]))
        except BaseException:
            drop(self.uris[BY_MINUTE], parts)
            raise
        return parts

    def _commits(self, lot: int) -> Mapping[int, Mapping[tuple[int, str], list[tuple[int, int | None]]]]:
        """Return the groups' commits since then, by partition, of those of a lot."""
        reader, wanted = self._reader(COMMITS), pa.array(self.lots[lot], pa.int64())
        found: dict[int, dict[tuple[int, str], list[tuple[int, int | None]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for offsets_partition, files in self.commits.items():
            known = self.was[COMMITS].get(offsets_partition, NOTHING)
            for each in files:
                for rows in reader.rows(each.file, _COMMITTED):
                    is_wanted = compute.and_(
                        compute.equal(rows.column("topic"), self.table.topic),
                        compute.is_in(rows.column("topic_partition"), wanted),
                    )
                    some = rows.filter(is_wanted)
                    columns = [
                        some.column(name).to_pylist() for name in ("group_id", "topic_partition", "offset")
                    ]
                    for minute, group, at, offset in zip(minutes_of(some), *columns, strict=True):
                        if minute >= known:
                            found[at][offsets_partition, group].append((minute, offset))
        for groups in found.values():
            for series in groups.values():
                series.sort(key=lambda one: one[0])
        return found

    def _partition(
        self, partition: int, commits: Mapping[tuple[int, str], list[tuple[int, int | None]]]
    ) -> FoldedPart:
        groups = self._groups(partition, commits)
        starts = [self._start(partition, each) for each in groups.values() if self._moves(partition, each)]
        ends = self._ends(partition, min(starts)) if starts else []
        over, current = list[LagMinute](), list[LagMinute]()
        for (_, name), group in sorted(groups.items()):
            standings = joined(*self._series(partition, group), ends, self._start(partition, group))
            rows = [*lag_rows(name, standings, group.offsets_partition)]
            done = settled(standings, self._known(self.now, partition, group.offsets_partition))
            over += rows[:done]
            current += rows[done:]
        return self._written(partition, over, current, read=len(ends) + sum(map(len, commits.values())))

    def _groups(
        self, partition: int, commits: Mapping[tuple[int, str], list[tuple[int, int | None]]]
    ) -> dict[tuple[int, str], _Group]:
        found: dict[tuple[int, str], _Group] = {}
        reader = self._reader(BY_MINUTE)
        for file in self.current.get(partition, ()):
            for rows in reader.rows(file, _STANDING):
                names = ("group_id", "committed", "end_offset", "offsets_partition")
                columns = [rows.column(name).to_pylist() for name in names]
                for minute, group, committed, end, log in zip(minutes_of(rows), *columns, strict=True):
                    of = found.setdefault((log, group), _Group(log, [], []))
                    of.before.append(Standing(minute, committed, end))
        for (log, group), series in commits.items():
            found.setdefault((log, group), _Group(log, [], [])).commits.extend(series)
        for each in found.values():
            each.before.sort()
        return found

    def _series(self, partition: int, group: _Group) -> tuple[list[Standing], Series]:
        """Return the final rows of a group, and its commits: before *was* from its rows, since then from its
        log.
        """
        known = self._known(self.was, partition, group.offsets_partition)
        told = self.was[COMMITS].get(group.offsets_partition, NOTHING)
        commits = [(each.minute, each.committed) for each in group.before if each.minute < told]
        return [each for each in group.before if each.minute < known], [*commits, *group.commits]

    def _moves(self, partition: int, group: _Group) -> bool:
        """Return whether a group's rows may be others by now: not those of a group that was forgotten for
        good, and that that has not committed since.
        """
        if group.commits or group.before[-1].committed is not None:
            return True
        return group.before[-1].minute >= self._known(self.was, partition, group.offsets_partition)

    def _start(self, partition: int, group: _Group) -> int:
        """Return the minute from which on a group's rows are made again."""
        known = self._known(self.was, partition, group.offsets_partition)
        first = group.before[0].minute if group.before else group.commits[0][0]
        return max(known, first)

    def _known(self, by: Mapping[str, Mapping[int, int]], partition: int, offsets_partition: int) -> int:
        """Return before which minute both logs are known for good."""
        return min(by[ENDS].get(partition, NOTHING), by[COMMITS].get(offsets_partition, NOTHING))

    def _ends(self, partition: int, minute: int) -> Series:
        """Return the ends of a partition from *minute* on, beginning with the one that held then."""
        reader, found = self._reader(ENDS), list[tuple[int, int | None]]()
        latest_first = sorted(
            self.ends.get(partition, ()), key=lambda each: NOTHING if each.last is None else -each.last
        )
        for each in latest_first:
            # Files that were joined since may overlap: only entries as late as all of this one make it
            # needless.
            if each.last is not None and any(each.last <= at <= minute for at, _ in found):
                break
            for rows in reader.rows(each.file, ["minute", "end_offset"]):
                found += zip(minutes_of(rows), rows.column("end_offset").to_pylist(), strict=True)
        found.sort()
        held = sum(at <= minute for at, _ in found)
        return found[max(0, held - 1) :]

    def _written(
        self, partition: int, over: list[LagMinute], current: list[LagMinute], *, read: int
    ) -> FoldedPart:
        filesystem, files = filesystem_of(self.uris[BY_MINUTE]), list[AddedFile]()
        try:
            for is_current, rows in (("false", over), ("true", current)):
                values = {"partition": str(partition), "is_current": is_current}
                made = PartFile.write_new(
                    filesystem, partition, values, self.table.batches(iter(rows)), self.table.schema
                )
                files += [] if made is None else [made]
        except BaseException:
            remove(filesystem, [file.path for file in files])
            raise
        return FoldedPart(
            partition=partition,
            commit=PartitionCommit(position=""),
            records=read,
            changes=len(over),
            output=tuple(files),
        )

    def _reader(self, table: str) -> FileReader:
        return FileReader(where=self.uris[table], filesystem=filesystem_of(self.uris[table]))


def drop(uri: str, parts: Iterable[FoldedPart]) -> None:
    """Remove the files of parts that no commit names."""
    remove(filesystem_of(uri), [file.path for part in parts for file in part.output])


def minutes_of(rows: pa.RecordBatch) -> list[int]:
    us = compute.cast(rows.column("minute"), pa.int64())
    return [each // _MINUTE_US for each in us.to_pylist()]
