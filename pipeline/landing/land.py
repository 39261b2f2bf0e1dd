"""Landing: a topic's committed records into a Delta table, one row each, exactly once, whatever is killed.

One round reads the table's vector of end offsets, the topic's ends, and writes what lies between as one Delta
commit that carries the new vector. There is no checkpoint beside the table, so nothing can be lost or fall
behind it.

Two landings of one table cannot both extend the same vector. Each commit names its predecessor as Delta's
transaction id (`txnAppId`), and Delta lets one commit of an id through: of two landings that start from the
same vector, the second is skipped or refused, sees a stranger's commit where its own should be, and stops
with LakeError. A check before the write alone could not do that: both landings would pass it.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.engine.fold.skips import OffsetRanges, gaps
from holdfast.errors import LakeError, LostRecordsError, SparkError
from holdfast.kafka.reading.skip_log import read_skips
from holdfast.pipeline.bronze.lake import (
    COLUMNS,
    FIRST_LINK,
    HISTORY_LIMIT,
    Cut,
    Landed,
    TableCommit,
    bronze_path,
    check_identity,
    describe,
    landed_in,
    last_landed,
    share,
)
from holdfast.pipeline.folds.on_spark import kafka_records, parts
from holdfast.pipeline.spark.errors import explained
from holdfast.pipeline.spark.session import SparkOptions, open_session
from holdfast.pipeline.topic import Span, TopicLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_RECORDS = 500_000
POLL_S = 0.2

_PROPERTIES = {
    "delta.appendOnly": "true",
    "delta.checkpointInterval": "50",
    # One transaction id is spent per commit; a race between two landings is over in seconds.
    "delta.setTransactionRetentionDuration": "interval 7 days",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LandOptions:
    """How to land. *follow* goes on until `stop`; otherwise only what was committed at the start is landed.

    *max_records* bounds one commit, *every_s* is the shortest time between two commits when following. *accept_loss* goes on where
    records were deleted before they were landed, and notes the hole in the commit. *rebuild* reads the vector from the rows.
    """

    follow: bool = False
    max_records: int = MAX_RECORDS
    every_s: float = 2.0
    accept_loss: bool = False
    rebuild: bool = False


@dataclass(slots=True, kw_only=True)
class LandReport:
    """What one landing did. *vector* holds the end offsets that the table has reached."""

    topic: str
    path: str
    commits: int = 0
    offsets: int = 0
    vector: dict[int, int] = field(default_factory=dict)
    lost: dict[int, list[tuple[int, int]]] = field(default_factory=dict)


def land(
    settings: Settings,
    topic: str,
    lake: str,
    *,
    options: LandOptions | None = None,
    spark: SparkOptions | None = None,
    stop: threading.Event | None = None,
    progress: Callable[[Landed], None] | None = None,
) -> LandReport:
    """Land *topic* in *lake* and return what was done; *progress* is called after each commit, *stop* ends a
    following landing.

    Raises LostRecordsError when the topic no longer holds what comes next, LakeError when the table does not
    end where a landing left it or another landing extends it, TopicError and BrokerError for the topic's
    side, SparkError for a failed job.
    """
    options = options or LandOptions()
    stop = stop or threading.Event()
    with TopicLog(settings, topic) as log:
        log.partitions()  # a missing topic is an error before a JVM starts
        with open_session(spark) as session:
            landing = Landing(session, settings, log, bronze_path(lake, topic), options)
            ends = landing.ends()
            while not stop.is_set():
                started_s = system_clock.monotonic_s()
                try:
                    landed = landing.step(ends)
                except SparkError:
                    if (
                        stop.is_set()
                    ):  # a supervisor that ends all processes of a service at once ended the JVM as well
                        break
                    raise
                if landed is not None and progress is not None:
                    progress(landed)
                if options.follow:
                    ends = landing.wait_for_more(stop, started_s)
                elif landed is None:
                    break
            return landing.report


class Landing:
    """One landing of one table: remembers the last link of its chain of commits."""

    def __init__(
        self, session: SparkSession, settings: Settings, log: TopicLog, path: str, options: LandOptions
    ) -> None:
        self._session, self._settings, self._log, self.path, self._options = (
            session,
            settings,
            log,
            path,
            options,
        )
        self._topic_id = log.identity()
        session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        # Keeps each task's rows in the order Kafka gave them; Spark would sort them by table partition, which
        # is not stable.
        session.conf.set("spark.sql.maxConcurrentOutputFileWriters", "8")
        self.report = LandReport(topic=log.topic, path=path)
        self._vector: dict[int, int] = {}
        self._begins: dict[int, int] = {}
        self._lost: dict[int, list[tuple[int, int]]] = {}
        self._skips = dict[int, OffsetRanges]()
        self._noted = dict[str, dict[int, list[tuple[int, int]]]]()
        self._left_out = dict[int, list[tuple[int, int]]]()
        self._cut: Cut | None = None
        self._link = FIRST_LINK
        self._rebuilt = False
        self._open()

    # -- the table

    def _table(self) -> Any:
        from delta.tables import DeltaTable

        return DeltaTable.forPath(self._session, self.path)

    def _open(self) -> None:
        from delta.tables import DeltaTable

        with explained(self.path):
            builder = (
                DeltaTable.createIfNotExists(self._session)
                .location(self.path)
                .partitionedBy("topic", "partition")
            )
            for name, kind in COLUMNS.items():
                builder = builder.addColumn(name, kind)
            for name, value in _PROPERTIES.items():
                builder = builder.property(name, value)
            builder.execute()
        if self._options.rebuild:
            self._rebuild()
            return
        landed = last_landed(self.path, self._history(HISTORY_LIMIT))
        if landed is not None:
            check_identity(self.path, landed, self._log.topic, self._topic_id)
            self._take(landed)
        self.report.vector = dict(self._vector)

    def _take(self, landed: Landed) -> None:
        self._vector, self._begins, self._lost = dict(landed.end), dict(landed.begins), dict(landed.lost)
        self._noted, self._left_out = dict(landed.skipped), dict(landed.left_out)
        self._cut, self._link, self._rebuilt = landed.cut, landed.batch, False

    def _history(self, limit: int) -> list[TableCommit]:
        with explained(self.path):
            rows = self._table().history(limit).select("version", "operation", "userMetadata").collect()
        return [TableCommit(version=row[0], operation=row[1], metadata=row[2]) for row in rows]

    def _rebuild(self) -> None:
        """Read the vector from the rows; refuses rows that are doubled, since going on would not mend
        them.
        """
        from pyspark.sql import functions as F

        version = self._history(1)[0].version
        with explained(self.path):
            rows = self._session.read.format("delta").option("versionAsOf", version).load(self.path)
            found = (
                rows.groupBy("topic", "partition")
                .agg(F.min("offset"), F.max("offset"), F.count("*"), F.countDistinct("offset"))
                .collect()
            )
        for topic, partition, first, last, count, distinct in found:
            if topic != self._log.topic:
                raise LakeError(
                    f"{self.path} holds rows of topic {topic}, not only of {self._log.topic}; remove them first"
                )
            if count != distinct:
                raise LakeError(
                    f"{self.path}: {count - distinct} rows of partition {partition} are doubled; remove them (Delta's time travel shows "
                    "which commit brought them), then rebuild"
                )
            self._vector[partition], self._begins[partition] = last + 1, first
        self._link, self._rebuilt = f"version-{version}", True
        self.report.vector = dict(self._vector)

    # -- one round

    def ends(self) -> dict[int, int]:
        """Return how far the topic can be landed now, by partition."""
        return self._log.ends(self._log.partitions())

    def wait_for_more(self, stop: threading.Event, started_s: float) -> dict[int, int]:
        """Return the topic's ends once they are past the vector and the time between two commits is over, or
        on a stop.
        """
        while not stop.is_set():
            left_s = self._options.every_s - (system_clock.monotonic_s() - started_s)
            if left_s > 0:
                stop.wait(left_s)
                continue
            ends = self.ends()
            if self.is_behind(ends):
                return ends
            stop.wait(POLL_S)
        return dict(self._vector)

    def is_behind(self, ends: Mapping[int, int]) -> bool:
        """Tell whether there is more up to *ends* than the table holds."""
        return any(end > self._vector.get(partition, 0) for partition, end in ends.items())

    def step(self, ends: dict[int, int], cut: Cut | None = None) -> Landed | None:
        """Write one commit on the way to *ends*, the last of them with *cut*; None when the table has reached them."""
        self._skips = read_skips(self._settings).of_topic(self._log.topic)
        start, lost = self._start(ends)
        target = share(start, ends, self._options.max_records)
        own = {partition: list(ranges) for partition, ranges in self._skips.items()}
        is_there = all(target[partition] <= self._vector.get(partition, 0) for partition in target)
        told = cut if cut is not None and target == ends else self._cut
        if (
            is_there
            and not self._rebuilt
            and own == self._noted.get(self._settings.app, {})
            and told == self._cut
        ):
            return None
        landed = Landed(
            topic=self._log.topic,
            topic_id=self._topic_id,
            batch=uuid.uuid4().hex,
            start=dict(self._vector),
            end=self._vector | target,
            begins={partition: self._begins.get(partition, start[partition]) for partition in target},
            lost={
                partition: [*self._lost.get(partition, []), *lost.get(partition, [])]
                for partition in {*self._lost, *lost}
            },
            rebuilt=self._rebuilt,
            skipped={**self._noted, self._settings.app: own} if own else self._noted,
            left_out={
                partition: [
                    *self._left_out.get(partition, []),
                    *gaps(self._skips.get(partition, ()), start[partition], target[partition]),
                ]
                for partition in target
            },
            cut=told,
        )
        self._write(landed, start)
        self.report.commits += 1
        self.report.offsets += sum(target[partition] - start[partition] for partition in target)
        self.report.vector = dict(landed.end)
        for partition, ranges in lost.items():
            self.report.lost.setdefault(partition, []).extend(ranges)
        self._take(landed)
        return landed

    def _start(self, ends: dict[int, int]) -> tuple[dict[int, int], dict[int, list[tuple[int, int]]]]:
        """Return where each partition goes on, and what is lost before that."""
        firsts = self._log.firsts(sorted(ends))
        start: dict[int, int] = {}
        lost: dict[int, list[tuple[int, int]]] = {}
        for partition, end in ends.items():
            first, reached = firsts[partition], self._vector.get(partition)
            if reached is None:
                # A new partition begins at 0; when the topic itself is new to the lake, it begins with what
                # it still holds.
                reached = first if not self._vector else 0
            if reached > end:
                raise LakeError(
                    f"{self.path} holds partition {partition} up to offset {reached}, but topic {self._log.topic} ends at {end}: "
                    "it lost records that were landed (an unclean election?), or is not the topic that was landed"
                )
            if reached < first:
                if not self._options.accept_loss:
                    raise LostRecordsError(
                        f"{self._log.topic} partition {partition}: offsets {reached} to {first - 1} were deleted before they were landed "
                        "(retention). Raise retention.ms, restore them if you can, or go on with --accept-loss, which notes the hole"
                    )
                lost[partition] = [(reached, first)]
                reached = first
            start[partition] = reached
        return start, lost

    def _write(self, landed: Landed, start: dict[int, int]) -> None:
        end = {partition: landed.end[partition] for partition in start}
        with explained(f"{landed.topic} {describe(start)} to {describe(end)}"):
            (
                self._read(start, end)
                .write.format("delta")
                .mode("append")
                .option("txnAppId", f"holdfast-landing-{self._link}")
                .option("txnVersion", 1)
                .option("userMetadata", landed.encode())
                .save(self.path)
            )
        # A skipped write looks like a successful one: only the commit itself tells.
        history = self._history(5)
        if not any(
            (each := landed_in(commit)) is not None and each.batch == landed.batch for commit in history
        ):
            raise LakeError(
                f"{self.path}: another landing extended the table from the same offsets ({describe(landed.start)}); nothing was written "
                "by this one. Run one landing per topic and lake"
            )

    def _read(self, start: dict[int, int], end: dict[int, int]) -> DataFrame:
        from pyspark.sql import functions as F

        spans = {partition: Span(first=start[partition], end=end[partition]) for partition in start}
        # Where all of it is skipped, nothing is read: a commit notes that.
        found = list(parts(spans, self._skips)) or [
            {partition: Span(first=at, end=at) for partition, at in start.items()}
        ]
        reads = [kafka_records(self._session, self._settings, self._log.topic, each) for each in found]
        return reduce(lambda one, other: one.union(other), reads).select(
            F.col("topic"),
            F.col("partition"),
            F.col("offset"),
            F.col("timestamp"),
            F.col("timestampType").alias("timestamp_type"),
            F.col("key"),
            F.col("value"),
            F.col("headers"),
        )
