"""Begins a table's version with the rows of an earlier one, at the position of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from holdfast.clients.topics.admin import Admin
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.merge.positions import stored_format
from holdfast.core.engine.migrating import Beginning, EarlierState, migrated
from holdfast.core.engine.state.base import BASE, encode_base
from holdfast.core.engine.state.codec import APPLIED, Marker
from holdfast.core.engine.state.lost_heads import LOST_HEADS, encode_lost_heads
from holdfast.errors import ConfigError, TopicError
from holdfast.loop_thread import LoopThread
from holdfast.pipeline.bootstrap.fencing import FENCE_S, TRANSACTION_S, fenced_writer
from holdfast.pipeline.bootstrap.sink import BootstrapStep, ChangelogSink, Outcome, has_state, nothing
from holdfast.pipeline.verify import LivePartition, read_live
from holdfast.tables.changelog import ChangelogPart

PART_ROWS = 4_000
"""How many rows and timers are appended at once."""


@dataclass(frozen=True, slots=True)
class EarlierVersion:
    """The partitions of an earlier version, as its changelog holds them."""

    version: int
    partitions: Mapping[int, LivePartition]


def begin(
    processor: Processor[Any, Any],
    settings: Settings,
    partition: int,
    earlier: EarlierVersion,
    told: Callable[[int, BootstrapStep], None],
) -> tuple[Outcome, Beginning]:
    """Migrate a partition of *earlier* and write it, the base with it, in one transaction behind a fence.

    MigrationError, before anything is written, for a row that cannot be migrated.
    """
    found = _migrated(processor, earlier.partitions.get(partition), earlier.version)
    told(partition, BootstrapStep.FOLDED)
    loop = LoopThread("holdfast-migrate")
    loop.start()
    try:
        work = _write(processor, settings, partition, found, told)
        return loop.wait(work, FENCE_S + TRANSACTION_S), found
    finally:
        loop.stop(nothing())


def read_earlier(processor: Processor[Any, Any], settings: Settings) -> EarlierVersion:
    """Return the highest version that *processor* migrates from, of those that have a changelog.

    ConfigError where it declares none, TopicError where there is none to begin with.
    """
    if not processor.migrate:
        raise ConfigError(
            f"processor {processor.name} declares no migrate=: nothing tells how rows become its own"
        )
    counts = Admin(settings).partition_counts()
    for version in sorted(processor.migrate, reverse=True):
        before = replace(processor, version=version, migrate={}, emits_from="beginning")
        if before.changelog(settings.app) in counts:
            return EarlierVersion(version, {each.partition: each for each in read_live(before, settings)})
    names = ", ".join(map(str, sorted(processor.migrate)))
    raise TopicError(
        f"processor {processor.name} migrates from version {names}, and application {settings.app} has no changelog of that: "
        "leave out migrate=, which folds the source from the beginning"
    )


def _migrated(processor: Processor[Any, Any], earlier: LivePartition | None, version: int) -> Beginning:
    """Return what a partition begins with; *earlier* is None for one that *version* never had."""
    if earlier is None:
        start = stored_format(processor).start
        assert isinstance(start, Marker), "processors of several sources do not migrate"
        return migrated(processor, EarlierState(version=version, position=start, stored=(), lost={}))
    assert isinstance(earlier.marker, Marker), "processors of several sources do not migrate"
    state = EarlierState(
        version=version,
        position=earlier.marker,
        stored=sorted(earlier.stored.items()),
        lost=earlier.lost,
        base=earlier.base,
    )
    return migrated(processor, state)


async def _write(
    processor: Processor[Any, Any],
    settings: Settings,
    partition: int,
    found: Beginning,
    told: Callable[[int, BootstrapStep], None],
) -> Outcome:
    async with fenced_writer(processor, settings, partition, beside=processor.builds_beside) as writer:
        told(partition, BootstrapStep.FENCED)
        if has_state(processor, settings, partition):
            return Outcome.KEPT

        def telling() -> Iterator[ChangelogPart]:
            for part in parts_of(processor, settings, partition, found):
                told(partition, BootstrapStep.APPENDING)
                yield part
            told(partition, BootstrapStep.APPENDED)

        await writer.write_parts(telling, TRANSACTION_S)
    told(partition, BootstrapStep.COMMITTED)
    return Outcome.WRITTEN


def parts_of(
    processor: Processor[Any, Any], settings: Settings, partition: int, found: Beginning
) -> Iterator[ChangelogPart]:
    """Yield the transaction: rows as they are and as the base, then the notes, the marker last."""
    topic, stored = processor.base(settings.app), found.stored
    for first in range(0, len(stored), PART_ROWS):
        some = stored[first : first + PART_ROWS]
        yield ChangelogPart(some, [Emit(topic, key, value, (), partition) for key, value in some])
    note = encode_base(found.base)
    notes = ChangelogSink(processor=processor, settings=settings, heads={}).notes(found.position)
    if found.lost:
        notes.append((LOST_HEADS, encode_lost_heads(found.lost)))
    marker = stored_format(processor).encode(found.position)
    last = [*notes, (BASE, note), (APPLIED, marker)]
    yield ChangelogPart(last, [Emit(topic, BASE, note, (), partition)])
