"""Replaying a processor of several sources from the lake: the task of a partition reads the files of each
source's table, and of the choices'. Spark's tasks run this as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.fold.skips import OffsetRanges
from holdfast.core.engine.merge.choices import Choice, VectorMarker
from holdfast.core.engine.merge.global_copies import GlobalLog, folded_by
from holdfast.errors import LakeError, LostRecordsError
from holdfast.pipeline.bronze.extent import Until, extent_of_bronze
from holdfast.pipeline.bronze.lake import Cut, Landed, bronze_path
from holdfast.pipeline.folds.folding import FoldPlan, without
from holdfast.pipeline.folds.local import BronzeFiles, open_bronze
from holdfast.pipeline.folds.merged import choices_upto, first_choice, fold_merged
from holdfast.pipeline.folds.merged_extent import MergedExtent, check_partitions, replay_ends, source_span
from holdfast.pipeline.topic import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFiles:
    """The files of each source of *plan* and of its choices, and how much of them to fold. Can be pickled.

    *numbers* are how many choices of each partition there were, and *skips* what is left out, by topic. *tables* are the
    files of the topics of globals: each partition's task reads those itself.
    """

    plan: FoldPlan
    sources: tuple[BronzeFiles, ...]
    choices: BronzeFiles
    extent: MergedExtent
    numbers: Mapping[int, int]
    skips: Mapping[str, Mapping[int, OffsetRanges]]
    tables: Mapping[str, BronzeFiles] = field(default_factory=dict)

    def fold(self, partition: int) -> Iterator[pa.RecordBatch]:
        """Fold one partition and yield what it tells."""
        processor, extent = self.plan.processor, self.extent
        spans = [extent.spans[topic][partition] for topic in processor.topics]
        logs = [
            _left(files.batches(fold.inputs, partition, span), self.skips[topic].get(partition, ()))
            for topic, files, fold, span in zip(
                processor.topics, self.sources, processor.folds, spans, strict=True
            )
        ]
        return fold_merged(
            self.plan,
            partition,
            logs,
            self._recorded(partition),
            [span.end for span in spans],
            extent.stops.get(partition),
            open_end=extent.is_open(partition),
            open_logs=self._open_logs,
        )

    def _open_logs(self, number: int) -> dict[int, GlobalLog]:
        table = self.plan.processor.reads[number]
        inputs, files, skips = (
            folded_by(table).folds[0].inputs,
            self.tables[table.topic],
            self.skips[table.topic],
        )
        logs: dict[int, GlobalLog] = {}
        for partition, span in self.extent.globals[table.topic].items():
            read = _left(files.batches(inputs, partition, span), skips.get(partition, ()))
            logs[partition] = GlobalLog((batch for batch, _ in read), span.end)
        return logs

    def fold_named(self, named: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold the partitions whose numbers come in: what a Spark task runs."""
        for numbers in named:
            for partition in numbers.column(0).to_pylist():
                yield from self.fold(partition)

    def _recorded(self, partition: int) -> Iterator[Choice]:
        """Yield the choices of a partition; raises LakeError when the table ends before the last that was landed."""
        read = self.choices.batches(("value",), partition, self.extent.choices[partition])
        values = (value for batch, _ in read for value in batch.columns[0])
        where, number = f"{self.choices.uri} partition {partition}", first_choice(self.plan, partition)
        upto = self.extent.upto.get(partition)
        for choice in choices_upto(values, upto, where, number):
            number = choice.number + 1
            yield choice
        wanted = self.numbers.get(partition, 0) if upto is None else 0
        if number < wanted:
            raise LakeError(
                f"{where} ends before choice {number}, though {wanted} were landed: without them the order of the sources is "
                "not known. Restore the table, or land the processor in another lake"
            )


def _left(read: Iterator[tuple[Batch, int]], skips: OffsetRanges) -> Iterator[tuple[Batch, int]]:
    for batch, size_bytes in read:
        left = without(batch, skips) if skips else batch
        if left.offsets:
            yield left, size_bytes


def open_several(
    plan: FoldPlan,
    app: str,
    lake: str,
    upto: Mapping[int, VectorMarker],
    wanted: Iterable[int] | None,
    until: Until | None,
) -> MergedFiles:
    """Return what of the lake to fold: up to the positions in *upto*, or *until*, else as far as the sources had been
    landed when the choices were.

    Raises LakeError for tables that do not hold that, LostRecordsError when choices were lost.
    """
    processor = plan.processor
    path = bronze_path(lake, processor.choices(app))
    choices, landed = open_bronze(path)
    cut = _cut_of(landed, path, processor.name)
    extent = extent_of_bronze(landed, None, path, {}, app)
    if extent.holes:
        raise LostRecordsError(
            f"{'; '.join(extent.holes)}: in which order the sources were folded is not known any more"
        )
    partitions = set(extent.spans if wanted is None else wanted)
    sources, spans, holes = [], dict[str, dict[int, Span]](), list[str]()
    skips: dict[str, dict[int, OffsetRanges]] = {}
    for number, topic in enumerate(processor.topics):
        found = _source(bronze_path(lake, topic), topic, cut, app)
        sources.append(found.files)
        holes += found.holes
        skips[topic] = found.skips
        spans[topic] = {
            partition: source_span(plan, number, partition, span, upto, " in the lake")
            for partition, span in found.spans.items()
        }
    check_partitions(extent.spans, spans, path)
    tables, known = dict[str, BronzeFiles](), dict[str, Mapping[int, Span]]()
    for topic in dict.fromkeys(each.topic for each in processor.reads):
        table_path = bronze_path(lake, topic)
        tables[topic], last = open_bronze(table_path)
        whole = extent_of_bronze(last, None, table_path, {}, app)
        assert last is not None, "extent_of_bronze() refuses what was never landed"
        known[topic], skips[topic] = whole.spans, last.skips(app)
        holes += whole.holes
    return MergedFiles(
        plan=plan,
        sources=tuple(sources),
        choices=choices,
        extent=MergedExtent(
            spans={
                topic: {partition: span for partition, span in found.items() if partition in partitions}
                for topic, found in spans.items()
            },
            choices={partition: span for partition, span in extent.spans.items() if partition in partitions},
            upto=upto,
            stops=replay_ends(plan, until, spans),
            holes=tuple(holes),
            globals=known,
        ),
        numbers=cut.numbers,
        skips=skips,
        tables=tables,
    )


def _cut_of(landed: Landed | None, path: str, name: str) -> Cut:
    if landed is None or landed.cut is None:
        raise LakeError(
            f"{path} does not tell how far the sources were landed: land them together with the choices "
            f"(`holdfast pipeline land --processor {name}`)"
        )
    return landed.cut


class _Source(NamedTuple):
    """The table of one source: how much of it to read, and what is skipped and missing."""

    files: BronzeFiles
    spans: dict[int, Span]
    skips: dict[int, OffsetRanges]
    holes: tuple[str, ...]


def _source(path: str, topic: str, cut: Cut, app: str) -> _Source:
    """Return the table of a source, up to *cut*."""
    files, landed = open_bronze(path)
    extent = extent_of_bronze(landed, None, path, {}, app)
    assert landed is not None, "extent_of_bronze() refuses what was never landed"
    ends = cut.sources.get(topic)
    if ends is None:
        raise LakeError(
            f"the choices were landed with the sources {', '.join(cut.sources)}, not with {topic}: give a processor of other "
            "sources another name"
        )
    spans: dict[int, Span] = {}
    for partition, end in ends.items():
        reached = extent.spans.get(partition)
        if reached is None or reached.end < end:
            raise LakeError(
                f"{path} partition {partition} ends at offset {0 if reached is None else reached.end}, but was landed up to {end} "
                "when the choices were: it was put back to an older state; land the processor again"
            )
        spans[partition] = Span(first=min(reached.first, end), end=end)
    return _Source(files, spans, landed.skips(app), extent.holes)
