"""The landed data of a processor's sources, as a fold into tables reads them: up to where their order is
settled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from msgspec import structs

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.positions import Position, start_of
from holdfast.errors import LakeError
from holdfast.pipeline.bronze.lake import Cut
from holdfast.pipeline.folds.extent import ReadLimit
from holdfast.pipeline.folds.partition_fold import FoldedState
from holdfast.pipeline.folds.plan import FoldPlan
from holdfast.pipeline.folds.replay_logs import LandedTables, RecordedChoices, ReplayLogs
from holdfast.pipeline.folds.result_rows import Results


class LandedHistory:
    """The present data in *lake* for *processor*: *path* is the table with the landed ends, *ids* are Kafka's
    ids of the topics, and *skips* the offsets that the application leaves out of each.

    Where choices record the order of the sources, it reaches up to the position of the processor's table when
    they were landed: later, records of which a worker knew nothing may come between. LakeError where a table
    is not as it was landed.
    """

    def __init__(self, processor: Processor[Any, Any], settings: Settings, lake: str) -> None:
        self._processor = processor
        self._tables = LandedTables.open(processor, settings.app, lake)
        where = self._tables.choices or self._tables.sources
        self.path = next(iter(where.values())).path
        self._known = self._positions(self._tables.cut)
        logs = self._logs({})
        self.ids, self.skips = logs.ids, logs.skips

    def _positions(self, cut: Cut | None) -> dict[int, Position]:
        start, topics = start_of(self._processor), self._processor.topics
        if cut is None:
            [ends] = (table.landed.end for table in self._tables.sources.values())
            return {at: structs.replace(start, applied=(end - 1,)) for at, end in ends.items()}
        if not cut.positions:
            raise LakeError(
                f"{self.path} has no position of the table of {self._processor.name}: no worker had"
                " folded anything when it was landed, or an earlier holdfast landed it, so no order of the"
                " sources is settled. Land again once workers have folded (`holdfast pipeline land"
                f" --processor {self._processor.name}`)"
            )
        found = dict.fromkeys(cut.numbers, start)
        for at, each in cut.positions.items():
            applied = tuple(each.applied.get(topic, -1) for topic in topics)
            found[at] = structs.replace(start, applied=applied, choices=each.choices)
        return found

    def _logs(self, begins: Mapping[int, Position], upto: Mapping[int, Position] | None = None) -> ReplayLogs:
        ends = self._known if upto is None else upto
        plan = FoldPlan(processor=self._processor)
        return self._tables.logs(plan, ReadLimit(sorted(ends), ends), begin=begins)

    @property
    def partitions(self) -> Iterable[int]:
        """Return the partitions that there are."""
        return sorted(self._known)

    def short(self, begins: Mapping[int, Position]) -> str | None:
        """Say which partition ends before where it was folded to already; None where none does."""
        for at, begin in begins.items():
            there = self._known.get(at, start_of(self._processor))
            if there.choices < begin.choices or any(
                last < done for last, done in zip(there.applied, begin.applied, strict=True)
            ):
                return (
                    f"{self.path} partition {at} ends at {_told(self._processor, there)}, and was folded up"
                    f" to {_told(self._processor, begin)}"
                )
        return None

    def holes(self, begins: Mapping[int, Position]) -> tuple[str, ...]:
        """Return the parts missing after *begins*, in words."""
        return self._logs(begins).extent.holes

    def left(self, begins: Mapping[int, Position]) -> dict[int, int]:
        """Return, for each partition with records or choices to fold after *begins*, how many offsets that
        is at the most.
        """
        left = dict[int, int]()
        for at, begin in begins.items():
            there = self._known.get(at, begin)
            ahead = sum(last - done for last, done in zip(there.applied, begin.applied, strict=True))
            ahead = ahead if self._has_rows(at, begin, there) else 0
            if (most := max(ahead, there.choices - begin.choices)) > 0:
                left[at] = most
        return left

    def _has_rows(self, partition: int, begin: Position, end: Position) -> bool:
        return any(
            file.last is None or file.first is None or (file.first <= last and file.last > done)
            for table, done, last in zip(
                self._tables.sources.values(), begin.applied, end.applied, strict=True
            )
            for file in table.files.files.get(partition, ())
        )

    def parts(self, limits: Mapping[int, int], upto: Mapping[int, Position] | None = None) -> HistoryParts:
        """Return the parts of partitions to fold: up to *upto*, or all there is, and of those in *limits* at
        most so many records.
        """
        return HistoryParts(logs=self._logs({}, upto), limits=limits)


def _told(processor: Processor[Any, Any], position: Position) -> str:
    """Return a position as people write it."""
    if not processor.named_sources:
        return f"offset {position.applied[0]}"
    places = zip(processor.topics, position.applied, strict=True)
    return f"{', '.join(f'{topic} {offset}' for topic, offset in places)} and {position.choices} choices"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryParts:
    """The part of each partition that is to be folded: the records in *logs*, at most as many as *limits*
    says. It can be pickled.
    """

    logs: ReplayLogs
    limits: Mapping[int, int]

    def part(self, plan: FoldPlan, partition: int, choices_from: int) -> HistoryPart:
        """Return the part of one partition; choices before the offset *choices_from* are in its state."""
        return HistoryPart(self, plan, partition, choices_from)


class HistoryPart:
    """One partition of `HistoryParts`."""

    def __init__(self, whole: HistoryParts, plan: FoldPlan, partition: int, choices_from: int) -> None:
        self._whole, self._plan, self._partition, self._from = whole, plan, partition, choices_from
        self._recorded: RecordedChoices | None = None

    def fold(self, state: FoldedState, results: Results) -> Iterator[pa.RecordBatch]:
        """Continue the fold from *state* and yield the results."""
        logs, at = self._whole.logs, self._partition
        self._recorded = RecordedChoices(logs, at, state.position.choices, self._from)
        return logs.fold(self._plan, at, state, results, self._recorded, self._whole.limits.get(at))

    def choices_from(self, reached: Position) -> int:
        """Return the offset from which to read choices after a fold up to *reached*."""
        return self._from if self._recorded is None else self._recorded.behind(reached.choices)
