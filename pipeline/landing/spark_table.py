"""A bronze table as Spark reads and writes it."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.engine.fold.skips import OffsetRanges
from holdfast.errors import LakeError, SparkError
from holdfast.pipeline.bronze.commits import TableCommit, check_upkeep, commit_of, landed_in
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
        session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        # Keeps each task's rows in the order Kafka gave them; Spark would sort them by table partition, which
        # is not stable.
        session.conf.set("spark.sql.maxConcurrentOutputFileWriters", "8")
        with _CREATING, explained(path):
            self._create()

    def _create(self) -> None:
        from delta.tables import DeltaTable

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

    def history(self, limit: int) -> Sequence[TableCommit]:
        with explained(self.path):
            rows = (
                self._table()
                .history(limit)
                .select("version", "operation", "userMetadata", "operationMetrics")
                .collect()
            )
        return [commit_of(row[0], row[1], row[2], row[3] or {}) for row in rows]

    def _rows(self, version: int | None = None) -> DataFrame:
        reader = self._session.read.format("delta")
        return (reader if version is None else reader.option("versionAsOf", version)).load(self.path)

    def counted(self, version: int) -> dict[int, int | None]:
        with explained(self.path):
            return {row[0]: row[1] for row in self._rows(version).groupBy("partition").count().collect()}

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
            found = (
                self._rows()
                .groupBy("topic", "partition")
                .agg(F.min("offset"), F.max("offset"), F.count("*"), F.countDistinct("offset"))
                .collect()
            )
        return [Contents(*row) for row in found]

    def write(
        self, landed: Landed, link: str, spans: Mapping[int, Span], skips: Mapping[int, OffsetRanges]
    ) -> LandedRows:
        try:
            self._append(landed, link, spans, self._read(landed.topic, spans, skips))
        except SparkError as error:
            if error.__cause__ is None or not no_date(error.__cause__):
                raise
            logger.warning(
                "%(topic)s has times that are no dates: tasks in Python read it", {"topic": landed.topic}
            )
            now_ms = system_clock.now_ms()
            rows = read_in_tasks(self._session, self._settings, landed.topic, spans, skips, now_ms)
            self._append(landed, link, spans, rows)
        return self._written(landed, link)

    def _append(self, landed: Landed, link: str, spans: Mapping[int, Span], rows: DataFrame) -> None:
        first = describe({partition: span.first for partition, span in spans.items()})
        end = describe({partition: span.end for partition, span in spans.items()})
        with explained(f"{landed.topic} {first} to {end}"):
            (
                rows.write.format("delta")
                .mode("append")
                .option("txnAppId", f"holdfast-landing-{link}")
                .option("txnVersion", 1)
                .option("userMetadata", landed.encode())
                .save(self.path)
            )

    def _written(self, landed: Landed, link: str) -> LandedRows:
        """Return what was written. A skipped write looks like a successful one: only the commit itself tells."""
        commits = list(self.history(LOOK_BACK))
        told = {commit.version: landed_in(commit) for commit in commits}
        version = next(
            (at for at, each in told.items() if each is not None and each.batch == landed.batch), None
        )
        if version is None:
            raise taken(self.path, landed.start)
        for commit in commits:
            each = told[commit.version]
            if (each is not None and each.batch == link) or f"version-{commit.version}" == link:
                break
            if each is None and commit.version < version:
                check_upkeep(self.path, commit, None)
        return self._added(landed, version)

    def _added(self, landed: Landed, version: int) -> LandedRows:
        rows, stored = Counter[int](), 0
        with explained(f"{self.path} version {version}"):
            for line in self._log_of(version).splitlines():
                add = json.loads(line).get("add")
                if add is not None:
                    stored += add["size"]
                    count = json.loads(add["stats"])["numRecords"]
                    rows[int(add["partitionValues"]["partition"])] += count
        return LandedRows(landed, rows, stored)

    def _log_of(self, version: int) -> str:
        """Return a commit's own file: through Hadoop, which reaches wherever the table lies."""
        jvm: Any = self._session._jvm
        place = jvm.org.apache.hadoop.fs.Path(f"{self.path.rstrip('/')}/_delta_log/{version:020d}.json")
        opened = place.getFileSystem(self._session._jsc.hadoopConfiguration()).open(place)
        try:
            return str(jvm.org.apache.commons.io.IOUtils.toString(opened, "UTF-8"))
        finally:
            opened.close()

    def _read(self, topic: str, spans: Mapping[int, Span], skips: Mapping[int, OffsetRanges]) -> DataFrame:
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
            F.timestamp_millis(F.lit(system_clock.now_ms())).alias("landed_at"),
            # Of UTC, whatever the session's time zone is.
            F.expr(f"date_from_unix_date(cast(floor(({clamped}) / {DAY_MS}) as int))").alias("date"),
            F.lit(None).cast("int").alias("leader_epoch"),
        )
