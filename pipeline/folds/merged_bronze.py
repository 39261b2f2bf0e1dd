"""Replays a processor of several sources from the lake, or from the lake and the topics after it: the task of
a partition reads the files of each source's table, and of the choices'. Spark's tasks run this as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from holdfast.config import Settings
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.choices import Choice
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.processor import Input, Processor
from holdfast.core.engine.fold.skips import OffsetRanges
from holdfast.core.engine.merge.global_copies import GlobalLog, folded_by
from holdfast.core.engine.positions import Position
from holdfast.errors import LakeError, LostRecordsError
from holdfast.kafka.reading.skip_log import read_skips
from holdfast.pipeline.bronze.extent import Extent, Until, extent_of_bronze, landed_of
from holdfast.pipeline.bronze.lake import Cut, Landed, bronze_path
from holdfast.pipeline.folds.folding import FoldedState, FoldPlan, Results, without
from holdfast.pipeline.folds.joined import join
from holdfast.pipeline.folds.kept_logs import KeptLogs
from holdfast.pipeline.folds.local import BronzeFiles, open_bronze
from holdfast.pipeline.folds.merged import choices_upto, first_choice, fold_merged
from holdfast.pipeline.folds.merged_extent import (
    MergedExtent,
    check_partitions,
    replay_ends,
    settle_choices,
    source_span,
)
from holdfast.pipeline.topic import Span

PULLED = 4
"""So many choices are remembered that were read last: a replay reads at most one ahead of what it folds."""


class PartitionedLog(Protocol):
    """The records of one topic, wherever they are stored. It can be pickled."""

    @property
    def uri(self) -> str:
        """Return their path, for people."""

    def batches(self, inputs: Sequence[Input], partition: int, span: Span) -> Iterator[tuple[Batch, int]]:
        """Yield the records of one partition in offset order, each batch with its size in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFiles:
    """The files of each source of *plan* and of its choices, and the extent to fold. It can be pickled.

    *numbers* are how many choices of each partition there were, and *skips* the omitted offsets, by topic.
    *tables* are the files of the topics of globals: each partition's task reads those itself.
    """

    plan: FoldPlan
    sources: tuple[PartitionedLog, ...]
    choices: PartitionedLog
    extent: MergedExtent
    numbers: Mapping[int, int]
    skips: Mapping[str, Mapping[int, OffsetRanges]]
    tables: Mapping[str, PartitionedLog] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    """Kafka's ids of the topics that were landed."""
    kept: KeptLogs = field(default_factory=KeptLogs, repr=False, compare=False)
    """The logs of the topics of globals, as read so far."""

    def fold(
        self,
        partition: int,
        state: FoldedState | None = None,
        results: Results | None = None,
        recorded: RecordedChoices | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Fold one partition and yield its results; continue from *state*, if that is given with the choices
        *recorded* after it, for at most *limit* records.
        """
        topics, extent = self.plan.processor.topics, self.extent
        spans = [extent.spans[topic][partition] for topic in topics]
        if state is not None:
            spans = [
                Span(first=min(max(span.first, applied + 1), span.end), end=span.end)
                for span, applied in zip(spans, state.position.applied, strict=True)
            ]
        logs = [
            left_of(files.batches(inputs, partition, span), self.skips[topic].get(partition, ()))
            for topic, files, inputs, span in zip(
                topics, self.sources, self.plan.source_inputs, spans, strict=True
            )
        ]
        return fold_merged(
            self.plan,
            partition,
            logs,
            recorded or RecordedChoices(self, partition, first_choice(self.plan, partition)),
            [span.end for span in spans],
            extent.stops.get(partition),
            open_end=extent.is_open(partition),
            upto=extent.upto.get(partition),
            open_global=self._open_global,
            state=state,
            results=results,
            limit=limit,
        )

    def _open_global(self, table: Global[Any]) -> dict[int, GlobalLog]:
        topic, inputs = table.topic, folded_by(table).folds[0].inputs
        logs: dict[int, GlobalLog] = {}
        for partition, span in self.extent.globals[topic].items():
            read = partial(self._read_global, topic, inputs, partition)
            found = self.kept.batches(topic, inputs, partition, span, read, read)
            logs[partition] = GlobalLog(found, span.end)
        return logs

    def _read_global(
        self, topic: str, inputs: Sequence[Input], partition: int, span: Span
    ) -> Iterator[tuple[Batch, int]]:
        read = self.tables[topic].batches(inputs, partition, span)
        return left_of(read, self.skips[topic].get(partition, ()))

    def fold_named(self, named: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold the partitions whose numbers come in: what a Spark task runs."""
        for numbers in named:
            for partition in numbers.column(0).to_pylist():
                yield from self.fold(partition)


class RecordedChoices:
    """The choices of a partition from the number *first* on, which are at the offset *start* or after it;
    LakeError when the table ends before the last that was landed.
    """

    def __init__(self, files: MergedFiles, partition: int, first: int, start: int = 0) -> None:
        self._files, self._partition, self._first, self._start = files, partition, first, start
        self._read = deque[tuple[int, int]](maxlen=PULLED)
        self._offset = start

    def __iter__(self) -> Iterator[Choice]:
        files, partition, number = self._files, self._partition, self._first
        where, upto = f"{files.choices.uri} partition {partition}", files.extent.upto.get(partition)
        for choice in choices_upto(self._values(), upto, where, number):
            number = choice.number + 1
            self._read.append((number, self._offset + 1))
            yield choice
        wanted = files.numbers.get(partition, 0) if upto is None else 0
        if number < wanted:
            raise LakeError(
                f"{where} ends before choice {number}, though {wanted} were landed: without them the order of"
                " the sources is not known. Restore the table, or land the processor in another lake"
            )

    def _values(self) -> Iterator[bytes | None]:
        span = self._files.extent.choices[self._partition]
        rest = Span(first=min(max(span.first, self._start), span.end), end=span.end)
        for batch, _ in self._files.choices.batches(("value",), self._partition, rest):
            for self._offset, value in zip(batch.offsets, batch.columns[0], strict=True):
                yield value

    def behind(self, number: int) -> int:
        """Return an offset at or after which all choices from *number* on are, once those before it were
        read.
        """
        return next((offset for each, offset in self._read if each == number), self._start)


def left_of(read: Iterable[tuple[Batch, int]], skips: OffsetRanges) -> Iterator[tuple[Batch, int]]:
    """Yield the records that are not skipped."""
    for batch, size_bytes in read:
        left = without(batch, skips) if skips else batch
        if left.offsets:
            yield left, size_bytes


def open_several(
    plan: FoldPlan,
    app: str,
    lake: str,
    upto: Mapping[int, Position],
    wanted: Iterable[int] | None,
    until: Until | None,
    begin: Mapping[int, Position] = MappingProxyType({}),
) -> MergedFiles:
    """Return the part of the lake to fold: up to the positions in *upto*, or *until*, else as far as the
    sources had been landed when the choices were. Records before the positions in *begin*, by partition, are
    not needed.

    Raises LakeError for tables that do not hold that, LostRecordsError when choices were lost.
    """
    return LandedTables.open(plan.processor, app, lake).files(plan, upto, wanted, until, begin)


class LandedTable(NamedTuple):
    """The files of one version of a bronze table, and what its last landing said of itself."""

    path: str
    files: BronzeFiles
    landed: Landed

    @classmethod
    def open(cls, path: str) -> LandedTable:
        """Open the table at *path*; LakeError where nothing was landed in it yet."""
        files, landed = open_bronze(path)
        return cls(path, files, landed_of(landed, path))

    def extent(self, app: str, begin: Mapping[int, int] = MappingProxyType({})) -> Extent:
        return extent_of_bronze(self.landed, None, self.path, {}, app, begin=begin)


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedTables:
    """The tables of the choices, sources and globals of a processor, each opened once: to open one costs its
    log and its history.

    The choices are opened first, so that the sources reach at least as far as those say.
    """

    app: str
    choices: LandedTable
    cut: Cut
    sources: Mapping[str, LandedTable]
    tables: Mapping[str, LandedTable]

    @classmethod
    def open(cls, processor: Processor[Any, Any], app: str, lake: str) -> LandedTables:
        """Open the present tables of *lake*; LakeError if they differ from the landed data, LostRecordsError
        when choices were lost.
        """
        path = bronze_path(lake, processor.choices(app))
        files, landed = open_bronze(path)
        cut = cut_of(landed, path, processor.name)
        choices = LandedTable(path, files, landed_of(landed, path))
        if holes := choices.extent(app).holes:
            raise _choices_lost(holes)
        return cls(
            app=app,
            choices=choices,
            cut=cut,
            sources={topic: LandedTable.open(bronze_path(lake, topic)) for topic in processor.topics},
            tables={topic: LandedTable.open(bronze_path(lake, topic)) for topic in _global_topics(processor)},
        )

    def files(
        self,
        plan: FoldPlan,
        upto: Mapping[int, Position],
        wanted: Iterable[int] | None,
        until: Until | None,
        begin: Mapping[int, Position],
    ) -> MergedFiles:
        """Return the part of the tables to fold; otherwise as `open_several`."""
        sources = {
            topic: _source(table, topic, self.cut, self.app, firsts_behind(begin, number))
            for number, (topic, table) in enumerate(self.sources.items())
        }
        tables = {topic: _table(table, self.app) for topic, table in self.tables.items()}
        chosen = self.choices.extent(self.app).spans
        found = _merged(
            plan, sources, tables, self.choices.files, chosen, self.cut.numbers, upto, wanted, until
        )
        choices = plan.processor.choices(self.app)
        return replace(found, ids={**found.ids, choices: self.choices.landed.topic_id})


def firsts_behind(positions: Mapping[int, Position], source: int) -> dict[int, int]:
    """Return the first offset of the source with that number after each position."""
    return {at: each.applied[source] + 1 for at, each in positions.items()}


def open_joined(
    plan: FoldPlan,
    settings: Settings,
    lake: str,
    upto: Mapping[int, Position],
    wanted: Iterable[int] | None,
    until: Until | None,
) -> MergedFiles:
    """Return the part to fold of the lake up to its end and of the topics from there; otherwise as
    `open_several`.

    Sources first, as `merged_extent` has it. Raises what `join` does.
    """
    processor, skips = plan.processor, read_skips(settings)
    sources = {topic: _joined(settings, topic, lake, skips.of_topic(topic)) for topic in processor.topics}
    settle_choices(settings, processor)
    choices = _joined(settings, processor.choices(settings.app), lake, {})
    if choices.holes:
        raise _choices_lost(choices.holes)
    tables = {
        topic: _joined(settings, topic, lake, skips.of_topic(topic)) for topic in _global_topics(processor)
    }
    return _merged(plan, sources, tables, choices.files, choices.spans, {}, upto, wanted, until)


def _merged(
    plan: FoldPlan,
    sources: Mapping[str, _Source],
    tables: Mapping[str, _Source],
    choices: PartitionedLog,
    chosen: Mapping[int, Span],
    numbers: Mapping[int, int],
    upto: Mapping[int, Position],
    wanted: Iterable[int] | None,
    until: Until | None,
) -> MergedFiles:
    """Return the part to fold of *sources*, limited by *upto* and *until*; *chosen* are the spans of
    *choices*.
    """
    topics = plan.processor.topics
    spans = {
        topic: {
            partition: source_span(plan, number, partition, span, upto, " in the lake")
            for partition, span in sources[topic].spans.items()
        }
        for number, topic in enumerate(topics)
    }
    check_partitions(chosen, spans, choices.uri)
    partitions = set(chosen if wanted is None else wanted)
    return MergedFiles(
        plan=plan,
        sources=tuple(sources[topic].files for topic in topics),
        choices=choices,
        extent=MergedExtent(
            spans={
                topic: {partition: span for partition, span in found.items() if partition in partitions}
                for topic, found in spans.items()
            },
            choices={partition: span for partition, span in chosen.items() if partition in partitions},
            upto=upto,
            stops=replay_ends(plan, until, spans),
            holes=tuple(hole for each in (*sources.values(), *tables.values()) for hole in each.holes),
            globals={topic: each.spans for topic, each in tables.items()},
        ),
        numbers=numbers,
        skips={topic: each.skips for topic, each in {**tables, **sources}.items()},
        tables={topic: each.files for topic, each in tables.items()},
        ids={topic: each.topic_id for topic, each in {**tables, **sources}.items()},
    )


def _global_topics(processor: Processor[Any, Any]) -> list[str]:
    return list(dict.fromkeys(each.topic for each in processor.reads))


def _joined(settings: Settings, topic: str, lake: str, skips: Mapping[int, OffsetRanges]) -> _Source:
    found = join(settings, topic, lake, skips)
    return _Source(found.log, dict(found.whole.spans), dict(skips), found.whole.holes, found.topic_id)


def _choices_lost(holes: Iterable[str]) -> LostRecordsError:
    return LostRecordsError(
        f"{'; '.join(holes)}: in which order the sources were folded is not known any more"
    )


def cut_of(landed: Landed | None, path: str, name: str) -> Cut:
    """Return the offsets of the sources of processor *name* when its choices were landed."""
    if landed is None or landed.cut is None:
        raise LakeError(
            f"{path} does not tell how far the sources were landed: land them together with the choices "
            f"(`holdfast pipeline land --processor {name}`)"
        )
    return landed.cut


class _Source(NamedTuple):
    """The table of one source: the extent to read, and its skipped and missing offsets."""

    files: PartitionedLog
    spans: dict[int, Span]
    skips: dict[int, OffsetRanges]
    holes: tuple[str, ...]
    topic_id: str


def _source(table: LandedTable, topic: str, cut: Cut, app: str, begin: Mapping[int, int]) -> _Source:
    """Return the part to read of the table of a source, up to *cut*; records before the offsets in *begin*
    are not needed.
    """
    extent = table.extent(app, begin)
    ends = cut.sources.get(topic)
    if ends is None:
        raise LakeError(
            f"the choices were landed with the sources {', '.join(cut.sources)}, not with {topic}: give a"
            " processor of other sources another name"
        )
    spans: dict[int, Span] = {}
    for partition, end in ends.items():
        reached = extent.spans.get(partition)
        if reached is None or reached.end < end:
            raise LakeError(
                f"{table.path} partition {partition} ends at offset {0 if reached is None else reached.end},"
                f" but was landed up to {end} when the choices were: it was put back to an older state; land"
                " the processor again"
            )
        spans[partition] = Span(first=min(reached.first, end), end=end)
    return _Source(table.files, spans, table.landed.skips(app), extent.holes, table.landed.topic_id)


def _table(table: LandedTable, app: str) -> _Source:
    """Return the table of a global, all of it."""
    extent, landed = table.extent(app), table.landed
    return _Source(table.files, dict(extent.spans), landed.skips(app), extent.holes, landed.topic_id)
