"""The local engine: one process, no JVM, one partition after another, from the topic or from the bronze
table's own files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Input
from holdfast.core.engine.fold.folding import Batch
from holdfast.errors import LakeError
from holdfast.pipeline.bronze.extent import Extent
from holdfast.pipeline.bronze.lake import Landed, history_of, last_landed, open_table
from holdfast.pipeline.folds.folding import FoldPlan, columns_needed, fold_partition, split, times_ms
from holdfast.pipeline.topic import Span, TopicReader

logger = logging.getLogger(__name__)

READ_ROWS = 20_000
READ_BYTES = 32 << 20
_EXPANSION = 4  # of compressed columns, at a guess


def fold_topic(settings: Settings, plan: FoldPlan, extent: Extent) -> Iterator[pa.RecordBatch]:
    """Fold what *extent* names of the processor's source topic and yield what it tells."""
    with TopicReader(settings, plan.processor.topics[0], plan.skips) as reader:
        for partition, span in sorted(extent.spans.items()):
            yield from fold_partition(
                plan, partition, reader.batches(partition, span, plan.processor.columns)
            )


def fold_bronze(plan: FoldPlan, files: BronzeFiles, extent: Extent) -> Iterator[pa.RecordBatch]:
    """Fold what *extent* names of a bronze table and yield what it tells."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file of a bronze table; *first* and *last* are its lowest and highest offset, None when its
    statistics are missing.
    """

    path: str
    first: int | None
    last: int | None
    latest_ms: float | None
    row_bytes: int

    @property
    def read_rows(self) -> int:
        """Return how many rows to read at once, so that large values do not fill the memory."""
        return max(16, min(READ_ROWS, READ_BYTES // max(1, self.row_bytes * _EXPANSION)))

    def touches(self, span: Span) -> bool:
        return self.first is None or self.last is None or (self.first < span.end and self.last >= span.first)


def open_bronze(path: str) -> tuple[BronzeFiles, Landed | None]:
    """Return the files of a bronze table's newest version, and what its last landing said of itself."""
    table = open_table(path)
    features = set(table.protocol().reader_features or ())
    if features & {"deletionVectors", "columnMapping"}:
        raise LakeError(
            f"{path} uses {', '.join(sorted(features))}, which only Spark reads: use --engine spark"
        )
    listed: dict[int, list[File]] = {}
    for each in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        latest = each.get("max.timestamp")
        file = File(
            path=unquote(each["path"]),
            first=each.get("min.offset"),
            last=each.get("max.offset"),
            latest_ms=None if latest is None else latest.timestamp() * 1000,
            row_bytes=each["size_bytes"] // max(1, each.get("num_records") or 1),
        )
        listed.setdefault(int(each["partition.partition"]), []).append(file)
    for files in listed.values():
        files.sort(key=lambda file: -1 if file.first is None else file.first)
    return BronzeFiles(uri=str(table.table_uri), version=table.version(), files=listed), last_landed(
        path, history_of(table)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BronzeFiles:
    """The files of one version of a bronze table, by partition, in the order of their offsets.

    Can be pickled.
    """

    uri: str
    version: int
    files: Mapping[int, Sequence[File]]

    @property
    def is_local(self) -> bool:
        return self.uri.startswith(("/", "file://"))

    def _filesystem(self) -> Any:
        from pyarrow import fs

        if self.is_local:
            return fs.SubTreeFileSystem(unquote(self.uri.removeprefix("file://")), fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return fs.PyFileSystem(DeltaStorageHandler.from_table(open_table(self.uri)._table))

    def first_after(self, at_ms: int) -> dict[int, int]:
        """Return the first offset whose record was appended later than *at_ms*, by partition, where there
        is one.
        """
        import numpy as np

        filesystem, out = self._filesystem(), dict[int, int]()
        for partition, files in self.files.items():
            for file in files:
                # Statistics are cut to ms, as Kafka's times are; a second more leaves no doubt.
                if file.latest_ms is not None and file.latest_ms + 1000 < at_ms:
                    continue
                for rows in _rows(filesystem, file, ["offset", "timestamp"]):
                    later = np.asarray(times_ms(rows.column("timestamp"))) > at_ms
                    if later.any():
                        found = int(rows.column("offset").to_numpy()[later].min())
                        out[partition] = min(found, out.get(partition, found))
        return out

    def batches(self, inputs: Sequence[Input], partition: int, span: Span) -> Iterator[tuple[Batch, int]]:
        """Yield the records of one partition in offset order, as a folder of *inputs* takes them, each batch with its
        size in bytes.

        Files in order, as landing writes them, are read as they are. Others (OPTIMIZE joins files in any
        order) are sorted first, which takes the whole partition into memory.
        """
        filesystem = self._filesystem()
        files = [file for file in self.files.get(partition, ()) if file.touches(span)]
        columns = [name for name in columns_needed(inputs) if name != "partition"]
        read = (rows for file in files for rows in _rows(filesystem, file, columns))
        if not _in_order(filesystem, files):
            logger.info(
                "sorting %(table)s partition %(partition)s in memory",
                {"table": self.uri, "partition": partition},
            )
            read = iter(pa.Table.from_batches(read).sort_by("offset").to_batches(READ_ROWS))
        for rows in read:
            yield from _cut(rows, partition, span, inputs)


def _rows(filesystem: Any, file: File, columns: list[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow import parquet

    with filesystem.open_input_file(file.path) as opened:
        yield from parquet.ParquetFile(opened).iter_batches(file.read_rows, columns=columns)


def _in_order(filesystem: Any, files: Sequence[File]) -> bool:
    """Tell whether reading the files one after another gives ascending offsets."""
    import numpy as np

    last = -1
    for file in files:
        for rows in _rows(filesystem, file, ["offset"]):
            offsets = rows.column("offset").to_numpy()
            if len(offsets) and (offsets[0] <= last or (np.diff(offsets) <= 0).any()):
                return False
            last = int(offsets[-1]) if len(offsets) else last
    return True


def _cut(
    rows: pa.RecordBatch, partition: int, span: Span, inputs: Sequence[Input]
) -> Iterator[tuple[Batch, int]]:
    import numpy as np

    start, stop = np.searchsorted(rows.column("offset").to_numpy(), [span.first, span.end])
    kept = rows.slice(int(start), int(stop - start))
    numbered = kept.append_column("partition", pa.repeat(pa.scalar(partition, pa.int32()), kept.num_rows))
    for _, batch in split(numbered, inputs):
        yield batch, kept.nbytes
