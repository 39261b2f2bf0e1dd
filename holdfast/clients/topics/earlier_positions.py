"""The positions of earlier versions of a table in its sources: up to there they have emitted everything that
it would emit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.chain_state import last_positions
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.positions import Position, counted, earlier_format, stored_format
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import ChangelogError


def earlier_positions(
    settings: Settings, places: Iterable[tuple[Processor[Any, Any], int]]
) -> dict[Place, Position | None]:
    """Return, by processor's name and partition, the furthest position of all earlier versions, None where
    they have no changelog.

    One that was silent itself has not emitted what the one before it had, so all count. Blocks; raises
    ChangelogError for a position that says nothing of the processor.
    """
    wanted, counts = list(places), Admin(settings).partition_counts()
    topics = {processor.name: _earlier(settings.app, processor, counts) for processor, _ in wanted}
    found = last_positions(
        settings,
        [(topic, at) for processor, at in wanted for topic in topics[processor.name] if at < counts[topic]],
    )
    out: dict[Place, Position | None] = {}
    for processor, at in wanted:
        stood = [found.get((topic, at)) for topic in topics[processor.name]]
        known = [_stood(processor, value) for value in stood if value is not None]
        start = [stored_format(processor).start] if topics[processor.name] else []
        # All versions fold the same records in the same order.
        furthest = max([*start, *known], key=_progress, default=None)
        out[processor.name, at] = furthest
    return out


def _earlier(app: str, processor: Processor[Any, Any], counts: Mapping[str, int]) -> list[str]:
    """Return the changelogs of all earlier versions."""
    pattern = re.compile(re.escape(f"{app}-{processor.name}.v") + r"([1-9][0-9]{0,8})-changelog")
    return [
        topic
        for topic in counts
        if (match := pattern.fullmatch(topic)) is not None and int(match[1]) < processor.version
    ]


def _progress(position: Position) -> tuple[int, int]:
    return position.choices, counted(position.applied)


def _stood(processor: Processor[Any, Any], value: bytes) -> Position:
    """Return the position in *value*."""
    try:
        found = earlier_format(processor).decode(value)
    except ChangelogError as error:
        raise _apart(processor, str(error)) from error
    if found.sources != processor.numbering:
        raise _apart(processor, "its sources, or the globals that it reads, were others")
    return found


def _apart(processor: Processor[Any, Any], why: str) -> ChangelogError:
    return ChangelogError(
        f"processor {processor.name}: where an earlier version stood says nothing of this one ({why}): write "
        'emits_from="beginning", or give the processor another name'
    )
