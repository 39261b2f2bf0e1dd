"""The position of a partition's state in its sources, and every form in which it is stored.

A marker closes each transaction of a changelog, under the key `00 applied`. It is an array of MessagePack,
with its format at index 3. All integers are signed 64 bit. `source=` writes formats 1, 4 and 8, `on=` the
others:

| format | fields |
|---|---|
| 1 | offset, stream_ms, version, format, and sources unless that is 0; read without format too |
| 4, 8 | those of 1 with sources, event_ms; 8 has origins too |
| 2 | offsets, stream_ms, version, format, reached_ms, last, tick_ms, choices, sources |
| 3, 5, 6 | those of 2; globals; event_ms; both |
| 7 | those of 2, by_event, ordered_ms, globals, event_ms, origins |

Only this module knows that there are two families. An older version refuses a format that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from holdfast.core.engine.declared.global_tables import LIMIT_GLOBALS
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.sources import LIMIT_SOURCES
from holdfast.core.engine.state.codec import NOTHING_APPLIED
from holdfast.core.engine.state.timers import NEVER
from holdfast.core.untrusted import UNFIT
from holdfast.errors import ChainError, ChangelogError, ConfigError

NO_TIME = -1
"""The time of a record without an event time: it follows the one before it in its log at once."""

_Offsets = Annotated[tuple[Annotated[int, Meta(ge=-1)], ...], Meta(min_length=1, max_length=LIMIT_SOURCES)]
_Times = Annotated[tuple[int, ...], Meta(max_length=LIMIT_SOURCES)]
_Vectors = Annotated[tuple[tuple[Annotated[int, Meta(ge=-1)], ...], ...], Meta(max_length=LIMIT_GLOBALS)]

NamedOffsets: TypeAlias = int | Mapping[str, int]
"""Offsets as users write and read them: of `source=` one, of `on=` one by topic."""


class Position(msgspec.Struct, frozen=True):
    """The position of a partition's state: everything up to *applied*, the last offset of each source, is in
    it (-1 before any).

    *stream_ms* is the highest append time of the applied records, and *event_ms* their highest event time,
    None where there is no event time. *origins* are the watermarks by which event time passes downstream of
    steps, see `EventClock`; None before the first of them.

    Where choices record the order of sources, *reached_ms* are the highest append times applied of each, -1
    before any, and *last* is the source of the last record folded, -1 when anything may come next: at the
    beginning and after a choice. *tick_ms* is the latest tick, and *choices* the number of the next choice.
    Elsewhere *reached_ms* is empty, and the others stay as they are at the beginning.

    The records since the last choice were ordered by the event times of the sources whose bits are set in
    *by_event*, bit 0 for the first; *ordered_ms* are the highest of each since then, empty without any.
    *globals* are the positions at which the last record saw the global tables that are read. *sources*
    distinguishes positions that count other logs: see `Processor.numbering`.
    """

    applied: _Offsets
    stream_ms: int
    version: int
    reached_ms: _Times = ()
    last: Annotated[int, Meta(ge=-1, lt=LIMIT_SOURCES)] = -1
    tick_ms: int = -NEVER
    choices: Annotated[int, Meta(ge=0)] = 0
    sources: int = 0
    by_event: Annotated[int, Meta(ge=0, lt=1 << LIMIT_SOURCES)] = 0
    ordered_ms: _Times = ()
    globals: _Vectors = ()
    event_ms: int | None = None
    origins: bytes | None = None

    @property
    def order_ms(self) -> tuple[int, ...]:
        """Return the highest time of each source by which its records are ordered."""
        return self.ordered_ms or self.reached_ms


# -- markers

_COUNTED = ("applied", "stream_ms", "version", "format")
_ORDERED = (*_COUNTED, "reached_ms", "last", "tick_ms", "choices", "sources")
_FIELDS: dict[int, tuple[str, ...]] = {
    1: (*_COUNTED, "sources"),
    4: (*_COUNTED, "sources", "event_ms"),
    8: (*_COUNTED, "sources", "event_ms", "origins"),
    2: _ORDERED,
    3: (*_ORDERED, "globals"),
    5: (*_ORDERED, "event_ms"),
    6: (*_ORDERED, "globals", "event_ms"),
    7: (*_ORDERED, "by_event", "ordered_ms", "globals", "event_ms", "origins"),
}
_OF_ONE = (1, 4, 8)
_MAY_LACK = {1: {"format", "sources"}, 7: {"globals", "event_ms", "origins"}}
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


def _format_of(position: Position) -> int:
    if not position.reached_ms:
        return 1 if position.event_ms is None else 4 if position.origins is None else 8
    if position.by_event or position.origins is not None:
        return 7
    if position.event_ms is None:
        return 3 if position.globals else 2
    return 6 if position.globals else 5


def encode_position(position: Position) -> bytes:
    """Return the value of the position marker."""
    kind = _format_of(position)
    given: dict[str, Any] = {"format": kind, "applied": position.applied, "ordered_ms": position.order_ms}
    fields = _FIELDS[kind]
    if kind in _OF_ONE:
        (given["applied"],) = position.applied
    if kind == 1 and not position.sources:
        fields = _COUNTED
    return _encode([given[name] if name in given else getattr(position, name) for name in fields])


def decode_position(value: bytes) -> Position:
    """Return the position in the marker *value*; raises ChangelogError for bytes that no holdfast worker of
    this format wrote.
    """
    try:
        read = _decode(value)
        kind = 1 if len(read) == 3 else read[3]
        if type(kind) is not int:
            raise TypeError(f"format {kind!r:.80}")
        if kind not in _FIELDS:
            raise ChangelogError(
                f"position marker of format {kind}, this version reads {min(_FIELDS)} to {max(_FIELDS)}:"
                " upgrade the workers"
            )
        return _position_of(kind, dict(zip(_FIELDS[kind], read, strict=False)))
    except (*UNFIT, IndexError, KeyError, TypeError) as error:
        raise ChangelogError(
            f"position marker is malformed ({error}): this topic is not a changelog of holdfast"
        ) from error


def _position_of(kind: int, read: dict[str, Any]) -> Position:
    may_lack = _MAY_LACK.get(kind, set())
    for name in _FIELDS[kind]:
        if name not in may_lack and (read.get(name) is None or (name == "globals" and not read[name])):
            raise TypeError(f"format {kind} without {name}")
    if kind in _OF_ONE:
        read["applied"] = (read["applied"],)
    read.pop("format", None)
    position = msgspec.convert(read, Position)
    widths = {len(position.applied)}
    if kind not in _OF_ONE:
        widths |= {len(position.reached_ms), len(position.ordered_ms if kind == 7 else position.reached_ms)}
    if len(widths) > 1 or position.last >= len(position.applied):
        raise TypeError(
            f"{len(position.applied)} offsets, {len(position.reached_ms)} times, last source {position.last}"
        )
    return position if position.by_event or not position.ordered_ms else replace(position, ordered_ms=())


# -- positions of a table


@dataclass(frozen=True, slots=True)
class PositionFormat:
    """The stored form of the position of a table, and the position before any record."""

    start: Position
    decode: Callable[[bytes], Position]


def start_of(processor: Processor[Any, Any]) -> Position:
    """Return the position of an empty table of *processor*."""
    event_ms = -NEVER if processor.has_event_time else None
    if not processor.named_sources:
        return replace(plain_start(processor.version, processor.numbering), event_ms=event_ms)
    return replace(
        ordered_start(processor.numbering, len(processor.topics), processor.version, len(processor.reads)),
        event_ms=event_ms,
    )


def moved_to(start: Position, applied: Sequence[int], times_ms: Sequence[int]) -> Position:
    """Return *start* with its sources read up to *applied*, whose highest append times are *times_ms*. Any of
    them may come next.
    """
    reached_ms = tuple(times_ms) if start.reached_ms else ()
    return replace(start, applied=tuple(applied), stream_ms=max(times_ms), reached_ms=reached_ms)


def plain_start(version: int, sources: int = 0) -> Position:
    """Return the position before the first record of one source whose order is that of its log."""
    return Position(applied=(NOTHING_APPLIED,), stream_ms=-1, version=version, sources=sources)


def ordered_start(sources: int, width: int, version: int, reads: int = 0) -> Position:
    """Return the position before the first record of *width* sources whose order choices record, with *reads*
    globals.
    """
    return Position(
        applied=(NOTHING_APPLIED,) * width,
        stream_ms=-1,
        version=version,
        reached_ms=(NO_TIME,) * width,
        sources=sources,
        globals=((),) * reads,
    )


def plain_format(version: int, sources: int = 0) -> PositionFormat:
    """Return the format of a table of one source without event time; *sources* is its processor's lineage."""
    return format_of(plain_start(version, sources))


def format_of(start: Position) -> PositionFormat:
    """Return the format of a table whose position before any record is *start*."""
    return PositionFormat(start, partial(_decode_like, start))


def _decode_like(start: Position, value: bytes) -> Position:
    """Return the position in *value*; ChangelogError unless it is of the kind of *start*.

    Event time cannot be guessed: a replay under the declaration of today would come to this offset with
    another event time.
    """
    found = decode_position(value)
    if bool(found.reached_ms) != bool(start.reached_ms):
        has, says = ("with several sources", "source=") if found.reached_ms else ("with one source", "on=")
        raise ChangelogError(
            f"position marker of a processor {has}, this one is declared with {says}: raise its version"
        )
    if (found.event_ms is None) != (start.event_ms is None):
        has, says = (
            ("without event time", "this one is declared with on_event=")
            if found.event_ms is None
            else ("with event time", "this one is declared without on_event=")
        )
        raise ChangelogError(f"position marker of a processor {has}, {says}: raise its version")
    return found


def position_format(processor: Processor[Any, Any]) -> PositionFormat:
    """Return the format of the table of *processor*. A position in an internal topic of another version is a
    ChainError: its offsets mean nothing in this one, and what this one holds is in the state already.
    """
    found = stored_format(processor)
    if not processor.internal:
        return found

    def decode(value: bytes) -> Position:
        position = found.decode(value)
        if position.sources != found.start.sources:
            raise ChainError(
                f"table {processor.table} was folded from another version of {', '.join(processor.topics)},"
                f" and would take in again what it has: raise {processor.name} to version"
                f" {processor.version + 1}, and with it those that read what it emits"
            )
        return position

    return PositionFormat(found.start, decode)


def stored_format(processor: Processor[Any, Any]) -> PositionFormat:
    """Return the format of the table of *processor*, for a reader that continues from no position of it."""
    return format_of(start_of(processor))


def earlier_format(processor: Processor[Any, Any]) -> PositionFormat:
    """Return the format for a reader of the table in an earlier version, which had as many sources, and
    may have had event time where this one has none; ChangelogError for a position in more or fewer.
    """

    def decode(value: bytes) -> Position:
        found = decode_position(value)
        if len(found.applied) != len(processor.topics):
            raise ChangelogError(
                f"table {processor.table} was folded from {len(found.applied)} sources, and"
                f" {processor.name} folds {len(processor.topics)}: give the processor another name"
            )
        return found

    return PositionFormat(start_of(processor), decode)


# -- what others are shown


def reply_position(position: Position) -> bytes:
    """Return a position as stored, for replies that also have offset and stream time: empty where these are
    all of it.
    """
    return b"" if _format_of(position) == 1 else encode_position(position)


def position_in_reply(
    processor: Processor[Any, Any], stored: bytes, applied: int, stream_ms: int
) -> Position:
    """Return the position of a reply: *stored* is that of `reply_position`."""
    if stored:
        return position_format(processor).decode(stored)
    return Position(applied=(applied,), stream_ms=stream_ms, version=processor.version)


def offsets_by_topic(processor: Processor[Any, Any], position: Position) -> dict[str, int]:
    """Return the last offset applied by topic, of the sources that users name; empty with `source=`, where
    one offset is all there is.
    """
    offsets = dict(zip(processor.topics, position.applied, strict=True))
    return {topic: offsets[topic] for topic in processor.named_sources}


def named_offsets(processor: Processor[Any, Any], position: Position) -> NamedOffsets:
    """Return the last offset applied as users write it: by topic, or as one number with `source=`."""
    return offsets_by_topic(processor, position) or counted(position.applied)


def offsets_form(processor: Processor[Any, Any]) -> str:
    """Return how users write offsets of *processor*."""
    return "TOPIC:OFFSET" if processor.named_sources else "OFFSET"


def by_topic(processor: Processor[Any, Any], given: NamedOffsets) -> dict[str, int]:
    """Return the offsets that users gave by topic; ConfigError unless they name the sources where they have
    to.
    """
    topics, named = processor.topics, processor.named_sources
    if isinstance(given, int) and not named:
        return {topics[0]: given}
    if isinstance(given, int) or not named:
        example = f", {topics[0]}:4711" if named else ""
        raise ConfigError(
            f"processor {processor.name} folds {', '.join(topics)}; write {offsets_form(processor)}{example}"
        )
    return dict(given)


def goes_back(before: Position, now: Position) -> bool:
    """Return whether *now* lies before *before* in any source or in the choices; False for the beginning: a
    table may be built again.

    >>> start = plain_start(1)
    >>> at, before = replace(start, applied=(7,)), replace(start, applied=(5,))
    >>> goes_back(at, before), goes_back(at, start)
    (True, False)
    """
    if counted(now.applied) == NOTHING_APPLIED:
        return False
    if any(new < old for new, old in zip(now.applied, before.applied, strict=False)):
        return True
    return now.choices < before.choices


def counted(offsets: Sequence[int]) -> int:
    """Return the progress of a state as one number: the last offset of its source or, with several sources,
    the number of their offsets in it, less one. It never decreases, and the same sum of end offsets less it
    is the lag.

    >>> counted((7,)), counted((7, 2)), counted((-1, -1))
    (7, 10, -1)
    """
    return sum(offsets) + len(offsets) - 1
