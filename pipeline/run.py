"""Runs work on partitions: in this process, or in Spark's tasks, each of which reads its own log.

Spark only starts the tasks. No record crosses its JVM, and there is no shuffle. Executors import this module:
what needs Spark is imported where it is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa

from holdfast.core.engine.declared.processor import Processor
from holdfast.pipeline.progress import begin
from holdfast.pipeline.spark.errors import explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.pipeline.spark.session import SparkOptions

EngineChoice = Literal["auto", "local", "spark"]
EngineName = Literal["local", "spark"]
Source = Literal["topic", "bronze", "history"]
"""The source of records: the topic, its bronze table, or both as one history: the table up to its end, and
the topic from there.
"""
PartitionWork = Callable[[int], Iterator[pa.RecordBatch]]
"""Works on the partition of a number and yields the results. Spark pickles it."""

SPARK_START_S = 8.0
"""From a cold start to the first record folded, with the class archive in place."""
LOCAL_US = {"topic": 2.5, "bronze": 1.3, "history": 1.3}
SPARK_US = {"topic": 2.8, "bronze": 1.5, "history": 1.5}
"""Core time for one record, a cheap fold included: measured by bench/spark_replay.py; a task that reads a
topic is reckoned to add to this process's time what it adds in bronze. Of one history most is in the table.
"""
MARGIN = 1.25


def choose_engine(source: Source, offsets: int, partitions: int, cores: int) -> EngineName:
    """Return the engine that is done first, by clear odds: Spark when there is enough to share out among
    enough cores.

    Spark's tasks are one per partition, so it wins by the cores and partitions it can use at once, and loses
    its start. On two cores that is from some 25 million records in bronze on.

    >>> [choose_engine("bronze", millions * 10**6, 16, 2) for millions in (1, 20, 40)]
    ['local', 'local', 'spark']
    >>> [choose_engine("topic", millions * 10**6, 16, 2) for millions in (1, 10, 20)]
    ['local', 'local', 'spark']
    >>> choose_engine("bronze", 10**9, 1, 64)
    'local'
    """
    useful = max(1, min(partitions, cores))
    local_s = offsets * LOCAL_US[source] / 1e6
    spark_s = SPARK_START_S + offsets * SPARK_US[source] / 1e6 / useful
    return "spark" if spark_s * MARGIN < local_s else "local"


def chosen_engine(
    asked: EngineChoice, spark: SparkOptions, source: Source, offsets: int, tasks: int
) -> EngineName:
    """Return the engine that was *asked* for, "auto" being the one that `choose_engine` finds for so many
    *offsets*, shared out among *tasks* at most.
    """
    if asked != "auto":
        return asked
    from holdfast.pipeline.spark.session import cores_of

    cores = cores_of(spark.master) if spark.in_one_jvm else os.cpu_count() or 1
    return choose_engine(source, offsets, tasks, cores)


class Engine(Protocol):
    """Runs work on partitions."""

    name: EngineName

    def run(
        self, partitions: Iterable[int], work: PartitionWork, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the results of *work*, which have *schema*; those of a partition in their order."""


class ThisProcess:
    """Works on one partition after another, when their results are asked for."""

    name: EngineName = "local"

    def run(
        self, partitions: Iterable[int], work: PartitionWork, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        for partition in partitions:
            yield from work(partition)


class SparkTasks:
    """Starts a task of Spark for each partition. *what* they work on is named in errors. Raises the errors of
    our own tasks as they are, SparkError for others.
    """

    name: EngineName = "spark"

    def __init__(self, session: SparkSession, what: str) -> None:
        self.session, self._what = session, what

    def run(
        self, partitions: Iterable[int], work: PartitionWork, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        with explained(self._what):
            results = self.frame(partitions, work, schema).toArrow().cast(schema)
        yield from results.to_batches()

    def frame(self, partitions: Iterable[int], work: PartitionWork, schema: pa.Schema) -> DataFrame:
        """Return the results where they are: on executors."""
        return fold_each(self.session, partitions, work, schema)

    def run_in_parts(
        self, partitions: Iterable[int], work: PartitionWork, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the results, never more at once than one task has, in the order of the tasks.

        They are kept on the executors' disks for that time, so that all tasks run at once and each of them
        once.
        """
        from pyspark import StorageLevel

        with explained(self._what):
            results = self.frame(partitions, _Packed(work, schema), _PACKED)
            results.persist(StorageLevel.DISK_ONLY)
            try:
                results.count()  # what fails does so before anything is taken
                for row in results.toLocalIterator():
                    with pa.ipc.open_stream(row[0]) as reader:
                        yield from reader
            finally:
                results.unpersist()


_PACKED = pa.schema([("batch", pa.binary())])


class _Packed:
    """Yields each batch of results as one binary value, which Spark hands on as it is."""

    def __init__(self, work: PartitionWork, schema: pa.Schema) -> None:
        self._work, self._schema = work, schema

    def __call__(self, partition: int) -> Iterator[pa.RecordBatch]:
        for batch in self._work(partition):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self._schema) as writer:
                writer.write_batch(batch)
            yield pa.RecordBatch.from_pydict({"batch": [sink.getvalue().to_pybytes()]}, _PACKED)


class _InTask:
    """Works on the partitions whose numbers come in: the function of a task."""

    def __init__(self, work: PartitionWork) -> None:
        self._work = work

    def __call__(self, named: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for numbers in named:
            for partition in numbers.column(0).to_pylist():
                yield from self._work(partition)


def fold_each(
    session: SparkSession, partitions: Iterable[int], work: PartitionWork, schema: pa.Schema
) -> DataFrame:
    """Return the results of *work*, which reads by itself what it works on: a task for each of *partitions*,
    and no shuffle.
    """
    wanted = sorted(partitions)
    numbers = ",".join(map(str, wanted))
    named = session.range(0, len(wanted), 1, len(wanted)).selectExpr(
        f"element_at(array({numbers}), int(id) + 1)"
    )
    return named.mapInArrow(_InTask(work), ddl_of(schema))


_SQL = {pa.int32(): "int", pa.int64(): "bigint", pa.string(): "string", pa.binary(): "binary"}


def ddl_of(schema: pa.Schema) -> str:
    """Return the columns of *schema* as Spark takes them.

    >>> ddl_of(pa.schema([("partition", pa.int32()), ("key", pa.binary())]))
    '`partition` int, `key` binary'
    """
    return ", ".join(f"`{each.name}` {_SQL[each.type]}" for each in schema)


@contextmanager
def spark_tasks(
    options: SparkOptions, task: str, what: str, processors: Sequence[Processor[Any, Any]] = ()
) -> Iterator[SparkTasks]:
    """Give the tasks of a session to which the code of *processors* is shipped; *task* is shown as the
    progress, and *what* they read is named in errors.

    SparkError, before a JVM starts, when a processor cannot be sent to workers.
    """
    from holdfast.pipeline.spark.pickling import modules_of
    from holdfast.pipeline.spark.session import import_pyspark, open_session
    from holdfast.pipeline.spark.shipping import ship

    import_pyspark()
    for each in processors:
        modules_of(each)
    begin(f"{task} on Spark", None)
    with open_session(options) as session:
        ship(session)
        for each in processors:
            ship(session, each)
        yield SparkTasks(session, what)


@contextmanager
def open_engine(
    asked: EngineChoice,
    spark: SparkOptions,
    source: Source,
    *,
    task: str,
    what: str,
    offsets: int,
    tasks: int,
    processors: Sequence[Processor[Any, Any]] = (),
) -> Iterator[Engine]:
    """Give the engine that `chosen_engine` finds; otherwise as `spark_tasks`."""
    if chosen_engine(asked, spark, source, offsets, tasks) == "local":
        begin(task, offsets)
        yield ThisProcess()
        return
    with spark_tasks(spark, task, what, processors) as found:
        yield found
