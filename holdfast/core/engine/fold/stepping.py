"""The fold of a transaction, common to all folders: at full speed, and again with care if anything in it
fails.

A folder adds the kind of its input, and the form of its position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Any, Generic, Literal, Protocol, Self, TypeAlias, TypeVar

from holdfast.core.engine.declared.emit_rules import EmitRules, require_emits
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.sources import EventTime
from holdfast.core.engine.declared.streams import Internal, tells_origins
from holdfast.core.engine.emit_columns import Emitted
from holdfast.core.engine.emits import Emit, Emits, Headers
from holdfast.core.engine.fold.asides import Asides, close_asides, open_asides
from holdfast.core.engine.fold.emit_headers import emit_headers_of
from holdfast.core.engine.fold.event_clock import EventClock
from holdfast.core.engine.fold.paced import Paced
from holdfast.core.engine.fold.table_parts import TablePart, table_parts
from holdfast.core.engine.fold.user_frames import UserFrame, user_frames
from holdfast.core.engine.origins import StepReached, is_mark, unclaimed
from holdfast.core.engine.state.codec import (
    EVENT,
    META,
    encode_due,
    event_key,
    row_key,
    row_keys,
    text_key,
    tick_key,
    wake_key,
)
from holdfast.core.engine.state.handover import Handover
from holdfast.core.engine.state.recovery import Recovery
from holdfast.core.engine.state.rows import (
    LIMIT_KEY_BYTES,
    TOLD_PARTITION,
    CanonicalRows,
    JournaledRows,
    Rows,
    Store,
)
from holdfast.core.engine.state.timers import NEVER, TimerTable, timers_in
from holdfast.errors import FoldError, Later, StoppedError, UnknownSchemaError

R = TypeVar("R")

WATERMARKS = META + b"watermarks"
"""The key of a step's note of its sources' watermarks: bookkeeping, in no digest."""

TopicOffset: TypeAlias = tuple[str, int]
"""Topic and offset of a record in the partition that is folded. A `Place` is a topic and a partition."""
Stage = Literal["decode", "fold", "wake", "tick", "close"]
USERS_FAILURES = (Exception, SystemExit)
"""Failures of users' code.

A fold that exits is one that fails: the process is not its own, and would meet the record again.
"""
STEP_RECORDS = 512
STEP_S = 0.05
"""The most records of a step, and its longest time in seconds: a caller lets others work between steps.

At full speed a step of STEP_RECORDS takes 2 ms.
"""
WAKE_AT_ONCE = 2_000
"""The number of due timers of one record that fire in a step."""
LIMIT_BYTES = 1_000_000
"""The most bytes of a row, and of a record that is emitted. A worker checks at start that topics take as
much.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A record (or, at stage "wake", a timer met at that record) that changed nothing because decoding or
    folding it failed.

    *topic* is the record's where a processor has several sources, else "". A timer that fails at a tick is at
    stage "tick", without a topic, and its *offset* is the number of the tick's choice. At stage "close" it is
    the result of a window, or of a record that met no partner, whose time came at that record or tick: it is
    not sent, and all else is folded. One that is *passing* may be accepted when it is read again.
    """

    offset: int
    stage: Stage
    error: str
    reason: str
    topic: str = ""
    passing: bool = False
    frames: tuple[UserFrame, ...] = field(default=(), compare=False)
    """The calls of users' code that failed, the innermost last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition(Generic[R]):
    """One change of one row: what the record at *offset* made of it; None for no row.

    *topic* is the record's where a processor has several sources, else "". For a change by a tick *topic* is
    "", *offset* the number of the tick's choice, and *at_ms* its time. *table* is the name of the row's
    table, "" for the processor's own.
    """

    offset: int
    at_ms: int
    key: str
    before: R | None
    after: R | None
    topic: str = ""
    table: str = ""


class Sliceable(Protocol):
    """Records to fold: a batch of one source, or a stretch of several sources."""

    @property
    def records(self) -> int: ...

    def slice(self, start: int, stop: int) -> Self: ...


P = TypeVar("P", bound=Sliceable)


@dataclass(slots=True, kw_only=True)
class Written(ABC):
    """The changes of one transaction of any folder: stored keys with new values (None deletes), records to
    emit, records refused.
    """

    records: int
    puts: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    emits: Emitted = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    repeated: frozenset[str] = frozenset()
    """Topics that have these emits already: the records were folded before, by a state that was lost."""
    reached: StepReached | None = None
    """The progress of a partition whose processor reports it to readers; None for other processors."""

    def stored(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield every (key, value) of the changelog's part of the transaction, the marker last."""
        yield from self.puts
        yield self.closing()

    @abstractmethod
    def closing(self) -> tuple[bytes, bytes]:
        """Return the key and value that end the changelog's part of the transaction: the position marker."""


C = TypeVar("C", bound=Written)


_Fold: TypeAlias = Callable[..., Emits]

WITHIN: Any = object()
"""Yielded in the middle of a record: the transaction cannot end there."""


def _parts_of(fold: Callable[[], Emits]) -> Iterator[list[Emit]]:
    """Fold a record when the first part is taken; yield what it emits."""
    made = fold()
    if isinstance(made, Paced):
        yield from made.parts
    else:
        yield [*(made or ())]


def _called(call: Callable[..., Any], *args: Any) -> Any:
    """Return the result of users' code. An exception that ends a generator or a task is a failure if a fold
    raises it; at a yield of ours, it means that the caller has given up.
    """
    try:
        return call(*args)
    except (*USERS_FAILURES, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise FoldError(f"it raised {type(error).__name__}: {error}") from error


class _LooseError(Exception):
    """The fold sets rows with values of another type than declared: a list instead of a tuple, say, which the
    next record could change.
    """


class SteppingFolder(ABC, Generic[R, P, C]):
    """State of one partition between transactions: its rows, its position, its stream time and, where the
    processor has that, its event time.

    A transaction is first folded at full speed. If anything in it fails, it is rolled back and folded again
    record by record, each undone on failure: because folds are pure, the records before the bad one give the
    same rows again, and a healthy stream pays next to nothing for being able to refuse one record. Refusals
    do not depend on the cut of the log into transactions: the fast fold also looks at rows that a later
    record of the transaction replaces, their sizes and the types of their values. (A fold that is once found
    to set a list instead of a tuple, or a bytearray instead of bytes, has each of its rows read back as it is
    set from then on.)

    When the store fails, or memory runs out, no record is to blame: the error is raised, and `rollback` is
    due. Nor is one whose fold raises Later, or one that may not be refused (`allowed`): the transaction ends
    before it, and where it is the first, Later or StoppedError is raised, and all is rolled back. The records
    before it are folded a second time, since a record that was begun has moved stream time and fired
    timers.

    With *trace*, every transaction is folded record by record and *trace* is called with each change of a
    row. With *handover*, a transaction ends there, and those up to it emit nothing; with *recovery* likewise,
    and internal topics too get nothing a second time.
    """

    def __init__(
        self,
        processor: Processor[Any, R],
        store: Store,
        stream_ms: int,
        cache_rows: int,
        limit_bytes: int,
        trace: Callable[[Transition[R]], None] | None,
        ticks: TimerTable | None = None,
        event_ms: int | None = None,
        handover: Handover | None = None,
        recovery: Recovery | None = None,
        partition: int = -1,
    ) -> None:
        self.processor = processor
        self._handover, self._silent = handover, False
        self._recovery, self._repeats = recovery, False
        self._between = frozenset(str(topic) for topic in processor.emits if isinstance(topic, Internal))
        self.stream_ms = self._before_ms = stream_ms
        self.event_ms = self._before_event_ms = -NEVER if event_ms is None else event_ms
        self._events = timers_in(store, EVENT) if processor.has_event_time else None
        self._parts = table_parts(processor, store, cache_rows, ticks, self._events)
        self.rows: Rows[R] = self._parts[0].rows
        self._untold = _untold(processor)
        self._limit_bytes, self._trace, self._rules = limit_bytes, trace, EmitRules(processor, limit_bytes)
        self.clock = processor.origin_clock(store.get(WATERMARKS) if processor.told_topics else None)
        self._carried = carried = emit_headers_of(processor, self.clock, partition)
        """The headers of emits; None where these carry no origins, and for steps, which set them."""
        self._wake = self._on_wake if carried is None else carried.of_timer(self._on_wake)
        self._on_event = processor.on_event
        if carried is not None and self._on_event is not None:
            self._on_event = carried.of_timer(self._on_event, by_event=True)
        self.event_clock: EventClock | None = None
        self._emits = self._no_emits()
        self._refused: list[Refused] = []
        self._open, self._enough = False, False
        self._rest: Iterator[list[Emit]] | None = None
        """The parts left of the last step at full speed: of its last record or, with `_rest_before`, of
        timers due before the next record.
        """
        self._rest_before = False
        # The first step is of one record, since the time that a fold takes is unknown; each later step is of
        # twice as many.
        self._step_records, self._most_records = 1, STEP_RECORDS
        self._input_failure: Exception | None = None
        self._done = 0
        """The number of records and choices that the careful fold of the transaction has folded to their end.
        """
        self._told: list[Transition[Any]] = []
        self.allowed: Container[TopicOffset] | None = None
        """The records that may be refused; None for any. A timer's at a tick is ("", the choice's number)."""
        self.refused_before: Container[TopicOffset] = ()
        """The records that the table refused for a reason that may have passed: they are refused again. If
        there are any, all records are folded with care.
        """
        self.changes: C | None = None

    @abstractmethod
    def _fresh(self, batches: Iterable[P], taken: list[P]) -> Iterator[P]:
        """Yield the parts of *batches* that were not applied before, and keep them in *taken*."""

    @abstractmethod
    def _fast_step(self, batch: P) -> int:
        """Fold *batch*; raise whatever fails. Return how many of its records were folded.

        Fewer than all are folded when one of them has more to do than a step may hold: its remaining parts
        are `_rest`.
        """

    @abstractmethod
    def _careful_batch(self, rows: JournaledRows[R], batch: P) -> Iterator[object]:
        """Fold *batch*; undo and refuse each record that fails. Yield None after each record, and WITHIN in
        the middle of a long record.
        """

    @abstractmethod
    def _moved(self) -> None:
        """Set the position of the state to that of `changes`."""

    @abstractmethod
    def _finished(self, taken: list[P], records: int, puts: list[tuple[bytes, bytes | None]]) -> C:
        """Return the changes of the first *records* of *taken*."""

    def fold(self, batches: Iterable[P]) -> C | None:
        """Fold all *batches* as one transaction; None when all of it was applied before.

        Follow with `commit` or `rollback`; not after Later or StoppedError, which leave nothing open.
        """
        for _ in self.steps(batches, whole=True):
            pass
        return self.changes

    def steps(self, batches: Iterable[P], *, whole: bool = False) -> Iterator[None]:
        """Fold *batches* as one transaction, yielding now and then so that a caller can let others work; then
        see `changes`.

        Each batch is asked for when those before it are folded. After `close_early` the transaction ends
        before the last of what they hold, and no other is asked for: `changes.marker` has the position. So it
        does before a record that must wait, unless it is to be folded *whole*.
        """
        assert not self._open, "commit or roll back the transaction before folding the next"
        taken: list[P] = []
        fresh = self._fresh(batches, taken)
        if next(fresh, None) is None:
            return
        self._open, self._enough = True, False
        if self._trace is None and not self.refused_before:
            try:
                yield from self._fast(chain(tuple(taken), fresh), taken)
                return
            except MemoryError:
                raise
            except _LooseError:
                self.rollback()
                for each in self.rows.every():
                    each.__class__ = (
                        CanonicalRows  # from here on each row is at once what a later reader will find
                    )
                self._open, self._enough = True, False
            except USERS_FAILURES:  # the store's comes up again below
                self.rollback()
                if self._input_failure is not None:
                    raise  # no record is to blame, and none of the following can be read
                yield
                self._open, self._enough = True, False  # it cannot end before its first record
        most: int | None = None
        while True:
            try:
                yield from self._careful(chain(tuple(taken), fresh), taken, most)
                return
            except (Later, StoppedError):
                most = self._done
                self.rollback()
                if whole or not most:
                    raise
                yield
                self._open, self._enough = True, False

    def close_early(self) -> None:
        """Let the transaction being folded by `steps` end with the records folded so far; the rest of its
        batches is for the next.
        """
        self._enough = True

    def stepped(self, took_s: float) -> None:
        """Take *took_s*, the seconds of the last step of `steps`, into account: the next are as short as a
        slow fold makes necessary.
        """
        if took_s > STEP_S:
            self._most_records = max(1, int(self._step_records * STEP_S / took_s))
            self._step_records = min(self._step_records, self._most_records)
        elif took_s < STEP_S / 4:
            self._most_records = min(STEP_RECORDS, 2 * self._most_records)

    def _no_emits(self) -> Emitted:
        """Return an empty collection for the emits of a transaction."""
        return []

    def _heard(self) -> Emitted:
        """Return the emits to write: while the transaction is silent, only those to internal topics; if it
        was folded before, only those to topics that have lost them.
        """
        emits = self._emits
        if repeated := self._repeated():
            emits = [each for each in emits if each.topic not in repeated]
        if self._untold:
            emits = [self._unclaimed(each) for each in emits]
        return [each for each in emits if each.topic in self._between] if self._silent else emits

    def _unclaimed(self, emit: Emit) -> Emit:
        """Return *emit* without headers of strangers that a reader of its topic would believe."""
        if not emit.headers or emit.topic not in self._untold:
            return emit
        return Emit(emit.topic, emit.key, emit.value, unclaimed(emit.headers), emit.partition)

    def _repeated(self) -> frozenset[str]:
        """Return the topics that have the emits of the transaction already."""
        return frozenset(self._recovery.topics) if self._recovery and self._repeats else frozenset()

    @abstractmethod
    def unchanged(self) -> C:
        """Return changes that change nothing, at the position of the state: for a transaction that writes
        other records alone.
        """

    @property
    def emitted(self) -> int:
        """Return the number of records that the transaction being folded emits so far."""
        return len(self._emits)

    @property
    def changing(self) -> int:
        """Return the number of rows that the transaction being folded changes so far."""
        return sum(len(each.changed()[0]) for each in self.rows.every())

    def commit(self) -> None:
        """Take `changes` as durable: the position moves and the rows become readable by later
        transactions' look-ups.
        """
        assert self.changes is not None
        self._moved()
        self._before_ms, self._before_event_ms = self.stream_ms, self.event_ms
        if self.clock is not None:
            self.clock.commit()
        if self.event_clock is not None:
            self.event_clock.commit()
        self.rows.commit()
        self._forget()

    def rollback(self) -> None:
        """Forget the transaction in progress."""
        self.stream_ms, self.event_ms = self._before_ms, self._before_event_ms
        if self.clock is not None:
            self.clock.rollback()
        if self.event_clock is not None:
            self.event_clock.rollback()
        self.rows.rollback()
        self._forget()

    def _forget(self) -> None:
        self._emits, self._refused, self.changes, self._open = self._no_emits(), [], None, False
        self._rest, self._told = None, []

    def _raise_store_failure(self) -> None:
        if self.rows.failures:
            raise self.rows.failures[0]

    # -- at full speed

    def _fast(self, batches: Iterable[P], taken: list[P]) -> Iterator[None]:
        records = 0
        for batch in batches:
            start, end, begun = 0, batch.records, False
            while begun or not self._enough:
                stop = min(end, start + self._step_records)
                emitted = len(self._emits)
                step = batch.slice(start, stop) if end > self._step_records or start else batch
                done = _called(self._fast_step, step)
                emitted = self._check_step(emitted)
                # Timers may have fired for the next record, which has to be folded then.
                begun = done < stop - start and self._rest_before
                records += done
                start += done
                if self._rest is not None:
                    yield from self._finish_rest(self._rest, emitted)
                yield
                if start >= end:
                    break
            if self._enough:
                break
        yield from self._close(taken, records, checked=False)

    def _finish_rest(self, rest: Iterator[list[Emit]], emitted: int) -> Iterator[None]:
        while (part := _called(next, rest, None)) is not None:
            self._emits += part
            emitted = self._check_step(emitted)
            yield
        self._rest = None
        if len(self._emits) > emitted or any(part.rows.put for part in self._parts):
            self._check_step(emitted)

    def _check_step(self, emitted: int) -> int:
        """Check the rows of a step, and its emits: those after the first *emitted*. Return how many there
        are now.
        """
        self._check_put()
        self.rows.forget_replaced()
        self._rules.check_all(self._emits[emitted:])
        return len(self._emits)

    def _check_put(self) -> None:
        """Raise if a row set in this step would be refused record by record, be it replaced since or not."""
        size = 0
        for part in self._parts:
            if part.codec.lookalikes and not isinstance(part.rows, CanonicalRows):
                _check_hashable(part.rows.put)
            size += self._size(part)
        if size > self._limit_bytes:
            for part in self._parts:
                self._check_sizes(part, part.rows.put)
            self._step_records = max(
                min(8, self._most_records), self._step_records // 2
            )  # large rows: hold fewer of those replaced
        elif 2 * size <= self._limit_bytes:
            self._step_records = min(self._most_records, 2 * self._step_records)
        for part in self._parts:
            part.rows.put.clear()

    def _size(self, part: TablePart) -> int:
        """Return the bytes of the rows of *part* that were set in this step; raise _LooseError if one is not
        equal to the row that a later reader decodes.
        """
        if self.processor.exact or isinstance(part.rows, CanonicalRows):
            return part.codec.size(part.rows.put)
        if (size := part.codec.exact_size(part.rows.put)) is None:
            raise _LooseError
        return size

    def _check_sizes(self, part: TablePart, put: list[Any]) -> None:
        for row in put:
            if (size := part.codec.size([row])) > self._limit_bytes:
                raise FoldError(f"row takes {size} bytes, the limit is {self._limit_bytes}: {row!r:.200}")

    def _wake_fast(self, rows: Rows[R], now_ms: int) -> bool:
        """Fire the due timers; False when some are left to `_rest`: then the record that is met waits."""
        due = rows.due(now_ms)
        parts = self._firing(rows, due, rows.fire, self._wake)
        if len(due) > WAKE_AT_ONCE:
            self._rest, self._rest_before = parts, True
            return False
        self._emits.extend(chain.from_iterable(parts))
        return True

    def _firing(
        self,
        rows: Rows[R],
        due: list[tuple[str, int]],
        fire: Callable[[str, int], bool],
        act: Callable[[Rows[R], str, int], Emits],
    ) -> Iterator[list[Emit]]:
        """Fire the timers *due*, WAKE_AT_ONCE in a part; yield what each part emits."""
        left = iter(due)
        while some := [*islice(left, WAKE_AT_ONCE)]:
            emits: list[Emit] = []
            for key, due_ms in some:
                if fire(key, due_ms):
                    emits.extend(act(rows, key, due_ms) or ())
            yield emits

    def _heard_time(self, source: int, headers: Headers, event: Any, time: EventTime, stream_ms: int) -> int:
        """Return event time with a record, or mark, of a source downstream of steps."""
        clock = self.event_clock
        assert clock is not None
        if is_mark(headers):
            return clock.hear_mark(source, headers)
        return clock.hear(source, headers, time(event, stream_ms))

    def _timed(self, fold: _Fold, time: EventTime) -> _Fold:
        """Return *fold* with event time let pass before it: where there is none, folds are called as they
        are.
        """
        events, on_event = self._events, self._on_event
        assert events is not None
        assert on_event is not None

        def timed(rows: Rows[R], event: Any, at_ms: int, *told: Any) -> Emits:
            event_ms = time(event, at_ms)
            if event_ms > self.event_ms:
                self.event_ms = event_ms
                due = events.due(event_ms)
                parts = self._firing(rows, due, events.fire, on_event)
                if len(due) > WAKE_AT_ONCE:
                    return Paced(chain(parts, _parts_of(partial(fold, rows, event, at_ms, *told))))
                self._emits.extend(chain.from_iterable(parts))
            return fold(rows, event, at_ms, *told)

        return timed

    def _on_wake(self, rows: Rows[R], key: str, at_ms: int) -> Emits:
        if self.processor.on_wake is None:
            raise FoldError(
                f"processor {self.processor.name} sets timers (key {key!r}) but declares no on_wake"
            )
        return self.processor.on_wake(rows, key, at_ms)

    # -- record by record

    def _careful(self, batches: Iterable[P], taken: list[P], most: int | None) -> Iterator[None]:
        """Fold no more than *most* records and choices, if that is given."""
        rows, records, step, self._done = JournaledRows(self.rows), 0, 0, 0
        for batch in batches:
            folded = self._careful_batch(rows, batch)
            # Only here may a transaction end: between two records.
            within: object = None
            while (within is WITHIN or not self._ends(most)) and (within := next(folded, self)) is not self:
                if within is WITHIN:
                    yield
                    continue
                records, step, self._done = records + (batch.records > 0), step + 1, self._done + 1
                if step >= self._step_records:
                    step, self._step_records = 0, min(self._most_records, 2 * self._step_records)
                    yield
            if self._ends(most):
                break
        yield from self._close(taken, records, checked=True)
        if self._trace is not None:
            for each in self._told:
                self._trace(each)

    def _ends(self, most: int | None) -> bool:
        return self._enough or self._done == most

    def _careful_record(
        self,
        rows: JournaledRows[R],
        at: TopicOffset,
        at_ms: int,
        decode: Callable[[], Sequence[Any]],
        fold: _Fold,
        time: EventTime,
    ) -> Iterator[object]:
        """Fold a record; *decode* gives its event, and then what *fold* takes besides that and the time."""
        if at_ms > self.stream_ms:
            self.stream_ms = at_ms
            for number, (key, due_ms) in enumerate(rows.due(at_ms), 1):
                if number % WAKE_AT_ONCE == 0:
                    yield WITHIN
                if rows.fire(key, due_ms):
                    rows.keep()  # a timer that fails has fired all the same
                    act = partial(self._wake, rows, key, due_ms)
                    yield from self._attempt(rows, at, "wake", act, f"timer {key!r:.200} due at {due_ms}: ")
        if at in self.refused_before:
            self._refuse(at, "decode", UnknownSchemaError("its schema was unknown when the table came to it"))
            return
        try:
            event, *told = _called(decode)
            event_ms = -NEVER if self._events is None else _called(time, event, self.stream_ms)
        except MemoryError:
            raise
        except Later as later:
            later.at = at
            raise
        except USERS_FAILURES as error:
            self._refuse(at, "decode", error)
            return
        if event_ms > self.event_ms:
            yield from self._pass_event_time(rows, at, event_ms)
        yield from self._attempt(rows, at, "fold", partial(fold, rows, event, self.stream_ms, *told))

    def _pass_event_time(self, rows: JournaledRows[R], at: TopicOffset, event_ms: int) -> Iterator[object]:
        events, on_event = self._events, self._on_event
        assert events is not None
        assert on_event is not None
        self.event_ms = event_ms
        for number, (key, due_ms) in enumerate(events.due(event_ms), 1):
            if number % WAKE_AT_ONCE == 0:
                yield WITHIN
            if events.fire(key, due_ms):
                rows.keep()  # a timer that fails has fired all the same
                act = partial(on_event, rows, key, due_ms)
                yield from self._attempt(rows, at, "wake", act, f"event timer {key!r:.200} due at {due_ms}: ")

    def _attempt(
        self,
        rows: JournaledRows[R],
        at: TopicOffset,
        stage: Stage,
        act: Callable[[], Emits],
        what: str = "",
        at_ms: int | None = None,
    ) -> Iterator[object]:
        asides = Asides(self._rules.check, USERS_FAILURES)
        open_asides(rows, asides)
        try:
            made = _called(act) or ()
            parts = made.parts if isinstance(made, Paced) else iter((made,))
            emits: list[Emit] = []
            while (some := _called(next, parts, None)) is not None:
                emits += _called(list, require_emits(some))
                if isinstance(made, Paced):
                    yield WITHIN
            for emit in emits:
                self._rules.check(emit)
            for part, journal in zip(self._parts, rows.journals(), strict=True):
                self._check_sizes(part, journal.put)
                for key in journal.before:
                    _check_key(key)
        except MemoryError:
            raise
        except Later as later:
            self._raise_store_failure()
            later.at = at
            raise
        except USERS_FAILURES as error:
            self._raise_store_failure()
            rows.undo()
            self._refuse(at, stage, error, what)
            return
        self._raise_store_failure()
        close_asides(rows)
        for failed, reason in asides.failed:
            self._refuse(at, "close", reason, failed)
        self._emits.extend(emits)
        if self._trace is not None:
            self._tell(rows, at, self.stream_ms if at_ms is None else at_ms)
        rows.keep()

    def _tell(self, rows: JournaledRows[R], at: TopicOffset, at_ms: int) -> None:
        """Note the changes of a record for *trace*. They are passed on when the transaction is folded: until
        then the record may be folded again.
        """
        topic, offset = at
        for part, journal in zip(self._parts, rows.journals(), strict=True):
            for key, (before, _) in journal.before.items():
                after = journal.get(key)
                if before is not None or after is not None:
                    self._told.append(
                        Transition(
                            offset=offset,
                            at_ms=at_ms,
                            key=key,
                            before=before,
                            after=after,
                            topic=topic,
                            table=part.name,
                        )
                    )

    def _refuse(self, at: TopicOffset, stage: Stage, error: BaseException, what: str = "") -> None:
        try:
            reason = f"{what}{error}"[:1000].encode(errors="backslashreplace").decode()
        except Exception:  # noqa: BLE001  an error of user code that cannot even be printed
            reason = f"{what}(the error cannot be printed)"
        topic, offset = at
        name = type(error).__name__
        if self.allowed is not None and at not in self.allowed:
            raise StoppedError(topic=topic, offset=offset, stage=stage, error=name, reason=reason)
        passing = isinstance(error, UnknownSchemaError)
        self._refused.append(
            Refused(
                offset=offset,
                stage=stage,
                error=name,
                reason=reason,
                topic=topic,
                passing=passing,
                frames=user_frames(error),
            )
        )

    # -- the end of a transaction

    def _close(self, taken: list[P], records: int, *, checked: bool) -> Iterator[None]:
        """Make `changes` of the first *records* of *taken*."""
        if not checked:
            self.rows.set_deferred()
            self.rows.put.clear()  # their sizes are known to be small
            self._raise_store_failure()
        puts: list[tuple[bytes, bytes | None]] = []
        for part in self._parts:
            changed = list(part.rows.changed()[0].items())
            for start in range(0, len(changed), STEP_RECORDS):
                lasting = part.rows.lasting(changed[start : start + STEP_RECORDS])
                if lasting:
                    puts.extend(self._stored(part, lasting))
                yield
        _, wakes = self.rows.changed()
        puts.extend(
            (wake_key(key), None if at_ms is None else encode_due(at_ms)) for key, at_ms in wakes.items()
        )
        for clock, stored in ((self.rows.ticks, tick_key), (self._events, event_key)):
            if clock is not None:
                puts.extend(
                    (stored(key), None if at_ms is None else encode_due(at_ms))
                    for key, at_ms in clock.changed.items()
                )
        if self.clock is not None and (note := self.clock.changed) is not None:
            puts.append((WATERMARKS, note))
        self.changes = self._finished(taken, records, puts)

    def _reached_now(self) -> StepReached | None:
        """Return the progress of the partition, if it is reported to readers of the emitted topics."""
        clock = self.clock
        if clock is None and (partition := self.rows.derived.get(TOLD_PARTITION)) is not None:
            return self.processor.reached_in(self.rows, partition)
        return (
            StepReached(clock.watermark_ms, clock.has_ended) if clock is not None and clock.speaks else None
        )

    @staticmethod
    def _stored(part: TablePart, changed: list[tuple[str, Any]]) -> Iterable[tuple[bytes, bytes | None]]:
        """Return the stored (key, value) of changed rows: each value decodes to an equal row, as was checked
        when it was set.
        """
        keys = row_keys([key for key, _ in changed])
        if len(max(keys, key=len)) > LIMIT_KEY_BYTES:
            raise _long_key(max(keys, key=len))
        if part.name:
            keys = [part.prefix + key[1:] for key in keys]
        stored = part.codec.encode_all(row for _, row in changed if row is not None)
        if len(stored) == len(keys):
            return zip(keys, stored, strict=True)
        values = iter(stored)
        return [
            (key, None if row is None else next(values)) for key, (_, row) in zip(keys, changed, strict=True)
        ]


def _untold(processor: Processor[Any, Any]) -> frozenset[str]:
    """Return the topics whose readers believe headers of origins, and to which this processor sends none:
    there its emits may have such a header of a record that no step wrote. Steps leave them out themselves.
    """
    if processor.stateless:
        return frozenset()
    return frozenset(str(topic) for topic in processor.emits if tells_origins(topic)).difference(
        processor.told_topics
    )


def _check_hashable(rows: list[Any]) -> None:
    """Raise for a row that holds what can be changed in place, where its type declares otherwise: nothing
    of that kind has a hash.
    """
    try:
        deque(map(hash, rows), 0)
    except (TypeError, ValueError) as error:  # a memoryview that can be written to raises the latter
        raise _LooseError from error


def _check_key(key: str) -> None:
    if len(stored := row_key(key)) > LIMIT_KEY_BYTES:
        raise _long_key(stored)


def _long_key(stored: bytes) -> FoldError:
    return FoldError(f"row key {text_key(stored)[:80]!r} is longer than {LIMIT_KEY_BYTES} bytes")
