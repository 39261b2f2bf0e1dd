"""Choices of a processor with several sources, which record the decisions that the logs leave open; its
position.

A worker folds the records of its sources in *canonical order*, which is a function of the logs:

    (highest time so far in the record's source partition, number of the source, offset)

The time is the event's own if the source has one (`Source(time=...)`), else the append time. The highest
so far, because the clock of a new leader may go back, and events are out of order; where a source has event
times, only records after the last choice count. So the next record is always the one of the least time
among the first of all sources.

Two things are not in the logs: that a record was folded before another had shown up that should have come
first (a *barrier*), and the time of the clock (a *tick*). Each is a choice: a record of
`{app}-{processor}-choices`, in the partition of the sources, in the Kafka transaction of the records folded
after it. So any reader that folds the same logs again, and obeys the choices, folds the same sequence.

A choice says by which times the records before it were ordered, since the choice before: those of formats 1
and 2 by append time alone, as all were before event times counted. For records after the last choice the
marker says it.

Choices are numbered from 0 without a gap, whatever the version of the processor that made them. All formats
are arrays of MessagePack; all integers are signed 64 bit.

A processor that reads globals has one kind of choice more, and a marker that has their positions: each of a
format of its own, so that an older version refuses them. So have the markers of processors with event time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.core.engine.declared.global_tables import LIMIT_GLOBALS
from holdfast.core.engine.declared.sources import LIMIT_SOURCES
from holdfast.core.engine.state.codec import (
    EVENT_MARKER_FORMAT,
    FORMAT,
    NOTHING_APPLIED,
    ORIGIN_MARKER_FORMAT,
    EventMarker,
    Marker,
    OriginMarker,
)
from holdfast.core.engine.state.global_rows import Vector
from holdfast.core.engine.state.timers import NEVER
from holdfast.core.untrusted import UNFIT
from holdfast.errors import ChangelogError, ChoicesError

CHOICE_FORMAT = 1
GLOBALS_CHOICE_FORMAT = 2
ORDERED_CHOICE_FORMAT = 3
ORDERED_GLOBALS_CHOICE_FORMAT = 4
MARKER_FORMAT = 2
GLOBALS_MARKER_FORMAT = 3
TIMED_MARKER_FORMAT = 5
TIMED_GLOBALS_MARKER_FORMAT = 6
ORDERED_MARKER_FORMAT = 7
SOURCE_BITS = 3
SOURCE_MASK = (1 << SOURCE_BITS) - 1
assert SOURCE_MASK + 1 == LIMIT_SOURCES

_Count = Annotated[int, Meta(ge=0)]
_Offsets = Annotated[tuple[Annotated[int, Meta(ge=-1)], ...], Meta(min_length=1, max_length=LIMIT_SOURCES)]
_Vectors = Annotated[
    tuple[tuple[Annotated[int, Meta(ge=-1)], ...], ...], Meta(min_length=1, max_length=LIMIT_GLOBALS)
]
_Times = Annotated[tuple[int, ...], Meta(min_length=1, max_length=LIMIT_SOURCES)]
_ByEvent = Annotated[int, Meta(gt=0, lt=1 << LIMIT_SOURCES)]


class Choice(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A decision: fold up to *applied*, the last offset of each source (-1 for none), before anything else;
    then, unless it is None, the clock says *tick_ms*.

    *sources* is the fingerprint of the sources' names in order, without which offsets mean nothing.
    """

    format: int = CHOICE_FORMAT
    number: _Count
    sources: int
    applied: _Offsets
    tick_ms: int | None = None


class GlobalsChoice(Choice, frozen=True, array_like=True, kw_only=True):
    """A decision: fold up to *applied*, before anything else; then the globals are at *globals*: for each
    that the processor reads, in their order, the last offset applied of each partition.
    """

    globals: _Vectors


class OrderedChoice(Choice, frozen=True, array_like=True, kw_only=True):
    """A choice before which records were ordered by their own times: those of the sources whose bits are set
    in *by_event*, bit 0 for the first; those of the others by append time.
    """

    by_event: _ByEvent


class OrderedGlobalsChoice(GlobalsChoice, frozen=True, array_like=True, kw_only=True):
    """A choice of globals before which records were ordered as before an `OrderedChoice`."""

    by_event: _ByEvent


class VectorMarker(msgspec.Struct, frozen=True, array_like=True):
    """The position of a partition's state over several sources: everything up to *applied*, the last offset
    of each, is in it.

    It is stored under the key of `Marker`, closes each transaction as that does, and has its *format* at the
    same index, which distinguishes them. *reached_ms* are the highest append times applied of each source,
    -1 before any; *last* is the source of the last record folded, -1 when anything may come next: at the
    beginning and after a choice. *tick_ms* is the latest tick, and *choices* the number of the next choice.
    """

    applied: _Offsets
    stream_ms: int
    version: int
    format: int
    reached_ms: _Times
    last: Annotated[int, Meta(ge=-1, lt=LIMIT_SOURCES)]
    tick_ms: int
    choices: _Count
    sources: int

    @property
    def last_key(self) -> int:
        """Return the canonical key of the last record folded: no record with a lower key can follow it
        without a choice.
        """
        return LOWEST if self.last < 0 else canonical(ordered_of(self)[self.last], self.last)


class GlobalsMarker(VectorMarker, frozen=True, array_like=True, kw_only=True):
    """The position of a processor that reads globals: *globals* are the positions at which its last record
    saw them.
    """

    globals: _Vectors


class TimedMarker(VectorMarker, frozen=True, array_like=True, kw_only=True):
    """The position of a processor with event time: *event_ms* is the highest event time of the applied
    records.
    """

    event_ms: int


class TimedGlobalsMarker(GlobalsMarker, frozen=True, array_like=True, kw_only=True):
    """The position of a processor that reads globals and has event time."""

    event_ms: int


class OrderedMarker(VectorMarker, frozen=True, array_like=True, kw_only=True):
    """The position of a processor whose records, since the last choice, were ordered by the own times of the
    sources in *by_event*; *ordered_ms* are the highest of each since then, -1 before any.

    *globals* and *event_ms* are those of the other markers: () and None of a processor that has none.
    *origins* are the watermarks by which event time passes downstream of steps, see `EventClock`; a marker
    that has them is of this format even where *by_event* is 0, and *ordered_ms* are append times then.
    """

    by_event: Annotated[int, Meta(ge=0, lt=1 << LIMIT_SOURCES)]
    ordered_ms: _Times
    globals: Annotated[
        tuple[tuple[Annotated[int, Meta(ge=-1)], ...], ...], Meta(max_length=LIMIT_GLOBALS)
    ] = ()
    event_ms: int | None = None
    origins: bytes | None = None


def globals_of(marker: VectorMarker) -> tuple[Vector, ...]:
    """Return the positions of the globals that are read, in their order; none of a processor that reads
    none.
    """
    return marker.globals if isinstance(marker, GlobalsMarker | OrderedMarker) else ()


def by_event_of(recorded: VectorMarker | Choice) -> int:
    """Return the bits of the sources by whose event times the records before were ordered, since the choice
    before; 0 where all were by append time.
    """
    if isinstance(recorded, OrderedMarker | OrderedChoice | OrderedGlobalsChoice):
        return recorded.by_event
    return 0


def ordered_of(marker: VectorMarker) -> tuple[int, ...]:
    """Return the highest time of each source by which its records are ordered; see `OrderedMarker`."""
    return marker.ordered_ms if isinstance(marker, OrderedMarker) else marker.reached_ms


def origins_in(position: Marker | VectorMarker) -> bytes | None:
    """Return the watermarks by which event time passes downstream of steps; None before the first of them."""
    return position.origins if isinstance(position, OriginMarker | OrderedMarker) else None


def choice_of(
    number: int,
    sources: int,
    applied: Sequence[int],
    *,
    tick_ms: int | None = None,
    vectors: tuple[Vector, ...] | None = None,
    by_event: int = 0,
) -> Choice:
    """Return a choice of the format that says what it has to: of globals where there are *vectors*."""
    told: dict[str, Any] = {"number": number, "sources": sources, "applied": tuple(applied)}
    if vectors is None:
        if not by_event:
            return Choice(**told, tick_ms=tick_ms)
        return OrderedChoice(**told, format=ORDERED_CHOICE_FORMAT, tick_ms=tick_ms, by_event=by_event)
    if not by_event:
        return GlobalsChoice(**told, format=GLOBALS_CHOICE_FORMAT, globals=vectors)
    return OrderedGlobalsChoice(
        **told, format=ORDERED_GLOBALS_CHOICE_FORMAT, globals=vectors, by_event=by_event
    )


def event_ms_of(position: Marker | VectorMarker) -> int | None:
    """Return the event time of a position, -NEVER (-2**62) before any; None of a processor that has none."""
    if isinstance(position, EventMarker | TimedMarker | TimedGlobalsMarker | OrderedMarker):
        return position.event_ms
    return None


LOWEST = -1 << 63
"""Below every canonical key."""


def canonical(reached_ms: int, source: int) -> int:
    """Return the key by which records are ordered between choices; offsets order equal ones of one source.

    >>> canonical(5, 1) < canonical(6, 0) < canonical(6, 1)
    True
    """
    return reached_ms << SOURCE_BITS | source


def beginning(
    sources: int, width: int, version: int, reads: int = 0, *, has_event_time: bool = False
) -> VectorMarker:
    """Return the position before the first record of *width* sources, with *reads* globals."""
    nothing, unseen = (NOTHING_APPLIED,) * width, ((),) * reads
    told = ((-1,) * width, -1, -NEVER, 0, sources)
    if not has_event_time:
        if not reads:
            return VectorMarker(nothing, -1, version, MARKER_FORMAT, *told)
        return GlobalsMarker(nothing, -1, version, GLOBALS_MARKER_FORMAT, *told, globals=unseen)
    if not reads:
        return TimedMarker(nothing, -1, version, TIMED_MARKER_FORMAT, *told, event_ms=-NEVER)
    start = (nothing, -1, version, TIMED_GLOBALS_MARKER_FORMAT, *told)
    return TimedGlobalsMarker(*start, globals=unseen, event_ms=-NEVER)


_encode = msgspec.msgpack.Encoder().encode
_decode_choice = msgspec.msgpack.Decoder(Choice).decode
_decode_further: dict[int, Callable[[bytes], Choice]] = {
    GLOBALS_CHOICE_FORMAT: msgspec.msgpack.Decoder(GlobalsChoice).decode,
    ORDERED_CHOICE_FORMAT: msgspec.msgpack.Decoder(OrderedChoice).decode,
    ORDERED_GLOBALS_CHOICE_FORMAT: msgspec.msgpack.Decoder(OrderedGlobalsChoice).decode,
}
_decode_marker: dict[int, Callable[[bytes], VectorMarker]] = {
    MARKER_FORMAT: msgspec.msgpack.Decoder(VectorMarker).decode,
    GLOBALS_MARKER_FORMAT: msgspec.msgpack.Decoder(GlobalsMarker).decode,
    TIMED_MARKER_FORMAT: msgspec.msgpack.Decoder(TimedMarker).decode,
    TIMED_GLOBALS_MARKER_FORMAT: msgspec.msgpack.Decoder(TimedGlobalsMarker).decode,
    ORDERED_MARKER_FORMAT: msgspec.msgpack.Decoder(OrderedMarker).decode,
}
_decode_any = msgspec.msgpack.Decoder(list[Any]).decode


def encode_choice(choice: Choice) -> bytes:
    """Return the value of a record of the choices topic; its key is None."""
    return _encode(choice)


def decode_choice(value: bytes | None) -> Choice:
    """Return the choice in *value*; raises ChoicesError for bytes that no worker of this format wrote."""
    if value is None:
        raise ChoicesError("choice without a value: nobody may delete choices, they are part of the log")
    try:
        choice = _decode_choice(value)
        if (decode := _decode_further.get(choice.format)) is not None:
            return decode(value)
    except UNFIT as error:
        _check_format(value)
        raise ChoicesError(
            f"choice is malformed ({error}): this topic does not hold the choices of a processor"
        ) from error
    if choice.format != CHOICE_FORMAT:
        raise _newer(choice.format)
    return choice


def _check_format(value: bytes) -> None:
    """Raise ChoicesError when *value* is an array with another format."""
    try:
        told = _decode_any(value)[0]
    except (*UNFIT, IndexError):
        return
    if type(told) is int and told > ORDERED_GLOBALS_CHOICE_FORMAT:
        raise _newer(told)


def _newer(told: int) -> ChoicesError:
    return ChoicesError(
        f"choice of format {told}, this version reads {CHOICE_FORMAT} to {ORDERED_GLOBALS_CHOICE_FORMAT}:"
        " upgrade the workers"
    )


def encode_vector_marker(marker: VectorMarker) -> bytes:
    """Return the value of the position marker."""
    return _encode(marker)


def decode_vector_marker(value: bytes) -> VectorMarker:
    """Return the marker in *value*; raises ChangelogError for bytes that no worker of this format wrote for a
    processor of several sources.
    """
    try:
        told: Sequence[Any] = _decode_any(value)
        kind = told[3] if len(told) > 3 else None
        decode = _decode_marker.get(kind) if type(kind) is int else None
        marker = None if decode is None else decode(value)
    except UNFIT as error:
        raise ChangelogError(
            f"position marker is malformed ({error}): this topic is not a changelog of holdfast"
        ) from error
    if kind in (FORMAT[0], EVENT_MARKER_FORMAT, ORIGIN_MARKER_FORMAT):
        raise ChangelogError(
            "position marker of a processor with one source, this one is declared with on=: raise its version"
        )
    if marker is None:
        raise ChangelogError(
            f"position marker of format {kind!r:.80}, this version reads {MARKER_FORMAT},"
            f" {GLOBALS_MARKER_FORMAT} and {TIMED_MARKER_FORMAT} to {ORDERED_MARKER_FORMAT} here: upgrade the"
            " workers"
        )
    lengths = {len(marker.applied), len(marker.reached_ms), len(ordered_of(marker))}
    if len(lengths) > 1 or marker.last >= len(marker.applied):
        raise ChangelogError(
            f"position marker is malformed ({len(marker.applied)} offsets, {len(marker.reached_ms)} times, "
            f"last source {marker.last}): this topic is not a changelog of holdfast"
        )
    return marker
