"""The local engine: one process, no JVM, one partition after another, from the topic or from the bronze
table's own files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Input
from holdfast.core.engine.fold.folding import Batch
from holdfast.errors import LakeError
from holdfast.pipeline.bronze.commits import all_told, check_rows, history_of, listed_files, sound_chain
from holdfast.pipeline.bronze.extent import Extent
from holdfast.pipeline.bronze.features import refuse_features
from holdfast.pipeline.bronze.files import File, FileReader, filesystem_of
from holdfast.pipeline.bronze.guarded import DigestGuards, bronze_reader, in_few
from holdfast.pipeline.bronze.lake import Landed, open_table
from holdfast.pipeline.bronze.layout import Segment, layout_faults, segments
from holdfast.pipeline.bronze.ordered import in_order
from holdfast.pipeline.folds.folding import FoldPlan, columns_needed, fold_partition, split
from holdfast.pipeline.topic import Span, TopicReader


def fold_topic(settings: Settings, plan: FoldPlan, extent: Extent) -> Iterator[pa.RecordBatch]:
    """Fold the part in *extent* of the processor's source topic and yield the results."""
    with TopicReader(settings, plan.processor.topics[0], plan.skips) as reader:
        for partition, span in sorted(extent.spans.items()):
            yield from fold_partition(
                plan, partition, reader.batches(partition, span, plan.processor.columns)
            )


def fold_topic_named(
    settings: Settings, plan: FoldPlan, extent: Extent, named: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Fold the partitions whose numbers come in: what a Spark task runs when it reads the topic itself."""
    wanted = [partition for numbers in named for partition in numbers.column(0).to_pylist()]
    return fold_topic(settings, plan, extent.only(wanted))


def fold_bronze(plan: FoldPlan, files: BronzeFiles, extent: Extent) -> Iterator[pa.RecordBatch]:
    """Fold the part in *extent* of a bronze table and yield the results."""
    for partition, span in sorted(extent.spans.items()):
        yield from fold_partition(plan, partition, files.batches(plan.processor.columns, partition, span))


def fold_named(
    plan: FoldPlan, files: BronzeFiles, spans: Mapping[int, Span], named: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Fold the partitions whose numbers come in: what a Spark task runs when it reads the table's files
    itself.
    """
    for numbers in named:
        for partition in numbers.column(0).to_pylist():
            yield from fold_partition(
                plan, partition, files.batches(plan.processor.columns, partition, spans[partition])
            )


def open_bronze(path: str) -> tuple[BronzeFiles, Landed | None]:
    """Return the files of a bronze table's newest version, and what its last landing said of itself."""
    table = open_table(path)
    refuse_features(path, table)
    listed = listed_files(table)
    chain = sound_chain(path, history_of(table))
    last = chain[0] if chain else None
    check_rows(path, last, all_told((at, file.rows) for at, files in listed.items() for file in files))
    for fault in layout_faults(path, chain, listed):
        raise LakeError(f"{fault.told}; `holdfast pipeline check` tells of all that is wrong")
    found = BronzeFiles(
        uri=str(table.table_uri),
        version=table.version(),
        files=listed,
        segments={at: in_few(segments(chain, at)) for at in listed} if chain else {},
    )
    return found, None if last is None else last.landed


@dataclass(frozen=True, slots=True, kw_only=True)
class BronzeFiles:
    """The files of one version of a bronze table, by partition, in the order of their offsets.

    The object can be pickled.
    """

    uri: str
    version: int
    files: Mapping[int, Sequence[File]]
    segments: Mapping[int, Sequence[Segment]] = field(default_factory=dict)
    guards: DigestGuards = field(default_factory=DigestGuards, repr=False, compare=False)

    def _reader(self, partition: int) -> FileReader:
        plain = bronze_reader(f"{self.uri} partition {partition}", filesystem_of(self.uri))
        files, segments = self.files.get(partition, ()), self.segments.get(partition, ())
        return self.guards.of(plain, partition, files, segments)

    def first_after(self, at_ms: int) -> dict[int, int]:
        """Return the first offset whose record was appended later than *at_ms*, by partition, where there
        is one.
        """
        out = dict[int, int]()
        for partition, files in self.files.items():
            reader = self._reader(partition)
            for file in files:
                # Statistics are cut to ms, as Kafka's times are; a second more leaves no doubt.
                if file.latest_ms is not None and file.latest_ms + 1000 < at_ms:
                    continue
                for rows in reader.rows(file, ["offset", "timestamp_ms"]):
                    later = rows.column("timestamp_ms").to_numpy() > at_ms
                    if later.any():
                        found = int(rows.column("offset").to_numpy()[later].min())
                        out[partition] = min(found, out.get(partition, found))
        return out

    def batches(self, inputs: Sequence[Input], partition: int, span: Span) -> Iterator[tuple[Batch, int]]:
        """Yield the records of one partition in offset order, as a folder of *inputs* takes them, each batch
        with its size in bytes.

        Files in order, as landing writes them, are read as they are; see `in_order` for others.
        """
        files = [file for file in self.files.get(partition, ()) if file.touches(span)]
        columns = [name for name in columns_needed(inputs, "timestamp_ms") if name != "partition"]
        for rows in in_order(self._reader(partition), files, columns):
            yield from _cut(rows, partition, span, inputs)


def _cut(
    rows: pa.RecordBatch, partition: int, span: Span, inputs: Sequence[Input]
) -> Iterator[tuple[Batch, int]]:
    import numpy as np

    start, stop = np.searchsorted(rows.column("offset").to_numpy(), [span.first, span.end])
    kept = rows.slice(int(start), int(stop - start))
    numbered = kept.append_column("partition", pa.repeat(pa.scalar(partition, pa.int32()), kept.num_rows))
    for _, batch in split(numbered, inputs):
        yield batch, kept.nbytes
