"""A bronze table whose files are written by Spark's tasks, each of which lands a partition as `LocalTable`
would; the driver judges and commits through one handle of delta-rs.

Delta on Spark commits to an object store by looking at its files and writing then, which of two drivers lets
both through. delta-rs commits with a condition that the store itself holds to. So landings of both engines
may race there, as they may in a file system.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.config import Settings
from holdfast.core.engine.fold.skips import OffsetRanges
from holdfast.pipeline.bronze.files import filesystem_of
from holdfast.pipeline.folds.on_spark import fold_each
from holdfast.pipeline.landing.bronze_file import BronzeFile
from holdfast.pipeline.landing.local_table import LocalTable, write_partition
from holdfast.pipeline.spark.errors import explained
from holdfast.pipeline.spark.shipping import ship
from holdfast.pipeline.topic import Span, TopicReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WRITTEN = pa.schema([("file", pa.binary())])


class TaskTable(LocalTable):
    """A table at *path*, which this process and the executors of *session* reach."""

    def __init__(self, session: SparkSession, settings: Settings, path: str) -> None:
        super().__init__(settings, path)
        self._session = session

    def _write_files(
        self, topic: str, spans: Mapping[int, Span], skips: Mapping[int, OffsetRanges], landed_at_ms: int
    ) -> list[BronzeFile]:
        """Have a task write the file of each partition; those of tasks that fail, or run twice, are named by
        no commit, and left to a vacuum.
        """
        wanted = {partition: span for partition, span in spans.items() if span.first < span.end}
        if not wanted:
            return []
        uri = str(self._table.table_uri)
        write = partial(_write_named, self._settings, topic, uri, wanted, dict(skips), landed_at_ms)
        with explained(f"{topic} into {self.path}"):
            ship(self._session)
            rows = fold_each(self._session, wanted, write, "file binary").collect()
        found: Sequence[BronzeFile] = [
            pickle.loads(bytes(row["file"])) for row in rows
        ]  # what our own tasks wrote
        return sorted(found, key=lambda each: each.partition)


def _write_named(
    settings: Settings,
    topic: str,
    uri: str,
    spans: Mapping[int, Span],
    skips: Mapping[int, OffsetRanges],
    landed_at_ms: int,
    named: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Write the files of the partitions whose numbers come in, and yield their entries for the log: the
    function of a Spark task.
    """
    filesystem = filesystem_of(uri)
    with TopicReader(settings, topic, skips) as reader:
        for numbers in named:
            for partition in numbers.column(0).to_pylist():
                made = write_partition(reader, filesystem, topic, partition, spans[partition], landed_at_ms)
                files = [] if made is None else [pickle.dumps(made)]
                yield pa.RecordBatch.from_arrays([pa.array(files, pa.binary())], schema=_WRITTEN)
