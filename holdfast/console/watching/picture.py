"""The application as a whole at one moment: the workers' announcements, and each worker's own report, put
together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from holdfast.clients.tables.directory import Workers
from holdfast.console.watching.reports import (
    GlobalReport,
    HeldOriginReport,
    HeldReport,
    Silence,
    WorkerReport,
)
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.query_wire import WorkerClaims


class WorkerState(StrEnum):
    """The state of a worker: GONE is one that does not answer, and whose partitions others have by now."""

    READY = "ready"
    UNREADY = "not ready"
    SILENT = "silent"
    GONE = "gone"


class PartitionHealth(StrEnum):
    """The health of a partition of a table, the worst first."""

    SILENT = "owner is silent"
    UNSERVED = "not served"
    STANDING = "stands still"
    STALLED = "stalled"
    RESTORING = "restoring"
    BUILDING = "building"
    SERVED = "served"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLine:
    """One worker. *behind* is the lag of the partitions that it folds, None if not reported."""

    url: str
    state: WorkerState
    cause: str | None
    release: str
    generation: int
    started_ms: int
    active: int
    standby: int
    restoring: int
    behind: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyLine:
    """A copy of a partition; unknown values are None."""

    url: str
    offset: int | None
    behind: int | None
    age_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLine:
    """One partition of one version of a table; unknown values are None. *restored* is the share of its
    changelog that was read.

    *held_back* are the origins that its windows or join wait for.

    *behind_of* is by source, where there are several; *emitted* is how many records its owner has emitted to
    which topic since it started.
    """

    table: str
    version: int
    partition: int
    state: PartitionHealth
    owner: str | None
    offset: int | None
    sources: Mapping[str, int]
    behind: int | None
    behind_of: Mapping[str, int]
    emitted: Mapping[str, int]
    stream_ms: int | None
    held_back: tuple[HeldOriginReport, ...]
    standing: str | None
    partial: bool
    restored: float | None
    standbys: tuple[StandbyLine, ...]


@dataclass(frozen=True, kw_only=True)
class TableLine:
    """One version of a table. *declared*: the application that the console was started with has this
    version.
    """

    table: str
    version: int
    sources: tuple[str, ...]
    named: tuple[str, ...]
    stateless: bool
    declared: bool
    current: bool
    partitions: tuple[PartitionLine, ...]

    @cached_property
    def served(self) -> int:
        return sum(each.state is PartitionHealth.SERVED for each in self.partitions)

    @cached_property
    def behind(self) -> int | None:
        """Return how many records are not in the table yet, None if no owner reports it."""
        known = [each.behind for each in self.partitions if each.behind is not None]
        return sum(known) if known else None

    @cached_property
    def behind_of(self) -> Mapping[str, int]:
        """Return how many records of each source are not in the table yet, as far as owners report it."""
        if len(self.sources) == 1:
            return {} if self.behind is None else {self.sources[0]: self.behind}
        found = Counter[str]()
        for each in self.partitions:
            found.update(each.behind_of)
        return found

    @cached_property
    def worst(self) -> PartitionHealth:
        order = list(PartitionHealth)
        return min(
            (each.state for each in self.partitions), key=order.index, default=PartitionHealth.UNSERVED
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLine:
    """A worker's copy of the global table of *topic*: *passed* counts the offsets in it, *behind* those that
    are not, None if not reported.
    """

    topic: str
    url: str
    passed: int
    behind: int | None


@dataclass(frozen=True, kw_only=True)
class Picture:
    """All that is known at one moment. *trouble* is why the directory of workers is not as of now."""

    app: str
    at_ms: int
    workers: tuple[WorkerLine, ...]
    tables: tuple[TableLine, ...]
    copies: tuple[CopyLine, ...] = ()
    trouble: str | None = None

    def table(self, name: str, version: int | None = None) -> TableLine | None:
        """Return a version of a table, by default the current one."""
        found = [each for each in self.tables if each.table == name and version in (None, each.version)]
        return next((each for each in found if each.current), found[-1] if found else None)

    def worker(self, url: str) -> WorkerLine | None:
        return next((each for each in self.workers if each.url == url), None)

    def partitions_of(self, url: str) -> list[PartitionLine]:
        """Return the partitions that a worker owns or is a standby of."""
        return [
            each
            for table in self.tables
            for each in table.partitions
            if each.owner == url or any(standby.url == url for standby in each.standbys)
        ]


PartitionId = tuple[str, int, int]
"""A table, its version, a partition."""
Reports = Mapping[str, WorkerReport | Silence]
NOT_ASKED = Silence("was not asked yet", late=True)


def picture_of(
    app: str,
    processors: Sequence[Processor[Any, Any]],
    directory: Workers,
    reports: Reports,
    *,
    at_ms: int,
    stalled: Collection[PartitionId] = (),
    trouble: str | None = None,
) -> Picture:
    """Put the announcements and the workers' reports together.

    *stalled* are partitions whose position has long not moved though records wait.
    """
    painter = _Painter(directory, reports, stalled)
    tables = tuple(
        painter.table(processor, version)
        for processor in processors
        for version in sorted({processor.version, *directory.versions(processor.name)})
    )
    owners = {each.owner for table in tables for each in table.partitions}
    workers = tuple(
        _worker(claims, reports.get(claims.url, NOT_ASKED), owns=claims.url in owners)
        for claims in sorted(directory.announced, key=lambda each: each.url)
    )
    copies = tuple(
        _copy(url, each)
        for url, report in reports.items()
        if isinstance(report, WorkerReport)
        for each in report.globals.values()
    )
    return Picture(app=app, at_ms=at_ms, workers=workers, tables=tables, copies=copies, trouble=trouble)


def _copy(url: str, told: GlobalReport) -> CopyLine:
    passed = sum(told.position) + len(told.position)
    return CopyLine(topic=told.source, url=url, passed=passed, behind=told.behind)


def _worker(claims: WorkerClaims, told: WorkerReport | Silence, *, owns: bool) -> WorkerLine:
    release, lines = "", list[HeldReport]()
    cause = told.cause if isinstance(told, Silence) else told.unready
    if isinstance(told, Silence):
        state = WorkerState.SILENT if owns else WorkerState.GONE
    else:
        state = WorkerState.READY if cause is None else WorkerState.UNREADY
        release, lines = told.release, [each for table in told.tables.values() for each in table.held]
    known = [each.behind for each in lines if each.role == "active" and each.behind is not None]
    counted = Counter("restoring" if _opens(each) else each.role for each in lines)
    return WorkerLine(
        url=claims.url,
        state=state,
        cause=cause,
        release=release,
        generation=claims.generation,
        started_ms=claims.started_ms,
        active=counted["active"],
        standby=counted["standby"],
        restoring=counted["restoring"],
        behind=sum(known) if known else None,
    )


def _opens(held: HeldReport) -> bool:
    """Return whether a worker reads the changelog of a partition that it does not serve yet."""
    return held.role == "standby" and not held.serving


class _Painter:
    """Makes the lines of tables from announcements and reports."""

    def __init__(self, directory: Workers, reports: Reports, stalled: Collection[PartitionId]) -> None:
        self._directory, self._reports, self._stalled = directory, reports, stalled
        self._held: dict[PartitionId, dict[str, HeldReport]] = {}
        for url, report in reports.items():
            if isinstance(report, WorkerReport):
                self._take(url, report)

    def _take(self, url: str, report: WorkerReport) -> None:
        for name, table in report.tables.items():
            for held in table.held:
                version = table.version if held.version is None else held.version
                self._held.setdefault((name, version, held.partition), {})[url] = held

    def table(self, processor: Processor[Any, Any], version: int) -> TableLine:
        name, directory = processor.name, self._directory
        current = directory.answering(name, directory.versions(name) or [processor.version])
        return TableLine(
            table=name,
            version=version,
            sources=processor.topics,
            named=tuple(processor.tables),
            stateless=processor.stateless,
            declared=version == processor.version,
            current=version == current,
            partitions=tuple(
                self._partition((name, version, partition))
                for partition in range(directory.partitions(name, version))
            ),
        )

    def _partition(self, place: PartitionId) -> PartitionLine:
        owner, building = self._directory.owning(*place) or (None, False)
        held = self._held.get(place, {})
        told = None if owner is None else held.get(owner)
        opening = next((each for url, each in held.items() if url != owner and _opens(each)), None)
        standbys = self._directory.standbys(*place)
        return PartitionLine(
            table=place[0],
            version=place[1],
            partition=place[2],
            state=self._state(place, owner, told, building=building, opening=opening),
            owner=owner,
            offset=None if told is None else told.as_of_offset,
            sources={} if told is None else told.as_of,
            behind=None if told is None else told.behind,
            behind_of={} if told is None else told.behind_of,
            emitted={} if told is None else told.emitted,
            stream_ms=None if told is None or told.stream_ms < 0 else told.stream_ms,
            held_back=() if told is None else tuple(told.held_back),
            standing=None if told is None else told.standing,
            partial=self._directory.is_partial(*place),
            restored=_share(opening or told),
            standbys=tuple(_standby(url, held.get(url)) for url in standbys if url != owner),
        )

    def _state(
        self,
        place: PartitionId,
        owner: str | None,
        told: HeldReport | None,
        *,
        building: bool,
        opening: HeldReport | None,
    ) -> PartitionHealth:
        if told is None or not told.serving:
            if opening is not None or (told is not None and _opens(told)):
                return PartitionHealth.RESTORING
            silent = owner is not None and isinstance(self._reports.get(owner, NOT_ASKED), Silence)
            return PartitionHealth.SILENT if silent else PartitionHealth.UNSERVED
        if told.standing is not None:
            return PartitionHealth.STANDING
        if building:
            return PartitionHealth.BUILDING
        return PartitionHealth.STALLED if place in self._stalled else PartitionHealth.SERVED


def _share(held: HeldReport | None) -> float | None:
    if held is None or held.changelog is None:
        return None
    return min(1.0, held.changelog.next / max(1, held.changelog.end))


def _standby(url: str, held: HeldReport | None) -> StandbyLine:
    if held is None:
        return StandbyLine(url=url, offset=None, behind=None, age_ms=None)
    return StandbyLine(url=url, offset=held.as_of_offset, behind=held.behind, age_ms=held.age_ms)
