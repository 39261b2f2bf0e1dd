"""The fold that all kinds of windows share: stream time, closing, dropping, sending results, late records."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import msgspec

from holdfast.core.engine.declared.processor import Emit, Emits, Headers
from holdfast.core.engine.declared.streams import tells_origins
from holdfast.core.engine.event_times import check_ahead, limit_of
from holdfast.core.engine.fold.asides import attempt, emit_result, put_aside, takes_asides
from holdfast.core.engine.fold.paced import Paced, Work, begun
from holdfast.core.engine.origins import NAMELESS, UNHEARD, Mark, StepReached, record_header
from holdfast.core.engine.state.rows import NEVER, TOLD_PARTITION, Rows
from holdfast.core.streams.emitting import Final, Updates, require_sendable
from holdfast.core.streams.windowing.due import (
    AT_ONCE,
    CLOSE,
    DROP,
    TELL,
    Entry,
    Folding,
    add_due,
    cancel_due,
    has_due,
    settle,
)
from holdfast.core.streams.windowing.lateness import JudgedRecord, Lateness, PartitionTime
from holdfast.core.streams.windowing.ordered import Ordered, held_key, time_of
from holdfast.core.streams.windowing.origins import RowsOfOrigins, origins_of, origins_prefix
from holdfast.core.streams.windowing.rows import (
    DIGITS,
    HELD,
    IDLE,
    LIMIT_TIME_MS,
    RESERVED,
    HeldRecord,
    HeldWindow,
    IdleRow,
    StreamRow,
    WindowResult,
    WindowRow,
    checked_key,
    checked_time,
    idle_key,
    stream_key,
)
from holdfast.core.streams.windowing.runs import RUN_RECORDS, ArrivedRun
from holdfast.errors import FoldError

Raw = tuple[Any, ...]
"""The key, value and headers of a record; for ordered windows also its offset, and the record as it is kept.
"""
Arrived = tuple[Any, int, Raw | None]
"""An event, its partition, and the record that it was read from, if that may have to be sent or kept."""
ToldArrived = tuple[Any, int, Raw | None, tuple[int, int, int] | None]
"""The same downstream of a step, with the record's origin as `RecordOrigin` has it. The event may also be a
`Mark`.
"""
AnyWindow = WindowRow[Any]

_ARRIVED = ("event", "partition", "record")
TAKEN, PARTLY_LATE, LATE = range(3)
_START = StreamRow()
TICK_EVERY_MS = 250
"""Ticks of idle partitions are due at multiples of this, since each is a choice to be recorded."""


class WindowFold:
    """The fold of one declaration of windows; each kind of window implements `_place`, which assigns a record
    to windows.

    It has no state of its own: a call depends on its arguments and the rows alone.
    """

    fixed: ClassVar[bool] = True
    """True if a window keeps its end, and is not replaced, until it is dropped; False for sessions."""
    partly: ClassVar[bool] = False
    """True if a record is in several windows that close one after the other: it may be late for some of them.
    """

    __slots__ = (
        "_aggregate",
        "_ahead_ms",
        "_by",
        "_drops_unseen",
        "_final",
        "_grace_ms",
        "_held_ms",
        "_holds",
        "_idle_ms",
        "_late",
        "_none_fits",
        "_ordered",
        "_retention_ms",
        "_sent_later",
        "_time",
        "_updates",
        "tells",
    )

    def __init__(
        self,
        *,
        by: Callable[[Any], str],
        time: Callable[[Any], int] | None,
        aggregate: Callable[[Any, Any], Any],
        emit: Updates | Final | None,
        late: str | None,
        grace_ms: int,
        retention_ms: int,
        idle_ms: int | None = None,
        sent_later: Callable[[Any], bytes] | None = None,
        none_fits: bool = False,
        held_ms: int = 0,
        ordered: Ordered | None = None,
    ) -> None:
        """*sent_later* encodes the results that are not sent when their windows change; None where that
        cannot fail. *none_fits* says that None is a valid aggregate. *held_ms* is how much longer than its
        grace a window stays open, for records that are not late by their own origin. With *ordered*, records
        are kept as it declares, and folded when their windows close.
        """
        self._none_fits, self._ordered = none_fits, ordered
        self._sent_later = sent_later if ordered is None else None
        self._ahead_ms, self._holds = limit_of(time)
        time = getattr(time, "read", time)
        self._by, self._time, self._aggregate, self._late = by, time, aggregate, late
        self._updates = emit if isinstance(emit, Updates) else None
        self._final = emit if isinstance(emit, Final) else None
        self._grace_ms, self._retention_ms, self._idle_ms = grace_ms, retention_ms, idle_ms
        self._held_ms = grace_ms + held_ms
        topic = None if self._final is None else self._final.topic
        self.tells = topic is not None and tells_origins(topic)
        """True if final results carry their origins."""
        # To drop a window of fixed times that was closed before, or sends updates at once, its row is not
        # read.
        self._drops_unseen = self.fixed and (self._updates is None or not self._updates.every_ms)

    @property
    def final_topic(self) -> str | None:
        """Return the topic of final results, None without any."""
        return None if self._final is None else self._final.topic

    def __call__(self, rows: Rows[Any], arrived: Arrived, at_ms: int) -> Emits:
        event, partition = arrived[:2]
        if self.tells:
            rows.derived[TOLD_PARTITION] = partition
        key, time_ms = self._by(event), at_ms if self._time is None else self._time(event)
        if (
            type(key) is not str
            or key[:1] == RESERVED
            or type(time_ms) is not int
            or not 0 <= time_ms < LIMIT_TIME_MS
        ):
            checked_key(key), checked_time(time_ms)  # raises the error
        name = stream_key(partition)
        before: StreamRow = rows.get(name) or _START
        stream_ms = before.stream_ms
        moves = time_ms - at_ms <= self._ahead_ms or check_ahead(
            "", time_ms, at_ms, self._ahead_ms, holds=self._holds
        )
        if time_ms > stream_ms and moves:
            stream_ms = time_ms
        if before.next_ms <= stream_ms:
            return begun(self._settled(rows, arrived, key, time_ms, at_ms, stream_ms))
        return self._take(
            rows, arrived, key, time_ms, at_ms, before, (stream_ms, before.next_ms, before.failed), []
        )

    def _settled(
        self, rows: Rows[Any], arrived: Arrived, key: str, time_ms: int, at_ms: int, stream_ms: int
    ) -> Work:
        """Process the entries that are due before a record is folded."""
        emits: list[Emit] = []
        before: StreamRow = rows.get(stream_key(arrived[1])) or _START
        next_ms = yield from self._settle(rows, before.next_ms, stream_ms, emits)
        now = stream_ms, next_ms, before.failed + put_aside(rows)
        return self._take(rows, arrived, key, time_ms, at_ms, before, now, emits)

    def _take(
        self,
        rows: Rows[Any],
        arrived: Arrived,
        key: str,
        time_ms: int,
        at_ms: int,
        before: StreamRow,
        now: tuple[int, int, int],
        emits: list[Emit],
    ) -> list[Emit]:
        """Fold a record; *now* is (stream time, next time at which an entry is due, number of failed
        results).
        """
        event, partition, raw = arrived
        stream_ms, next_ms, failed = now
        name = stream_key(partition)
        due_ms, outcome = self._place(rows, key, event, time_ms, stream_ms, stream_ms, emits)
        if self._ordered is not None and outcome != LATE:
            assert raw is not None, "an ordered window is given its records"
            due_ms = min(due_ms, self._keep(rows, key, time_ms, stream_ms, NAMELESS, raw))
        if due_ms < next_ms:  # noqa: PLR1730  min() takes a quarter of a microsecond
            next_ms = due_ms
        if outcome != TAKEN:
            late, partly = before.late + (outcome == LATE), before.partly_late + (outcome == PARTLY_LATE)
            rows[name] = StreamRow(stream_ms, next_ms, late, partly, failed)
            if outcome == LATE and raw is not None and self._late is not None:
                emits.append(Emit(self._late, raw[0], raw[1], raw[2]))
        elif stream_ms != before.stream_ms or next_ms != before.next_ms:
            rows[name] = StreamRow(stream_ms, next_ms, before.late, before.partly_late, failed)
        if self._idle_ms is not None and (stream_ms != before.stream_ms or next_ms != before.next_ms):
            moved_ms = at_ms if stream_ms != before.stream_ms else None
            self._await(rows, idle_key(partition), stream_ms, next_ms, moved_ms)
        return emits

    # -- downstream of a step

    def by_origin(self, rows: Rows[Any], arrived: ToldArrived, at_ms: int) -> Emits:
        """Fold a record or a mark of an internal topic. A record is late by the watermark that its own origin
        had before it; stream time is the least watermark of the origins.
        """
        event, partition, raw, told = arrived
        if self.tells:
            rows.derived[TOLD_PARTITION] = partition
        origins: RowsOfOrigins = rows.derived.get(origins_prefix(partition)) or origins_of(rows, partition)
        before: StreamRow = origins.stream or rows.get(stream_key(partition)) or _START
        if not origins.is_named:
            if told is None and event.__class__ is not Mark:
                return self(rows, (event, partition, raw), at_ms)  # written by a step of an older holdfast
            origins.begin(rows, before.stream_ms)
        watermarks, stream_ms = origins.watermarks, before.stream_ms
        emits: list[Emit] = []  # list[Emit]() takes half a microsecond
        next_ms, late, partly = before.next_ms, before.late, before.partly_late
        if event.__class__ is Mark:
            origins.mark(rows, event)
        else:
            key, time_ms = self._by(event), at_ms if self._time is None else self._time(event)
            if (
                type(key) is not str
                or key[:1] == RESERVED
                or type(time_ms) is not int
                or not 0 <= time_ms < LIMIT_TIME_MS
            ):
                checked_key(key), checked_time(time_ms)  # raises the error
            limit_ms = self._ahead_ms
            moves = time_ms - at_ms <= limit_ms or check_ahead(
                "", time_ms, at_ms, limit_ms, holds=self._holds
            )
            if told is None:
                origin, own_ms = NAMELESS, watermarks.of(NAMELESS)
                after_ms = max(own_ms, time_ms) if moves else own_ms
            else:
                origin, own_ms, after_ms = told
            judged_ms = own_ms if own_ms > stream_ms else stream_ms  # noqa: FURB136  max() is slow
            due_ms, outcome = self._place(rows, key, event, time_ms, judged_ms, stream_ms, emits)
            if self._ordered is not None and outcome != LATE:
                assert raw is not None, "an ordered window is given its records"
                due_ms = min(due_ms, self._keep(rows, key, time_ms, judged_ms, origin, raw))
            if due_ms < next_ms:  # noqa: PLR1730  as above
                next_ms = due_ms
            if watermarks.hear(origin, after_ms) and origin not in origins.changed:
                origins.note(rows, origin)
            if outcome == LATE:
                late += 1
                origins.count(rows, origin, after_idle=self._over_ms(time_ms) > own_ms)
                if raw is not None and self._late is not None:
                    emits.append(Emit(self._late, raw[0], raw[1], raw[2]))
            elif outcome == PARTLY_LATE:
                partly += 1
        least_ms = watermarks.known_least_ms
        if least_ms is None:
            least_ms = watermarks.least_ms
        if least_ms > stream_ms:
            stream_ms = least_ms
        elif (
            next_ms == before.next_ms
            and late == before.late
            and partly == before.partly_late
            and next_ms > stream_ms
        ):
            return emits or None
        after = StreamRow(stream_ms, next_ms, late, partly, before.failed)
        if next_ms <= stream_ms:
            return begun(self._passing(rows, origins, partition, before, after, at_ms, emits))
        if self._idle_ms is None and origins.changed and rows.deferred is not None:
            origins.stream = after  # to be set with the rows of `changed`
        else:
            self._set_stream(rows, origins, partition, before, after, at_ms)
        return emits or None

    def by_origin_all(self, rows: Rows[Any], run: ArrivedRun, emits: list[Emit]) -> tuple[int, Emits]:
        """Fold records as `by_origin` does one by one, and add to *emits*. Return how many were folded, and
        the rest of the last one if that pauses.
        """
        done, alone, records = 0, 0, len(run.events)
        while done < records:
            made: Emits = None
            if done >= alone:
                begin = done
                done, made = self._run(rows, run, done, emits)
                if made is None and done < begin + RUN_RECORDS:
                    alone = done + RUN_RECORDS
            if made is None and done < records:
                made, done = self.by_origin(rows, run.arrived(done), run.at_ms[done]), done + 1
            if made.__class__ is Paced:
                return done, made
            emits.extend(made or ())
        return done, None

    def _run(self, rows: Rows[Any], run: ArrivedRun, first: int, emits: list[Emit]) -> tuple[int, Emits]:
        """Fold the records from number *first* on that are of one origin and in time, up to one with which
        something is due. Return the number of the next record, and what the last one emits by that.
        """
        told, partition = run.told, run.partition
        last, origin = first + RUN_RECORDS - 1, told[first][0]
        origins: RowsOfOrigins = rows.derived.get(origins_prefix(partition)) or origins_of(rows, partition)
        watermarks = origins.watermarks
        known_ms = watermarks.marks.get(origin)
        if last >= len(told) or told[last][0] != origin or known_ms is None or origin in watermarks.ended:
            return first, None
        if origin == NAMELESS:
            return first, None  # a mark
        if self.tells:
            rows.derived[TOLD_PARTITION] = partition
        before: StreamRow = origins.stream or rows.get(stream_key(partition)) or _START
        stream_ms, next_ms, partly = before.stream_ms, before.next_ms, before.partly_late
        others_ms, limit_ms = (
            watermarks.others_ms(origin),
            min(LIMIT_TIME_MS, run.at_ms[first] + self._ahead_ms),
        )
        by, time, place, at = self._by, self._time, self._placing(rows, emits), first
        assert time is not None
        for event, (each, own_ms, after_ms) in islice(zip(run.events, told, strict=True), first, None):
            if each != origin:
                break
            key, time_ms = by(event), time(event)
            if (
                type(key) is not str
                or key[:1] == RESERVED
                or type(time_ms) is not int
                or not 0 <= time_ms < limit_ms
            ):
                break
            due_ms, outcome = place(key, event, time_ms, max(stream_ms, own_ms), stream_ms)
            if outcome != TAKEN:
                if outcome == LATE:
                    break  # it has changed nothing
                partly += 1
            at += 1
            next_ms = min(next_ms, due_ms)
            if after_ms > known_ms:
                known_ms = after_ms
                least_ms = min(others_ms, after_ms)
                stream_ms = max(stream_ms, least_ms)
            if next_ms <= stream_ms:
                break
        if watermarks.hear(origin, known_ms):
            origins.note(rows, origin)
        after = StreamRow(stream_ms, next_ms, before.late, partly, before.failed)
        if next_ms <= stream_ms:
            return at, begun(self._passing(rows, origins, partition, before, after, run.at_ms[at - 1], []))
        if after != before:
            origins.set_stream(rows, after)
        return at, None

    def _passing(
        self,
        rows: Rows[Any],
        origins: RowsOfOrigins,
        partition: int,
        before: StreamRow,
        after: StreamRow,
        at_ms: int,
        emits: list[Emit],
    ) -> Work:
        """Process the entries that are due after a record or a mark."""
        next_ms = yield from self._settle(rows, after.next_ms, after.stream_ms, emits)
        failed = before.failed + put_aside(rows)
        after = StreamRow(after.stream_ms, next_ms, after.late, after.partly_late, failed)
        self._set_stream(rows, origins, partition, before, after, at_ms)
        return emits

    def _set_stream(
        self,
        rows: Rows[Any],
        origins: RowsOfOrigins,
        partition: int,
        before: StreamRow,
        after: StreamRow,
        at_ms: int,
    ) -> None:
        if self._idle_ms is None:
            origins.set_stream(rows, after)
            return
        if after != before:
            rows[stream_key(partition)] = after
        moved = after.stream_ms != before.stream_ms
        if after.stream_ms >= 0 and (moved or after.next_ms != before.next_ms):
            self._await(rows, idle_key(partition), after.stream_ms, after.next_ms, at_ms if moved else None)

    # -- idle partitions

    def _await(
        self,
        rows: Rows[Any],
        name: str,
        stream_ms: int,
        next_ms: int,
        moved_ms: int | None,
        *,
        fired: bool = False,
    ) -> None:
        """Ask for a tick when the next entry is due by the clock, unless an earlier tick is pending, which
        will ask again. *moved_ms* is when stream time has moved, None if it has not.
        """
        assert self._idle_ms is not None
        before: IdleRow | None = rows.get(name)
        if moved_ms is None:
            assert before is not None, "stream time moves with the first record"
            moved_ms = before.moved_ms
        asked_ms = NEVER if before is None or fired else before.tick_ms
        if next_ms != NEVER:
            tick_ms = moved_ms + next_ms - stream_ms + self._idle_ms
            tick_ms += -tick_ms % TICK_EVERY_MS
            if tick_ms < asked_ms:
                rows.wake_at(name, tick_ms, clock="tick")
                asked_ms = tick_ms
        after = IdleRow(moved_ms, asked_ms)
        if after != before:
            rows[name] = after

    def tick(self, rows: Rows[Any], name: str, at_ms: int) -> Emits:
        """Advance stream time to the last entry that is due by the clock: a tick has come."""
        return begun(self._ticked(rows, name))

    def _ticked(self, rows: Rows[Any], name: str) -> Work:
        assert self._idle_ms is not None
        assert rows.ticks is not None
        emits: list[Emit] = []
        partition = int(name.removeprefix(IDLE))
        if self.tells:
            rows.derived[TOLD_PARTITION] = partition
        stream_name = stream_key(partition)
        before: StreamRow = rows[stream_name]
        idle: IdleRow = rows[name]
        stream_ms, next_ms = before.stream_ms, before.next_ms
        moved_ms = idle.moved_ms
        passed_ms = stream_ms + rows.ticks.now_ms - moved_ms - self._idle_ms
        if self._waits(rows, partition):
            passed_ms, moved_ms = -1, rows.ticks.now_ms  # a slow step is not one without traffic
        while next_ms <= passed_ms:
            stream_ms = max(stream_ms, next_ms)  # more may have been due than is done at once
            next_ms = yield from self._settle(rows, next_ms, stream_ms, emits)
            if next_ms <= stream_ms:
                break
        if stream_ms != before.stream_ms:
            failed = before.failed + put_aside(rows)
            rows[stream_name] = StreamRow(stream_ms, next_ms, before.late, before.partly_late, failed)
        self._await(rows, name, stream_ms, next_ms, moved_ms + stream_ms - before.stream_ms, fired=True)
        return emits

    @staticmethod
    def _waits(rows: Rows[Any], partition: int) -> bool:
        """Return whether the step before has yet to say that an origin is at its end."""
        origins = origins_of(rows, partition)
        return origins.is_named and not origins.watermarks.has_ended

    # -- the origins of final results

    @property
    def reach_ms(self) -> int:
        """Return by how many ms, at most, the time of a result precedes the end of its window."""
        raise NotImplementedError

    def _watermark_ms(self, stream_ms: int) -> int:
        """Return the watermark that results carry at *stream_ms*: no later result has an earlier time."""
        return stream_ms - self._held_ms - self.reach_ms

    def _told(self, rows: Rows[Any], due_ms: int) -> Headers:
        """Return the headers of a final result that is due at *due_ms*.

        All results of a partition are sent in the order in which they are due, at any pace: so the watermark
        before each of them follows from the sources.
        """
        if not self.tells:
            return ()
        told_ms = self._watermark_ms(due_ms)
        return (record_header(rows.derived[TOLD_PARTITION], told_ms, told_ms),)

    def reached(
        self, rows: Rows[Any], partition: int, *, at_end: bool, by_origin: bool
    ) -> StepReached | None:
        """Return how far a partition has come; None where final results carry no origins.

        It lets go with its origins, or at the end of its log where no step writes that, but not while a
        window is open that has yet to send its result: another partition may see the later time first, and
        its readers must not act on that.
        """
        if not self.tells:
            return None
        stream: StreamRow = rows.get(stream_key(partition)) or _START
        told_ms = UNHEARD if stream.stream_ms < 0 else self._watermark_ms(stream.stream_ms)
        if by_origin and (origins := origins_of(rows, partition)).is_named:
            at_end = origins.watermarks.has_ended
        return StepReached(told_ms, at_end and not has_due(rows, CLOSE))

    # -- explained

    @property
    def lateness(self) -> Lateness:
        """Return the reader that explains why its records are late."""
        return Lateness(self._judged, _time_of)

    def _judged(self, source: int, given: Sequence[Any], at_ms: int) -> JudgedRecord | None:
        arrived = getattr(given[0], "event", given[0])  # a traced decoder wraps it
        event, told = arrived[0], None if len(arrived) == len(_ARRIVED) else arrived[3]
        if event.__class__ is Mark:
            return None
        key, time_ms = checked_key(self._by(event)), at_ms if self._time is None else self._time(event)
        start_ms, end_ms = self._last_window(checked_time(time_ms))
        origin, before_ms = (None, None) if told is None else told[:2]
        return JudgedRecord(key, time_ms, start_ms, end_ms, self._grace_ms, 0, origin, before_ms, f"{key}@")

    # -- of each kind of window

    def _place(
        self,
        rows: Rows[Any],
        key: str,
        event: Any,
        time_ms: int,
        judged_ms: int,
        stream_ms: int,
        emits: list[Emit],
    ) -> tuple[int, int]:
        """Fold a record into its windows; return the first time at which a new entry is due, and TAKEN,
        PARTLY_LATE or LATE, which *judged_ms* decides.
        """
        raise NotImplementedError

    def _placing(
        self, rows: Rows[Any], emits: list[Emit]
    ) -> Callable[[str, Any, int, int, int], tuple[int, int]]:
        """Return the same as a function of key, event, its time, and the times that `_place` takes."""
        place = self._place
        return lambda key, event, time_ms, judged_ms, stream_ms: place(
            rows, key, event, time_ms, judged_ms, stream_ms, emits
        )

    def _last_window(self, time_ms: int) -> tuple[int, int]:
        """Return start and end of the last window that a record of *time_ms* can be in; for sessions, of the
        one that it would form alone.
        """
        raise NotImplementedError

    def _over_ms(self, time_ms: int) -> int:
        """Return the watermark from which on a record of *time_ms* is late, in ms."""
        return self._last_window(time_ms)[1] + self._grace_ms

    def _closed(self, rows: Rows[Any], window: str) -> None:
        """Clean up after *window*, which is closed or, at the latest, dropped."""

    # -- a window changes

    @property
    def _adds_plainly(self) -> bool:
        """Return whether a record changes nothing but the aggregate of a window that there is."""
        return self._ordered is None and self._updates is None and self._sent_later is None

    def _add(
        self, rows: Rows[Any], window: str, end_ms: int, event: Any, stream_ms: int, emits: list[Emit]
    ) -> int:
        """Fold a record into a window of fixed times; return the first time at which a new entry is due."""
        before: AnyWindow | None = rows.get(window)
        if before is None:
            after = WindowRow(None if self._ordered else self._aggregate(None, event), end_ms)
        elif self._ordered is not None:
            return NEVER
        else:
            after = WindowRow(self._aggregate(before.value, event), end_ms)
            if self._updates is None:
                if after.value is None:
                    self._check_none("fold")
                if self._sent_later is not None:
                    require_sendable(window, self._sent_later(_result(window, after)))
                rows[window] = after
                return NEVER
        return self._put(rows, window, before, after, stream_ms, emits)

    def _put(
        self,
        rows: Rows[Any],
        window: str,
        before: AnyWindow | None,
        after: AnyWindow,
        stream_ms: int,
        emits: list[Emit],
    ) -> int:
        """Set the row of a window and schedule its update, closing and dropping; return the first time at
        which one of these is due.
        """
        due_ms = NEVER
        if after.value is None and self._ordered is None:
            self._check_none("fold")
        if before is None:
            due_ms = after.end_ms + self._held_ms
            if self._final is not None or self._ordered is not None:
                add_due(rows, (due_ms, CLOSE, window))
            else:
                due_ms += self._retention_ms
                add_due(rows, (due_ms, DROP, window))
        if self._ordered is not None:
            held: Any = HeldWindow(after.end_ms, after.first_ms, after.last_ms)
            if held != before:
                rows[window] = held
            return due_ms
        updates = self._updates
        if self._sent_later is not None:
            require_sendable(window, self._sent_later(_result(window, after)))
        if updates is not None:
            if before is not None and before.value == after.value and before.end_ms == after.end_ms:
                told_ms, waiting = before.told_ms, before.waiting
            elif before is not None and before.waiting:
                told_ms, waiting = before.told_ms, True
            elif before is not None and updates.every_ms and stream_ms < before.told_ms + updates.every_ms:
                told_ms, waiting = before.told_ms, True
                tell_ms = told_ms + updates.every_ms
                add_due(rows, (tell_ms, TELL, window))
                due_ms = min(due_ms, tell_ms)
            else:
                told_ms, waiting = stream_ms, False
                emits.append(_emit(updates, window, after))
            after = WindowRow(after.value, after.end_ms, told_ms, waiting, after.first_ms, after.last_ms)
        rows[window] = after
        return due_ms

    def _check_none(self, what: str) -> None:
        """Raise FoldError where None is no valid aggregate: the next record would start over, and the
        aggregate so far would be lost.
        """
        if not self._none_fits:
            raise FoldError(f"{what} gives None, which is no aggregate: does it lack a return?")

    def _remove(self, rows: Rows[Any], window: str, row: AnyWindow, emits: list[Emit]) -> None:
        """Remove a window that was merged into another; where updates are sent, send a tombstone for it."""
        rows[window] = None
        if self._updates is not None:
            emits.append(Emit(self._updates.topic, window, None))
            if row.waiting:
                cancel_due(rows, (row.told_ms + self._updates.every_ms, TELL, window))

    # -- records in order

    def _keep(self, rows: Rows[Any], key: str, time_ms: int, judged_ms: int, origin: int, raw: Raw) -> int:
        """Keep a record until its windows close; return when it is due to be dropped, NEVER if a window drops
        it.
        """
        offset, held = raw[3:]
        name = held_key(key, time_ms, origin, offset)
        if self.partly:
            held = msgspec.structs.replace(held, missed_ms=judged_ms - self._grace_ms)
        rows[name] = held
        done_ms = self._done_ms(time_ms)
        if done_ms is None:
            return NEVER
        add_due(rows, (done_ms, DROP, name))
        return done_ms

    def _done_ms(self, time_ms: int) -> int | None:
        """Return when a record of *time_ms* is dropped; None if the last of its windows drops it."""
        return None

    def _last_ms(self, end_ms: int) -> int:
        """Return the latest time of a record in a window that ends at *end_ms*."""
        return end_ms - 1

    def _close_held(
        self, rows: Rows[Any], due_ms: int, window: str, row: HeldWindow, emits: list[Emit]
    ) -> Folding:
        """Fold the records of a window in order, and close it; return its next due entry, and the number of
        records read.
        """
        ordered = self._ordered
        assert ordered is not None
        key, start_ms = window[: -DIGITS - 1], int(window[-DIGITS:])
        drops, value, taken, done = self._done_ms(0) is None, None, 0, 0
        for name, held in ordered.within(rows, key, start_ms, self._last_ms(row.end_ms)):
            done += 1
            if done % AT_ONCE == 0:
                part = emits[:]
                emits.clear()
                yield part
            if row.end_ms > held.missed_ms:
                fold = partial(self._folded, ordered, value, name, held)
                made = attempt(rows, f"record {name[len(HELD) :]!r} of window {window!r}: ", fold)
                if made is not None:
                    (value,), taken = made, taken + 1
            if drops and (not self.partly or self._over_ms(time_of(name)) <= due_ms):
                rows[name] = None
        self._closed(rows, window)
        if not taken:
            rows[window] = None
            return None, done
        after = WindowRow(value, row.end_ms, first_ms=row.first_ms, last_ms=row.last_ms)
        if self._final is not None:
            _send(rows, emits, self._final, window, after, self._told(rows, due_ms))
        if not self._retention_ms:
            rows[window] = None
            return None, done
        rows[window] = after
        return (due_ms + self._retention_ms, DROP, window), done

    def _folded(self, ordered: Ordered, value: Any, name: str, held: HeldRecord) -> tuple[Any]:
        value = self._aggregate(value, ordered.event(name, held))
        if value is None:
            self._check_none("fold")
        return (value,)

    # -- stream time passes

    def _settle(
        self, rows: Rows[Any], next_ms: int, stream_ms: int, emits: list[Emit]
    ) -> Generator[list[Emit], None, int]:
        """Process the entries due at *stream_ms*, by time; return a time before which no other is due."""
        return settle(rows, next_ms, stream_ms, partial(self._due, rows, stream_ms, emits), emits)

    def _due(
        self, rows: Rows[Any], stream_ms: int, emits: list[Emit], entry: Entry
    ) -> Entry | Folding | None:
        due_ms, kind, window = entry
        if kind == DROP and self._drops_unseen:
            rows[window] = None
            return None
        row: AnyWindow | None = rows.get(window)
        if row is None:
            return None  # it became part of another session
        if kind == TELL:
            self._tell(rows, window, row, stream_ms, emits)
            return None
        return self._end(rows, due_ms, kind, window, row, emits)

    def _tell(self, rows: Rows[Any], window: str, row: AnyWindow, stream_ms: int, emits: list[Emit]) -> None:
        if row.waiting and self._updates is not None:
            rows[window] = WindowRow(row.value, row.end_ms, stream_ms, False, row.first_ms, row.last_ms)
            _send(rows, emits, self._updates, window, row)

    def _end(
        self, rows: Rows[Any], due_ms: int, kind: str, window: str, row: AnyWindow, emits: list[Emit]
    ) -> Entry | Folding | None:
        """Close or drop a window; return its next due entry.

        A session may have grown since its entry was made: then the entry moves to the new time.
        """
        close_ms = row.end_ms + self._held_ms
        drop_ms = close_ms + self._retention_ms
        if kind == CLOSE:
            if close_ms > due_ms:
                return close_ms, CLOSE, window
            if isinstance(row, HeldWindow):
                return self._close_held(rows, due_ms, window, row, emits)
            if self._final is not None:
                _send(rows, emits, self._final, window, row, self._told(rows, due_ms))
            self._closed(rows, window)
            if self._retention_ms:
                return drop_ms, DROP, window
        elif drop_ms > due_ms:
            return drop_ms, DROP, window
        elif self._final is None and self._ordered is None:  # else it was closed before
            self._closed(rows, window)
            if row.waiting and self._updates is not None:
                cancel_due(rows, (row.told_ms + self._updates.every_ms, TELL, window))
                _send(rows, emits, self._updates, window, row)
        rows[window] = None
        return None


_decode_stream = msgspec.json.Decoder(StreamRow).decode


def _time_of(text: str) -> PartitionTime:
    row = _decode_stream(text)
    return PartitionTime(stream_ms=row.stream_ms, late=row.late, partly_late=row.partly_late)


def _result(window: str, row: AnyWindow) -> WindowResult[Any]:
    return WindowResult(window[: -DIGITS - 1], int(window[-DIGITS:]), row.end_ms, row.value)


def _emit(to: Updates | Final, window: str, row: AnyWindow, told: Headers = ()) -> Emit:
    return Emit(to.topic, window, to.encode(_result(window, row)), told)


def _send(
    rows: Rows[Any],
    emits: list[Emit],
    to: Updates | Final,
    window: str,
    row: AnyWindow,
    told: Headers = (),
) -> None:
    """Send a result that is due; a failure is put aside, and does not affect other windows."""
    if not takes_asides(rows):
        emits.append(_emit(to, window, row, told))
        return
    emit_result(
        rows, emits, f"result of window {window!r} to {row.end_ms}: ", lambda: _emit(to, window, row, told)
    )
