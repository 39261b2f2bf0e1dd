"""Looking at a table's changelog for what no worker wrote, and writing what makes it good, or empty, again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from holdfast.clients.groups.broker import BrokerGroups
from holdfast.clients.topics.admin import Admin
from holdfast.config import Settings
from holdfast.core.engine.codec import NOTHING_APPLIED, Marker
from holdfast.core.engine.folding import Changes
from holdfast.core.engine.processor import Processor
from holdfast.core.engine.strays import Audit, ForeignRecords, Mending
from holdfast.errors import ChangelogError, ConfigError, GroupError
from holdfast.kafka.connections import connector
from holdfast.kafka.raw_log import RawLog
from holdfast.pipeline.extent import Until
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.tables.changelog import ChangelogWriter
from holdfast.tables.transactions import producers

TRANSACTION_S = 300.0
"""For as many rows as a partition may have: all of them change at once."""
FENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MendingStep:
    """What is to be done to one partition: *changes* None where there is nothing to do."""

    partition: int
    findings: ForeignRecords
    changes: Changes | None
    how: str


class Mender:
    """Finds and mends the partitions of one table. `look` only reads; `write` needs all workers of the application to have stopped."""

    def __init__(self, processor: Processor[Any, Any], settings: Settings) -> None:
        self._processor, self._settings = processor, settings
        self._changelog = processor.changelog(settings.app)

    def partitions(self, wanted: list[int] | None) -> list[int]:
        """Return the partitions that are meant; ConfigError for one that is not there."""
        count = Admin(self._settings).cluster([self._changelog]).partitions(self._changelog)
        if not count:
            raise ConfigError(f"topic {self._changelog} does not exist: there is nothing to repair")
        for each in wanted or ():
            if not 0 <= each < count:
                raise ConfigError(f"--partition {each}: {self._changelog} has partitions 0 to {count - 1}")
        return sorted(set(wanted)) if wanted else list(range(count))

    def require_stopped(self) -> None:
        """Raise GroupError while a worker of the application is in its group."""
        app = self._settings.app
        found = BrokerGroups(self._settings, timeout_s=self._settings.request_timeout_s).describe(app)
        if found is not None and found[0].members:
            raise GroupError(
                f"{found[0].members} workers of {app} run ({found[0].state}): stop all of them, then try again"
            )

    async def look(self, partition: int) -> ForeignRecords:
        """Return what lies in a partition; ChangelogError while a transaction is open in it."""
        audit = Audit(self._processor.version)
        async with RawLog(self._settings) as raw:
            async for _, batch in raw.batches(self._changelog, partition, 0):
                audit.add(batch)
        found = audit.findings()
        if found.open_at is not None:
            raise ChangelogError(
                f"{self._changelog} partition {partition}: from {found.open_at} on a transaction is open; stop its producer and wait until it has "
                'ended, or see docs/operating.md, "A transaction that never ends"'
            )
        return found

    def plan_rebuild(self, partition: int, found: ForeignRecords) -> MendingStep:
        """Return what empties a partition, so that the next worker folds its source from the beginning."""
        puts: dict[bytes, bytes | None] = dict.fromkeys(found.row_keys())
        return self._step(
            partition, found, puts, Marker(NOTHING_APPLIED, -1, self._processor.version), "emptied"
        )

    def plan(self, partition: int, found: ForeignRecords, applied: int | None) -> MendingStep:
        """Return what makes a partition good: the state that the last worker left, or with *applied* the source's up to that offset."""
        if applied is not None:
            marker, state = self._replayed(partition, applied)
            ours = dict(found.state())
            puts: dict[bytes, bytes | None] = {
                key: value for key, value in state.items() if ours.get(key) != value
            }
            puts.update(dict.fromkeys(key for key in found.row_keys() if key not in state))
            return self._step(partition, found, puts, marker, f"replayed up to source offset {applied}")
        if found.disowned_at is not None:
            raise ChangelogError(
                f"{self._changelog} partition {partition}: at {found.disowned_at} its writer says that the topic was deleted and made again, and "
                "holds a part of the state: use --rebuild"
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
                f"{self._changelog} partition {partition}: a stray has replaced the position, and compaction has dropped the last good one: name the "
                f"last source offset that was folded, --applied {partition}:OFFSET (`holdfast groups describe {self._settings.app}` shows the next one "
                "to be folded), or use --rebuild"
            )
        marker = replace_version(mending.marker, self._processor.version)
        how = "restored from the changelog"
        if mending.unknown:
            mending, how = (
                self._completed(partition, mending, marker),
                f"restored from the changelog and a replay up to {marker.applied}",
            )
        return self._step(partition, found, mending.puts, marker, how)

    def _completed(self, partition: int, mending: Mending, marker: Marker) -> Mending:
        """Return *mending* with what compaction has dropped, from the source."""
        _, state = self._replayed(partition, marker.applied)
        return replace(
            mending, puts={**mending.puts, **{key: state.get(key) for key in mending.unknown}}, unknown=()
        )

    def _replayed(self, partition: int, applied: int) -> tuple[Marker, Mapping[bytes, bytes]]:
        """Return position and state after *applied*, from the source; LostRecordsError when its beginning is not there any more."""
        processor = self._processor
        if applied == NOTHING_APPLIED:
            return Marker(NOTHING_APPLIED, -1, processor.version), {}
        options = ReplayOptions(until=Until(offsets={partition: applied}), partitions=(partition,))
        replayed = replay(processor, self._settings, options)
        (summary,) = [each for each in replayed.partitions if each.partition == partition]
        if summary.applied != applied:
            raise ConfigError(
                f"--applied {partition}:{applied}: the last record of the source up to there is at {summary.applied}; name that one"
            )
        return Marker(applied, summary.stream_ms, processor.version), dict(replayed.state(partition))

    @staticmethod
    def _step(
        partition: int, found: ForeignRecords, puts: Mapping[bytes, bytes | None], marker: Marker, how: str
    ) -> MendingStep:
        return MendingStep(
            partition=partition,
            findings=found,
            changes=Changes(marker=marker, records=0, puts=sorted(puts.items(), key=lambda put: put[0])),
            how=how,
        )

    # -- writing

    async def write(self, partition: int, *, rebuild: bool, applied: int | None) -> MendingStep:
        """Shut out whoever wrote before, look again, and write what is to be written in one transaction; return what was done."""
        settings, processor = self._settings, self._processor
        connect = connector(settings, timeout_s=settings.request_timeout_s)
        producer = producers(connect, transaction_timeout_s=TRANSACTION_S)
        writer = ChangelogWriter(
            producer(processor.transactional_id(settings.app, partition)),
            changelog=self._changelog,
            partition=partition,
        )
        try:
            await writer.fence(FENCE_S)  # a worker that runs all the same is refused from here on
            found = await self.look(partition)
            step = (
                self.plan_rebuild(partition, found)
                if rebuild
                else await asyncio.to_thread(self.plan, partition, found, applied)
            )
            if step.changes is not None:
                await writer.write(step.changes, [], TRANSACTION_S)
            return step
        finally:
            await writer.close()


def replace_version(marker: Marker, version: int) -> Marker:
    """Return *marker* as this version writes it: one of a log in which nothing was written yet has none."""
    return Marker(marker.applied, marker.stream_ms, version)
