"""The fold of a partition of several sources: stretches of records and choices in, changes and new choices
out.

Live, local and Spark all run this, as they do `Folder`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from operator import length_hint
from typing import Any, TypeVar

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.sources import SKIPPED, SourceFold
from holdfast.core.engine.declared.streams import tells_origins
from holdfast.core.engine.emits import Emit, Emits, Headers
from holdfast.core.engine.fold.event_clock import event_clock_of
from holdfast.core.engine.fold.folding import Changes, unless_skipped
from holdfast.core.engine.fold.paced import Paced
from holdfast.core.engine.fold.stepping import (
    LIMIT_BYTES,
    WAKE_AT_ONCE,
    WITHIN,
    SteppingFolder,
    Transition,
)
from holdfast.core.engine.merge.merging import Portion, Stretch
from holdfast.core.engine.merge.ordering import MergeOrder
from holdfast.core.engine.origins import Mark, unclaimed
from holdfast.core.engine.positions import NO_TIME, Position, start_of
from holdfast.core.engine.state.codec import TICK
from holdfast.core.engine.state.global_rows import GlobalTables, GlobalViews
from holdfast.core.engine.state.handover import HANDOVER_FORMAT, Handover
from holdfast.core.engine.state.recovery import Recovery
from holdfast.core.engine.state.rows import NEVER, JournaledRows, Rows, Store
from holdfast.core.engine.state.timers import TimerTable, timers_in
from holdfast.errors import ChangelogError

R = TypeVar("R")


class MergingFolder(SteppingFolder[R, Stretch, Changes]):
    """The folder of a processor with `on=`: its position is *marker*, a vector.

    What it is given are stretches that follow that position, of a `Merger` or of `replayed`. Of a stretch
    that was not folded to its end, the rest must be merged again: `Merger.settle(folder.marker)` after each
    commit and rollback.

    Raises ChangelogError for a *marker* of other sources. *views* are the globals that the processor reads.

    >>> from holdfast.core.engine.batches import Batch
    >>> from holdfast.core.engine.merge.merging import Merger
    >>> from holdfast.core.engine.declared.serdes import Text
    >>> from holdfast.core.engine.declared.sources import Source
    >>> class Empty(dict):
    ...     def scan(self, prefix, start=b""): return iter(())
    >>> def joins(rows, event, at_ms): rows["all"] = rows.get("all", "") + event
    >>> letters, digits = Source("letters", Text()), Source("digits", Text())
    >>> both = Processor(name="both", on={letters: joins, digits: joins}, row=str)
    >>> folder = MergingFolder(both, Empty())
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
        self._folds = processor.folds
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

    def _time_of(self, of: SourceFold, event: Any, stream_ms: int) -> int:
        time = partial(_event_ms, of)
        if self.event_clock is None:
            return time(event, stream_ms)
        return self._heard_time(of.number, next(self._headers_left[of.number]), event, time, stream_ms)

    def _hear_by(self, of: SourceFold, batch: Batch) -> None:
        """Let event time pass, and emits carry origins, by the headers of the records of *batch*, where the
        source is a step's.
        """
        at = of.inputs.index("headers") if of.meets_marks else len(batch.columns)
        headers = batch.columns[at] if at < len(batch.columns) else repeat(())
        self._headers_left[of.number] = iter(headers)
        if self._carried is not None:
            self._carried.read(of.number, headers)

    def _one_fold(self, of: SourceFold) -> Callable[..., Emits]:
        """Return the fold of a source as it is called: for steps, with the headers of origins."""
        clock, source, fold = self.clock, of.number, of.fold
        if self._carried is not None:
            marks = {"meets_marks": of.meets_marks, "takes_marks": of.marks}
            return self._carried.of_fold(source, fold, **marks)
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
        folded = batch.records - length_hint(left)
        if folded < batch.records:
            batch = batch.slice(0, folded)
            if not folded:
                return 0
        for source, portion in enumerate(batch.portions):
            if portion is not None:
                self._reach(source, portion, -1)
        self._last, self._by_event = batch.order[-1], batch.by_event
        return folded

    def _folding(self, source: int, portion: Portion, times: Iterator[int]) -> Iterator[Emits]:
        """Fold the records of *portion*, each when it is taken, at the next of *times*; yield what each
        emits.
        """
        if self.event_clock is not None or self._carried is not None:
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
            place = str(each.source.topic), portion.batch.offsets[at]
            told = partial(self._told_once, place, each, portion.batch.slice(at, at + 1))
            time = partial(self._time_of, each)
            if self.event_clock is not None or self._carried is not None:
                self._hear_by(each, portion.batch.slice(at, at + 1))
            yield from self._careful_record(
                rows, place, portion.reached_ms[at], told, self._plain[source], time
            )
            self._reach(source, portion, at)
            self._last, self._by_event = source, batch.by_event
            yield None

    def _told_once(self, place: tuple[str, int], fold: SourceFold, record: Batch) -> list[Any]:
        """Return the event of the one record of a batch and the inputs that *fold* asks for; raise the error
        met when its time was read, if that may have passed by now.
        """
        if (error := self.order.unread.get(place)) is not None:
            raise error
        return [next(iter(each)) for each in fold.told(record)]

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
        self._applied[source], self._reached[source] = offset, portion.reached_ms[at]
        if portion.ordered_ms is not None:
            self._ordered[source] = portion.ordered_ms[at]

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
    return -NEVER if event is SKIPPED or event.__class__ is Mark else fold.event_ms(event, stream_ms)


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


def beginning_upto(stretch: Stretch, place: Handover) -> tuple[bool, Stretch]:
    """Return whether the first record of *stretch* lies up to *place*, and the part of the stretch of which
    that is equally true.
    """
    if stretch.choice is not None:
        return stretch.choice.number < place.choices, stretch
    left = [
        0 if portion is None else bisect_right(portion.batch.offsets, upto)
        for portion, upto in zip(stretch.portions, place.applied, strict=True)
    ]
    silent = left[stretch.order[0]] > 0
    for number, source in enumerate(stretch.order):
        if (left[source] > 0) is not silent:
            return silent, stretch.slice(0, number)
        left[source] -= 1
    return silent, stretch
