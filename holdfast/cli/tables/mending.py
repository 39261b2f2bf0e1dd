"""Finds the records of a table's changelog that no worker wrote, and writes the records that repair or empty
the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from holdfast.clients.groups.broker import BrokerGroups
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.committed import CommittedOffsets
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.folding import Changes
from holdfast.core.engine.fold.stepping import WATERMARKS
from holdfast.core.engine.merge.strays import Audit, ForeignRecords, Mending
from holdfast.core.engine.migrating import Beginning
from holdfast.core.engine.positions import (
    NamedOffsets,
    Position,
    by_topic,
    counted,
    goes_back,
    named_offsets,
    offsets_form,
    stored_format,
)
from holdfast.core.engine.state.base import BASE, encode_base
from holdfast.core.engine.state.codec import APPLIED, NOTHING_APPLIED
from holdfast.core.engine.state.evolution import ROW_TYPES, encode_row_types, evolved
from holdfast.core.engine.state.passing_refusals import is_refusal_note, refusals_in
from holdfast.core.engine.state.recovery import RECOVERY, decode_recovery, encode_recovery
from holdfast.errors import ChangelogError, ConfigError
from holdfast.kafka.requests.raw_log import RawLog
from holdfast.pipeline.bootstrap.fencing import TRANSACTION_S, fenced_writer
from holdfast.pipeline.bronze.extent import Until
from holdfast.pipeline.folds.bases import read_bases
from holdfast.pipeline.folds.positions import position_of
from holdfast.pipeline.folds.result_rows import watermarks_of
from holdfast.pipeline.replay import ReplayOptions, replay

"""The last offset of the source that counts; with several sources, by topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MendingStep:
    """The repair of one partition: *changes* None where there is nothing to do."""

    partition: int
    findings: ForeignRecords
    changes: Changes | None
    how: str


class Mender:
    """Finds and mends the partitions of one table. `look` only reads; `write` needs all workers of the
    application to have stopped.
    """

    def __init__(self, processor: Processor[Any, Any], settings: Settings) -> None:
        self._processor, self._settings = processor, settings
        self._changelog = processor.changelog(settings.app)
        self._positions = stored_format(processor)

    def partitions(self, wanted: list[int] | None) -> list[int]:
        """Return the partitions that are meant; ConfigError for one that is not there."""
        count = Admin(self._settings).cluster([self._changelog]).partitions(self._changelog)
        if not count:
            raise ConfigError(f"topic {self._changelog} does not exist: there is nothing to repair")
        for each in wanted or ():
            if not 0 <= each < count:
                raise ConfigError(f"--partition {each}: {self._changelog} has partitions 0 to {count - 1}")
        return sorted(set(wanted)) if wanted else list(range(count))

    async def look(self, partition: int) -> ForeignRecords:
        """Return the findings in a partition; ChangelogError while a transaction is open in it."""
        audit = Audit(self._processor.version, self._positions)
        async with RawLog(self._settings) as raw:
            async for _, batch in raw.batches(self._changelog, partition, 0):
                audit.add(batch)
        found = audit.findings()
        if found.open_at is not None:
            raise ChangelogError(
                f"{self._changelog} partition {partition}: from {found.open_at} on a transaction is open;"
                ' stop its producer and wait until it has ended, or see docs/operating.md, "A transaction'
                ' that never ends"'
            )
        return found

    def plan_rebuild(self, partition: int, found: ForeignRecords) -> MendingStep:
        """Return the changes that empty a partition, so that the next worker folds its source from the
        beginning; one that began with a base is put back to that.
        """
        base = self._base(partition)
        if base is None:
            puts: dict[bytes, bytes | None] = dict.fromkeys(found.row_keys())
            puts |= _heard_again(found)
            return self._step(partition, found, puts, self._positions.start, "emptied")
        # The lost heads of the base, the types of its rows, and the position of the version before: no replay
        # can find these.
        notes = {
            key: value
            for key, value in found.notes().items()
            if key != WATERMARKS and not is_refusal_note(key)
        }
        wanted = {**dict(base.stored), **notes, BASE: encode_base(base.base)}
        how = f"put back to {base.base.told()}"
        return self._step(partition, found, found.changes_to(wanted), base.position, how)

    def _base(self, partition: int) -> Beginning | None:
        return read_bases(self._processor, self._settings, [partition]).get(partition)

    def plan(self, partition: int, found: ForeignRecords, applied: NamedOffsets | None) -> MendingStep:
        """Return the changes that repair a partition: the state that the last worker left, or with *applied*
        the source's up to that offset.
        """
        if applied is not None:
            marker, state = self._replayed(partition, self._until(partition, applied), found)
            puts = found.changes_to({**state, **self._notes(found, marker)})
            return self._step(
                partition, found, puts, marker, f"replayed up to source offset {shown(applied)}"
            )
        if found.disowned_at is not None:
            raise ChangelogError(
                f"{self._changelog} partition {partition}: at {found.disowned_at} its writer says that the"
                " topic was deleted and made again, and holds a part of the state: use --rebuild"
            )
        mending = found.mend()
        if mending.clean:
            how = (
                "whatever strays there are, a worker has written over them"
                if found.strays
                else "nothing to repair"
            )
            return MendingStep(partition=partition, findings=found, changes=None, how=how)
        if mending.marker is None:
            raise ChangelogError(
                f"{self._changelog} partition {partition}: a stray has replaced the position, and compaction"
                " has dropped the last good one: name the last source offset that was folded, --applied"
                f" {partition}:{offsets_form(self._processor)} (`holdfast groups"
                f" describe {self._settings.app}` shows the next one to be folded), or use --rebuild"
            )
        marker = structs.replace(mending.marker, version=self._processor.version)
        how = "restored from the changelog"
        if mending.unknown:
            mending, how = (
                self._completed(partition, mending, marker, found),
                f"restored from the changelog and a replay up to {self.reached(marker)}",
            )
        return self._step(partition, found, mending.puts, marker, how)

    def _notes(self, found: ForeignRecords, marker: Position) -> dict[bytes, bytes]:
        """Return the notes of a state that was replayed up to *marker*: its rows are all of today's type, and
        records refused after it are folded again.
        """
        notes = found.notes()
        notes.pop(WATERMARKS, None)  # those of the replayed position come with its rows
        if not self._processor.stateless:
            notes[ROW_TYPES] = encode_row_types(evolved(None, self._processor))
        lasts = dict(zip(self._processor.topics, marker.applied, strict=True))
        return {key: value for key, value in notes.items() if is_folded(key, lasts)} | _heard_again(found)

    def _completed(
        self, partition: int, mending: Mending, marker: Position, found: ForeignRecords
    ) -> Mending:
        """Return *mending* with what compaction has dropped, from the source."""
        where = ReplayOptions(positions={partition: marker}, partitions=(partition,))
        _, state = self._replayed(partition, where, found)
        return replace(
            mending, puts={**mending.puts, **{key: state.get(key) for key in mending.unknown}}, unknown=()
        )

    def _until(self, partition: int, applied: NamedOffsets) -> ReplayOptions:
        """Return the options of a replay up to *applied*."""
        self._by_topic(partition, applied)
        until = (
            Until(offsets={partition: applied})
            if isinstance(applied, int)
            else Until(sources={partition: applied})
        )
        return ReplayOptions(until=until, partitions=(partition,))

    def _by_topic(self, partition: int, applied: NamedOffsets) -> dict[str, int]:
        try:
            return by_topic(self._processor, applied)
        except ConfigError as error:
            raise ConfigError(f"--applied {partition}: {error}") from None

    def _replayed(
        self, partition: int, options: ReplayOptions, found_there: ForeignRecords
    ) -> tuple[Position, Mapping[bytes, bytes]]:
        """Return position and state where *options* say, from the source; LostRecordsError when its beginning
        is not there any more.
        """
        processor, until = self._processor, options.until
        lasts = [] if until is None else [until.offsets.get(partition)]
        lasts += [counted(each.applied) for each in (options.positions or {}).values()]
        if NOTHING_APPLIED in lasts and not self._base(partition):
            return self._positions.start, {}
        refused = {partition: refusals_in(found_there.notes())}
        replayed = replay(processor, self._settings, replace(options, refused=refused))
        (summary,) = [each for each in replayed.partitions if each.partition == partition]
        state = dict(replayed.state(partition))
        if (watermarks := watermarks_of(summary)) is not None:
            state[WATERMARKS] = watermarks
        position = position_of(processor, summary)
        if until is not None:
            given = until.offsets if partition in until.offsets else until.sources
            self._check_last(partition, given[partition], named_offsets(processor, position))
        return position, state

    def _check_last(self, partition: int, wanted: NamedOffsets, found: NamedOffsets) -> None:
        """Raise ConfigError where the source has no record at an offset of *wanted*: the last is *found*."""
        lasts = self._by_topic(partition, found)
        for topic, last in self._by_topic(partition, wanted).items():
            if lasts[topic] != last:
                name = f"{topic}:" if topic in self._processor.named_sources else ""
                raise ConfigError(
                    f"--applied {partition}:{name}{last}: the last record of the source up to there is at"
                    f" {lasts[topic]}; name that one"
                )

    def applied_of(self, marker: Position) -> NamedOffsets:
        """Return the last offset applied as JSON has it."""
        return named_offsets(self._processor, marker)

    def reached(self, marker: Position) -> str:
        """Return the last offset applied as people write it."""
        return shown(named_offsets(self._processor, marker))

    @staticmethod
    def _step(
        partition: int, found: ForeignRecords, puts: Mapping[bytes, bytes | None], marker: Position, how: str
    ) -> MendingStep:
        if found.marker is not None and goes_back(found.marker, marker):
            puts = {**puts, APPLIED: None}  # so that no worker takes it for a stray
        changed = sorted(puts.items(), key=lambda put: put[0])
        changes = Changes(marker=marker, records=0, puts=changed)
        return MendingStep(partition=partition, findings=found, changes=changes, how=how)

    # -- writing

    async def write(self, partition: int, *, rebuild: bool, applied: NamedOffsets | None) -> MendingStep:
        """Fence earlier writers, look again, and write the changes in one transaction; return the step."""
        async with fenced_writer(self._processor, self._settings, partition) as writer:
            found = await self.look(partition)
            step = await (
                asyncio.to_thread(self.plan_rebuild, partition, found)
                if rebuild
                else asyncio.to_thread(self.plan, partition, found, applied)
            )
            if step.changes is not None:
                await writer.write(step.changes, [], TRANSACTION_S)
                if rebuild or applied is not None:
                    await asyncio.to_thread(self._forget_sent, partition)
            return step

    def _forget_sent(self, partition: int) -> None:
        """Commit the sources' offsets of a partition without their notes: those say up to where tables had
        sent results. Results of the new position on are to be sent.
        """
        settings = self._settings
        group = CommittedOffsets(settings, settings.app, timeout_s=settings.request_timeout_s)
        group.commit(group.committed([(topic, partition) for topic in self._processor.topics]))


def _heard_again(found: ForeignRecords) -> dict[bytes, bytes]:
    """Return the note of a recovery, if there is one, without the topics that got nothing a second time."""
    recovery = decode_recovery(found.notes().get(RECOVERY))
    return {} if recovery is None else {RECOVERY: encode_recovery(structs.replace(recovery, topics=()))}


def is_folded(note: bytes, lasts: Mapping[str, int]) -> bool:
    r"""Return whether a note records no refusal after *lasts*, the last offset of each source.

    >>> [is_folded(note, {"orders": 7}) for note in (b"\x00refused orders 7", b"\x00refused orders 8", BASE)]
    [True, False, True]
    """
    return all(offset <= lasts.get(topic, NOTHING_APPLIED) for topic, offset in refusals_in([note]))


def require_stopped(settings: Settings, app: str) -> None:
    """Raise GroupError while a worker of application *app* is in its group."""
    BrokerGroups(settings, timeout_s=settings.request_timeout_s).require_stopped(app)


def shown(applied: NamedOffsets) -> str:
    """Return offsets as people write them.

    >>> shown(7), shown({"orders": 17, "customers": 3})
    ('7', 'orders:17,customers:3')
    """
    if isinstance(applied, int):
        return str(applied)
    return ",".join(f"{topic}:{last}" for topic, last in applied.items())
