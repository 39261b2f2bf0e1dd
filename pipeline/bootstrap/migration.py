"""Begins a table's version with the rows of an earlier one, at the position of that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from holdfast.clients.topics.admin import Admin
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.merge.migrating import Beginning, EarlierState, beginning, migrated
from holdfast.core.engine.merge.positions import counted, offsets_of, stored_format
from holdfast.core.engine.state.base import BASE, encode_base
from holdfast.core.engine.state.codec import APPLIED, NOTHING_APPLIED
from holdfast.core.engine.state.lost_heads import LOST_HEADS, encode_lost_heads
from holdfast.errors import ConfigError, TopicError
from holdfast.loop_thread import LoopThread
from holdfast.pipeline.bootstrap.fencing import FENCE_S, TRANSACTION_S, fenced_writer
from holdfast.pipeline.bootstrap.sink import BootstrapStep, ChangelogSink, Outcome, has_state, nothing
from holdfast.pipeline.verify import LivePartition, read_live
from holdfast.tables.changelog import ChangelogPart

PART_ROWS = 4_000
"""How many rows and timers are appended at once."""


def begin(
    processor: Processor[Any, Any],
    settings: Settings,
    partition: int,
    earlier: LivePartition,
    told: Callable[[int, BootstrapStep], None],
) -> tuple[Outcome, Beginning]:
    """Migrate a partition of *earlier* and write it, the base with it, in one transaction behind a fence.

    MigrationError, before anything is written, for a row that cannot be migrated.
    """
    found = _migrated(processor, earlier)
    told(partition, BootstrapStep.FOLDED)
    loop = LoopThread("holdfast-migrate")
    loop.start()
    try:
        work = _write(processor, settings, partition, found, told)
        return loop.wait(work, FENCE_S + TRANSACTION_S), found
    finally:
        loop.stop(nothing())


def read_earlier(processor: Processor[Any, Any], settings: Settings) -> dict[int, LivePartition]:
    """Return the partitions of the highest version that *processor* migrates from, of those that have a changelog.

    ConfigError where it cannot be migrated by this command, TopicError where there is none to begin with.
    """
    if not processor.migrate:
        raise ConfigError(
            f"processor {processor.name} declares no migrate=: nothing tells how rows become its own"
        )
    if processor.on is not None:
        raise ConfigError(
            f"processor {processor.name} folds several sources, and migrate= is for one: leave it out, which folds them from the beginning"
        )
    counts = Admin(settings).partition_counts()
    for version in sorted(processor.migrate, reverse=True):
        before = replace(processor, version=version, migrate={}, emits_from="beginning")
        if before.changelog(settings.app) in counts:
            return {each.partition: each for each in read_live(before, settings)}
    names = ", ".join(map(str, sorted(processor.migrate)))
    raise TopicError(
        f"processor {processor.name} migrates from version {names}, and application {settings.app} has no changelog of that: "
        "leave out migrate=, which folds the source from the beginning"
    )


def _migrated(processor: Processor[Any, Any], earlier: LivePartition) -> Beginning:
    version = earlier.marker.version
    if counted(offsets_of(earlier.marker)) == NOTHING_APPLIED:
        return beginning(processor, stored_format(processor).start, [], "version", version=version)
    state = EarlierState(
        version=version,
        position=earlier.marker,
        stored=sorted(earlier.stored.items()),
        lost=earlier.lost,
        base=earlier.base,
    )
    (found,) = (each for each in migrated(processor, state) if each is not None)
    return found


async def _write(
    processor: Processor[Any, Any],
    settings: Settings,
    partition: int,
    found: Beginning,
    told: Callable[[int, BootstrapStep], None],
) -> Outcome:
    async with fenced_writer(processor, settings, partition) as writer:
        told(partition, BootstrapStep.FENCED)
        if has_state(processor, settings, partition):
            return Outcome.KEPT

        def parts() -> list[ChangelogPart]:
            return _parts(processor, settings, partition, found)

        def telling() -> Any:
            for part in parts():
                told(partition, BootstrapStep.APPENDING)
                yield part
            told(partition, BootstrapStep.APPENDED)

        await writer.write_parts(telling, TRANSACTION_S)
    told(partition, BootstrapStep.COMMITTED)
    return Outcome.WRITTEN


def _parts(
    processor: Processor[Any, Any], settings: Settings, partition: int, found: Beginning
) -> list[ChangelogPart]:
    """Return the transaction: rows as they are and as the base, then the notes, the marker last."""
    topic = processor.base(settings.app)
    stored, out = found.stored, list[ChangelogPart]()
    for first in range(0, len(stored), PART_ROWS):
        some = stored[first : first + PART_ROWS]
        out.append(ChangelogPart(list(some), [Emit(topic, key, value, (), partition) for key, value in some]))
    note = encode_base(found.base)
    notes = ChangelogSink(processor=processor, settings=settings, heads={}).notes(found.position)
    if found.lost:
        notes.append((LOST_HEADS, encode_lost_heads(found.lost)))
    marker = stored_format(processor).encode(found.position)
    last = [*notes, (BASE, note), (APPLIED, marker)]
    return [*out, ChangelogPart(last, [Emit(topic, BASE, note, (), partition)])]
