"""Migrates a table on Spark: a task for each partition reads what the earlier version has of it, and writes
its transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.pipeline.bootstrap.migration import MigratedPartition, check, migrate
from holdfast.pipeline.folds import on_spark
from holdfast.pipeline.folds.folding import FoldPlan
from holdfast.pipeline.spark.pickling import modules_of
from holdfast.pipeline.spark.session import SparkOptions, import_pyspark, open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = "partition int, outcome string, applied bigint, rows bigint, timers bigint, digest string"


def migrate_on_spark(
    processor: Processor[Any, Any], settings: Settings, partitions: Sequence[int], options: SparkOptions
) -> list[MigratedPartition]:
    """Migrate *partitions*, when none of their rows fails; otherwise as `migrate`."""
    import_pyspark()
    modules_of(processor)
    plan, what = FoldPlan(processor=processor), f"table {processor.table}"
    with open_session(options) as session:
        for work in (check_named, migrate_named):
            named = partial(work, processor, settings)
            found = on_spark.run(
                session,
                plan,
                what,
                lambda sort, named=named: on_spark.fold_each(session, partitions, named, COLUMNS),  # type: ignore[misc]
                _taken,
            )
    return found


def check_named(
    processor: Processor[Any, Any], settings: Settings, named: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Check the partitions whose numbers come in: what a Spark task runs first."""
    for numbers in named:
        check(processor, settings, numbers.column(0).to_pylist())
    yield from ()


def migrate_named(
    processor: Processor[Any, Any], settings: Settings, named: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Migrate the partitions whose numbers come in: what a Spark task runs."""
    for numbers in named:
        for each in migrate(processor, settings, numbers.column(0).to_pylist()):
            yield pa.RecordBatch.from_pylist([each._asdict()], _SCHEMA)


_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("outcome", pa.string()),
        ("applied", pa.int64()),
        ("rows", pa.int64()),
        ("timers", pa.int64()),
        ("digest", pa.string()),
    ]
)


def _taken(results: DataFrame) -> list[MigratedPartition]:
    return [MigratedPartition(**row.asDict()) for row in results.collect()]
