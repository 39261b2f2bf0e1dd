"""Folding the lake into tables: a processor's state, and the history of its rows or another output. Each fold
takes in the data landed since the one before.

Two tables cannot be committed at once. So the output comes first: its commit names the batch, and the batch
that it continues. If the state does not follow, since the fold was killed between both, the next fold makes
exactly that state from the state before, checks it against the digests in the output's commit, and continues
from there. Of two folds that continue one state, one extends the output, and the other is refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.skips import OffsetRanges
from holdfast.core.engine.positions import Position, counted, stored_format
from holdfast.core.engine.state.codec import combine_digests, digest
from holdfast.errors import ConfigError, LakeError, UnknownCommitError
from holdfast.pipeline.bronze.extent import check_holes
from holdfast.pipeline.bronze.files import File, remove
from holdfast.pipeline.bronze.lake import share
from holdfast.pipeline.folds.bases import read_bases
from holdfast.pipeline.folds.plan import FoldPlan, all_emits
from holdfast.pipeline.folds.spilling import STATE_MEMORY_BYTES
from holdfast.pipeline.histories.fold_commit import (
    FoldCommit,
    PartitionCommit,
    check_identity,
    identity_of,
    noted_types,
    told_position,
)
from holdfast.pipeline.histories.fold_tables import (
    HISTORY_BY,
    STATE_BY,
    FoldTable,
    FoldTableColumns,
    folds_path,
    is_table,
)
from holdfast.pipeline.histories.landed_history import HistoryParts, LandedHistory
from holdfast.pipeline.histories.output_table import HistoryOutput, OutputTable
from holdfast.pipeline.histories.partition_fold import PART_SCHEMA, FoldedPart, FoldWork, parts_in
from holdfast.pipeline.run import EngineChoice, open_engine
from holdfast.pipeline.spark.session import SparkOptions
from holdfast.schemas import registry

LOOKS = 3
"""The number of times that both tables are read: another fold may extend both in between."""
_NOTHING = PartitionCommit(position="")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldOptions:
    """The subject and the limits of a fold.

    *into* is the folder or address of both tables, without it LAKE/folds/NAME. *max_records* bounds a commit,
    in offsets. *memory_bytes* of the state of a partition are in memory, about; all of it in a temporary file
    if it is larger. *rebuild* starts from the beginning.
    """

    lake: str
    engine: EngineChoice = "auto"
    into: str | None = None
    allow_holes: bool = False
    max_records: int = 10_000_000
    memory_bytes: int = STATE_MEMORY_BYTES
    rebuild: bool = False
    spark: SparkOptions = field(default_factory=SparkOptions)


@dataclass(slots=True, kw_only=True)
class FoldReport:
    """The result of a fold. *records* and *changes* (rows that are over, of the history or another *output*)
    are those of this fold; *partitions* describe the tables as they are.
    """

    processor: str
    version: int
    engine: str
    state: str
    output: str
    commits: int = 0
    records: int = 0
    changes: int = 0
    spilled: int = 0
    partitions: dict[int, PartitionCommit] = field(default_factory=dict)
    applied: dict[int, int] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Return the digest of the whole state: that of a replay up to here."""
        return combine_digests((at, each.digest) for at, each in sorted(self.partitions.items()))

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        told = {name: value for name, value in asdict(self).items() if name not in ("partitions", "applied")}
        path = told.pop("output")
        told[path.rpartition("/")[2]] = path
        told["digest"] = self.digest
        told["partitions"] = [
            {
                "partition": at,
                "applied": self.applied[at],
                **{k: v for k, v in msgspec.to_builtins(each).items() if k != "position"},
            }
            for at, each in sorted(self.partitions.items())
        ]
        return told


class FoldStep(StrEnum):
    """The steps of a fold, for a callback."""

    FOLDED = "folded"
    OUTPUT = "output committed"
    STATE = "state committed"


def fold(
    processor: Processor[Any, Any],
    settings: Settings,
    options: FoldOptions,
    *,
    output: OutputTable | None = None,
    told: Callable[[FoldStep], None] | None = None,
) -> FoldReport:
    """Fold the data landed from the source of *processor* since the last fold into its tables, and return a
    report.

    Both engines write the same tables. *output* is the table in addition to the state, without it the history
    of the rows. *told* is called with each step. Raises ConfigError for the tables of another fold or
    version, LostRecordsError for a lake with holes, LakeError where something else has changed lake or
    tables, or another fold has extended them first: nothing was written then.
    """
    registry.use(settings)
    with ExitStack() as opened:
        beside = output or HistoryOutput(processor)
        work = _TableFold(processor, settings, options, opened, beside, told or (lambda step: None))
        while work.step():
            pass
        return work.report


class _Target(NamedTuple):
    """The most records to fold of each partition that has any, the number of their offsets, and the fields of
    the commit apart from those of the result.
    """

    limits: Mapping[int, int]
    offsets: int
    holes: tuple[str, ...]


class _TableFold:
    """The tables of one processor, and the lake that they are folded from."""

    def __init__(
        self,
        processor: Processor[Any, Any],
        settings: Settings,
        options: FoldOptions,
        opened: ExitStack,
        beside: OutputTable,
        told: Callable[[FoldStep], None],
    ) -> None:
        self._processor, self._settings, self._options = processor, settings, options
        self._opened, self._beside, self._told, self._anew = opened, beside, told, options.rebuild
        self._identity = identity_of(processor, settings)
        self._bases = read_bases(processor, settings) if processor.migrate else {}
        self._landed = LandedHistory(processor, settings, options.lake)
        folder = (options.into or folds_path(options.lake, processor.name)).rstrip("/")
        if is_table(folder):
            raise ConfigError(
                f"--into {folder}: this is a table itself, whose vacuum would take the files: name a folder"
                " beside it"
            )
        columns = FoldTableColumns.of(processor)
        self._state = FoldTable.open(f"{folder}/state", columns.state, STATE_BY)
        self._output = FoldTable.open(f"{folder}/{beside.name}", beside.schema, HISTORY_BY)
        self.report = FoldReport(
            processor=processor.name,
            version=processor.version,
            engine="none",
            state=self._state.path,
            output=self._output.path,
        )
        for table in (self._state, self._output):
            before = None if self._anew else table.last()
            if before is not None:
                check_identity(table.path, before, self._identity, self._landed.ids)
                noted_types(processor, before)
        self._state.widen(columns.state, rebuild=self._anew)
        self._output.widen(beside.schema, rebuild=self._anew)

    # -- one commit of each table

    def step(self) -> bool:
        """Fold on to the next commit; return whether there was anything to fold."""
        base, ahead = (None, None) if self._anew else self._standing()
        if ahead is not None:
            self._finish(base, ahead)
            return True
        target = self._target(base)
        if base is not None and not target.limits:
            self._report(base)
            return False
        left = self._landed.parts(target.limits)
        parts = self._parts(base, target, left, writes_output=True)
        if base is not None and not any(each.records or _moved(each, base) for each in parts):
            self._drop(parts)  # all that was there is skipped
            self._report(base)
            return False
        self._told(FoldStep.FOLDED)
        told = self._commit(base, target, parts)
        self._extend(self._output, told, base, parts)
        self._told(FoldStep.OUTPUT)
        self._extend(self._state, told, base, parts)
        self._told(FoldStep.STATE)
        self._anew = False
        self.report.records += sum(part.records for part in parts)
        self.report.changes += sum(part.changes for part in parts)
        self.report.spilled += sum(part.spilled for part in parts)
        self.report.commits += 1
        return True

    def _standing(self) -> tuple[FoldCommit | None, FoldCommit | None]:
        """Return the commit to continue from, and the output's commit that the state does not follow yet, if
        there is one.
        """
        for _ in range(LOOKS):
            # The state first: whatever it has by now is in an output that is read later, so no commit is
            # taken back.
            self._state.refresh()
            self._output.refresh()
            state, output = self._state.last(), self._output.last()
            if (state and state.batch) == (output and output.batch):
                return state, None
            if output is not None and output.start in ("", state.batch if state else ""):
                return (state if output.start else None), output
        raise LakeError(
            f"{self._state.path} and {self._output.path} do not belong together: one of them was put back to"
            " an older state, or is of another fold. Fold anew (--rebuild)"
        )

    def _finish(self, base: FoldCommit | None, ahead: FoldCommit) -> None:
        """Bring the state to where the output is: a fold was killed between both."""
        before = {} if base is None else base.partitions
        upto = ahead.positions(self._processor)
        moved = {
            at: 0
            for at, each in ahead.partitions.items()
            if before.get(at, _NOTHING).position != each.position
        }
        target = _Target(moved, sum(counted(upto[at].applied) for at in moved), ())
        left = self._landed.parts({}, upto)
        parts = self._parts(base, target, left, writes_output=False)
        for part in parts:
            if part.commit != ahead.partitions[part.partition]:
                self._drop(parts)
                raise LakeError(
                    f"{self._output.path} tells of another state of partition {part.partition} than its fold"
                    " makes now: fold, lake or history was changed since. Fold anew (--rebuild)"
                )
        self._extend(self._state, ahead, base, parts)
        self._told(FoldStep.STATE)
        self.report.commits += 1

    def _extend(
        self, table: FoldTable, told: FoldCommit, base: FoldCommit | None, parts: Sequence[FoldedPart]
    ) -> None:
        """Commit the new part of one of the tables, and remove the files that it replaces."""
        is_state = table is self._state
        added = [file for part in parts for file in (part.state if is_state else part.output)]
        done = {part.partition for part in parts}
        gone = [
            (file, values)
            for partition, file, values in table.files()
            if base is None or (partition in done and (is_state or values["is_current"] == "true"))
        ]
        try:
            table.commit(told, added, gone)
        except LakeError as error:
            if not isinstance(error, UnknownCommitError):  # else the table may name them
                self._drop(parts, state_alone=is_state)
            raise

    def _drop(self, parts: Sequence[FoldedPart], *, state_alone: bool = False) -> None:
        """Remove the files that no commit names."""
        remove(self._state.filesystem, [file.path for part in parts for file in part.state])
        if not state_alone:
            remove(self._output.filesystem, [file.path for part in parts for file in part.output])

    def _commit(self, base: FoldCommit | None, target: _Target, parts: Sequence[FoldedPart]) -> FoldCommit:
        nothing = PartitionCommit(
            position=told_position(self._processor, stored_format(self._processor).start), digest=digest(())
        )
        there = {} if base is None else base.partitions
        partitions = dict.fromkeys(self._landed.partitions, nothing) | there
        return FoldCommit(
            batch=uuid.uuid4().hex,
            start="" if base is None else base.batch,
            identity=self._identity,
            partitions=partitions | {part.partition: part.commit for part in parts},
            topic_ids=dict(self._landed.ids),
            skips={
                topic: {at: [*each] for at, each in skips.items()}
                for topic, skips in self._landed.skips.items()
            },
            holes=target.holes,
            row_types=noted_types(self._processor, base),
        )

    # -- what to fold

    def _begins(self, base: FoldCommit | None) -> dict[int, Position]:
        """Return up to where each partition is folded."""
        begins = dict.fromkeys(self._landed.partitions, stored_format(self._processor).start)
        begins |= {at: each.position for at, each in self._bases.items()}
        return begins if base is None else begins | base.positions(self._processor)

    def _target(self, base: FoldCommit | None) -> _Target:
        begins = self._begins(base)
        if base is not None and self._landed.short(begins) is not None:
            self._landed = LandedHistory(self._processor, self._settings, self._options.lake)
            if (short := self._landed.short(begins)) is not None:  # no other fold has come further since
                raise LakeError(
                    f"{short}: the lake was put back to an older state. Land again, or fold anew (--rebuild)"
                )
        if base is not None:
            self._check_skips(base, begins)
        holes = self._landed.holes(begins)
        check_holes(holes, allow_holes=self._options.allow_holes)
        left = self._landed.left(begins)
        limits = share(dict.fromkeys(left, 0), left, self._options.max_records)
        told = tuple(dict.fromkeys((*(base.holes if base else ()), *holes)))
        return _Target(limits, sum(limits.values()), told)

    def _check_skips(self, base: FoldCommit, begins: Mapping[int, Position]) -> None:
        """Refuse to continue if folded offsets are skipped by now, or skipped ones no longer: a replay would
        come to another state.
        """
        for number, topic in enumerate(self._processor.topics):
            noted, now = base.skips.get(topic, {}), self._landed.skips[topic]
            for at, each in begins.items():
                end = each.applied[number] + 1
                was, is_ = _upto(noted.get(at, ()), end), _upto(now.get(at, ()), end)
                if was != is_:
                    raise ConfigError(
                        f"{self._state.path} partition {at}: of the offsets of {topic} that were folded"
                        f" {was or 'none'} were skipped, and {is_ or 'none'} are by now: fold anew"
                        " (--rebuild)"
                    )

    # -- folding

    def _plan(self, base: FoldCommit | None) -> FoldPlan:
        every = all_emits(self._processor, self._landed.partitions, internal_alone=False)
        return FoldPlan(
            processor=self._processor,
            rows=False,
            transitions=not self._beside.takes_emits,
            emits=every if self._beside.takes_emits else None,
            later_timeout_s=self._settings.later_timeout_s,
            bases=self._bases if base is None else {},
        )

    def _parts(
        self, base: FoldCommit | None, target: _Target, left: HistoryParts, *, writes_output: bool
    ) -> list[FoldedPart]:
        wanted = sorted(target.limits)
        if not wanted:
            return []
        states: dict[int, list[File]] = {}
        for partition, file, _ in self._state.files() if base is not None else ():
            states.setdefault(partition, []).append(file)
        work = FoldWork(
            plan=self._plan(base),
            output=self._beside,
            parts=left,
            state_uri=str(self._state.handle.table_uri),
            output_uri=str(self._output.handle.table_uri),
            states=states,
            before={} if base is None else base.partitions,
            memory_bytes=self._options.memory_bytes,
            writes_output=writes_output,
        )
        # Tasks of Spark write their files themselves; no commit names the files of those that fail.
        engine = self._opened.enter_context(
            open_engine(
                self._options.engine,
                self._options.spark,
                "bronze",
                task=f"fold of {self._processor.name}",
                what=self._landed.path,
                offsets=target.offsets,
                tasks=len(wanted),
                processors=[self._processor],
            )
        )
        self.report.engine = engine.name
        parts: list[FoldedPart] = []
        try:
            for part in parts_in(engine.run(wanted, work, PART_SCHEMA)):
                parts.append(part)  # noqa: PERF402  what came before a failure is dropped
        except BaseException:
            self._drop(parts)
            raise
        return parts

    def _report(self, now: FoldCommit) -> None:
        self.report.partitions = dict(now.partitions)
        positions = now.positions(self._processor)
        self.report.applied = {at: counted(each.applied) for at, each in positions.items()}


def _moved(part: FoldedPart, base: FoldCommit) -> bool:
    """Return whether a partition has another position than before."""
    return base.partitions.get(part.partition, _NOTHING).position != part.commit.position


def _upto(ranges: Iterable[tuple[int, int]], end: int) -> OffsetRanges:
    """Return the part of skipped *ranges*, both ends included, before offset *end*."""
    return tuple((first, min(last, end - 1)) for first, last in ranges if first < end)
