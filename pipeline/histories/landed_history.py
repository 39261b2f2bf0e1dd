"""The landed data of a processor's sources, as a fold into tables reads them: of one topic up to its end, of
several sources up to where their order is settled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
from msgspec import structs

from holdfast.config import Settings
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.skips import OffsetRanges
from holdfast.core.engine.positions import Position, start_of
from holdfast.errors import LakeError
from holdfast.pipeline.bronze.extent import extent_of_bronze
from holdfast.pipeline.bronze.lake import Cut, Landed, bronze_path
from holdfast.pipeline.folds.folding import FoldedState, FoldPlan, Results, fold_partition
from holdfast.pipeline.folds.local import BronzeFiles, open_bronze
from holdfast.pipeline.folds.merged_bronze import LandedTables, MergedFiles, RecordedChoices, left_of
from holdfast.pipeline.topic import Span


class HistoryPart(Protocol):
    """The part of one partition that is to be folded."""

    def fold(self, state: FoldedState, results: Results) -> Iterator[pa.RecordBatch]:
        """Continue the fold from *state* and yield the results."""

    def choices_from(self, reached: Position) -> int:
        """Return the offset from which to read choices after a fold up to *reached*; 0 with one source."""


class HistoryParts(Protocol):
    """The part of each partition that is to be folded. It can be pickled."""

    def part(self, partition: int, choices_from: int) -> HistoryPart:
        """Return the part of one partition; choices before the offset *choices_from* are in its state."""


class LandedHistory(Protocol):
    """The landed data of a processor's sources: *path* is the table with the landed ends, *ids* are Kafka's
    ids of the topics, and *skips* the offsets that the application leaves out of each.
    """

    @property
    def path(self) -> str: ...

    @property
    def ids(self) -> Mapping[str, str]: ...

    @property
    def skips(self) -> Mapping[str, Mapping[int, OffsetRanges]]: ...

    @property
    def partitions(self) -> Iterable[int]:
        """Return the partitions that there are."""

    def short(self, begins: Mapping[int, Position]) -> str | None:
        """Say which partition ends before where it was folded to already; None where none does."""

    def holes(self, begins: Mapping[int, Position]) -> tuple[str, ...]:
        """Return the parts missing after *begins*, in words."""

    def left(self, begins: Mapping[int, Position]) -> dict[int, int]:
        """Return, for each partition with offsets to fold after *begins*, how many those are."""

    def parts(
        self, plan: FoldPlan, limits: Mapping[int, int], upto: Mapping[int, Position] | None = None
    ) -> HistoryParts:
        """Return the parts of partitions to fold: up to *upto*, or all there is, and of those in *limits* at
        most so many records.
        """


def landed_history(processor: Processor[Any, Any], settings: Settings, lake: str) -> LandedHistory:
    """Return the present data in *lake* for *processor*; LakeError where a table is not as it was landed."""
    if processor.on is None:
        return LandedTopic(processor, settings, lake)
    return LandedSources(processor, settings, lake)


class LandedTopic:
    """The table of the source of a processor."""

    def __init__(self, processor: Processor[Any, Any], settings: Settings, lake: str) -> None:
        self._topic, self._app = str(processor.topics[0]), settings.app
        self.path = bronze_path(lake, self._topic)
        self._files, landed = open_bronze(self.path)
        extent_of_bronze(landed, None, self.path, {}, settings.app)  # refuses a topic that was never landed
        assert landed is not None
        self._landed: Landed = landed
        self.ids = {self._topic: landed.topic_id}
        self.skips = {self._topic: landed.skips(settings.app)}

    @property
    def partitions(self) -> Iterable[int]:
        return sorted(self._landed.end)

    def short(self, begins: Mapping[int, Position]) -> str | None:
        for at, first in _firsts(begins).items():
            if (end := self._landed.end.get(at, 0)) < first:
                return f"{self.path} partition {at} ends at offset {end}, and was folded up to {first}"
        return None

    def holes(self, begins: Mapping[int, Position]) -> tuple[str, ...]:
        return extent_of_bronze(self._landed, None, self.path, {}, self._app, begin=_firsts(begins)).holes

    def left(self, begins: Mapping[int, Position]) -> dict[int, int]:
        spans = {at: self._span(at, first) for at, first in _firsts(begins).items()}
        return {at: span.end - span.first for at, span in spans.items() if self._has_rows(at, span)}

    def _span(self, partition: int, first: int, end: int | None = None) -> Span:
        landed = self._landed.end.get(partition, 0) if end is None else end
        first = max(first, self._landed.begins.get(partition, 0))
        return Span(first=first, end=max(first, landed))

    def _has_rows(self, partition: int, span: Span) -> bool:
        return span.end > span.first and any(
            file.touches(span) for file in self._files.files.get(partition, ())
        )

    def parts(
        self, plan: FoldPlan, limits: Mapping[int, int], upto: Mapping[int, Position] | None = None
    ) -> HistoryParts:
        ends = self._landed.end if upto is None else _firsts(upto)
        plan = replace(plan, skips=self.skips[self._topic])
        return TopicParts(
            plan=plan,
            files=self._files,
            spans={at: self._span(at, 0, end) for at, end in ends.items()},
            limits=limits,
        )


def _firsts(begins: Mapping[int, Position]) -> dict[int, int]:
    return {at: each.applied[0] + 1 for at, each in begins.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicParts:
    """The part of each partition of one topic to fold: *spans*, as far as their states do not include it, and
    of each at most as many records as *limits* says.
    """

    plan: FoldPlan
    files: BronzeFiles
    spans: Mapping[int, Span]
    limits: Mapping[int, int]

    def part(self, partition: int, choices_from: int) -> TopicPart:
        return TopicPart(self, partition)


@dataclass(frozen=True, slots=True)
class TopicPart:
    """One partition of `TopicParts`."""

    whole: TopicParts
    partition: int

    def fold(self, state: FoldedState, results: Results) -> Iterator[pa.RecordBatch]:
        plan, at = self.whole.plan, self.partition
        span, applied = self.whole.spans[at], state.position.applied[0]
        rest = Span(first=min(max(span.first, applied + 1), span.end), end=span.end)
        read = self.whole.files.batches(plan.processor.columns, at, rest)
        kept = left_of(read, plan.skips.get(at, ()))  # skipped records do not count for the limit
        return fold_partition(plan, at, _first_records(kept, self.whole.limits.get(at)), state, results)

    def choices_from(self, reached: Position) -> int:
        return 0


def _first_records(read: Iterable[tuple[Batch, int]], limit: int | None) -> Iterator[tuple[Batch, int]]:
    left = limit
    for batch, size_bytes in read:
        if left is not None and len(batch.offsets) >= left:
            yield batch.slice(0, left), size_bytes
            return
        left = None if left is None else left - len(batch.offsets)
        yield batch, size_bytes


class LandedSources:
    """The tables of the sources of a processor, of its choices and of its globals, up to the position
    of its table when the choices were landed: later, records of which a worker knew nothing may come between.
    """

    def __init__(self, processor: Processor[Any, Any], settings: Settings, lake: str) -> None:
        self._processor = processor
        self._tables = LandedTables.open(processor, settings.app, lake)
        self.path, cut = self._tables.choices.path, self._tables.cut
        if not cut.positions:
            raise LakeError(
                f"{self.path} does not tell where the table of {processor.name} stood: nobody had folded"
                " anything when it was landed, or an earlier holdfast landed it, so no order of the sources"
                " is settled. Land again once workers have folded (`holdfast pipeline land --processor"
                f" {processor.name}`)"
            )
        self._known = {at: self._position(cut, at) for at in cut.numbers}
        files = self._files({})
        self.ids, self.skips = files.ids, files.skips

    def _position(self, cut: Cut, partition: int) -> Position:
        start, found = start_of(self._processor), cut.positions.get(partition)
        if found is None:
            return start
        applied = tuple(found.applied.get(topic, -1) for topic in self._processor.topics)
        return structs.replace(start, applied=applied, choices=found.choices)

    def _files(
        self, begins: Mapping[int, Position], upto: Mapping[int, Position] | None = None
    ) -> MergedFiles:
        ends = {at: each for at, each in (upto or self._known).items() if each.reached_ms}
        plan = FoldPlan(processor=self._processor)
        return self._tables.files(plan, ends, sorted(ends), None, begins)

    @property
    def partitions(self) -> Iterable[int]:
        return sorted(self._known)

    def short(self, begins: Mapping[int, Position]) -> str | None:
        for at, begin in begins.items():
            there = self._known.get(at, start_of(self._processor))
            if there.choices < begin.choices or any(
                last < done for last, done in zip(there.applied, begin.applied, strict=True)
            ):
                return (
                    f"{self.path} tells of partition {at} that its table stood at"
                    f" {_told(self._processor, there)}, and it was folded up to"
                    f" {_told(self._processor, begin)}"
                )
        return None

    def holes(self, begins: Mapping[int, Position]) -> tuple[str, ...]:
        return self._files(begins).extent.holes

    def left(self, begins: Mapping[int, Position]) -> dict[int, int]:
        left = dict[int, int]()
        for at, begin in begins.items():
            there = self._known.get(at, begin)
            ahead = [last - done for last, done in zip(there.applied, begin.applied, strict=True)]
            left[at] = max(sum(ahead), there.choices - begin.choices, 0)
        return {at: each for at, each in left.items() if each}

    def parts(
        self, plan: FoldPlan, limits: Mapping[int, int], upto: Mapping[int, Position] | None = None
    ) -> HistoryParts:
        return MergedParts(files=replace(self._files({}, upto), plan=plan), limits=limits)


def _told(processor: Processor[Any, Any], position: Position) -> str:
    """Return a position of several sources as people write it."""
    places = zip(processor.topics, position.applied, strict=True)
    return f"{', '.join(f'{topic} {offset}' for topic, offset in places)} and {position.choices} choices"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedParts:
    """The part of each partition of several sources to fold: the records in *files*, at most as many as
    *limits* says.
    """

    files: MergedFiles
    limits: Mapping[int, int]

    def part(self, partition: int, choices_from: int) -> MergedPart:
        return MergedPart(self, partition, choices_from)


class MergedPart:
    """One partition of `MergedParts`."""

    def __init__(self, whole: MergedParts, partition: int, choices_from: int) -> None:
        self._whole, self._partition, self._from = whole, partition, choices_from
        self._recorded: RecordedChoices | None = None

    def fold(self, state: FoldedState, results: Results) -> Iterator[pa.RecordBatch]:
        files, at = self._whole.files, self._partition
        self._recorded = RecordedChoices(files, at, state.position.choices, self._from)
        return files.fold(at, state, results, self._recorded, self._whole.limits.get(at))

    def choices_from(self, reached: Position) -> int:
        return self._from if self._recorded is None else self._recorded.behind(reached.choices)
