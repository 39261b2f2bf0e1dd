"""One history of a topic: its bronze table up to where that ends, and the topic itself from there on, once it
is shown that they join.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Input
from holdfast.core.engine.fold.folding import Batch
from holdfast.core.engine.fold.skips import OffsetRanges
from holdfast.errors import LakeError, LostRecordsError
from holdfast.pipeline.bronze.extent import Extent, Until, cut, extent_of_bronze
from holdfast.pipeline.bronze.faults import LakeFault
from holdfast.pipeline.bronze.files import filesystem_of
from holdfast.pipeline.bronze.guarded import bronze_reader
from holdfast.pipeline.bronze.lake import Landed, bronze_path, check_identity
from holdfast.pipeline.checks.against_topic import differences
from holdfast.pipeline.folds.folding import FoldPlan, fold_partition
from holdfast.pipeline.folds.local import BronzeFiles, open_bronze
from holdfast.pipeline.topic import Span, TopicLog, TopicReader, is_compacted

PROVED_OFFSETS = 1_000
"""So many offsets of each partition, the last that the table and the topic both hold, are compared. A log
that lost records and took others instead (an unclean election) differs there, since a log only loses its end.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedLog:
    """The records of one topic, from the *files* of its bronze table up to the offsets *ends* and from the
    topic after these. It can be pickled.
    """

    settings: Settings
    topic: str
    lake: str
    files: BronzeFiles
    ends: Mapping[int, int]
    skips: Mapping[int, OffsetRanges]

    @property
    def uri(self) -> str:
        return f"{self.files.uri} and topic {self.topic}"

    def batches(self, inputs: Sequence[Input], partition: int, span: Span) -> Iterator[tuple[Batch, int]]:
        """Yield the records of one partition in offset order, as a folder of *inputs* takes them, each batch
        with its size in bytes.
        """
        landed, rest = self.parts(partition, span)
        if landed.end > landed.first:
            yield from self.files.batches(inputs, partition, landed)
        if rest.end > rest.first:
            with TopicReader(self.settings, self.topic, self.skips) as reader:
                yield from reader.batches(partition, rest, inputs)

    def parts(self, partition: int, span: Span) -> tuple[Span, Span]:
        """Return the part of *span* to read from the table, and the part from the topic."""
        middle = min(max(span.first, self.ends.get(partition, 0)), span.end)
        return Span(first=span.first, end=middle), Span(first=middle, end=span.end)

    def fold(self, plan: FoldPlan, spans: Mapping[int, Span]) -> Iterator[pa.RecordBatch]:
        """Fold *spans* and yield their results."""
        for partition, span in sorted(spans.items()):
            yield from fold_partition(plan, partition, self.batches(plan.processor.columns, partition, span))

    def fold_named(
        self, plan: FoldPlan, spans: Mapping[int, Span], named: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Fold the partitions whose numbers come in: what a Spark task runs."""
        for numbers in named:
            for partition in numbers.column(0).to_pylist():
                yield from self.fold(plan, {partition: spans[partition]})


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedTopic:
    """A topic whose log and table were found to join: *whole* is all that both hold."""

    log: JoinedLog
    whole: Extent
    topic_id: str

    def upto(self, until: Until | None) -> Extent:
        """Return the extent to read up to *until*."""
        spans = dict(self.whole.spans)
        if until is not None and until.at_ms is not None:
            later = self._first_after(until.at_ms)
            spans = {
                p: Span(first=span.first, end=max(span.first, min(span.end, later.get(p, span.end))))
                for p, span in spans.items()
            }
        return Extent(spans=cut(spans, until, self.log.uri), holes=self.whole.holes)

    def _first_after(self, at_ms: int) -> dict[int, int]:
        """Return the first offset appended later than *at_ms*, where there is one; the table knows of those
        that it holds.
        """
        log = self.log
        with TopicLog(log.settings, log.topic) as topic:
            found = topic.first_after(at_ms, sorted(self.whole.spans))
        later = {p: max(offset, log.ends.get(p, 0)) for p, offset in found.items() if offset is not None}
        return later | {p: at for p, at in log.files.first_after(at_ms).items() if at < log.ends.get(p, 0)}


def join(
    settings: Settings,
    topic: str,
    lake: str,
    skips: Mapping[int, OffsetRanges],
    begin: Mapping[int, int] = MappingProxyType({}),
) -> JoinedTopic:
    """Return the one history of *topic*, of which what lies before the offsets in *begin* is not needed.

    LostRecordsError names offsets that neither holds. LakeError for a topic that was made again, that ends
    before its table does, or whose last records before the table's end are not those that were landed.
    """
    path = bronze_path(lake, topic)
    files, landed = open_bronze(path)
    extent = extent_of_bronze(landed, None, path, {}, settings.app, skips=skips, begin=begin)
    assert landed is not None, "extent_of_bronze() refuses what was never landed"
    with TopicLog(settings, topic) as log:
        held, identity = log.spans(), log.identity()  # after the table: whatever that has is committed
    check_identity(path, landed, topic, identity)
    for partition in sorted({*held, *landed.end}):
        _check_bounds(path, topic, partition, landed.end.get(partition, 0), held.get(partition))
    _check_overlap(settings, path, landed, files, held)
    spans = {
        p: Span(first=extent.spans[p].first if p in extent.spans else 0, end=span.end)
        for p, span in held.items()
    }
    joined = JoinedLog(
        settings=settings, topic=topic, lake=lake, files=files, ends=dict(landed.end), skips=skips
    )
    return JoinedTopic(log=joined, whole=Extent(spans=spans, holes=extent.holes), topic_id=identity)


def _check_bounds(path: str, topic: str, partition: int, end: int, held: Span | None) -> None:
    """Raise the fault if the table of a partition ends at *end* and the topic holds *held* of it."""
    if held is None or held.end < end:
        raise LakeError(
            f"{path} holds partition {partition} up to offset {end}, but topic {topic} ends at"
            f" {0 if held is None else held.end}: it lost records that were landed (an unclean election?), or"
            " is not the topic that was landed. Replay from bronze alone: --from bronze"
        )
    if held.first > end:
        raise LostRecordsError(
            f"{path} partition {partition} ends at offset {end}, and topic {topic} begins at {held.first}:"
            f" offsets {end} to {held.first - 1} are in neither, since they were deleted before they were"
            " landed. Restore them if you can; `holdfast pipeline land --accept-loss` notes the hole, and"
            " --allow-holes folds the rest"
        )


def _check_overlap(
    settings: Settings, path: str, landed: Landed, files: BronzeFiles, held: Mapping[int, Span]
) -> None:
    """Compare the last records that the table and the topic both hold."""
    left_out = {p: tuple(ranges) for p, ranges in landed.left_out.items()}
    filesystem = filesystem_of(files.uri)
    with TopicReader(settings, landed.topic, left_out) as reader:
        for partition, end in sorted(landed.end.items()):
            first = max(held[partition].first, landed.begins.get(partition, 0), end - PROVED_OFFSETS)
            if first >= end:
                continue
            span = Span(first=first, end=end)
            rows = bronze_reader(f"{path} partition {partition}", filesystem)
            told = differences(
                path, partition, reader.records(partition, span), rows, files.files.get(partition, ()), span
            )
            for fault in told:
                if fault.kind != "extra" or not is_compacted(settings, landed.topic):
                    raise _unequal(fault, landed.topic)


def _unequal(fault: LakeFault, topic: str) -> LakeError:
    return LakeError(
        f"{fault.told}. So the table and topic {topic} are not one history: the topic lost records that were"
        " landed and took others instead (an unclean election?), or the table was changed. `holdfast"
        f" pipeline check --topics {topic} --against-topic` tells of all; --from bronze or --from topic folds"
        " one of them"
    )
