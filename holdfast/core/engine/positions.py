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

Position: TypeAlias = Marker | VectorMarker
"""The marker that closes each transaction: of one source, or of several."""


@dataclass(frozen=True, slots=True)
class PositionFormat:
    """How the position of a table is written, and the one before any record."""

    start: Position
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Position]


def of_one_source(version: int) -> PositionFormat:
    """Return the format of a table of one source."""
    return PositionFormat(Marker(NOTHING_APPLIED, -1, version), encode_marker, decode_marker)


def position_format(processor: Processor[Any, Any]) -> PositionFormat:
    """Return the format of the table of *processor*."""
    if processor.on is None:
        return of_one_source(processor.version)
    return PositionFormat(start_of(processor), encode_vector_marker, decode_vector_marker)


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
