"""Where a partition's state stands in its sources, for whoever keeps or tells that and need not know how many
sources there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.core.engine.choices import VectorMarker, decode_vector_marker, encode_vector_marker
from holdfast.core.engine.codec import NOTHING_APPLIED, Marker, decode_marker, encode_marker
from holdfast.core.engine.merging_folder import start_of
from holdfast.core.engine.processor import Processor
from holdfast.errors import ChainError

Position: TypeAlias = Marker | VectorMarker
"""The marker that closes each transaction: of one source, or of several."""


@dataclass(frozen=True, slots=True)
class PositionFormat:
    """How the position of a table is written, and the one before any record."""

    start: Position
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Position]


def of_one_source(version: int, sources: int = 0) -> PositionFormat:
    """Return the format of a table of one source; *sources* is its processor's lineage."""
    start = Marker(NOTHING_APPLIED, -1, version, sources=sources)
    return PositionFormat(start, encode_marker, decode_marker)


def position_format(processor: Processor[Any, Any]) -> PositionFormat:
    """Return the format of the table of *processor*. A position in an internal topic of another version is a ChainError: its
    offsets mean nothing in this one, and what this one holds is in the state already.
    """
    if processor.on is None:
        found = of_one_source(processor.version, processor.lineage)
    else:
        found = PositionFormat(start_of(processor), encode_vector_marker, decode_vector_marker)
    if not processor.internal:
        return found

    def decode(value: bytes) -> Position:
        marker = found.decode(value)
        if marker.sources != processor.lineage:
            raise ChainError(
                f"table {processor.table} was folded from another version of {', '.join(processor.topics)}, and would take in again what it has: "
                f"raise {processor.name} to version {processor.version + 1}, and with it those that read what it emits"
            )
        return marker

    return PositionFormat(found.start, found.encode, decode)


def offsets_of(position: Position) -> tuple[int, ...]:
    """Return the last offset applied of each source, -1 for none."""
    return (position.applied,) if isinstance(position, Marker) else position.applied


def counted(offsets: Sequence[int]) -> int:
    """Return one number for how far a state is: the last offset of its source or, of several, how many offsets
    of all of them are in it, less one. It never goes back, and the same sum of ends less it is the lag.

    >>> counted((7,)), counted((7, 2)), counted((-1, -1))
    (7, 10, -1)
    """
    return sum(offsets) + len(offsets) - 1
