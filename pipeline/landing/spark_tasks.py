"""Reading a topic in Python tasks of Spark: for records that its Kafka connector cannot take, such as those
with a timestamp that is no date. Executors then need this package's dependencies and must reach the brokers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.config import Settings
from holdfast.core.engine.fold.skips import OffsetRanges
from holdfast.pipeline.bronze.columns import SCHEMA
from holdfast.pipeline.bronze.lake import COLUMNS
from holdfast.pipeline.folds.on_spark import fold_each
from holdfast.pipeline.landing.columns import columns_of
from holdfast.pipeline.spark.shipping import ship
from holdfast.pipeline.topic import Span, TopicReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_in_tasks(
    session: SparkSession,
    settings: Settings,
    topic: str,
    spans: Mapping[int, Span],
    skips: Mapping[int, OffsetRanges],
    landed_at_ms: int,
) -> DataFrame:
    """Return the records of *spans* as columns of a bronze table: a task reads each partition, in order."""
    ship(session)
    read = partial(_read, settings, topic, dict(spans), dict(skips), landed_at_ms)
    wanted = [partition for partition, span in spans.items() if span.first < span.end]
    return fold_each(session, wanted, read, ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items()))


def _read(
    settings: Settings,
    topic: str,
    spans: Mapping[int, Span],
    skips: Mapping[int, OffsetRanges],
    landed_at_ms: int,
    named: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    with TopicReader(settings, topic, skips) as reader:
        for numbers in named:
            for partition in numbers.column(0).to_pylist():
                for records, _ in reader.records(partition, spans[partition]):
                    yield _placed(columns_of(records, landed_at_ms), topic, partition)


def _placed(rows: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
    """Return *rows* with the columns by which the table is partitioned."""
    told = {
        "topic": pa.repeat(pa.scalar(topic), rows.num_rows),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows),
    }
    arrays = [told[name] if name in told else rows.column(name) for name in SCHEMA.names]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
