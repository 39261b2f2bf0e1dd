"""The position that a fold has come to, in a summary and as a worker would store it."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, structs

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.positions import (
    Position,
    counted,
    encode_position,
    offsets_by_topic,
    stored_format,
)
from holdfast.pipeline.folds.result_rows import FoldSummary, told_event_time, told_watermarks


def summary_at(
    processor: Processor[Any, Any], position: Position, watermarks: bytes | None, **counts: Any
) -> FoldSummary:
    """Return the summary of a partition at *position*, with *watermarks*, a step's note, and *counts*."""
    told: dict[str, Any] = {}
    if sources := offsets_by_topic(processor, position):
        told |= {"sources": sources, "choices": position.choices}
    if sources or position.origins is not None:
        told["position"] = b64encode(encode_position(position)).decode()
    return FoldSummary(
        applied=counted(position.applied),
        stream_ms=position.stream_ms,
        **told,
        **told_event_time(position.event_ms),
        **told_watermarks(watermarks),
        **counts,
    )


def position_of(processor: Processor[Any, Any], summary: FoldSummary) -> Position:
    """Return the position of a partition's *summary*."""
    positions = stored_format(processor)
    if summary.position:
        return positions.decode(b64decode(summary.position))
    if processor.named_sources:
        return positions.start
    moved = structs.replace(positions.start, applied=(summary.applied,), stream_ms=summary.stream_ms)
    return moved if summary.event_ms is UNSET else structs.replace(moved, event_ms=summary.event_ms)


def offsets_by_source(topics: Sequence[str], summary: FoldSummary) -> dict[str, int]:
    """Return the last offset of each of *topics* that is in a partition's state."""
    if isinstance(summary.sources, dict):
        return summary.sources
    return dict.fromkeys(topics, summary.applied)
