"""The Spark engine: one task per source partition, raw bytes to the same fold that runs live."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING, TypeVar

from holdfast.config import Settings
from holdfast.core.engine.fold.skips import OffsetRanges, kept
from holdfast.errors import LakeError, PipelineError
from holdfast.pipeline.bronze.commits import HISTORY_LIMIT, check_rows, commit_of, last_landing
from holdfast.pipeline.bronze.digests import SPARK_HASH, joined
from holdfast.pipeline.bronze.extent import Extent, Until, extent_of_bronze
from holdfast.pipeline.bronze.lake import COLUMNS, Landed, bronze_path
from holdfast.pipeline.folds.folding import RESULT, RESULT_DDL, FoldPlan, columns_needed, fold_batches
from holdfast.pipeline.folds.joined import JoinedLog
from holdfast.pipeline.folds.local import BronzeFiles, fold_named
from holdfast.pipeline.spark.errors import causes, explained, failed
from holdfast.pipeline.spark.java_client import java_properties
from holdfast.pipeline.spark.shipping import ship
from holdfast.pipeline.topic import Span

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

logger = logging.getLogger(__name__)

T = TypeVar("T")
PROBE_PER_TASK = 100


def kafka_options(settings: Settings, topic: str, spans: Mapping[int, Span]) -> dict[str, str]:
    """Return the connector's options to read *spans* of *topic*: committed records, with headers, failing on
    missing ones.
    """
    return {
        **{f"kafka.{name}": value for name, value in java_properties(settings).items()},
        # The connector's default reads aborted records.
        "kafka.isolation.level": "read_committed",
        "assign": json.dumps({topic: sorted(spans)}),
        "startingOffsets": json.dumps({topic: {str(p): span.first for p, span in spans.items()}}),
        "endingOffsets": json.dumps({topic: {str(p): span.end for p, span in spans.items()}}),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
    }


def topic_records(
    session: SparkSession,
    settings: Settings,
    plan: FoldPlan,
    extent: Extent,
    options: Mapping[str, str] | None = None,
) -> tuple[DataFrame, bool]:
    """Return the records of the processor's source topic, and whether each partition is read whole: by one
    task, in offset order.

    Skipped records are not even fetched: the spans between are read in parts, which are in no order.
    """
    columns, found = columns_needed(plan.processor.columns), list(parts(extent.spans, plan.skips))
    if not found:
        return session.createDataFrame([], _ddl(columns)), True
    more = {**(options or {}), **({} if "headers" in plan.processor.columns else {"includeHeaders": "false"})}
    reads = [
        kafka_records(session, settings, plan.processor.topics[0], spans, more).select(*columns)
        for spans in found
    ]
    return reduce(lambda one, other: one.union(other), reads), len(reads) == 1


def kafka_records(
    session: SparkSession,
    settings: Settings,
    topic: str,
    spans: Mapping[int, Span],
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the connector's records of *spans*."""
    return (
        session.read.format("kafka")
        .options(**kafka_options(settings, topic, spans) | dict(options or {}))
        .load()
    )


def parts(spans: Mapping[int, Span], skips: Mapping[int, OffsetRanges]) -> Iterator[dict[int, Span]]:
    """Yield the rest of *spans* without *skips*, one part of each partition at a time; empty ones are left
    out.

    >>> list(parts({0: Span(first=0, end=9), 1: Span(first=4, end=4)}, {0: ((2, 3), (8, 8))}))
    [{0: Span(first=0, end=2)}, {0: Span(first=4, end=8)}]
    """
    left = {
        partition: kept(skips.get(partition, ()), span.first, span.end) for partition, span in spans.items()
    }
    for number in range(max(map(len, left.values()), default=0)):
        yield {
            partition: Span(first=each[number][0], end=each[number][1])
            for partition, each in left.items()
            if number < len(each)
        }


def _ddl(columns: list[str]) -> str:
    return ", ".join(f"{name} {COLUMNS[name]}" for name in columns)


class SparkBronze:
    """One version of a bronze table, read by Spark: for lakes that only the cluster can reach."""

    def __init__(self, session: SparkSession, path: str) -> None:
        from delta.tables import DeltaTable

        self._session, self.path = session, path
        if not DeltaTable.isDeltaTable(session, path):
            raise LakeError(f"no Delta table at {path}: land the topic first (`holdfast pipeline land`)")
        with explained(path):
            history = (
                DeltaTable.forPath(session, path)
                .history(HISTORY_LIMIT)
                .select("version", "operation", "userMetadata", "operationMetrics")
                .collect()
            )
            self.version: int = history[0][0]
            table = self._load()
            counted = {row[0]: row[1] for row in table.groupBy("partition").count().collect()}
        self._tells_ms = "timestamp_ms" in table.columns
        last = last_landing(path, (commit_of(row[0], row[1], row[2], row[3] or {}) for row in history))
        check_rows(path, last, counted)
        self.landed = None if last is None else last.landed
        if self.landed is not None:
            self._check_digests(self.landed)

    def _check_digests(self, landed: Landed) -> None:
        """Compare all rows with the digests that were landed: in the JVM, before any is folded."""
        from pyspark.sql import functions as F

        if landed.digests is None or landed.added_digests is None:
            return
        want = joined(landed.digests, landed.added_digests)
        froms = {p: landed.digested_from.get(p, 0) for p in landed.end}
        wanted = " OR ".join(f"(partition = {p} AND offset >= {first})" for p, first in froms.items())
        rows = self._load().withColumn("timestamp_ms", self._times_ms()).where(wanted or "false")
        with explained(self.path):
            found = rows.groupBy("partition").agg(F.expr(f"bit_xor({SPARK_HASH})")).collect()
        digests = {int(row[0]): int(row[1]) % (1 << 64) for row in found}
        for partition, digest in sorted(want.items()):
            if digests.get(partition, 0) != int(digest, 16):
                raise LakeError(
                    f"{self.path} partition {partition} has as many rows as were landed, but not the same:"
                    f" their digest is {digests.get(partition, 0):016x}, where {digest} was landed. Put the"
                    " table back to a version before it was changed (RESTORE), or land the topic in another"
                    " lake"
                )

    def _load(self) -> DataFrame:
        return self._session.read.format("delta").option("versionAsOf", self.version).load(self.path)

    def extent(self, until: Until | None, app: str) -> Extent:
        """Return the part of the table to read; see `extent_of_bronze`."""
        from pyspark.sql import functions as F

        later: dict[int, int] = {}
        if until is not None and until.at_ms is not None:
            after = self._times_ms() > until.at_ms
            with explained(self.path):
                later = {
                    row[0]: row[1]
                    for row in self._load().where(after).groupBy("partition").agg(F.min("offset")).collect()
                }
        return extent_of_bronze(self.landed, until, self.path, later, app)

    def records(self, plan: FoldPlan, extent: Extent) -> DataFrame:
        """Return the table's records in *extent*, in no order to rely on:

        Spark reads Delta files as they come.
        """
        wanted = " OR ".join(
            f"(partition = {partition} AND offset >= {span.first} AND offset < {span.end})"
            for partition, span in sorted(extent.spans.items())
        )
        columns = columns_needed(plan.processor.columns, "timestamp_ms")
        return (
            self._load()
            .where(wanted or "false")
            .withColumn("timestamp_ms", self._times_ms())
            .select(*columns)
        )

    def _times_ms(self) -> Column:
        """Return Kafka's own timestamps, in tables that have them and for rows that do."""
        from pyspark.sql import functions as F

        at = F.unix_millis("timestamp")
        return F.coalesce(F.col("timestamp_ms"), at) if self._tells_ms else at


def joined_records(
    session: SparkSession, settings: Settings, plan: FoldPlan, log: JoinedLog, extent: Extent
) -> DataFrame:
    """Return the records of one history, those of the topic after the table's through the connector, in no
    order to rely on.
    """
    from pyspark.sql import functions as F

    split = {partition: log.parts(partition, span) for partition, span in extent.spans.items()}
    landed = Extent(spans={partition: parts[0] for partition, parts in split.items()})
    rest = Extent(spans={partition: parts[1] for partition, parts in split.items()})
    path = bronze_path(log.lake, log.topic)
    records = SparkBronze(session, path).records(plan, landed)
    behind, _ = topic_records(session, settings, plan, rest)
    return records.union(
        behind.withColumn("timestamp_ms", F.unix_millis("timestamp")).select(*records.columns)
    )


def placed(records: DataFrame, partitions: int) -> DataFrame:
    """Return *records* with exactly one source partition per task, in offset order: one shuffle and a sort.

    `repartition` by the partition number alone would hash it, and give some tasks several partitions and
    others none. So each partition gets a number whose hash is its own task.
    """
    from pyspark.sql import functions as F

    session, tasks = records.sparkSession, max(1, partitions)
    salt: dict[int, int] = {}
    probe = session.range(max(1000, PROBE_PER_TASK * tasks)).select(
        F.col("id").cast("int"), F.expr(f"pmod(hash(cast(id as int)), {tasks})")
    )
    for number, task in probe.collect():
        salt.setdefault(task, number)
    assert len(salt) == tasks, f"{tasks - len(salt)} of {tasks} tasks got no salt: probe more numbers"
    salts = F.array(*[F.lit(salt[task]) for task in range(tasks)])
    return records.repartition(
        tasks, F.element_at(salts, F.pmod(F.col("partition"), F.lit(tasks)) + 1)
    ).sortWithinPartitions("partition", "offset")


def fold_records(records: DataFrame, plan: FoldPlan, *, sort: bool, partitions: int) -> DataFrame:
    """Return the results (schema RESULT) of folding *records* as they come, or with *sort* after placing
    and sorting them.
    """
    return (placed(records, partitions) if sort else records).mapInArrow(
        partial(fold_batches, plan), RESULT_DDL
    )


def fold_files(session: SparkSession, plan: FoldPlan, files: BronzeFiles, extent: Extent) -> DataFrame:
    """Return the results of folding a table whose files every task can open: each task reads the files of its
    partition in order.

    No decoding in the JVM, no shuffle, no sort: about a third of the CPU that the JVM's own way takes.
    """
    spans = dict(extent.spans)
    return fold_each(session, spans, partial(fold_named, plan, files, spans))


def fold_each(
    session: SparkSession,
    partitions: Iterable[int],
    fold: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    columns: str = RESULT_DDL,
) -> DataFrame:
    """Return the results of *fold*, which is given partition numbers and reads by itself what it folds: a
    task for each of *partitions*, and no shuffle. *columns* are those of the results.
    """
    wanted = sorted(partitions)
    numbers = ",".join(map(str, wanted))
    named = session.range(0, len(wanted), 1, len(wanted)).selectExpr(
        f"element_at(array({numbers}), int(id) + 1)"
    )
    return named.mapInArrow(fold, columns)


def taken_in_parts(results: DataFrame) -> Iterator[pa.RecordBatch]:
    """Yield results (schema RESULT) here, never more at once than one task has, in the order of the tasks.

    They are kept on the executors' disks for that time, so that all tasks run at once and each of them once.
    """
    import pyarrow as pa
    from pyspark import StorageLevel

    packed = results.mapInArrow(_packed, "batch binary").persist(StorageLevel.DISK_ONLY)
    try:
        packed.count()  # what fails does so before anything is taken
        for row in packed.toLocalIterator():
            with pa.ipc.open_stream(row[0]) as reader:
                yield from reader
    finally:
        packed.unpersist()


def _packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield each batch of results as one binary value, which Spark hands on as it is; runs on executors."""
    import pyarrow as pa

    for batch in batches:
        table = pa.Table.from_batches([batch]).cast(RESULT)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, RESULT) as writer:
            writer.write_table(table)
        yield pa.RecordBatch.from_pydict({"batch": [sink.getvalue().to_pybytes()]})


def run(
    session: SparkSession,
    plan: FoldPlan,
    what: str,
    make: Callable[[bool], DataFrame],
    take: Callable[[DataFrame], T],
) -> T:
    """Ship the code, fold, and return what *take* makes of the results; once more, sorted, when records came
    out of order.

    *make* is given whether to sort. Nothing of the first attempt is kept.
    """
    ship(session, plan.processor)
    try:
        return take(make(False))
    except Exception as error:
        if not out_of_order(error):
            if isinstance(error, PipelineError):
                raise
            raise failed(error, what) from error
    logger.warning("records of %(source)s came out of order, sorting them", {"source": what})
    with explained(what):
        return take(make(True))


def out_of_order(error: Exception) -> bool:
    """Return whether a job failed because a task met records out of order."""
    return any("OrderError" in name or "OrderError:" in message for name, message in causes(error))
