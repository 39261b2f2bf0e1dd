"""A partition's position in its sources, for code that does not depend on the number of sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.merge.choices import (
    VectorMarker,
    decode_vector_marker,
    encode_vector_marker,
    event_ms_of,
)
from holdfast.core.engine.merge.merging_folder import start_of
from holdfast.core.engine.state.codec import (
    EVENT_MARKER_FORMAT,
    NOTHING_APPLIED,
    EventMarker,
    Marker,
    decode_marker,
    encode_marker,
)
from holdfast.core.engine.state.timers import NEVER
from holdfast.errors import ChainError, ChangelogError

Position: TypeAlias = Marker | VectorMarker
"""The marker that closes each transaction: an offset of one source, or a vector with one of each source."""


@dataclass(frozen=True, slots=True)
class PositionFormat:
    """The stored form of the position of a table, and the position before any record."""

    start: Position
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Position]


def of_one_source(version: int, sources: int = 0) -> PositionFormat:
    """Return the format of a table of one source without event time; *sources* is its processor's lineage."""
    start = Marker(NOTHING_APPLIED, -1, version, sources=sources)
    return PositionFormat(start, encode_marker, partial(_timed_alike, start, decode_marker))


def _timed_alike(start: Position, decode: Callable[[bytes], Position], value: bytes) -> Position:
    """Return the position in *value*; ChangelogError unless it has event time as *start* has.

    It cannot be guessed: a replay under the declaration of today would come to this offset with another event
    time.
    """
    marker = decode(value)
    if (event_ms_of(marker) is None) != (event_ms_of(start) is None):
        has, says = (
            ("without event time", "this one is declared with on_event=")
            if event_ms_of(marker) is None
            else ("with event time", "this one is declared without on_event=")
        )
        raise ChangelogError(f"position marker of a processor {has}, {says}: raise its version")
    return marker


def start_of_one(processor: Processor[Any, Any]) -> Marker:
    """Return the position of an empty table of a processor of one source."""
    start = (NOTHING_APPLIED, -1, processor.version)
    if not processor.has_event_time:
        return Marker(*start, sources=processor.lineage)
    return EventMarker(*start, EVENT_MARKER_FORMAT, processor.lineage, event_ms=-NEVER)


def position_format(processor: Processor[Any, Any]) -> PositionFormat:
    """Return the format of the table of *processor*. A position in an internal topic of another version is a
    ChainError: its offsets mean nothing in this one, and what this one holds is in the state already.
    """
    found = stored_format(processor)
    if not processor.internal:
        return found

    def decode(value: bytes) -> Position:
        marker = found.decode(value)
        if marker.sources != found.start.sources:
            raise ChainError(
                f"table {processor.table} was folded from another version of {', '.join(processor.topics)},"
                f" and would take in again what it has: raise {processor.name} to version"
                f" {processor.version + 1}, and with it those that read what it emits"
            )
        return marker

    return PositionFormat(found.start, found.encode, decode)


def stored_format(processor: Processor[Any, Any]) -> PositionFormat:
    """Return the format of the table of *processor*, for a reader that continues from no position of it."""
    start: Position
    if processor.on is None:
        start = start_of_one(processor)
        return PositionFormat(start, encode_marker, partial(_timed_alike, start, decode_marker))
    start = start_of(processor)
    return PositionFormat(start, encode_vector_marker, partial(_timed_alike, start, decode_vector_marker))


def earlier_format(processor: Processor[Any, Any]) -> PositionFormat:
    """Return the format for a reader of the table in an earlier version, which had as many sources, and
    may have had event time where this one has none; ChangelogError for a position in more or fewer.
    """
    start = stored_format(processor).start

    def decode(value: bytes) -> Position:
        try:
            found: Position = decode_marker(value)
        except ChangelogError:
            found = decode_vector_marker(value)
        if len(offsets_of(found)) != len(processor.topics):
            raise ChangelogError(
                f"table {processor.table} was folded from {len(offsets_of(found))} sources, and"
                f" {processor.name} folds {len(processor.topics)}: give the processor another name"
            )
        return found

    return PositionFormat(start, _encode_either, decode)


def _encode_either(position: Position) -> bytes:
    return encode_vector_marker(position) if isinstance(position, VectorMarker) else encode_marker(position)


def told_position(position: Position) -> bytes:
    """Return a position as stored, for replies that also have offset and stream time: empty where these are
    all of it.
    """
    if isinstance(position, VectorMarker):
        return encode_vector_marker(position)
    return encode_marker(position) if isinstance(position, EventMarker) else b""


def offsets_of(position: Position) -> tuple[int, ...]:
    """Return the last offset applied of each source, -1 for none."""
    return (position.applied,) if isinstance(position, Marker) else position.applied


def choices_of(position: Position) -> int:
    """Return the number of the next choice; 0 of one source, which has none."""
    return 0 if isinstance(position, Marker) else position.choices


def goes_back(before: Position, now: Position) -> bool:
    """Return whether *now* lies before *before* in any source or, with several sources, in the choices; False
    for the beginning: a table may be built again.

    >>> goes_back(Marker(7, 1, 1), Marker(5, 1, 1)), goes_back(Marker(7, 1, 1), Marker(-1, -1, 1))
    (True, False)
    """
    if counted(offsets_of(now)) == NOTHING_APPLIED:
        return False
    if any(new < old for new, old in zip(offsets_of(now), offsets_of(before), strict=False)):
        return True
    return isinstance(before, VectorMarker) and isinstance(now, VectorMarker) and now.choices < before.choices


def counted(offsets: Sequence[int]) -> int:
    """Return the progress of a state as one number: the last offset of its source or, with several sources,
    the number of their offsets in it, less one. It never decreases, and the same sum of end offsets less it
    is the lag.

    >>> counted((7,)), counted((7, 2)), counted((-1, -1))
    (7, 10, -1)
    """
    return sum(offsets) + len(offsets) - 1
