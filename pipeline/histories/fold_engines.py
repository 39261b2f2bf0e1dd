"""Runs a fold, or a join of tables: in this process, or in Spark's tasks, each of which writes the files of
its part.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Literal

import pyarrow as pa

from holdfast.pipeline.histories.partition_fold import PART_DDL, FoldedPart, decode_part
from holdfast.pipeline.progress import begin
from holdfast.pipeline.replay import ReplayEngine, choose_engine
from holdfast.pipeline.spark.session import SparkOptions, cores_of, import_pyspark, open_session

FoldEngine = Literal["local", "spark"]


def chosen_engine(asked: ReplayEngine, spark: SparkOptions, offsets: int, tasks: int) -> FoldEngine:
    """Return the engine for so many *offsets*, shared out among *tasks* at most."""
    if asked != "auto":
        return asked
    cores = cores_of(spark.master) if spark.in_one_jvm else os.cpu_count() or 1
    return choose_engine("bronze", offsets, tasks, cores)


def parts_on_spark(
    opened: ExitStack,
    spark: SparkOptions,
    what: str,
    tasks: Iterable[int],
    run: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
) -> list[FoldedPart]:
    """Run the tasks of these numbers on Spark by *run*; no commit names the files of tasks that fail.
    *opened* closes the session.
    """
    from holdfast.pipeline.folds.on_spark import fold_each
    from holdfast.pipeline.spark.errors import explained
    from holdfast.pipeline.spark.shipping import ship

    import_pyspark()
    begin(f"{what} on Spark", None)
    session = opened.enter_context(open_session(spark))
    ship(session)
    with explained(what):
        rows = fold_each(session, tasks, run, PART_DDL).collect()
    return [decode_part(row["part"]) for row in rows]
