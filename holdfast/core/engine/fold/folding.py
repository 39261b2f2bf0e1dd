"""The fold of a partition: stretches of records and choices in, changes and new choices out.

Live, local and Spark all run this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from operator import length_hint
from typing import Any, TypeVar

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice
from holdfast.core.engine.declared.processor import FoldAll, Processor
from holdfast.core.engine.declared.sources import SKIPPED, SourceFold
from holdfast.core.engine.declared.streams import tells_origins
from holdfast.core.engine.emit_columns import EmitColumns, Emitted
from holdfast.core.engine.emits import Emit, Emits, Headers
from holdfast.core.engine.fold.event_clock import event_clock_of
from holdfast.core.engine.fold.ordering import MergeOrder
from holdfast.core.engine.fold.paced import Paced
from holdfast.core.engine.fold.stepping import (
    LIMIT_BYTES,
    STEP_RECORDS,
    STEP_S,
    USERS_FAILURES,
    WAKE_AT_ONCE,
    WITHIN,
    Refused,
    Stage,
    SteppingFolder,
    TopicOffset,
    Transition,
    Written,
)
from holdfast.core.engine.fold.stretches import Portion, Stretch, beginning_upto, stretch_of
from holdfast.core.engine.fold.traced import TracedEvent
from holdfast.core.engine.origins import Mark, unclaimed
from holdfast.core.engine.positions import NO_TIME, Position, encode_position, start_of
from holdfast.core.engine.state.codec import APPLIED, TICK
from holdfast.core.engine.state.global_rows import GlobalTables, GlobalViews
from holdfast.core.engine.state.handover import HANDOVER_FORMAT, Handover
from holdfast.core.engine.state.recovery import Recovery
from holdfast.core.engine.state.rows import NEVER, JournaledRows, Rows, Store
from holdfast.core.engine.state.timers import TimerTable, timers_in
from holdfast.errors import ChangelogError

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


class Folder(SteppingFolder[R, Stretch, Changes]):
    """The folder of a partition: its position is *marker*.

    What it is given are stretches that follow that position, of a `Merger` or of `replayed`. Of a stretch
    that was not folded to its end, the rest must be merged again: `Merger.settle(folder.marker)` after each
    commit and rollback. Where the log has the order of records, it takes batches instead, and passes over
    those that were applied before.

    Raises ChangelogError for a *marker* of other sources. *views* are the globals that the processor reads.

    >>> from holdfast.core.engine.merge.merging import Merger
    >>> from holdfast.core.engine.declared.serdes import Text
    >>> from holdfast.core.engine.declared.sources import Source
    >>> class Empty(dict):
    ...     def scan(self, prefix, start=b""): return iter(())
    >>> def joins(rows, event, at_ms): rows["all"] = rows.get("all", "") + event
    >>> letters, digits = Source("letters", Text()), Source("digits", Text())
    >>> both = Processor(name="both", on={letters: joins, digits: joins}, row=str)
    >>> folder = Folder(both, Empty())
    >>> merger = Merger(folder.marker)
    >>> def transact(source, offset, at_ms, value):
    ...     merger.offer(source, Batch([offset], [at_ms], ([value],)))
    ...     changes = folder.fold(iter(lambda: merger.take(ends=(0, 0)), None))
    ...     folder.commit()  # once changes.stored(), .emits, .choices are written, in one Kafka transaction
    ...     merger.settle(folder.marker)
    ...     return folder.rows["all"], [choice.applied for choice in changes.choices]
    >>> transact(0, 0, 10, b"a"), transact(1, 0, 12, b"2"), transact(0, 1, 11, b"b")
    (('a', []), ('a2', []), ('a2b', [(0, 0)]))
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
        views: GlobalViews | None = None,
        handover: Handover | None = None,
        recovery: Recovery | None = None,
        partition: int = -1,
    ) -> None:
        start = start_of(processor)
        self.marker = start if marker is None else marker
        if (
            self.marker.sources != start.sources
            or len(self.marker.applied) != len(start.applied)
            or _holds(self.marker) != _holds(start)
        ):
            raise ChangelogError(
                f"table {processor.table} was folded from other sources than {', '.join(processor.topics)},"
                " or from these in another order: give the processor another name"
            )
        self._on_tick = processor.on_tick
        self._ticks = TimerTable() if self._on_tick is None else timers_in(store, TICK)
        ticks = None if self._on_tick is None else self._ticks  # without: a fold that sets one is refused
        event_ms = self.marker.event_ms
        self._folds, self._names = processor.folds, processor.named_sources or ("",)
        super().__init__(
            processor,
            store,
            self.marker.stream_ms,
            cache_rows,
            limit_bytes,
            trace,
            ticks,
            event_ms,
            handover,
            recovery,
            partition,
        )
        if self._on_tick is not None and self._carried is not None:
            self._on_tick = self._carried.of_timer(self._on_tick)
        self._fold_all = processor.fold_all if self._carried is None else None
        self.order = MergeOrder(processor, lambda: self.refused_before)
        """The times by which its records are merged: for the `Merger` that makes its stretches."""
        self._plain = tuple(map(self._one_fold, self._folds))
        self.event_clock = event_clock_of(processor, self.marker.origins)
        self._headers_left: list[Iterator[Headers]] = [iter(()) for _ in self._folds]
        """The headers of the next records to fold of each source, if event time passes by them."""
        self._calls = tuple(
            self._timed(fold, partial(self._time_of, each)) if processor.has_event_time else fold
            for each, fold in zip(self._folds, self._plain, strict=True)
        )
        self._globals = self.marker.globals
        self._tables: GlobalTables | None = None
        if processor.reads:
            self._tables = GlobalTables(processor.reads, views, self.rows.failures, self._globals)
            self.rows.globals = self._tables
        self._forget()

    def _no_emits(self) -> Emitted:
        return [] if self._folds[0].step is None else EmitColumns()

    def fold(self, batches: Iterable[Batch | Stretch]) -> Changes | None:
        for _ in self.steps(batches, whole=True):
            pass
        return self.changes

    def steps(self, batches: Iterable[Batch | Stretch], *, whole: bool = False) -> Iterator[None]:
        return super().steps(self._stretches(batches), whole=whole)

    def _stretches(self, batches: Iterable[Batch | Stretch]) -> Iterator[Stretch]:
        applied = self.marker.applied[0]
        for each in batches:
            if isinstance(each, Stretch):
                yield each
            elif (rest := each.after(applied)).offsets:
                applied = rest.offsets[-1]
                yield stretch_of(rest)

    def _time_of(self, of: SourceFold, event: Any, stream_ms: int) -> int:
        time = partial(_event_ms, of)
        if self.event_clock is None:
            return time(event, stream_ms)
        return self._heard_time(of.number, next(self._headers_left[of.number]), event, time, stream_ms)

    def _hear_by(self, of: SourceFold, batch: Batch) -> None:
        """Let event time pass, and emits carry origins, by the headers of the records of *batch*, where the
        source is a step's.
        """
        if self.event_clock is None and self._carried is None:
            return
        at = of.inputs.index("headers") if of.meets_marks else len(batch.columns)
        headers = batch.columns[at] if at < len(batch.columns) else repeat(())
        self._headers_left[of.number] = iter(headers)
        if self._carried is not None:
            self._carried.read(of.number, headers)

    def _one_fold(self, of: SourceFold) -> Callable[..., Emits]:
        """Return the fold of a source as it is called: for steps, with the headers of origins."""
        clock, source, fold = self.clock, of.number, of.fold
        if self._carried is not None:
            return self._carried.of_fold(source, fold, meets_marks=of.meets_marks, takes_marks=of.marks)
        if of.step is not None:
            return unless_skipped(fold)
        claims = (
            self.processor.stateless and not of.meets_marks and any(map(tells_origins, self.processor.emits))
        )
        if clock is None:
            if claims:
                return lambda rows, event, at_ms, key, headers, partition: fold(
                    rows, event, at_ms, key, unclaimed(headers), partition
                )
            return unless_skipped(fold) if of.meets_marks and not of.marks else fold

        def told(
            rows: Rows[Any], event: Any, at_ms: int, key: Any, headers: Headers, partition: int
        ) -> Emits:
            if event.__class__ is Mark:
                clock.mark(source, event)
                return None
            given = unclaimed(headers) if claims else headers
            sent = clock.told(source, event, given, partition, at_ms)
            return fold(rows, event, at_ms, key, sent, partition)

        return told

    def refuse_again(self, refused: Iterable[TopicOffset]) -> None:
        """Set `refused_before` to records by their topics."""
        names = dict(zip(self.processor.topics, self._names, strict=True))
        self.refused_before = {(names[topic], offset) for topic, offset in refused if topic in names}

    @property
    def next_tick_ms(self) -> int:
        """Return the time in ms of the earliest tick timer, NEVER (2**62) without any: ask the merger for a
        tick then.
        """
        return self._ticks.next_ms

    def _forget(self) -> None:
        super()._forget()
        marker = self.marker
        self._applied, self._reached, self._last = list(marker.applied), list(marker.reached_ms), marker.last
        self._by_event = marker.by_event
        self._ordered = [*(marker.order_ms if self._by_event else repeat(NO_TIME, len(marker.applied)))]
        self._tick_ms, self._number = marker.tick_ms, marker.choices
        self._choices: list[Choice] = []
        if self._tables is not None:
            self._globals = marker.globals
            self._tables.settle(self._globals)

    def unchanged(self) -> Changes:
        return Changes(marker=self.marker, records=0)

    def _moved(self) -> None:
        assert self.changes is not None
        self.marker = self.changes.marker
        if self.order.unread:
            self.order.forget(dict(zip(self.processor.topics, self.marker.applied, strict=True)))

    def _finished(
        self, taken: list[Stretch], records: int, puts: list[tuple[bytes, bytes | None]]
    ) -> Changes:
        marker = Position(
            applied=tuple(self._applied),
            stream_ms=self.stream_ms,
            version=self.processor.version,
            reached_ms=tuple(self._reached),
            last=self._last,
            tick_ms=self._tick_ms,
            choices=self._number,
            sources=self.marker.sources,
            by_event=self._by_event,
            ordered_ms=tuple(self._ordered) if self._by_event else (),
            globals=() if self._tables is None else self._globals,
            event_ms=None if self._events is None else self.event_ms,
            origins=None if self.event_clock is None else self.event_clock.encode(),
        )
        return Changes(
            marker=marker,
            records=records,
            puts=puts,
            emits=self._heard(),
            refused=self._refused,
            repeated=self._repeated(),
            choices=self._choices,
            reached=self._reached_now(),
        )

    def _fresh(self, batches: Iterable[Stretch], taken: list[Stretch]) -> Iterator[Stretch]:
        self._input_failure, self._silent, self._repeats = None, False, False
        found, recovery = iter(batches), self._recovery
        if self._handover is not None:
            found = self._alike(found, self._handover, partial(setattr, self, "_silent"))
        if recovery is not None:
            upto = Handover(HANDOVER_FORMAT, recovery.applied, recovery.choices)
            found = self._alike(found, upto, partial(setattr, self, "_repeats"))
        try:
            for stretch in found:
                taken.append(stretch)
                yield stretch
        except Exception as error:
            self._input_failure = error
            raise

    @staticmethod
    def _alike(
        stretches: Iterable[Stretch], handover: Handover, note: Callable[[bool], object]
    ) -> Iterator[Stretch]:
        """Yield *stretches* as long as their emits are alike: suppressed up to *handover*, or sent after it,
        as those of the first are. *note* is called with True if they are suppressed. The rest is for the next
        transaction.
        """
        is_silent, is_known = False, False
        for stretch in stretches:
            if stretch.choice is not None and stretch.choice.tick_ms is None:
                yield stretch  # it emits nothing
                continue
            silent, first = beginning_upto(stretch, handover)
            if not is_known:
                is_silent, is_known = silent, True
                note(silent)
            if silent is is_silent:
                yield first
            if first is not stretch or silent is not is_silent:
                return

    # -- at full speed

    def _fast_step(self, batch: Stretch) -> int:
        if batch.choice is not None:
            self._obey(batch.choice, decided=batch.decided)
            if batch.choice.tick_ms is not None:
                self._rest, self._rest_before = self._ticking(batch.choice.tick_ms), False
            return 0
        if self.order.unread:
            self.order.check_read(batch.portions)
        only = batch.only
        if only is None or self._folds[only[0]].asks:
            folded = self._fold_alike(batch)
        else:
            folded = self._fold_one(*only, batch)
        if not folded:
            return 0
        if folded < batch.records:
            batch = batch.slice(0, folded)
        for source, portion in enumerate(batch.portions):
            if portion is not None:
                self._reach(source, portion, -1)
        self._reached_by(batch.order[-1], batch)
        return folded

    def _fold_one(self, source: int, portion: Portion, stretch: Stretch) -> int:
        """Fold records of one source whose fold asks for nothing but their events; return how many."""
        of, batch = self._folds[source], portion.batch
        if of.step is not None:
            self._emits.extend(of.send_all(batch, self.clock))
            self.stream_ms = max(self.stream_ms, *batch.times_ms)
            return batch.records
        if self._fold_all is not None and (done := self._fold_columns(self._fold_all, of, batch)):
            return done
        self._hear_by(of, batch)
        (events,) = of.told(batch, quickly=True, events=portion.events)
        rows, fold, emit, now_ms = self.rows, self._calls[source], self._emits.extend, self.stream_ms
        times = iter(list(stretch.reached_ms or batch.times_ms))
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

    def _fold_columns(self, fold_all: FoldAll, of: SourceFold, batch: Batch) -> int:
        """Fold *batch* in columns; return how many of its records were folded, 0 where that cannot be."""
        if self.rows.next_wake_ms != NEVER:
            return 0
        assert isinstance(self._emits, list), "only steps send columns"
        found = fold_all(self.rows, of.columns(batch), batch.times_ms, self.stream_ms, self._emits)
        if found is None:
            return 0
        done, emits = found
        if isinstance(emits, Paced):
            self._rest, self._rest_before = emits.parts, False
        self.stream_ms = max(self.stream_ms, *batch.times_ms[:done])
        return done

    def _fold_alike(self, batch: Stretch) -> int:
        """Fold records of any sources, one at a time; return how many."""
        rows, emit, before_ms = self.rows, self._emits.extend, self.stream_ms
        times = _stream_times(batch.reached_ms, before_ms)
        # Each record is read and folded by the next call of its source. They share the times, of which each
        # takes one.
        left = iter(times)
        calls = [
            _no_record if portion is None else self._folding(source, portion, left).__next__
            for source, portion in enumerate(batch.portions)
        ]
        for call, now_ms in zip(map(calls.__getitem__, batch.order), times, strict=True):
            if now_ms > before_ms:
                before_ms = now_ms
                if rows.next_wake_ms <= now_ms and not self._wake_fast(rows, now_ms):
                    break
            emits = call()
            if emits is not None:
                if emits.__class__ is Paced:
                    self._rest, self._rest_before = emits.parts, False
                    break
                emit(emits)
        self.stream_ms = before_ms
        return batch.records - length_hint(left)

    def _folding(self, source: int, portion: Portion, times: Iterator[int]) -> Iterator[Emits]:
        """Fold the records of *portion*, each when it is taken, at the next of *times*; yield what each
        emits.
        """
        self._hear_by(self._folds[source], portion.batch)
        events, *asked = self._folds[source].told(portion.batch, quickly=True, events=portion.events)
        return map(self._calls[source], repeat(self.rows), events, times, *asked)

    def _ticking(self, now_ms: int) -> Iterator[list[Emit]]:
        for number, (key, due_ms) in enumerate(self._ticks.due(now_ms), 1):
            if self._on_tick is not None and self._ticks.fire(key, due_ms):
                emits = self._on_tick(self.rows, key, due_ms)
                if isinstance(emits, Paced):
                    yield from emits.parts
                elif emits is not None:
                    self._emits.extend(emits)
            if number % WAKE_AT_ONCE == 0:
                yield []

    # -- record by record

    def _careful_batch(self, rows: JournaledRows[R], batch: Stretch) -> Iterator[object]:
        if batch.choice is not None:
            self._obey(batch.choice, decided=batch.decided)
            if batch.choice.tick_ms is not None:
                yield from self._tick_carefully(rows, batch.choice)
            yield None
            return
        done = [0] * len(batch.portions)
        for source in batch.order:
            at, each, portion = done[source], self._folds[source], batch.portions[source]
            assert portion is not None
            done[source] += 1
            place = self._names[source], portion.batch.offsets[at]
            at_ms = (portion.reached_ms or portion.batch.times_ms)[at]
            told = partial(self._told_once, place, each, portion.batch.slice(at, at + 1))
            time = partial(self._time_of, each)
            self._hear_by(each, portion.batch.slice(at, at + 1))
            yield from self._careful_record(rows, place, at_ms, told, self._plain[source], time)
            self._reach(source, portion, at)
            self._reached_by(source, batch)
            yield None

    def _told_once(self, place: tuple[str, int], fold: SourceFold, record: Batch) -> list[Any]:
        """Return the event of the one record of a batch and the inputs that *fold* asks for; raise the error
        met when its time was read, if that may have passed by now.
        """
        if (error := self.order.unread.get(place)) is not None:
            raise error
        told = (
            fold.told(record) if fold.step is None or self.clock is None else fold.told_by(record, self.clock)
        )
        return [next(iter(each)) for each in told]

    def _tick_carefully(self, rows: JournaledRows[R], choice: Choice) -> Iterator[object]:
        assert choice.tick_ms is not None
        for number, (key, due_ms) in enumerate(self._ticks.due(choice.tick_ms), 1):
            if number % WAKE_AT_ONCE == 0:
                yield WITHIN
            if self._on_tick is not None and self._ticks.fire(key, due_ms):
                rows.keep()  # a timer that fails has fired all the same
                act = partial(self._on_tick, rows, key, due_ms)
                what = f"tick timer {key!r:.200} due at {due_ms}: "
                yield from self._attempt(rows, ("", choice.number), "tick", act, what, choice.tick_ms)

    # -- the position

    def _reach(self, source: int, portion: Portion, at: int) -> None:
        offset = portion.batch.offsets[at]
        assert offset > self._applied[source], "a stretch follows the position: settle the merger at it"
        self._applied[source] = offset
        if self._reached:
            self._reached[source] = portion.reached_ms[at]
        if portion.ordered_ms is not None:
            self._ordered[source] = portion.ordered_ms[at]

    def _reached_by(self, source: int, stretch: Stretch) -> None:
        """Note by which record the next is ordered, unless the log has the order."""
        self._last, self._by_event = source if self._reached else -1, stretch.by_event

    def _obey(self, choice: Choice, *, decided: bool) -> None:
        assert choice.number == self._number, "a choice follows the position: settle the merger at it"
        # What it names may be gone from its source: compacted, or skipped since.
        self._applied = [max(each) for each in zip(self._applied, choice.applied, strict=True)]
        self._number, self._last = choice.number + 1, -1
        self._ordered = [NO_TIME] * len(self._ordered)
        if choice.tick_ms is not None:
            self._tick_ms = choice.tick_ms
        if choice.globals and self._tables is not None:
            self._globals = choice.globals
            self._tables.move(choice.globals)
        if decided:
            self._choices.append(choice)


def _event_ms(fold: SourceFold, event: Any, stream_ms: int) -> int:
    """Return the event time of an event; none of what stands for a mark."""
    if event is SKIPPED or event.__class__ is Mark:
        return -NEVER
    return fold.event_ms(event.event if event.__class__ is TracedEvent else event, stream_ms)


def _stream_times(reached_ms: Sequence[int], stream_ms: int) -> Sequence[int]:
    """Return the stream time of each record of a stretch, before which it is *stream_ms*."""
    if reached_ms[0] >= stream_ms:
        return reached_ms  # they ascend, as the order of the records does
    return [max(stream_ms, each) for each in reached_ms]


def _holds(marker: Position) -> tuple[int, bool]:
    """Return a value that differs between declarations: the number of globals, and if there is event time."""
    return len(marker.globals), marker.event_ms is not None


def _no_record() -> Emits:
    raise AssertionError("a stretch names a source of which it has no record")


def unless_skipped(fold: Callable[..., Emits]) -> Callable[..., Emits]:
    """Return *fold*, which does nothing for what stands for a mark."""

    def folded(rows: Any, event: Any, at_ms: int, *told: Any) -> Emits:
        return None if event is SKIPPED else fold(rows, event, at_ms, *told)

    return folded
