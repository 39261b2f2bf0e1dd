"""One history of a topic: its bronze table up to where that ends, and the topic itself from there on, once it
is shown that they join.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from holdfast.config import Settings
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.sources import Input
from holdfast.core.engine.fold.skips import OffsetRanges
from holdfast.errors import LakeError, LostRecordsError
from holdfast.pipeline.bronze.extent import extent_of_bronze
from holdfast.pipeline.bronze.faults import LakeFault
from holdfast.pipeline.bronze.files import filesystem_of
from holdfast.pipeline.bronze.guarded import bronze_reader
from holdfast.pipeline.bronze.lake import Landed, bronze_path, check_identity
from holdfast.pipeline.checks.against_topic import differences
from holdfast.pipeline.logs.lake_log import LakeLog, open_bronze
from holdfast.pipeline.logs.record_log import OpenLog, TopicRecords
from holdfast.pipeline.topic import Span, TopicLog, TopicReader, is_compacted

PROVED_OFFSETS = 1_000
"""So many offsets of each partition, the last that the table and the topic both hold, are compared. A log
that lost records and took others instead (an unclean election) differs there, since a log only loses its end.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedLog:
    """The records of one topic, *landed* up to the offsets *ends* and in the *topic* after these."""

    landed: LakeLog
    topic: TopicRecords
    ends: Mapping[int, int]

    @property
    def uri(self) -> str:
        return f"{self.landed.uri} and {self.topic.uri}"

    def batches(self, inputs: Sequence[Input], partition: int, span: Span) -> Iterator[tuple[Batch, int]]:
        middle = min(max(span.first, self.ends.get(partition, 0)), span.end)
        if middle > span.first:
            yield from self.landed.batches(inputs, partition, Span(first=span.first, end=middle))
        yield from self.topic.batches(inputs, partition, Span(first=middle, end=span.end))

    def close(self) -> None:
        self.topic.close()


def open_joined(
    settings: Settings,
    topic: str,
    lake: str,
    skips: Mapping[int, OffsetRanges],
    begin: Mapping[int, int] = MappingProxyType({}),
) -> OpenLog:
    """Return the one history of *topic*, of which what lies before the offsets in *begin* is not needed.

    LostRecordsError names offsets that neither holds. LakeError for a topic that was made again, that ends
    before its table does, or whose last records before the table's end are not those that were landed.
    """
    path = bronze_path(lake, topic)
    files, landed = open_bronze(path)
    extent = extent_of_bronze(landed, path, settings.app, skips=skips, begin=begin)
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
    records = TopicRecords(settings=settings, topic=topic, skips=skips)
    joined = JoinedLog(landed=files, topic=records, ends=dict(landed.end))
    return OpenLog(joined, spans, dict(skips), extent.holes, identity)


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
    settings: Settings, path: str, landed: Landed, files: LakeLog, held: Mapping[int, Span]
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
