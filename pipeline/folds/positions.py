"""The position that a replay has come to, as a worker would store it."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from msgspec import UNSET, structs

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.positions import Position, stored_format
from holdfast.pipeline.folds.folding import FoldSummary


def position_of(processor: Processor[Any, Any], summary: FoldSummary) -> Position:
    """Return the position of a partition's *summary*."""
    positions = stored_format(processor)
    if summary.position:
        return positions.decode(b64decode(summary.position))
    if processor.named_sources:
        return positions.start
    moved = structs.replace(positions.start, applied=(summary.applied,), stream_ms=summary.stream_ms)
    return moved if summary.event_ms is UNSET else structs.replace(moved, event_ms=summary.event_ms)
