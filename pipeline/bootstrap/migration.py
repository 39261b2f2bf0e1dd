"""Begins a table's version with the rows of an earlier one, at the position of that."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa

from holdfast.clients.topics.admin import Admin
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.migrating import Beginning, EarlierState, migrated
from holdfast.core.engine.positions import counted, encode_position, stored_format
from holdfast.core.engine.state.base import BASE, encode_base
from holdfast.core.engine.state.codec import APPLIED, ROW_KINDS
from holdfast.core.engine.state.lost_heads import LOST_HEADS, encode_lost_heads
from holdfast.errors import ChangelogError, ConfigError, MigrationError, TopicError
from holdfast.loop_thread import LoopThread
from holdfast.pipeline.bootstrap.fencing import FENCE_S, TRANSACTION_S, fenced_writer
from holdfast.pipeline.bootstrap.sink import (
    BootstrapOutcome,
    BootstrapStep,
    ChangelogSink,
    has_state,
    nothing,
    silent,
)
from holdfast.pipeline.run import Engine
from holdfast.pipeline.verify.table import LivePartition, read_live
from holdfast.tables.changelog import ChangelogPart

PART_ROWS = 4_000
"""The number of rows and timers that are appended at once."""


@dataclass(frozen=True, slots=True)
class EarlierVersion:
    """The partitions of an earlier version, as its changelog holds them."""

    version: int
    partitions: Mapping[int, LivePartition]


class MigratedPartition(NamedTuple):
    """The outcome of a partition, at the position *applied*; for a kept one, the outcome that a migration
    would have had.
    """

    partition: int
    outcome: str
    applied: int
    rows: int
    timers: int
    digest: str


_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("outcome", pa.string()),
        ("applied", pa.int64()),
        ("rows", pa.int64()),
        ("timers", pa.int64()),
        ("digest", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class TableMigration:
    """The migration of partitions of *processor*. *told* is called after each step, in this process alone."""

    processor: Processor[Any, Any]
    settings: Settings
    told: Callable[[int, BootstrapStep], None] = silent

    def __reduce__(self) -> tuple[Any, ...]:
        return TableMigration, (self.processor, self.settings)

    def run(self, engine: Engine, partitions: Sequence[int]) -> list[MigratedPartition]:
        """Migrate *partitions*, when none of their rows fails: rows of several functions must not meet in one
        table. MigrationError for a row that cannot be migrated; nothing is written then.
        """
        deque(engine.run(partitions, self._check, _SCHEMA), maxlen=0)
        found = engine.run(partitions, self._migrate, _SCHEMA)
        return [MigratedPartition(**row) for batch in found for row in batch.to_pylist()]

    def _check(self, partition: int) -> Iterator[pa.RecordBatch]:
        earlier = read_earlier(self.processor, self.settings, [partition])
        _migrated(self.processor, earlier.partitions.get(partition), earlier.version)
        yield from ()

    def _migrate(self, partition: int) -> Iterator[pa.RecordBatch]:
        earlier = read_earlier(self.processor, self.settings, [partition])
        outcome, found = begin(self.processor, self.settings, partition, earlier, self.told)
        rows = sum(key[:1] in ROW_KINDS for key, _ in found.stored)
        applied, timers = counted(found.position.applied), len(found.stored) - rows
        made = MigratedPartition(partition, outcome.value, applied, rows, timers, found.base.digest)
        yield pa.RecordBatch.from_pylist([made._asdict()], _SCHEMA)


def begin(
    processor: Processor[Any, Any],
    settings: Settings,
    partition: int,
    earlier: EarlierVersion,
    told: Callable[[int, BootstrapStep], None],
) -> tuple[BootstrapOutcome, Beginning]:
    """Migrate a partition of *earlier* and write it, the base with it, in one transaction after a fence.

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


def read_earlier(
    processor: Processor[Any, Any], settings: Settings, partitions: Iterable[int] | None = None
) -> EarlierVersion:
    """Return the highest version that *processor* migrates from, of those that have a changelog; None means
    all its *partitions*.

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
            try:
                live = read_live(before, settings, partitions=partitions)
            except ChangelogError as error:
                raise MigrationError(
                    f"processor {processor.name} version {processor.version} migrates from version {version},"
                    f" whose changelog does not read as one of this declaration ({error}). If version"
                    f" {version} had other sources, or another time, leave out migrate="
                ) from error
            return EarlierVersion(version, {each.partition: each for each in live})
    names = ", ".join(map(str, sorted(processor.migrate)))
    raise TopicError(
        f"processor {processor.name} migrates from version {names}, and application {settings.app} has no"
        " changelog of that: leave out migrate=, which folds the source from the beginning"
    )


def _migrated(processor: Processor[Any, Any], earlier: LivePartition | None, version: int) -> Beginning:
    """Return the first state of a partition; *earlier* is None for one that *version* never had."""
    if earlier is None:
        start = stored_format(processor).start
        return migrated(processor, EarlierState(version=version, position=start, stored=(), lost={}))
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
) -> BootstrapOutcome:
    async with fenced_writer(processor, settings, partition, beside=processor.builds_beside) as writer:
        told(partition, BootstrapStep.FENCED)
        if has_state(processor, settings, partition):
            return BootstrapOutcome.KEPT

        def telling() -> Iterator[ChangelogPart]:
            for part in parts_of(processor, settings, partition, found):
                told(partition, BootstrapStep.APPENDING)
                yield part
            told(partition, BootstrapStep.APPENDED)

        await writer.write_parts(telling, TRANSACTION_S)
    told(partition, BootstrapStep.COMMITTED)
    return BootstrapOutcome.WRITTEN


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
    marker = encode_position(found.position)
    last = [*notes, (BASE, note), (APPLIED, marker)]
    yield ChangelogPart(last, [Emit(topic, BASE, note, (), partition)])
