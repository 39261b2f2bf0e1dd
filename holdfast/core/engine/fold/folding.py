"""The fold of a partition of one source: batches of records in, one transaction's worth of changes out.

Live, local and Spark all run this.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from operator import length_hint
from typing import Any, TypeVar

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice
from holdfast.core.engine.declared.processor import FoldAll, Processor
from holdfast.core.engine.declared.sources import SKIPPED, EventTime, decoder_columns, event_time
from holdfast.core.engine.emit_columns import EmitColumns, Emitted
from holdfast.core.engine.emits import Emits, Headers
from holdfast.core.engine.fold.event_clock import event_clock_of
from holdfast.core.engine.fold.paced import Paced
from holdfast.core.engine.fold.stepping import (
    LIMIT_BYTES,
    STEP_RECORDS,
    STEP_S,
    USERS_FAILURES,
    Refused,
    Stage,
    SteppingFolder,
    Transition,
    Written,
)
from holdfast.core.engine.fold.traced import TracedEvent
from holdfast.core.engine.origins import is_mark, plain
from holdfast.core.engine.positions import Position, encode_position, start_of
from holdfast.core.engine.state.codec import APPLIED, NOTHING_APPLIED
from holdfast.core.engine.state.handover import Handover
from holdfast.core.engine.state.recovery import Recovery
from holdfast.core.engine.state.rows import NEVER, JournaledRows, Store

__all__ = [
    "LIMIT_BYTES",
    "STEP_RECORDS",
    "STEP_S",
    "USERS_FAILURES",
    "Batch",
    "Changes",
    "Folder",
    "Refused",
    "Stage",
    "Transition",
]

R = TypeVar("R")


@dataclass(slots=True, kw_only=True)
class Changes(Written):
    """The changes of one transaction: stored keys with new values (None deletes), records to emit, records
    refused; and *choices* to the partition's choices topic.

    *marker* closes the transaction: everything up to it is in the state once this is applied.
    """

    marker: Position
    choices: list[Choice] = field(default_factory=list)

    def closing(self) -> tuple[bytes, bytes]:
        return APPLIED, encode_position(self.marker)


class Folder(SteppingFolder[R, Batch, Changes]):
    """The folder of a processor of one source, from *marker* on, the beginning without one.

    What it is given are batches; those that were applied before, it passes over.
    """

    def __init__(
        self,
        processor: Processor[Any, R],
        store: Store,
        *,
        marker: Position | None = None,
        cache_rows: int = 200_000,
        limit_bytes: int = LIMIT_BYTES,
        trace: Callable[[Transition[R]], None] | None = None,
        handover: Handover | None = None,
        recovery: Recovery | None = None,
        partition: int = -1,
    ) -> None:
        self.marker = start_of(processor) if marker is None else marker
        assert (self.marker.event_ms is not None) == processor.has_event_time, "a position has event time"
        super().__init__(
            processor,
            store,
            self.marker.stream_ms,
            cache_rows,
            limit_bytes,
            trace,
            event_ms=self.marker.event_ms,
            handover=handover,
            recovery=recovery,
            partition=partition,
        )
        self._lineage = processor.lineage
        self._takes, self._plain = tuple(processor.inputs), len(processor.inputs) == len(processor.columns)
        self.event_clock = event_clock_of(processor, self.marker.origins)
        self._headers_left: Iterator[Headers] = iter(())
        """The headers of the next records to fold, if event time passes by them."""
        self._fold: Callable[..., Emits] = processor.fold
        if self._carried is not None:
            self._fold = self._carried.of_fold(0, processor.fold, meets_marks=processor.meets_marks)
        elif self.event_clock is not None:
            self._fold = unless_skipped(processor.fold)
        self._call = self._fold
        self._fold_all = processor.fold_all if self._carried is None else None
        if processor.has_event_time:
            self._call = self._timed(self._fold, self._time if self.event_clock is None else self._time_told)
        self._meets_marks = processor.meets_marks
        self._skips_marks = processor.meets_marks and not processor.takes_marks
        self._headers = processor.columns.index("headers") if processor.meets_marks else -1

    def _no_emits(self) -> Emitted:
        return EmitColumns() if self.processor.stateless else []

    def _time(self, event: Any, stream_ms: int) -> int:
        if event is SKIPPED:
            return -NEVER
        told = event.event if event.__class__ is TracedEvent else event
        return event_time(self.processor.source, self.processor.time, told, stream_ms)

    def _time_told(self, event: Any, stream_ms: int) -> int:
        return self._heard_time(0, next(self._headers_left), event, self._time, stream_ms)

    def _hear_by(self, batch: Batch) -> None:
        """Let event time pass, and emits carry origins, by the headers of the records of *batch*."""
        has_headers = len(batch.columns) > self._headers
        headers = batch.columns[self._headers] if has_headers else repeat(())
        self._headers_left = iter(headers)
        if self._carried is not None:
            self._carried.read(0, headers)

    @property
    def _hears(self) -> bool:
        """Return whether something goes by the headers of records, and is called at marks."""
        return self.event_clock is not None or (self._carried is not None and self._meets_marks)

    def _columns(self, batch: Batch) -> tuple[Sequence[Any], ...]:
        if self._meets_marks:
            batch = self._as_asked(batch)
        elif self._plain:
            return batch.columns
        return decoder_columns(self._takes, str(self.processor.source), batch)

    def _as_asked(self, batch: Batch) -> Batch:
        """Return *batch* with the columns that are asked for, and without headers that are for folds of
        windows.
        """
        columns, at = batch.columns, self._headers
        if len(columns) <= at:
            return batch  # made without them, of what holds no marks
        if "headers" not in self._takes:
            return Batch(batch.offsets, batch.times_ms, columns[:-1])
        if not self._skips_marks or not any(columns[at]):
            return batch
        shown = [*map(plain, columns[at])]
        return Batch(batch.offsets, batch.times_ms, (*columns[:at], shown, *columns[at + 1 :]))

    def _marks(self, batch: Batch) -> list[bool] | None:
        """Return True for each record of *batch* that is a mark, which is not decoded; None without marks."""
        if not self._skips_marks or len(batch.columns) <= self._headers:
            return None
        if not any(headers := batch.columns[self._headers]):
            return None
        marks = [*map(is_mark, headers)]
        return marks if True in marks else None

    def _fresh(self, batches: Iterable[Batch], taken: list[Batch]) -> Iterator[Batch]:
        applied, upto = self.marker.applied[0], NOTHING_APPLIED
        for batch in batches:
            if (rest := batch.after(applied)).offsets:
                if not taken:
                    upto = self._begin_at(rest.offsets[0])
                if cut := upto != NOTHING_APPLIED and rest.offsets[-1] > upto:
                    rest = rest.slice(0, bisect_right(rest.offsets, upto))
                if rest.offsets:
                    applied = rest.offsets[-1]
                    taken.append(rest)
                    yield rest
                if cut:
                    return  # the rest is for the next transaction, which emits

    def _begin_at(self, first: int) -> int:
        """Decide if a transaction that begins with offset *first* is silent, or repeats earlier emits. Return
        the last offset for which the decision holds, NOTHING_APPLIED if it holds for all.
        """
        silent = NOTHING_APPLIED if self._handover is None else self._handover.applied[0]
        repeated = NOTHING_APPLIED if self._recovery is None else self._recovery.applied[0]
        self._silent, self._repeats = first <= silent, first <= repeated
        return min((upto for upto in (silent, repeated) if first <= upto), default=NOTHING_APPLIED)

    def _fast_step(self, batch: Batch) -> int:
        marks = self._marks(batch)
        if self.processor.stateless:
            columns, append_times = self._columns(batch), batch.times_ms
            if marks is not None:
                columns = tuple(
                    [each for each, mark in zip(column, marks, strict=True) if not mark] for column in columns
                )
                append_times = [at for at, mark in zip(append_times, marks, strict=True) if not mark]
            self._emits.extend(self.processor.send_all(columns, self.clock, append_times))
            self.stream_ms = max(self.stream_ms, *batch.times_ms)
            return batch.records
        if self._fold_all is not None and (done := self._fold_columns(self._fold_all, batch)):
            return done
        rows, fold, emit, now_ms = self.rows, self._call, self._emits.extend, self.stream_ms
        events: Iterator[Any] = map(self.processor.decode, *self._columns(batch))
        if self._hears:
            self._hear_by(batch)
        if marks is not None:
            events = self._skipping(zip(*self._columns(batch), strict=True), marks)
            fold = fold if self._hears else unless_skipped(fold)
        times = iter(list(batch.times_ms))
        waits = False
        for event, at_ms in zip(events, times, strict=True):
            if at_ms > now_ms:
                now_ms = at_ms
                if rows.next_wake_ms <= now_ms and not self._wake_fast(rows, now_ms):
                    waits = True
                    break
            emits = fold(rows, event, now_ms)
            if emits is not None:
                if emits.__class__ is Paced:
                    self._rest, self._rest_before = emits.parts, False
                    break
                emit(emits)
        self.stream_ms = now_ms
        # The times that are left give the number folded: to count each would take a hundredth of the time.
        return batch.records - length_hint(times) - waits

    def _fold_columns(self, fold_all: FoldAll, batch: Batch) -> int:
        """Fold *batch* in columns; return how many of its records were folded, 0 where that cannot be."""
        if self.rows.next_wake_ms != NEVER:
            return 0
        assert isinstance(self._emits, list), "only steps send columns"
        found = fold_all(self.rows, self._columns(batch), batch.times_ms, self.stream_ms, self._emits)
        if found is None:
            return 0
        done, emits = found
        if emits.__class__ is Paced:
            self._rest, self._rest_before = emits.parts, False
        self.stream_ms = max(self.stream_ms, *batch.times_ms[:done])
        return done

    def _skipping(self, records: Iterable[tuple[Any, ...]], marks: list[bool]) -> Iterator[Any]:
        decode = self.processor.decode
        for record, mark in zip(records, marks, strict=True):
            yield SKIPPED if mark else decode(*record)

    def _careful_batch(self, rows: JournaledRows[R], batch: Batch) -> Iterator[object]:
        decode, fold = self.processor.decode, self._fold
        columns, marks, clock = self._columns(batch), self._marks(batch), self.clock
        if self._carried is not None:
            clock = None
        elif clock is not None:
            fold = unless_skipped(fold)
        for at, (offset, at_ms) in enumerate(zip(batch.offsets, batch.times_ms, strict=True)):
            if clock is not None:
                decode = partial(self.processor.told_by, clock, at_ms)
            told = partial(_decoded, decode, [column[at] for column in columns])
            time: EventTime = self._time
            if self._hears:
                self._hear_by(batch.slice(at, at + 1))
            if self.event_clock is not None:
                time = self._time_told
            if marks is not None and marks[at]:
                time = _no_time if self.event_clock is None else time
                heard = _nothing if self._carried is None else fold
                yield from self._careful_record(rows, ("", offset), at_ms, _skipped, heard, time)
                yield None
                continue
            yield from self._careful_record(rows, ("", offset), at_ms, told, fold, time)
            yield None

    def unchanged(self) -> Changes:
        return Changes(marker=self.marker, records=0)

    def _marker(self, applied: int) -> Position:
        return Position(
            applied=(applied,),
            stream_ms=self.stream_ms,
            version=self.processor.version,
            sources=self._lineage,
            event_ms=None if self._events is None else self.event_ms,
            origins=None if self.event_clock is None else self.event_clock.encode(),
        )

    def _moved(self) -> None:
        assert self.changes is not None
        self.marker = self.changes.marker

    def _finished(self, taken: list[Batch], records: int, puts: list[tuple[bytes, bytes | None]]) -> Changes:
        marker = self._marker(_offset_of(taken, records))
        return Changes(
            marker=marker,
            records=records,
            puts=puts,
            emits=self._heard(),
            refused=self._refused,
            repeated=self._repeated(),
            reached=self._reached_now(),
        )


def unless_skipped(fold: Callable[..., Emits]) -> Callable[..., Emits]:
    """Return *fold*, which does nothing for what stands for a mark."""

    def folded(rows: Any, event: Any, at_ms: int, *told: Any) -> Emits:
        return None if event is SKIPPED else fold(rows, event, at_ms, *told)

    return folded


def _skipped() -> tuple[Any]:
    return (SKIPPED,)


def _nothing(*_: Any) -> None:
    return None


def _no_time(event: Any, stream_ms: int) -> int:
    return -NEVER


def _decoded(decode: Callable[..., Any], inputs: list[Any]) -> tuple[Any]:
    return (decode(*inputs),)


def _offset_of(batches: list[Batch], records: int) -> int:
    """Return the offset of the last of the first *records* of *batches*."""
    for batch in batches:
        if records <= len(batch.offsets):
            return batch.offsets[records - 1]
        records -= len(batch.offsets)
    raise AssertionError("more records were folded than there are")
