"""A bronze table as Spark reads and writes it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.engine.fold.skips import OffsetRanges
from holdfast.errors import LakeError, SparkError
from holdfast.pipeline.bronze import digests
from holdfast.pipeline.bronze.columns import PARTITIONED_BY
from holdfast.pipeline.bronze.commits import (
    TableCommit,
    all_told,
    check_upkeep,
    commit_of,
    history_by,
    landed_in,
    transaction_name,
)
from holdfast.pipeline.bronze.files import is_local
from holdfast.pipeline.bronze.lake import (
    ADDED_COLUMNS,
    COLUMNS,
    LAST_TIME_MS,
    LEAST_TIME_MS,
    PROPERTIES,
    Landed,
    describe,
)
from holdfast.pipeline.folds.on_spark import kafka_records, parts
from holdfast.pipeline.landing.landing import Contents, LandedRows, taken
from holdfast.pipeline.landing.spark_tasks import read_in_tasks
from holdfast.pipeline.spark.delta_transaction import DeltaTransaction
from holdfast.pipeline.spark.errors import explained, no_date
from holdfast.pipeline.topic import Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

_CREATING = threading.Lock()
"""The builder of Delta's tables is not made for threads."""
LOOK_BACK = 20
DAY_MS = 86_400_000


class SparkTable:
    """A table at *path*, made or given its newer columns where it lacks them."""

    def __init__(self, session: SparkSession, settings: Settings, path: str) -> None:
        self._session, self._settings, self.path = session, settings, path
        with _CREATING, explained(path):
            session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
            # Keeps each task's rows in the order Kafka gave them; Spark would sort them by table partition,
            # which is not stable.
            session.conf.set("spark.sql.maxConcurrentOutputFileWriters", "8")
            self._create()

    def _create(self) -> None:
        from delta.tables import DeltaTable

        if self._log().tableExists() and not set(COLUMNS) - set(self._rows().columns):
            return

        builder = (
            DeltaTable.createIfNotExists(self._session)
            .location(self.path)
            .partitionedBy("topic", "partition")
        )
        for name, kind in COLUMNS.items():
            builder = builder.addColumn(name, kind)
        for name, value in PROPERTIES.items():
            builder = builder.property(name, value)
        builder.execute()
        there = self._session.read.format("delta").load(self.path).columns
        if missing := [name for name in ADDED_COLUMNS if name not in there]:
            added = ", ".join(f"`{name}` {COLUMNS[name]}" for name in missing)
            self._session.sql(f"ALTER TABLE delta.`{self.path}` ADD COLUMNS ({added})")

    def _table(self) -> Any:
        from delta.tables import DeltaTable

        return DeltaTable.forPath(self._session, self.path)

    def identity(self) -> str:
        with explained(self.path):
            return str(self._log().update(False, self._none(), self._none()).metadata().id())

    def history(self, limit: int) -> Sequence[TableCommit]:
        with explained(self.path):
            version = int(self._log().update(False, self._none(), self._none()).version())
            if is_local(self.path):
                return self._history(version, limit)
            # A job of Spark reads many commits from afar at once.
            rows = (
                self._table()
                .history(limit)
                .select("version", "operation", "userMetadata", "operationMetrics")
                .collect()
            )
        return [commit_of(row[0], row[1], row[2], row[3] or {}) for row in rows]

    def _history(self, version: int, limit: int) -> Sequence[TableCommit]:
        return history_by(self._read_commit, version, limit)

    def _log(self) -> Any:
        delta: Any = self._session._jvm
        return delta.org.apache.spark.sql.delta.DeltaLog.forTable(self._session._jsparkSession, self.path)

    def _none(self) -> Any:
        jvm: Any = self._session._jvm
        return jvm.scala.Option.empty()

    def _rows(self, version: int | None = None) -> DataFrame:
        reader = self._session.read.format("delta")
        return (reader if version is None else reader.option("versionAsOf", version)).load(self.path)

    def counted(self, version: int) -> dict[int, int | None]:
        from pyspark.sql import DataFrame

        with explained(self.path):
            files = self._log().getSnapshotAt(version, self._none(), self._none()).allFiles().toDF()
            told = DataFrame(files, self._session).selectExpr(
                "int(partitionValues['partition']) partition",
                "bigint(get_json_object(stats, '$.numRecords')) rows",
            )
            return all_told((row[0], row[1]) for row in told.collect())

    def below(self, version: int, vector: Mapping[int, int]) -> dict[int, int]:
        wanted = " OR ".join(f"(partition = {p} AND offset < {end})" for p, end in sorted(vector.items()))
        try:
            with explained(self.path):
                rows = self._rows(version).where(wanted or "false").groupBy("partition").count().collect()
        except Exception as error:
            raise LakeError(f"{self.path}: version {version} cannot be read any more: {error}") from error
        return {row[0]: row[1] for row in rows}

    def contents(self) -> Sequence[Contents]:
        from pyspark.sql import functions as F

        with explained(self.path):
            rows = self._rows().withColumn(
                "timestamp_ms", F.coalesce(F.col("timestamp_ms"), F.unix_millis("timestamp"))
            )
            counts = F.min("offset"), F.max("offset"), F.count("*"), F.countDistinct("offset")
            found = (
                rows.groupBy("topic", "partition").agg(*counts, F.expr(f"bit_xor({digests.SPARK_HASH})"))
            ).collect()
        return [Contents(row[0], row[1], row[2], row[3], row[4], row[5], row[6] % (1 << 64)) for row in found]

    def write(
        self, landed: Landed, link: str, spans: Mapping[int, Span], skips: Mapping[int, OffsetRanges]
    ) -> LandedRows:
        now_ms = system_clock.now_ms()
        landed = msgspec.structs.replace(landed, landed_at_ms=now_ms)
        try:
            with explained(landed.topic):
                read = self._read(landed.topic, spans, skips, now_ms)
            return self._append(landed, link, spans, read)
        except SparkError as error:
            if error.__cause__ is None or not no_date(error.__cause__):
                raise
            logger.warning(
                "%(topic)s has times that are no dates: tasks in Python read it", {"topic": landed.topic}
            )
            rows = read_in_tasks(self._session, self._settings, landed.topic, spans, skips, now_ms)
            return self._append(landed, link, spans, rows)

    def _append(self, landed: Landed, link: str, spans: Mapping[int, Span], rows: DataFrame) -> LandedRows:
        first = describe({partition: span.first for partition, span in spans.items()})
        end = describe({partition: span.end for partition, span in spans.items()})
        with explained(f"{landed.topic} {first} to {end}"):
            transaction = DeltaTransaction(self._session, self.path)
            if transaction.has_made(transaction_name(link)):
                raise taken(self.path, landed.start)
            self._judge(transaction.read_version, link)
            written = transaction.write(rows, sorted(spans), digests.SPARK_HASH)
        told = msgspec.structs.replace(
            landed,
            added=None if landed.rows is None else written.rows,
            added_digests=digests.told(written.observed),
        )
        with explained(self.path):
            if not transaction.commit(told.encode(), transaction_name(link), PARTITIONED_BY):
                raise taken(self.path, landed.start)
        return LandedRows(told, written.rows, written.stored_bytes)

    def _judge(self, version: int, link: str) -> None:
        """Refuse a commit after *link* that is no upkeep."""
        for commit in self._history(version, LOOK_BACK):
            told = landed_in(commit)
            if (told is not None and told.batch == link) or f"version-{commit.version}" == link:
                return
            if told is None:
                check_upkeep(self.path, commit, None)

    def _read_commit(self, version: int) -> bytes | None:
        """Return a commit's own file, None when it was cleaned up: through Hadoop, which reaches wherever the
        table lies.
        """
        name = f"_delta_log/{version:020d}.json"
        if is_local(self.path):
            try:
                return (Path(unquote(self.path.removeprefix("file://"))) / name).read_bytes()
            except FileNotFoundError:
                return None
        jvm: Any = self._session._jvm
        place = jvm.org.apache.hadoop.fs.Path(f"{self.path.rstrip('/')}/{name}")
        files = place.getFileSystem(self._session._jsc.hadoopConfiguration())
        if not files.exists(place):
            return None
        opened = files.open(place)
        try:
            return str(jvm.org.apache.commons.io.IOUtils.toString(opened, "UTF-8")).encode()
        finally:
            opened.close()

    def _read(
        self, topic: str, spans: Mapping[int, Span], skips: Mapping[int, OffsetRanges], landed_at_ms: int
    ) -> DataFrame:
        from pyspark.sql import functions as F

        # Where all of it is skipped, nothing is read: a commit notes that.
        found = list(parts(spans, skips)) or [
            {partition: Span(first=span.first, end=span.first) for partition, span in spans.items()}
        ]
        reads = [kafka_records(self._session, self._settings, topic, each) for each in found]
        clamped = f"least({LAST_TIME_MS}, greatest({LEAST_TIME_MS}, unix_millis(timestamp)))"
        return reduce(lambda one, other: one.union(other), reads).select(
            F.col("topic"),
            F.col("partition"),
            F.col("offset"),
            F.expr(f"timestamp_millis({clamped})").alias("timestamp"),
            F.col("timestampType").alias("timestamp_type"),
            F.col("key"),
            F.col("value"),
            F.col("headers"),
            F.unix_millis("timestamp").alias("timestamp_ms"),
            F.timestamp_millis(F.lit(landed_at_ms)).alias("landed_at"),
            # Of UTC, whatever the session's time zone is.
            F.expr(f"date_from_unix_date(cast(floor(({clamped}) / {DAY_MS}) as int))").alias("date"),
            F.lit(None).cast("int").alias("leader_epoch"),
        )
