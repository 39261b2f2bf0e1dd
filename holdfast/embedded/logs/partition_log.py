"""The log of one partition, in memory or in files, led by the rules of holdfast.models.partition_leader."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple

from msgspec import structs

from holdfast.core.kafka.producer_state import (
    LOG_KEY,
    AbortedTransaction,
    Append,
    AppendOutcome,
    AppendVerdict,
    EndMarker,
    HighWatermark,
    LeaderRow,
    LogEntry,
    Origin,
    Sweep,
    VerificationBegun,
    aborted_key,
    verification_key,
)
from holdfast.core.kafka.record_batch import BatchHeader, RecordBatch, decode_batch, decode_header
from holdfast.embedded.logs.compaction import Compacted, CompactionRules, compacting, is_due
from holdfast.embedded.logs.kept_rows import KeptRows
from holdfast.embedded.logs.log_files import LogFiles
from holdfast.embedded.logs.markers import marker_batch
from holdfast.embedded.logs.replaying import LogReplay
from holdfast.embedded.logs.stored_batch import LogBatch, StoredBatch, stored_batch
from holdfast.models.partition_leader import last_stable_offset, lead, log_of, producer_of

UNDEFINED = -1


class FoundOffset(NamedTuple):
    """A record that was looked for by its time."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class LogRead(NamedTuple):
    """The result of a fetch: whole batches, and the aborted transactions that reach into them."""

    batches: list[bytes]
    size: int
    aborted: list[AbortedTransaction]


class PartitionLog:
    """Batches in the order of their offsets. `start_offset` is the first that may be read.

    With *files* they are stored there, and the log begins with the stored ones; without, they are in memory.
    """

    def __init__(self, files: LogFiles | None = None) -> None:
        self._files = files
        self.rows: KeptRows[LeaderRow] = KeptRows(LeaderRow)
        self.start_offset = 0
        self.size_bytes = 0
        self.compacted_to = 0
        """The offset from which on nothing was compacted yet."""
        self.epochs: list[tuple[int, int]] = []
        """(leader epoch, its first offset)."""
        self._epochs_kept = False
        self._firsts: list[int] = []
        self._batches: list[LogBatch] = []
        self._aborted: list[AbortedTransaction] = []
        self._changes = 0
        """The number of times that batches were removed or replaced."""
        self._waiting: set[Callable[[], None]] = set()
        if files is not None:
            self._load(files)

    def _load(self, files: LogFiles) -> None:
        replay, start_offset = LogReplay(self.rows), files.start_offset
        newest = UNDEFINED
        for found in files.load(self.rows):
            batch = found.batch
            replay.take(found)
            if batch.last_offset >= start_offset:
                self._keep(batch)
            if batch.leader_epoch > newest:
                newest = batch.leader_epoch
                self.epochs.append((newest, batch.first_offset))
        replay.finish()
        self.rows[LOG_KEY] = structs.replace(self.entry, end_offset=files.end_offset)
        self.start_offset, self.compacted_to = files.start_offset, files.compacted_to
        found_aborted = [row for _, row in self.rows.scan("a/") if isinstance(row, AbortedTransaction)]
        self._aborted = [each for each in found_aborted if each.last_offset >= self.start_offset]
        written = [each for each in files.epochs if each[1] <= files.end_offset]
        newest = written[-1][0] if written else UNDEFINED
        self.epochs = [*written, *(each for each in self.epochs if each[0] > newest)]
        self.replicated(files.end_offset)

    # -- positions

    @property
    def entry(self) -> LogEntry:
        """The leader's row of the partition."""
        return log_of(self.rows)

    @property
    def end_offset(self) -> int:
        return log_of(self.rows).end_offset

    @property
    def high_watermark(self) -> int:
        return log_of(self.rows).high_watermark

    @property
    def last_stable_offset(self) -> int:
        return last_stable_offset(self.rows)

    def __iter__(self) -> Iterator[LogBatch]:
        return iter(self._batches)

    def lead(self, epoch: int) -> None:
        """Begin a leader's epoch at the end of the log."""
        while self.epochs and self.epochs[-1][1] >= self.end_offset:
            self.epochs.pop()
        self.epochs.append((epoch, self.end_offset))
        self._epochs_kept = False

    # -- writing

    def append(
        self,
        data: bytes | memoryview,
        header: BatchHeader,
        *,
        leader_epoch: int,
        now_ms: int,
        is_append_time: bool,
        verified: bool = False,
        origin: Origin = Origin.CLIENT,
    ) -> AppendVerdict:
        """Append one batch, whose bytes have been checked, and return the leader's verdict on it."""
        self._make_room(header.size_bytes, now_ms if is_append_time else header.max_timestamp_ms, now_ms)
        offset = self.end_offset
        verdict = lead(
            self.rows,
            Append(
                producer_id=header.producer_id,
                epoch=header.producer_epoch,
                first_sequence=header.base_sequence,
                last_sequence=header.last_sequence,
                base_offset=offset,
                last_offset=offset + header.last_offset_delta,
                timestamp_ms=now_ms if is_append_time else header.max_timestamp_ms,
                transactional=header.is_transactional,
                verified=verified,
                origin=origin,
            ),
        )
        assert verdict is not None
        if verdict.outcome is AppendOutcome.ACCEPTED:
            append_ms = now_ms if is_append_time else None
            self._store(
                stored_batch(data, header, offset=offset, leader_epoch=leader_epoch, append_ms=append_ms)
            )
        return verdict

    def end(
        self,
        producer_id: int,
        epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        leader_epoch: int,
        now_ms: int,
    ) -> AppendVerdict:
        """Append the marker that ends a producer's transaction, and return the leader's verdict on it."""
        offset = self.end_offset
        marker = EndMarker(
            producer_id=producer_id,
            epoch=epoch,
            commit=commit,
            coordinator_epoch=coordinator_epoch,
            offset=offset,
            timestamp_ms=now_ms,
        )
        data = marker_batch(marker)
        self._make_room(len(data), now_ms, now_ms)
        verdict = lead(self.rows, marker)
        assert verdict is not None
        if verdict.outcome is AppendOutcome.ACCEPTED:
            if isinstance(aborted := self.rows.get(aborted_key(offset)), AbortedTransaction):
                self._aborted.append(aborted)
            self._store(
                stored_batch(
                    data, decode_header(data), offset=offset, leader_epoch=leader_epoch, append_ms=None
                )
            )
        return verdict

    def _make_room(self, size: int, at_ms: int, now_ms: int) -> None:
        if self._files is not None:
            if not self._epochs_kept:  # an epoch in which nothing is written leaves no trace
                self._keep_epochs(self._files)
            self._files.make_room(size, at_ms, now_ms, self.rows, self._aborted)

    def _keep_epochs(self, files: LogFiles) -> None:
        files.keep_epochs(self.epochs)
        self._epochs_kept = True

    def _store(self, batch: StoredBatch) -> None:
        self._keep(batch if self._files is None else self._files.append(batch))

    def _keep(self, batch: LogBatch) -> None:
        self._firsts.append(batch.first_offset)
        self._batches.append(batch)
        self.size_bytes += batch.size

    def replicated(self, offset: int) -> None:
        """Take it that all replicas in sync have everything below *offset*."""
        lead(self.rows, HighWatermark(offset=offset))
        for told in tuple(self._waiting):
            told()

    def begin_verification(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> bool:
        """Return whether a transaction's write must ask the coordinator first; noted if so."""
        entry = producer_of(self.rows, producer_id)
        if entry is not None and entry.txn_first_offset is not None and entry.epoch == epoch:
            return False
        lead(
            self.rows,
            VerificationBegun(producer_id=producer_id, epoch=epoch, sequence=sequence, at_ms=now_ms),
        )
        return verification_key(producer_id) in self.rows

    def sweep(self, now_ms: int) -> None:
        """Forget producers that have been idle for long."""
        lead(self.rows, Sweep(now_ms=now_ms))

    def kept_from(self, *, since_ms: int | None, size: int | None) -> int:
        """Return from which offset on records stay that are of *since_ms* or later, or among the last *size*
        bytes; None keeps all. Unstable records stay too.
        """
        kept, left, stable = self.start_offset, self.size_bytes, self.last_stable_offset
        if self._files is not None:
            return max(kept, self._files.kept_from(since_ms=since_ms, size=size, stable=stable))
        for each in self._batches:
            surplus = size is not None and left - each.size >= size
            has_time = (
                each.max_timestamp_ms >= 0
            )  # compaction leaves none to an empty batch: it goes with the next one
            old = since_ms is not None and each.max_timestamp_ms < since_ms
            if each.last_offset >= stable or not (old or surplus):
                break
            if has_time or surplus:
                kept = each.last_offset + 1
            left -= each.size
        return kept

    def delete_before(self, offset: int) -> None:
        """Delete the records before *offset*; batches that reach beyond it stay, but are not read from their
        start.
        """
        self._changes += 1
        self.start_offset = max(self.start_offset, offset)
        gone = bisect_right(
            [each.last_offset for each in self._batches[: _few(self._firsts, offset)]], offset - 1
        )
        self.size_bytes -= sum(each.size for each in self._batches[:gone])
        del self._batches[:gone], self._firsts[:gone]
        while self._aborted and self._aborted[0].last_offset < offset:
            del self.rows[aborted_key(self._aborted.pop(0).last_offset)]
        later = [each for each in self.epochs if each[1] > offset]
        floor = [each for each in self.epochs if each[1] <= offset]
        self.epochs = [*((epoch, max(first, offset)) for epoch, first in floor[-1:]), *later]
        if self._files is not None:
            self._files.delete_before(self.start_offset, self.rows, self._aborted)
            self._keep_epochs(self._files)

    def compact(self, rules: CompactionRules) -> bool:
        """Compact at once, as `compaction` does; return whether the log was."""
        compaction = self.compaction(rules)
        while True:
            try:
                next(compaction)
            except StopIteration as ended:
                return bool(ended.value)

    def compaction(self, rules: CompactionRules) -> Generator[None, None, bool]:
        """Compact, if that is due, the batches that are stable, old enough, and not the newest; return
        whether it was due. Yield where others may have their turn with the log.

        The compacted batches replace the former ones at once, at the end; if those have changed since
        (records were deleted), nothing is replaced. Raises WireError for a damaged batch, and then changes
        nothing.
        """
        end = self._compactable(rules)
        dirty = bisect_left(self._firsts, self.compacted_to, hi=end)
        clean = sum(each.size for each in self._batches[:dirty])
        if not is_due(clean, self._batches[dirty:end], rules):
            return False
        before, aborted, changes = self._batches[:end], self._aborted.copy(), self._changes
        turns = compacting(before, aborted, self._is_last_of_producer, rules)
        while True:
            try:
                next(turns)
            except StopIteration as ended:
                self._replace(before, ended.value, aborted)
                return True
            yield
            if self._changes != changes:  # the files of what would be read next may be gone
                return False

    def _replace(
        self, before: Sequence[LogBatch], left: Compacted, aborted: Sequence[AbortedTransaction]
    ) -> None:
        """Replace *before*, the log's first batches, and *aborted*, its first aborted transactions, by the
        compacted ones.
        """
        self._changes += 1
        upper, batches = before[-1].last_offset + 1, left.batches
        later = self._aborted[len(aborted) :]
        if self._files is not None:
            batches = self._files.replace(upper, batches, [*left.aborted, *later])
        self._batches[: len(before)] = batches
        self._firsts[: len(before)] = [each.first_offset for each in batches]
        self.size_bytes = sum(each.size for each in self._batches)
        for each in set(aborted).difference(left.aborted):
            del self.rows[aborted_key(each.last_offset)]
        self._aborted, self.compacted_to = [*left.aborted, *later], upper

    def _compactable(self, rules: CompactionRules) -> int:
        """Return how many batches may be compacted: those of complete segments, and in memory all but the
        newest batch.
        """
        stable, end = self.last_stable_offset, max(0, len(self._batches) - 1)
        for number, each in enumerate(self._batches[:-1]):
            young = rules.min_lag_ms > 0 and each.max_timestamp_ms > rules.now_ms - rules.min_lag_ms
            if young or each.last_offset >= stable:
                end = number
                break
        if self._files is None:
            return end
        upper = self._batches[end].first_offset if end < len(self._batches) else self.end_offset
        return bisect_left(self._firsts, self._files.compactable(upper))

    def _is_last_of_producer(self, batch: RecordBatch) -> bool:
        """Return whether its producer, if still known, wrote last with *batch*."""
        entry = producer_of(self.rows, batch.producer_id)
        if entry is None:
            return False
        if entry.batches:
            return entry.batches[-1].last_offset == batch.last_offset
        return batch.is_control and batch.producer_epoch == entry.epoch

    def corrupt(self, offset: int) -> bool:
        """Flip the last bit of the batch that holds *offset*, as a disk may; return whether there is one."""
        at = bisect_right(self._firsts, offset) - 1
        if at < 0 or self._batches[at].last_offset < offset:
            return False
        batch = self._batches[at]
        self._changes += 1
        if self._files is not None:
            self._files.damage(batch)
        else:
            data = batch.data[:-1] + bytes([batch.data[-1] ^ 1])
            told = batch.first_offset, batch.last_offset, batch.max_timestamp_ms, batch.leader_epoch
            self._batches[at] = StoredBatch(*told, data)
        return True

    def complete(self) -> None:
        """Complete the files of a log that is not written to any more."""
        if self._files is not None:
            self._files.complete(self.rows, self._aborted)

    # -- reading

    def wait(self, told: Callable[[], None]) -> None:
        """Have *told* called whenever more may be read, until `leave`."""
        self._waiting.add(told)

    def leave(self, told: Callable[[], None]) -> None:
        self._waiting.discard(told)

    def read(
        self, offset: int, limit: int, max_bytes: int, *, committed: bool, one_at_least: bool
    ) -> LogRead:
        """Return the batches from the one of *offset* on that begin before *limit*, up to *max_bytes*; with
        *one_at_least* the first whatever its size.
        """
        at = max(0, bisect_right(self._firsts, offset) - 1)
        if at < len(self._batches) and self._batches[at].last_offset < offset:
            at += 1
        end = bisect_left(self._firsts, limit)
        size = 0
        for number in range(at, end):
            more = self._batches[number].size
            if size + more > max_bytes and (number > at or not one_at_least):
                end = number
                break
            size += more
        chosen = self._batches[at:end]
        found = [each.data for each in chosen] if self._files is None else self._files.read(chosen)
        if not committed or not self._aborted or not chosen:
            return LogRead(found, size, [])
        return LogRead(found, size, self._aborted_within(offset, chosen[-1].last_offset + 1))

    def _aborted_within(self, offset: int, upper: int) -> list[AbortedTransaction]:
        first = bisect_left(self._aborted, offset, key=lambda each: each.last_offset)
        found = []
        for each in self._aborted[first:]:
            if each.first_offset < upper:
                found.append(each)
            if each.last_stable_offset >= upper:
                break
        return found

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch in which the record at *offset* was written, -1 if unknown."""
        found = [epoch for epoch, first in self.epochs if first <= offset]
        return found[-1] if found else UNDEFINED

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the largest epoch up to *epoch*; (-1, -1) where that is not known."""
        if not self.epochs or epoch < 0 or epoch > self.epochs[-1][0]:
            return UNDEFINED, UNDEFINED
        if epoch == self.epochs[-1][0]:
            return epoch, self.end_offset
        earlier = [each for each in self.epochs if each[0] <= epoch]
        later = [each for each in self.epochs if each[0] > epoch]
        return (earlier[-1][0] if earlier else epoch), later[0][1]

    def first_since(self, at_ms: int) -> FoundOffset | None:
        """Return the first record with a time of *at_ms* or later."""
        for stored in self._batches:
            if stored.max_timestamp_ms < at_ms:
                continue
            batch = decode_batch(stored.data)
            for record in batch.records:
                offset, time_ms = batch.base_offset + record.offset_delta, batch.timestamp_ms(record)
                if time_ms >= at_ms and offset >= self.start_offset:
                    return FoundOffset(offset, time_ms, stored.leader_epoch)
        return None

    def latest_time(self) -> FoundOffset | None:
        """Return the first record that has the highest time of all."""
        if not self._batches:
            return None
        highest = max(each.max_timestamp_ms for each in self._batches)
        return self.first_since(highest)


def _few(firsts: list[int], offset: int) -> int:
    return bisect_left(firsts, offset)
