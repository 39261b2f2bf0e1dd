"""A bronze table whose files are written by Spark's tasks, each of which lands a partition as `LocalTable`
would; the driver judges and commits through one handle of delta-rs.

Delta on Spark commits to an object store by looking at its files and writing then, which of two drivers lets
both through. delta-rs commits with a condition that the store itself holds to. So landings of both engines
may race there, as they may in a file system.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.config import Settings
from holdfast.core.engine.fold.skips import OffsetRanges
from holdfast.pipeline.bronze.files import filesystem_of
from holdfast.pipeline.landing.bronze_file import BronzeFile
from holdfast.pipeline.landing.local_table import LocalTable, write_partition
from holdfast.pipeline.run import SparkTasks
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
        ship(self._session)
        tasks = SparkTasks(self._session, f"{topic} into {self.path}")
        write = _Write(self._settings, topic, str(self._table.table_uri), wanted, dict(skips), landed_at_ms)
        found = tasks.run(wanted, write, _WRITTEN)
        files: list[BronzeFile] = [
            pickle.loads(file) for batch in found for file in batch.column(0).to_pylist()
        ]  # what our own tasks wrote
        return sorted(files, key=lambda each: each.partition)


@dataclass(frozen=True, slots=True)
class _Write:
    """Writes the file of a partition and yields its entry for the log: the work of a task."""

    settings: Settings
    topic: str
    uri: str
    spans: Mapping[int, Span]
    skips: Mapping[int, OffsetRanges]
    landed_at_ms: int

    def __call__(self, partition: int) -> Iterator[pa.RecordBatch]:
        with TopicReader(self.settings, self.topic, self.skips) as reader:
            made = write_partition(
                reader,
                filesystem_of(self.uri),
                self.topic,
                partition,
                self.spans[partition],
                self.landed_at_ms,
            )
        if made is not None:
            yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(made)], pa.binary())], schema=_WRITTEN)
