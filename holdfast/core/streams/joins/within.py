"""`JoinWithin`: records of two streams of one key whose times are near each other."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar, overload

import msgspec

from holdfast.core.engine.declared.durations import duration_ms
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import EmitsFrom, OnError, Processor
from holdfast.core.engine.declared.sources import Asked, FoldWith, Readable, Source
from holdfast.core.engine.declared.streams import Stream, tells_origins
from holdfast.core.engine.emits import Emit, Emits, Headers
from holdfast.core.engine.fold.asides import emit_result, put_aside
from holdfast.core.engine.fold.paced import Work, begun
from holdfast.core.engine.origins import (
    NAMELESS,
    UNHEARD,
    HeldBack,
    Mark,
    StepReached,
    plain,
    record_header,
    told_of,
)
from holdfast.core.engine.state.rows import NEVER, TOLD_PARTITION, Rows
from holdfast.core.streams.joins.joining import (
    How,
    Route,
    check_apart,
    check_late,
    check_result_key,
    held_type,
    joined_sources,
    key_of,
    time_and_move,
)
from holdfast.core.streams.reading import warn_of_append_time
from holdfast.core.streams.windowing.due import AT_ONCE, CLOSE, DROP, Entry, add_due, has_due, settle
from holdfast.core.streams.windowing.fold import TICK_EVERY_MS
from holdfast.core.streams.windowing.lateness import JudgedRecord, Lateness, PartitionTime
from holdfast.core.streams.windowing.origins import origins_of
from holdfast.core.streams.windowing.rows import (
    DIGITS,
    DUE,
    ORIGINS,
    RESERVED,
    STREAM,
    DueRow,
    OriginRow,
    stream_key,
)

L = TypeVar("L")
R = TypeVar("R")
J = TypeVar("J")

_IDLE = f"{RESERVED}idle/"
_PLACE = 2 * DIGITS + 2
"""Characters of `@time/offset` at the end of a row's key."""
_TIME = 1 - _PLACE
"""The index in a row's key, from its end, at which the time begins."""


class LeftHeld(msgspec.Struct, Generic[L], frozen=True, array_like=True, tag="l"):
    """A record of the left stream that waits for others, and whether it has met one."""

    value: L
    met: bool = False


class RightHeld(msgspec.Struct, Generic[R], frozen=True, array_like=True, tag="r"):
    """A record of the right stream that waits for others, and whether it has met one."""

    value: R
    met: bool = False


class JoinStreamRow(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """Stream time of a partition in ms (-1 until both sources have had a record), and how many of its records
    were late: *late_after_idle* of them only because the other source advanced after theirs had let go.

    *failed* lone results could not be sent when their time came. *partly_late* records were taken while the
    earliest of their partners may have been dropped, for the same reason.

    The rest is for the fold: nothing is due before *next_ms*; *at_ms* is the append time at which the highest
    event time was last moved by a record, *tick_ms* when a tick was asked for. *left_ms* and *right_ms* are
    the watermarks of the sources; of *ended* and *awaited*, bit 0 is for the left source, and 1 for the
    right: it lets go, or a tick will see whether it does. Rows of older releases have none of these.
    """

    stream_ms: int = -1
    next_ms: int = NEVER
    late: int = 0
    at_ms: int = 0
    tick_ms: int = NEVER
    failed: int = 0
    left_ms: int | None = None
    right_ms: int | None = None
    ended: int = 0
    awaited: int = 0
    late_after_idle: int = 0
    partly_late: int = 0


class JoinWithin(Processor[Any, Any], Generic[L, R, J]):
    """Each record of *left* with each of *right* that has its key and is near: left time - *before* <= right
    time <= left time + *after*.

    Times are read by the sources' `time`; without it, a record's time is the highest append time so far, and
    no record is late. *join* gets the two events, and its result is sent to *to* under their key, as soon as
    both have come; of several partners, first that of the earliest time, then in order of offsets. *how* is
    "inner"; "left", which also sends a left event that met no partner, with None, once no partner can come
    any more; or "outer", which does that for both sides.

    **Stream time** is the least watermark of the origins: of a topic that no step writes, the highest event
    time in its partition; downstream of a step, see `Windowed`. A record is **late** if its time + *grace* is
    below the watermark that its own origin had before it: it joins nothing, is sent to *late* if that is
    given, and counted in the row `stream_key(partition)`, a `JoinStreamRow`. All others meet each partner
    that is near, at whatever pace the sources are read. A record waits for partners until stream time > its
    time + *after* + *grace* for a left one, + *before* + *grace* for a right one. If it has met no partner,
    it is then sent alone, if *how* says so; the store and the changelog keep no record for longer. A key has
    no more rows than the records it had within that time, however hot it is. Lone records that one record
    makes due are sent by time, then left before right, then by key. A record whose event time is far in the
    future makes later records of its origin late; have the serde or *time* raise for an impossible time, and
    the record goes to quarantine.

    A source that has had no record for a second, or for the `idle=` of its `Source`, while the other has
    advanced so far that records could be let go, no longer holds stream time back; a recorded tick says so.
    Its next record ends that. A record that would otherwise have met a partner is late and counted as
    *late_after_idle*.

    Results to an `Internal` topic, or to a `Stream` with `watermarks=True`, carry their origins: each
    partition of the join is one, and its watermark is stream time less *before*, *after* and *grace*. So
    windows of results are the same at any pace if they use a time between those of the two records.

    A record is refused if *join* fails for a pair of it. If it fails for a lone record, that result is
    quarantined at the stage "close" and counted as *failed*; other results are not affected.

    **Idle.** Stream time does not pass in a partition without traffic. With *idle* (a duration; None for
    never), the worker's clock advances it once a partition has had no progress for that long, but only to the
    time at which a record is done, and downstream of a step only after that has reported that it is at its
    end. Such a tick is recorded and replayed. Records that come later than that are late. "inner" needs no
    such ticks and has none.

    Records without a value are passed over; those without a key are refused. Durations are text such as
    "10s", or ms. Raises ConfigError, at the declaration, for parameters that do not fit together.
    """

    __slots__ = ()

    @overload
    def __init__(
        self,
        *,
        name: str,
        left: Readable[L | None],
        right: Readable[R | None],
        join: Callable[[L, R], J],
        to: Stream[J],
        before: str | int = 0,
        after: str | int = 0,
        grace: str | int = 0,
        how: Literal["inner"] = "inner",
        late: Stream[Any] | None = None,
        idle: str | int | None = "30s",
        version: int = 1,
        route: Route | None = by_key,
        in_place: bool = False,
        on_error: OnError = "quarantine",
        emits_from: EmitsFrom = "beginning",
    ) -> None: ...

    @overload
    def __init__(
        self,
        *,
        name: str,
        left: Readable[L | None],
        right: Readable[R | None],
        join: Callable[[L, R | None], J],
        to: Stream[J],
        before: str | int = 0,
        after: str | int = 0,
        grace: str | int = 0,
        how: Literal["left"],
        late: Stream[Any] | None = None,
        idle: str | int | None = "30s",
        version: int = 1,
        route: Route | None = by_key,
        in_place: bool = False,
        on_error: OnError = "quarantine",
        emits_from: EmitsFrom = "beginning",
    ) -> None: ...

    @overload
    def __init__(
        self,
        *,
        name: str,
        left: Readable[L | None],
        right: Readable[R | None],
        join: Callable[[L | None, R | None], J],
        to: Stream[J],
        before: str | int = 0,
        after: str | int = 0,
        grace: str | int = 0,
        how: How,
        late: Stream[Any] | None = None,
        idle: str | int | None = "30s",
        version: int = 1,
        route: Route | None = by_key,
        in_place: bool = False,
        on_error: OnError = "quarantine",
        emits_from: EmitsFrom = "beginning",
    ) -> None: ...

    def __init__(
        self,
        *,
        name: str,
        left: Readable[Any],
        right: Readable[Any],
        join: Callable[[Any, Any], J],
        to: Stream[J],
        before: str | int = 0,
        after: str | int = 0,
        grace: str | int = 0,
        how: How = "inner",
        late: Stream[Any] | None = None,
        idle: str | int | None = "30s",
        version: int = 1,
        route: Route | None = by_key,
        in_place: bool = False,
        on_error: OnError = "quarantine",
        emits_from: EmitsFrom = "beginning",
    ) -> None:
        whose = f"processor {name}"
        given = {"left": left, "right": right}
        one, other = joined_sources(whose, given, to, how, ("inner", "left", "outer"), join)
        check_apart(whose, {"left": one, "right": other})
        warn_of_append_time(whose, one, other)
        check_result_key(whose, to)
        before_ms = duration_ms(before, f"{whose}: before", least_ms=0)
        after_ms = duration_ms(after, f"{whose}: after", least_ms=0)
        grace_ms = duration_ms(grace, f"{whose}: grace", least_ms=0)
        idle_ms = None if idle is None else duration_ms(idle, f"{whose}: idle")
        if how == "inner":
            idle_ms = None
        sides = one, other
        by_origin = [tells_origins(each.topic) and each.reads_time is not None for each in sides]
        check_late(whose, late, to, (one.topic, other.topic))
        lone = how != "inner", how == "outer"
        sources_tell = tuple(told and _tells(each.topic) for told, each in zip(by_origin, sides, strict=True))
        silent_ms = tuple(SOURCE_IDLE_MS if each.idle_ms is None else each.idle_ms for each in sides)
        by_append = one.reads_time is None, other.reads_time is None
        near = _Near(
            join,
            to,
            late,
            before_ms,
            after_ms,
            grace_ms,
            idle_ms,
            tells_origins(to),
            *lone,
            tuple(by_origin),
            sources_tell,
            by_append,
            silent_ms,
        )
        asked: list[tuple[Asked, ...]] = [
            (*_ASKED, "headers") if late is not None or told else _ASKED for told in by_origin
        ]

        of_left, of_right = _SideFold(near, _LEFT, one), _SideFold(near, _RIGHT, other)
        super().__init__(
            name=name,
            on={
                one: FoldWith(of_left, asked[0], marks=by_origin[0]),
                other: FoldWith(of_right, asked[1], marks=by_origin[1]),
            },
            on_tick=near.tick,
            row=_row_type(held_type(whose, one), held_type(whose, other), any(by_origin)),
            version=version,
            route=_routed(route),
            emits=(to,) if late is None else (to, late),
            in_place=in_place,
            on_error=on_error,
            emits_from=emits_from,
        )

    @property
    def passing(self) -> bool:
        return True

    @property
    def ticks_at_ends(self) -> bool:
        return True

    @property
    def lateness(self) -> Lateness:
        sides = self._sides

        def judged(source: int, given: Sequence[Any], at_ms: int) -> JudgedRecord | None:
            side = sides[source]
            return side.near.judged(side.side, side.source, given, at_ms)

        return Lateness(judged, _time_of)

    def held_back(self, rows: Rows[Any], partition: int) -> list[HeldBack]:
        return self._sides[0].near.held_back(rows, partition)

    @property
    def _sides(self) -> list[_SideFold]:
        declared: list[Any] = [each.fold for each in self.folds]
        return [getattr(fold, "fold", fold) for fold in declared]  # as they are traced

    @property
    def final_emits(self) -> tuple[str, ...]:
        return (str(self.emits[0]),) if None not in self.own_times else ()

    @property
    def told_topics(self) -> tuple[str, ...]:
        return (str(self.emits[0]),) if self._near.tells else ()

    def origin_clock(self, stored: bytes | None = None) -> None:
        """Return None: the watermarks of its results follow from its rows."""

    def reached_in(
        self, rows: Rows[Any], partition: int, at_end: frozenset[int] = frozenset()
    ) -> StepReached | None:
        return self._near.reached(rows, partition, at_end)

    @property
    def _near(self) -> _Near:
        """Return the fold, whose method is called at ticks."""
        tick: Any = self.on_tick
        found: _Near = tick.__self__
        return found


def _tells(topic: str) -> bool:
    """Return whether *topic* is written by a step that reports when it is at its end."""
    return tells_origins(topic) and getattr(topic, "tells", False) is True


def _row_type(left: Any, right: Any, by_origin: bool) -> Any:
    rows = LeftHeld[left] | RightHeld[right] | JoinStreamRow | DueRow
    return rows | OriginRow if by_origin else rows


_ASKED: tuple[Asked, ...] = ("key", "partition", "offset")
_HEADERS = 1 + len(_ASKED)
"""The index of the headers among a fold's arguments without rows and stream time; that of the event is 0."""
_LEFT, _RIGHT = "l/", "r/"
_START = JoinStreamRow(left_ms=-1, right_ms=-1)
SOURCE_IDLE_MS = 1_000
"""The time after which a silent source no longer holds stream time back while the other one waits, unless it
declares `idle=`.
"""
Alone = tuple[int, str, str, Any]
"""(time of a record that met no partner, key of its row, its own key, its row)."""


_decode_stream = msgspec.json.Decoder(JoinStreamRow).decode


def _time_of(text: str) -> PartitionTime:
    row = _decode_stream(text)
    return PartitionTime(
        stream_ms=row.stream_ms,
        watermarks=(row.left_ms, row.right_ms),
        ended=row.ended,
        late=row.late,
        partly_late=row.partly_late,
    )


@dataclass(frozen=True, slots=True)
class _SideFold:
    """The fold of one source of a join."""

    near: _Near
    side: str
    source: Source[Any]

    def __call__(self, rows: Rows[Any], event: Any, at_ms: int, key: Any, *told: Any) -> Emits:
        return self.near.fold(rows, self.side, self.source, event, at_ms, key, *told)


@dataclass(frozen=True, slots=True)
class _Near:
    """The fold of one declaration; it has no state of its own."""

    join: Callable[[Any, Any], Any]
    to: Stream[Any]
    late: Stream[Any] | None
    before_ms: int
    after_ms: int
    grace_ms: int
    idle_ms: int | None
    tells: bool
    lone_left: bool
    lone_right: bool
    by_origin: tuple[bool, ...]
    sources_tell: tuple[bool, ...]
    """True for a source whose step reports how far it has come, even before it has sent a record."""
    by_append_time: tuple[bool, ...]
    source_idle_ms: tuple[int, ...]

    def fold(
        self,
        rows: Rows[Any],
        side: str,
        source: Source[Any],
        event: Any,
        at_ms: int,
        key: Any,
        partition: int,
        offset: int,
        headers: Headers = (),
    ) -> Emits:
        """Fold a record of one side, or a mark."""
        if event is None:
            return None
        number = 0 if side == _LEFT else 1
        stream = _stream(rows, partition)
        if self.tells:
            rows.derived[TOLD_PARTITION] = partition
        origins = origins_of(rows, partition, number) if self.by_origin[number] else None
        if event.__class__ is Mark:
            assert origins is not None
            if not origins.is_named:
                origins.begin(rows, _own_ms(stream, number))
            origins.mark(rows, event)
            return self._passed(rows, partition, stream, number, at_ms, [])
        of = key_of(key)
        emits: list[Emit] = []  # list[Emit]() takes half a microsecond
        time_ms, moves = time_and_move(source, event, at_ms)
        told = None if origins is None else told_of(headers)
        if told is not None and origins is not None and not origins.is_named:
            origins.begin(rows, _own_ms(stream, number))
        if told is not None:
            own_ms = told.before_ms
        elif origins is not None and origins.is_named:
            own_ms = origins.watermarks.of(NAMELESS)
        else:
            own_ms = _own_ms(stream, number)
        is_late = time_ms + self.grace_ms < own_ms
        is_over = self._alone_ms(side, time_ms) <= stream.stream_ms
        if is_late or is_over:
            if self.late is not None:
                emits.append(self.late.emit(key, event, headers=plain(headers)))
            stream = msgspec.structs.replace(
                stream, late=stream.late + 1, late_after_idle=stream.late_after_idle + (not is_late)
            )
        else:
            if time_ms + self.grace_ms < stream.stream_ms:
                stream = msgspec.structs.replace(stream, partly_late=stream.partly_late + 1)
            met = self._meet(rows, side, of, event, time_ms, stream.stream_ms, emits)
            held = LeftHeld(event, met) if side == _LEFT else RightHeld(event, met)
            due_ms = self._hold(rows, side, of, time_ms, offset, held)
            if due_ms < stream.next_ms:
                stream = msgspec.structs.replace(stream, next_ms=due_ms)
        if origins is not None and origins.is_named:
            # Downstream of a merge, the first log may be ahead of the origin, which is the least of several
            # logs.
            own = NAMELESS, max(own_ms, time_ms) if moves else own_ms
            origin, after_ms = own if told is None else (told.origin, told.after_ms)
            origins.hear(rows, origin, after_ms)
            if is_late or is_over:
                origins.count(rows, origin, after_idle=not is_late)
            moves = False
        reached_ms = max(time_ms, own_ms) if moves else own_ms
        return self._passed(rows, partition, stream, number, at_ms, emits, reached_ms)

    def _passed(
        self,
        rows: Rows[Any],
        partition: int,
        stream: JoinStreamRow,
        number: int,
        at_ms: int,
        emits: list[Emit],
        own_ms: int = -1,
    ) -> Emits:
        """Advance stream time after a record or a mark of a source, and process the entries that are due
        then.
        """
        left_ms, right_ms, ended, awaited = stream.left_ms, stream.right_ms, stream.ended, stream.awaited
        assert left_ms is not None
        assert right_ms is not None
        bit = 1 << number
        if awaited & bit:
            rows.wake_at(f"{_IDLE}{partition}/{number}", None, clock="tick")
            awaited &= ~bit
        ended &= ~bit
        highest_ms = max(left_ms, right_ms, stream.stream_ms)
        if not self.by_origin[number] or not (named := origins_of(rows, partition, number)).is_named:
            if number:
                right_ms = max(right_ms, own_ms)
            else:
                left_ms = max(left_ms, own_ms)
        else:
            least_ms = max(-1, named.watermarks.least_ms)
            if number:
                right_ms = max(right_ms, least_ms)
            else:
                left_ms = max(left_ms, least_ms)
            if named.watermarks.has_ended:
                ended |= bit
        # Records come in order of append time, so later times of such a source are not below it.
        if self.by_append_time[0]:
            left_ms = max(left_ms, at_ms)
        if self.by_append_time[1]:
            right_ms = max(right_ms, at_ms)
        moved_ms = at_ms if max(left_ms, right_ms) > highest_ms else stream.at_ms
        stream_ms = max(stream.stream_ms, _least(left_ms, right_ms, ended))
        after = JoinStreamRow(
            stream_ms,
            stream.next_ms,
            stream.late,
            moved_ms,
            stream.tick_ms,
            stream.failed,
            left_ms,
            right_ms,
            ended,
            awaited,
            stream.late_after_idle,
            stream.partly_late,
        )
        if after.next_ms <= stream_ms:
            return begun(self._settled(rows, partition, after, at_ms, emits))
        self._set(rows, partition, after, at_ms)
        return emits

    def _settled(
        self, rows: Rows[Any], partition: int, stream: JoinStreamRow, at_ms: int, emits: list[Emit]
    ) -> Work:
        next_ms = yield from self._settle(rows, partition, stream.next_ms, stream.stream_ms, emits)
        failed = stream.failed + put_aside(rows)
        self._set(rows, partition, msgspec.structs.replace(stream, next_ms=next_ms, failed=failed), at_ms)
        return emits

    def _set(self, rows: Rows[Any], partition: int, stream: JoinStreamRow, at_ms: int) -> None:
        """Store the times of a partition, and ask for the ticks that it needs."""
        name = stream_key(partition)
        stream = self._awaited(rows, partition, stream)
        if stream.next_ms != NEVER:
            stream = self._await_source(rows, partition, stream, at_ms)
        if stream != rows.get(name):
            rows[name] = stream

    def _await_source(
        self, rows: Rows[Any], partition: int, stream: JoinStreamRow, at_ms: int
    ) -> JoinStreamRow:
        """Ask for a tick that checks whether a source is still silent, if the other one has advanced so far
        that an entry would be due without it.
        """
        left_ms, right_ms = stream.left_ms, stream.right_ms
        assert left_ms is not None
        assert right_ms is not None
        number = 0 if left_ms < right_ms else 1
        bit = 1 << number
        if (stream.ended | stream.awaited) & bit or max(left_ms, right_ms) < stream.next_ms:
            return stream
        if self._is_told(rows, partition, stream, number):
            return stream  # its step says so in a mark
        tick_ms = at_ms + self.source_idle_ms[number]
        rows.wake_at(f"{_IDLE}{partition}/{number}", tick_ms + -tick_ms % TICK_EVERY_MS, clock="tick")
        return msgspec.structs.replace(stream, awaited=stream.awaited | bit)

    def _is_told(self, rows: Rows[Any], partition: int, stream: JoinStreamRow, number: int) -> bool:
        """Return whether the step that writes a source reports when it is at its end: no clock decides it
        then.
        """
        if not self.by_origin[number]:
            return False
        is_unheard = self.sources_tell[number] and _own_ms(stream, number) < 0
        return is_unheard or origins_of(rows, partition, number).is_named

    def _waits(self, rows: Rows[Any], partition: int, stream: JoinStreamRow) -> bool:
        """Return whether a step has yet to say that a source is at its end."""
        return any(
            self._is_told(rows, partition, stream, number)
            and not origins_of(rows, partition, number).watermarks.has_ended
            for number in (0, 1)
        )

    def _alone_ms(self, side: str, time_ms: int) -> int:
        """Return the stream time from which on every partner still to come for a record is late.

        The last partner of a left record has its time + after, and is late once its origin is past that +
        grace.
        """
        return time_ms + self._reach_ms(side) + self.grace_ms + 1

    def _reach_ms(self, side: str) -> int:
        """Return by how many ms the last partner of a record of *side* may be later."""
        return self.after_ms if side == _LEFT else self.before_ms

    def held_back(self, rows: Rows[Any], partition: int) -> list[HeldBack]:
        """Return the origins that hold stream time back: of a source that a step writes, its last origin; of
        two sources, the one that lags the other and has not let go.
        """
        stream = _stream(rows, partition)
        left_ms, right_ms = stream.left_ms, stream.right_ms
        named = [
            origins_of(rows, partition, number) if by_origin else None
            for number, by_origin in enumerate(self.by_origin)
        ]
        found = [held for each in named if each is not None and each.is_named for held in each.held_back]
        assert left_ms is not None
        assert right_ms is not None
        if left_ms == right_ms:
            return found
        behind = 0 if left_ms < right_ms else 1
        if stream.ended & 1 << behind or behind in [held.source for held in found]:
            return found
        least_ms, origins = min(left_ms, right_ms), named[behind]
        origin = partition if origins is None or not origins.is_named else origins.watermarks.last
        lag_ms = None if least_ms < 0 else abs(right_ms - left_ms)
        return [*found, HeldBack(behind, None if lag_ms is None else origin, lag_ms)]

    def judged(self, side: str, source: Source[Any], given: Sequence[Any], at_ms: int) -> JudgedRecord | None:
        """Return the values by which a record is judged late, see `Lateness`."""
        event, key = given[:2]
        if event is None or event.__class__ is Mark:
            return None
        number = 0 if side == _LEFT else 1
        told = told_of(given[_HEADERS]) if self.by_origin[number] else None
        origin, before_ms = (None, None) if told is None else told[:2]
        of, time_ms = key_of(key), time_and_move(source, event, at_ms)[0]
        reach_ms = self._reach_ms(side)
        return JudgedRecord(
            of, time_ms, time_ms, time_ms + 1, self.grace_ms, reach_ms, origin, before_ms, f"{side}{of}@"
        )

    def _tells_alone(self, side: str) -> bool:
        return self.lone_left if side == _LEFT else self.lone_right

    def _meet(
        self,
        rows: Rows[Any],
        side: str,
        key: str,
        event: Any,
        time_ms: int,
        stream_ms: int,
        emits: list[Emit],
    ) -> bool:
        """Join *event* with the waiting records of the other side; return whether there is any."""
        if side == _LEFT:
            other, first_ms, last_ms, marks = (
                _RIGHT,
                time_ms - self.before_ms,
                time_ms + self.after_ms,
                self.lone_right,
            )
        else:
            other, first_ms, last_ms, marks = (
                _LEFT,
                time_ms - self.after_ms,
                time_ms + self.before_ms,
                self.lone_left,
            )
        met = False
        for name, held in _between(rows, f"{other}{key}@", max(0, first_ms), last_ms):
            met = True
            pair = (event, held.value) if side == _LEFT else (held.value, event)
            told: Headers = ()
            if self.tells:
                told = self._told(rows, min(time_ms, int(name[-2 * DIGITS - 1 : -DIGITS - 1])), stream_ms)
            emits.append(self.to.emit(key, self.join(*pair), headers=told))
            if marks and not held.met:
                rows[name] = msgspec.structs.replace(held, met=True)
        return met

    def _hold(self, rows: Rows[Any], side: str, key: str, time_ms: int, offset: int, held: Any) -> int:
        """Keep a record for partners that may still come; return when its entry is due."""
        name = f"{side}{key}@{time_ms:016d}/{offset:016d}"
        rows[name] = held
        _held(rows).add(name)
        due_ms = self._alone_ms(side, time_ms)
        add_due(rows, (due_ms, DROP if held.met or not self._tells_alone(side) else CLOSE, name))
        return due_ms

    def _settle(
        self, rows: Rows[Any], partition: int, next_ms: int, stream_ms: int, emits: list[Emit]
    ) -> Generator[list[Emit], None, int]:
        """Send the records that met no partner, and remove those that are done; return a time before which no
        other entry is due.
        """
        alone: list[Alone] = []
        told_ms = _stream(rows, partition).stream_ms  # no lone record was reported as passed by that time
        next_ms = yield from settle(rows, next_ms, stream_ms, partial(self._due, rows, alone), emits)
        for number, (time_ms, _, key, held) in enumerate(sorted(alone, key=_first_two), 1):
            told = self._told(rows, time_ms, told_ms) if self.tells else ()
            self._tell_alone(rows, emits, key, time_ms, held, told)
            if number % AT_ONCE == 0:
                part = emits[:]
                emits.clear()
                yield part
        return next_ms

    def _due(self, rows: Rows[Any], alone: list[Alone], entry: Entry) -> Entry | None:
        """Remove a record that is done; one that met no partner goes to *alone*."""
        _, kind, name = entry
        if kind == CLOSE:
            held, time_ms = rows[name], int(name[-2 * DIGITS - 1 : -DIGITS - 1])
            if not held.met:
                alone.append((time_ms, name, name[len(_LEFT) : -_PLACE], held))
        rows[name] = None
        _held(rows).discard(name)
        return None

    def _tell_alone(
        self, rows: Rows[Any], emits: list[Emit], key: str, time_ms: int, held: Any, told: Headers
    ) -> None:
        pair = (held.value, None) if isinstance(held, LeftHeld) else (None, held.value)
        side = "left" if isinstance(held, LeftHeld) else "right"
        emit_result(
            rows,
            emits,
            f"result of the {side} record of key {key!r} at {time_ms} alone: ",
            lambda: self.to.emit(key, self.join(*pair), headers=told),
        )

    # -- the origins of results

    def _watermark_ms(self, stream_ms: int) -> int:
        """Return the watermark that results carry at *stream_ms*: no later result has only earlier records.

        A record folded then is later than stream time less its reach and grace, and its partner is at most
        the reach of the other side earlier.
        """
        return UNHEARD if stream_ms < 0 else stream_ms - self.grace_ms - self.before_ms - self.after_ms

    def _told(self, rows: Rows[Any], earliest_ms: int, stream_ms: int) -> Headers:
        """Return the headers of a result. The watermark of its origin before it is *earliest_ms*, the time of
        the earliest of its records, at any pace.
        """
        partition: int = rows.derived[TOLD_PARTITION]
        return (record_header(partition, earliest_ms, self._watermark_ms(stream_ms)),)

    def reached(self, rows: Rows[Any], partition: int, at_end: frozenset[int]) -> StepReached | None:
        """Return how far a partition has come; None where results carry no origins.

        It lets go when all origins have, and the topics that no step writes are at their ends, unless a
        record waits that may have to be sent alone.
        """
        if not self.tells:
            return None
        has_ended = True
        for number, by_origin in enumerate(self.by_origin):
            if by_origin and (origins := origins_of(rows, partition, number)).is_named:
                has_ended &= origins.watermarks.has_ended
            else:
                has_ended = has_ended and number in at_end
        told_ms = self._watermark_ms(_stream(rows, partition).stream_ms)
        return StepReached(told_ms, has_ended and not has_due(rows, CLOSE))

    # -- idle partitions

    def _awaited(self, rows: Rows[Any], partition: int, stream: JoinStreamRow) -> JoinStreamRow:
        """Ask for a tick at which the next record is done by the clock, unless an earlier tick is pending."""
        if self.idle_ms is None or stream.next_ms == NEVER:
            return stream
        tick_ms = stream.at_ms + max(0, stream.next_ms - _highest(stream)) + self.idle_ms
        if stream.tick_ms <= tick_ms:
            return stream
        rows.wake_at(f"{_IDLE}{partition}", tick_ms, clock="tick")
        return msgspec.structs.replace(stream, tick_ms=tick_ms)

    def tick(self, rows: Rows[Any], key: str, at_ms: int) -> Emits:
        """Handle a tick: the clock has reached the time that was asked for."""
        partition, _, number = key.removeprefix(_IDLE).partition("/")
        if self.tells:
            rows.derived[TOLD_PARTITION] = int(partition)
        if number:
            return self._let_go(rows, int(partition), int(number))
        return begun(self._ticked(rows, int(partition)))

    def _let_go(self, rows: Rows[Any], partition: int, number: int) -> Emits:
        """Handle the tick of a source that is still silent: it no longer holds stream time back."""
        assert rows.ticks is not None
        stream, bit = _stream(rows, partition), 1 << number
        left_ms, right_ms = stream.left_ms, stream.right_ms
        assert left_ms is not None
        assert right_ms is not None
        ended = stream.ended | bit
        after = msgspec.structs.replace(
            stream,
            ended=ended,
            awaited=stream.awaited & ~bit,
            stream_ms=max(stream.stream_ms, _least(left_ms, right_ms, ended)),
        )
        now_ms, emits = rows.ticks.now_ms, list[Emit]()
        if after.next_ms <= after.stream_ms:
            return begun(self._settled(rows, partition, after, now_ms, emits))
        self._set(rows, partition, after, now_ms)
        return emits

    def _ticked(self, rows: Rows[Any], partition: int) -> Work:
        assert self.idle_ms is not None
        assert rows.ticks is not None
        emits: list[Emit] = []
        stream = _stream(rows, partition)
        highest_ms = _highest(stream)
        passed_ms = highest_ms + rows.ticks.now_ms - stream.at_ms - self.idle_ms
        stream_ms, next_ms, moved_ms = stream.stream_ms, stream.next_ms, stream.at_ms
        if self._waits(rows, partition, stream):
            passed_ms, moved_ms = -1, rows.ticks.now_ms  # a slow step is not one without traffic
        while next_ms <= passed_ms:
            if next_ms > highest_ms:  # else more was due than is done at once, or a source lags
                moved_ms += next_ms - highest_ms
                highest_ms = next_ms
            stream_ms = max(stream_ms, next_ms)
            next_ms = yield from self._settle(rows, partition, next_ms, stream_ms, emits)
            if next_ms <= stream_ms:
                break
        after = msgspec.structs.replace(
            stream,
            stream_ms=stream_ms,
            next_ms=next_ms,
            at_ms=moved_ms,
            tick_ms=NEVER,
            failed=stream.failed + put_aside(rows),
        )
        self._set(rows, partition, after, rows.ticks.now_ms)
        return emits


def _stream(rows: Rows[Any], partition: int) -> JoinStreamRow:
    """Return the times of a partition. Older releases stored one for both sources: each has come as far."""
    stream: JoinStreamRow = rows.get(stream_key(partition), _START)
    if stream.left_ms is None or stream.right_ms is None:
        return msgspec.structs.replace(stream, left_ms=stream.stream_ms, right_ms=stream.stream_ms)
    return stream


def _own_ms(stream: JoinStreamRow, number: int) -> int:
    own_ms = stream.right_ms if number else stream.left_ms
    assert own_ms is not None
    return own_ms


def _highest(stream: JoinStreamRow) -> int:
    return max(stream.stream_ms, _own_ms(stream, 0), _own_ms(stream, 1))


def _least(left_ms: int, right_ms: int, ended: int) -> int:
    """Return the least watermark of the sources that have not let go; the higher one if both have."""
    match ended:
        case 0:
            return min(left_ms, right_ms)
        case 1:
            return right_ms
        case 2:
            return left_ms
        case _:
            return max(left_ms, right_ms)


def _first_two(alone: Alone) -> tuple[int, str]:
    return alone[:2]


_HELD = "held"
SCANS, MOST_HELD = 64, 16_384
"""The number of look-ups by scans after which the names of all waiting records are read, and the most names
that are kept in memory.
"""


class _HeldNames:
    """The names of the waiting records, by their prefix up to the time; None while unknown, or too many."""

    __slots__ = ("count", "looks", "names")

    def __init__(self) -> None:
        self.count = self.looks = 0
        self.names: dict[str, list[str]] | None = None

    def read(self, rows: Rows[Any]) -> None:
        names: dict[str, list[str]] = {}
        self.count = 0
        for side in (_LEFT, _RIGHT):
            for name, _ in rows.scan(side):
                names.setdefault(name[:_TIME], []).append(name)
                self.count += 1
                if self.count > MOST_HELD:
                    return
        self.names = names

    def add(self, name: str) -> None:
        if self.names is None:
            return
        self.count += 1
        if self.count > MOST_HELD:
            self.names = None
        elif (there := self.names.get(name[:_TIME])) is None:
            self.names[name[:_TIME]] = [name]
        else:
            insort(there, name)

    def discard(self, name: str) -> None:
        if self.names is None:
            return
        there = self.names[name[:_TIME]]
        self.count -= 1
        if len(there) == 1:
            del self.names[name[:_TIME]]
        else:
            del there[bisect_left(there, name)]


def _held(rows: Rows[Any]) -> _HeldNames:
    """Return the names in memory with the rows; they are dropped whenever changes are rolled back."""
    held: _HeldNames | None = rows.derived.get(_HELD)
    if held is None:
        held = rows.derived[_HELD] = _HeldNames()
    return held


def _between(rows: Rows[Any], prefix: str, first_ms: int, last_ms: int) -> Iterable[tuple[str, Any]]:
    """Return the rows whose keys are *prefix*, a time in [first_ms, last_ms] and an offset, in that order."""
    held = _held(rows)
    if held.names is None:
        held.looks += 1
        if held.looks != SCANS:
            return _scanned(rows, prefix, first_ms, last_ms)
        held.read(rows)
        if held.names is None:
            return _scanned(rows, prefix, first_ms, last_ms)
    there = held.names.get(prefix)
    if there is None:
        return ()
    first = bisect_left(there, f"{prefix}{first_ms:016d}")
    return [
        (name, rows[name]) for name in there[first : bisect_left(there, f"{prefix}{last_ms + 1:016d}", first)]
    ]


def _scanned(rows: Rows[Any], prefix: str, first_ms: int, last_ms: int) -> Iterator[tuple[str, Any]]:
    """Yield what `_between` returns.

    At most two scans cover the span, each of less than ten times as long. Keys of another length that begin
    alike are passed over.
    """
    exponent = min(len(str(last_ms - first_ms)), DIGITS - 1)
    width = 10**exponent
    length, at = len(prefix) + 2 * DIGITS + 1, len(prefix)
    for stretch in range(first_ms // width, last_ms // width + 1):
        for name, held in rows.scan(f"{prefix}{stretch:0{DIGITS - exponent}d}"):
            if len(name) == length and first_ms <= int(name[at : at + DIGITS]) <= last_ms:
                yield name, held


def _routed(route: Route | None) -> Route:
    def of(name: str, partitions: int) -> int | None:
        if name.startswith((STREAM, ORIGINS)):
            return int(name.removeprefix(STREAM).removeprefix(ORIGINS).partition("/")[0])
        if route is None:
            return None
        inner = name[len(DUE) + DIGITS + 3 :] if name.startswith(DUE) else name
        return route(inner[len(_LEFT) : -_PLACE], partitions)

    return of
