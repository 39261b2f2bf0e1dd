"""The folder of one partition: its segments, opened, written, rolled, deleted and compacted as Kafka does."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.producer_state import AbortedTransaction, LeaderRow
from holdfast.core.kafka.topic_partition import Place
from holdfast.embedded.configs.topic import TopicConfigs
from holdfast.embedded.logs.log_files import LoadedBatch
from holdfast.embedded.logs.stored_batch import LogBatch, StoredBatch
from holdfast.embedded.storage.checkpoints import OffsetCheckpoint, checkpoint_text, read_epochs
from holdfast.embedded.storage.disk import Disk
from holdfast.embedded.storage.segments.producer_snapshots import load_snapshot, snapshot_bytes
from holdfast.embedded.storage.segments.segment import (
    LOG,
    SNAPSHOT,
    FiledBatch,
    LogSegment,
    named,
    read_together,
)
from holdfast.embedded.storage.segments.segment_scan import SegmentScan
from holdfast.embedded.storage.segments.swaps import finish_swaps, swap
from holdfast.errors import BrokerFolderError

_logger = logging.getLogger(__name__)

EPOCHS = "leader-epoch-checkpoint"
_LIMIT_INT32, _FAR = (1 << 31) - 1, 1 << 24
"""Offsets in an index are relative; a batch may have many."""


class PartitionOffsets(Protocol):
    """The checkpoints of a folder, in which each partition has an offset."""

    @property
    def starts(self) -> OffsetCheckpoint:
        """Return the first offsets of logs that do not begin with a segment."""

    @property
    def compacted(self) -> OffsetCheckpoint:
        """Up to where logs were compacted."""

    @property
    def synced(self) -> OffsetCheckpoint:
        """Up to where logs are known to be whole."""


class PartitionFiles:
    """Segments in *folder*, which is made if need be. Nothing is open when nothing is done."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        place: Place,
        configs: TopicConfigs,
        offsets: PartitionOffsets,
        now_ms: int,
    ) -> None:
        self._disk, self.folder, self._place = disk, folder, place
        self._configs, self._offsets, self._now_ms = configs, offsets, now_ms
        self.segments: list[LogSegment] = []
        disk.make_folder(folder)
        self.epochs = read_epochs(folder / EPOCHS)

    # -- positions

    @property
    def start_offset(self) -> int:
        return max(self._offsets.starts.get(self._place), self.segments[0].base if self.segments else 0)

    @property
    def end_offset(self) -> int:
        return max(self.active.end, self.start_offset)

    @property
    def compacted_to(self) -> int:
        return self._offsets.compacted.get(self._place)

    @property
    def active(self) -> LogSegment:
        """The segment that is written to."""
        return self.segments[-1]

    # -- opening

    def load(self, rows: Rows[LeaderRow]) -> Iterator[LoadedBatch]:
        """Yield the batches in the segments. A tail that was cut off while it was written is removed;
        BrokerFolderError for damage to a part that was whole once.
        """
        finish_swaps(self._disk, self.folder)
        bases = sorted(int(each.stem) for each in self.folder.glob(f"*{LOG}") if each.stem.isdecimal())
        first = bases[0] if bases else self._offsets.starts.get(self._place)
        snapshot = self.folder / named(first, SNAPSHOT)
        if not (snapshot.exists() and load_snapshot(snapshot.read_bytes(), rows, first)):
            load_snapshot(snapshot_bytes(rows), rows, first)
        for number, base in enumerate(bases):
            scan = SegmentScan(
                self.folder / named(base, LOG), base, checked_from=self._offsets.synced.get(self._place)
            )
            segment = self._fresh(base)
            self.segments.append(segment)
            yield from self._found(scan, segment)
            if scan.trouble:
                self._cut(segment, scan, bases[number + 1 :])
                break
        end = self.active.end if self.segments else first
        if end < self._offsets.synced.get(self._place):
            raise BrokerFolderError(
                f"{self.folder} ends at offset {end}, though it went to"
                f" {self._offsets.synced.get(self._place)} once: restore the folder, or remove its line in"
                f" {self.folder.parent / 'recovery-point-offset-checkpoint'} to go on without"
            )
        if not self.segments or self.active.end < self.start_offset:
            self._begin(max(first, self.start_offset))
        self.active.remove_indexes()
        self._remove_strays()

    def _fresh(self, base: int) -> LogSegment:
        index_bytes = self._configs.number("index.interval.bytes")
        return LogSegment(self._disk, self.folder, base, made_ms=self._now_ms, index_bytes=index_bytes)

    @staticmethod
    def _found(scan: SegmentScan, segment: LogSegment) -> Iterator[LoadedBatch]:
        for header in scan:
            max_ms = header.max_timestamp_ms if header.records_count else -1
            epoch, size = header.partition_leader_epoch, header.size_bytes
            batch = segment.found(header.base_offset, header.last_offset, max_ms, epoch, size)
            yield LoadedBatch(header, batch)

    def _cut(self, segment: LogSegment, scan: SegmentScan, later: list[int]) -> None:
        """Cut off an incomplete tail, as Kafka's recovery does; refuse if it begins before the synced
        offset.
        """
        if segment.end < self._offsets.synced.get(self._place):
            raise BrokerFolderError(
                f"{segment.path} is damaged at byte {scan.end} ({scan.trouble}), though it was whole once:"
                f" restore the folder, or remove that file and the later ones of {self.folder.name} to go on"
                " without their records"
            )
        size = segment.path.stat().st_size
        _logger.warning(
            "%(path)s ends with %(size)d bytes that are not whole (%(trouble)s): they go, and %(later)d later"
            " segments",
            {
                "path": segment.path,
                "size": size - scan.end,
                "trouble": scan.trouble,
                "later": len(later),
            },
        )
        for base in later:
            self._disk.remove(self.folder / named(base, LOG))
        self._disk.truncate(segment.path, scan.end)

    def _begin(self, offset: int) -> None:
        self.segments.append(self._fresh(offset))
        self._disk.create(self.active.path)

    def _remove_strays(self) -> None:
        """Remove files without a segment: a crash leaves them."""
        known = {named(each.base, "") for each in self.segments}
        for each in self.folder.iterdir():
            if each.suffix == ".tmp" or (each.stem.isdecimal() and each.stem not in known):
                self._disk.remove(each)

    # -- writing

    def make_room(
        self, size: int, at_ms: int, now_ms: int, rows: Rows[LeaderRow], aborted: Sequence[AbortedTransaction]
    ) -> None:
        active, configs = self.active, self._configs
        self._now_ms = now_ms
        if active.size == 0:
            return
        has_time = active.first_ms >= 0
        age_ms = at_ms - active.first_ms if has_time else now_ms - active.made_ms
        is_far = active.end - active.base > _LIMIT_INT32 - _FAR
        if active.size + size > configs.segment_bytes or age_ms > configs.segment_ms or is_far:
            self._roll(rows, aborted)

    def _roll(self, rows: Rows[LeaderRow], aborted: Sequence[AbortedTransaction]) -> None:
        """Complete the active segment, and begin the next one."""
        active = self.active
        active.write_indexes(aborted)
        self._disk.write(self.folder / named(active.end, SNAPSHOT), snapshot_bytes(rows))
        self._begin(active.end)
        if self._disk.fsync:
            self._disk.sync()
            self._offsets.synced.set(self._place, active.end)

    def append(self, batch: StoredBatch) -> FiledBatch:
        return self.active.append(batch)

    def keep_epochs(self, epochs: Sequence[tuple[int, int]]) -> None:
        self._disk.replace(self.folder / EPOCHS, checkpoint_text(epochs))

    def complete(self, rows: Rows[LeaderRow], aborted: Sequence[AbortedTransaction]) -> None:
        """Write the segments' additional files, those of the active one too, as a broker does that ends in
        order.
        """
        for each in self.segments[:-1]:
            each.mend_indexes(aborted)
        self.active.write_indexes(aborted)
        self._disk.write(self.folder / named(self.end_offset, SNAPSHOT), snapshot_bytes(rows))

    # -- reading

    def read(self, batches: Sequence[LogBatch]) -> list[bytes]:
        return read_together([each for each in batches if isinstance(each, FiledBatch)])

    def damage(self, batch: LogBatch) -> None:
        assert isinstance(batch, FiledBatch)
        batch.segment.damage(batch)

    # -- retention

    def kept_from(self, *, since_ms: int | None, size: int | None, stable: int) -> int:
        kept, left = self.segments[0].base, sum(each.size for each in self.segments)
        for each in self.segments:
            surplus = size is not None and left - each.size >= size
            old = since_ms is not None and each.largest_ms < since_ms
            if each.size == 0 or each.end > stable or not (old or surplus):
                break
            if each.largest_ms >= 0 or surplus:  # one without times goes with the next one
                kept = each.end
            left -= each.size
        return kept

    def delete_before(
        self, offset: int, rows: Rows[LeaderRow], aborted: Sequence[AbortedTransaction]
    ) -> None:
        self._offsets.starts.set(self._place, offset)
        if self.active.size and self.active.end <= offset:
            self._roll(rows, aborted)
        while len(self.segments) > 1 and self.segments[1].base <= offset:
            self.segments.pop(0).remove()

    # -- compaction

    def compactable(self, offset: int) -> int:
        ends = [each.base for each in self.segments[1:] if each.base <= offset]
        return ends[-1] if ends else self.segments[0].base

    def replace(
        self, upper: int, kept: Iterable[LogBatch], aborted: Sequence[AbortedTransaction]
    ) -> list[LogBatch]:
        """Rewrite the segments before *upper* that have changed; small ones that follow one another become
        one.
        """
        uppers = [each.base for each in self.segments[1:]]
        count = uppers.index(upper) + 1
        left, written, batches = list(kept), [], list[LogBatch]()
        for group in self._groups(self.segments[:count], left):
            end = uppers[self.segments.index(group[-1])]
            own = [each for each in left if group[0].base <= each.first_offset < end]
            segment = group[0]
            if len(group) > 1 or not _is_all(segment, own):
                segment = self._fresh(group[0].base)
                own = [*swap(self._disk, self.folder, segment, end, own)]
                segment.write_indexes(aborted)
            written.append(segment)
            batches += own
        self.segments[:count] = written
        self._offsets.compacted.set(self._place, upper)
        return batches

    def _groups(self, segments: Sequence[LogSegment], kept: Sequence[LogBatch]) -> Iterator[list[LogSegment]]:
        """Yield the segments that become one: as many as fit into a segment with their kept batches."""
        group: list[LogSegment] = []
        size = 0
        for each in segments:
            own = sum(batch.size for batch in kept if each.base <= batch.first_offset < each.end)
            is_far = bool(group) and each.end - group[0].base > _LIMIT_INT32 - _FAR
            if group and (size + own > self._configs.segment_bytes or is_far):
                yield group
                group, size = [], 0
            group.append(each)
            size += own
        yield group


def _is_all(segment: LogSegment, kept: Sequence[LogBatch]) -> bool:
    """Return whether *kept* are the batches of a segment as they lie there."""
    return (
        all(isinstance(each, FiledBatch) for each in kept) and sum(each.size for each in kept) == segment.size
    )
