"""A worker's counts, and their form for Prometheus.

Counting is plain attribute arithmetic, once a transaction and never per record; all formatting is done when
someone asks. What a replica knows itself (position, lag, rows) is read from it at that moment. No label ever
holds a row's key or anything a stranger can choose.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from holdfast.agents.books_metrics import book_families
from holdfast.agents.serving import UNKNOWN, GlobalReplica, Replica, Serving
from holdfast.clock import Clock, system_clock
from holdfast.core.engine.choices import Choice

COMMIT_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
RESTORE_BOUNDS_S = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
QUERY_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
STALL_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0)
STALL_PROBE_S = 0.1
WEB_CAUSES = ("accept", "connections", "handshake", "malformed", "peer", "slow")


class Histogram:
    """Counts of observations by upper bound, and their sum.

    >>> histogram = Histogram((1.0, 2.0))
    >>> for seconds in (0.5, 1.0, 3.0): histogram.observe(seconds)
    >>> histogram.cumulative()
    [('1.0', 2), ('2.0', 2), ('+Inf', 3)]
    """

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[tuple[str, int]]:
        rows, count = [], 0
        for bound, each in zip((*map(str, self._bounds), "+Inf"), self.counts, strict=True):
            count += each
            rows.append((bound, count))
        return rows


class TableMetrics:
    """Times of one table on this worker."""

    __slots__ = ("commit_s", "restore_s")

    def __init__(self) -> None:
        self.commit_s, self.restore_s = Histogram(COMMIT_BOUNDS_S), Histogram(RESTORE_BOUNDS_S)


class PartitionMetrics:
    """Counts of one table's partition on this worker since it started; they outlive losing the partition,
    since counters never go back.
    """

    __slots__ = (
        "_table",
        "barriers",
        "emitted",
        "emitted_to",
        "looked_at",
        "misplaced",
        "quarantined",
        "records",
        "restored_records",
        "rotten",
        "rows_written",
        "store_checks",
        "ticks",
        "transactions",
        "waits",
    )

    def __init__(self, table: TableMetrics) -> None:
        self._table = table
        self.records = self.transactions = self.rows_written = self.emitted = self.quarantined = (
            self.restored_records
        ) = 0
        self.store_checks = self.rotten = self.barriers = self.ticks = self.waits = 0
        self.looked_at = self.misplaced = 0
        self.emitted_to: Counter[str] = Counter()
        """Records emitted by topic, which are those that the processor declares."""

    def committed(
        self, *, records: int, rows: int, emitted: Counter[str], quarantined: int, seconds: float
    ) -> None:
        """Count one transaction, once it is durable; *emitted* is how many records went to which topic."""
        self.records += records
        self.transactions += 1
        self.rows_written += rows
        self.emitted += emitted.total()
        self.emitted_to.update(emitted)
        self.quarantined += quarantined
        self._table.commit_s.observe(seconds)

    def decided(self, choices: Collection[Choice]) -> None:
        """Count the choices of one transaction, once it is durable."""
        ticks = sum(choice.tick_ms is not None for choice in choices)
        self.ticks += ticks
        self.barriers += len(choices) - ticks

    def restored(self, *, records: int, seconds: float) -> None:
        """Count one restore, once the partition is abreast of its changelog."""
        self.restored_records += records
        self._table.restore_s.observe(seconds)


class Metrics:
    """Everything one worker counts.

    Keep what `partition` returns; the other counters are attributes to add to.
    """

    def __init__(self, app: str, clock: Clock = system_clock) -> None:
        self.app, self._clock = app, clock
        self._tables: dict[str, TableMetrics] = {}
        self._partitions: dict[tuple[str, int], PartitionMetrics] = {}
        self.rebalances = 0
        self.fenced = 0
        self.loop_stall_s = Histogram(STALL_BOUNDS_S)
        self.queries: Counter[tuple[str, str, str]] = Counter()
        self.web_refused: Counter[str] = Counter(dict.fromkeys(WEB_CAUSES, 0))
        """Connections and requests that the web port did not take, by cause."""
        self._query_s: dict[str, Histogram] = {}
        self.skipped: Counter[tuple[str, int]] = Counter()
        """Batches that this worker has skipped, by partition."""
        self.pages: list[Collector] = []
        """Further counts, of other parts of this worker."""

    def partition(self, table: str, partition: int) -> PartitionMetrics:
        """Return the counters of a partition of *table* (its processor's name)."""
        found = self._partitions.get((table, partition))
        if found is None:
            times = self._tables.setdefault(table, TableMetrics())
            found = self._partitions[table, partition] = PartitionMetrics(times)
        return found

    def query(self, table: str, verb: str, outcome: str, seconds: float) -> None:
        """Count one query; *table* must be a table's name or empty, never what a stranger asked for."""
        self.queries[table, verb, outcome] += 1
        histogram = self._query_s.get(verb)
        if histogram is None:
            histogram = self._query_s[verb] = Histogram(QUERY_BOUNDS_S)
        histogram.observe(seconds)

    async def watch_loop(self) -> None:
        """Measure for ever by how much the event loop is late; run it as a task on that loop."""
        while True:
            due_s = self._clock.monotonic_s() + STALL_PROBE_S
            await asyncio.sleep(STALL_PROBE_S)
            self.loop_stall_s.observe(max(0.0, self._clock.monotonic_s() - due_s))

    def misplaced(self) -> dict[str, tuple[int, int]]:
        """Return, by table, how many row keys lie where its route would not look for them, and of how many:
        of those that were looked at here.
        """
        found: dict[str, tuple[int, int]] = {}
        for (table, _), counts in self._partitions.items():
            wrong, of = found.get(table, (0, 0))
            found[table] = wrong + counts.misplaced, of + counts.looked_at
        return {table: (wrong, of) for table, (wrong, of) in found.items() if wrong}

    # -- what a scrape shows

    def counters(self) -> Iterator[Metric]:
        """Yield the counts by partition and for the whole worker."""
        for name, text, attribute in (
            ("records_folded", "Source records taken into committed state", "records"),
            ("transactions", "Kafka transactions committed", "transactions"),
            ("rows_written", "Rows put or deleted by committed transactions", "rows_written"),
            ("records_emitted", "Records emitted by folds in committed transactions", "emitted"),
            ("quarantined", "Records refused and set aside with their reason", "quarantined"),
            ("restored_records", "Changelog records read by restores", "restored_records"),
            (
                "barriers",
                "Records of several sources that came too late for their place, written down",
                "barriers",
            ),
            (
                "waits",
                "Times that a fold could not go on because what it needs was not there (errors.Later)",
                "waits",
            ),
            ("ticks", "Readings of the clock that were written down for timers", "ticks"),
            ("store_checks", "Stores compared with their changelog and found equal", "store_checks"),
            ("keys_looked_at", "Row keys of which it was looked whether queries find them", "looked_at"),
            (
                "misplaced_keys",
                "Row keys looked at that the table's route would look for in another partition",
                "misplaced",
            ),
            ("rotten_stores", "Stores found damaged, or not equal to their changelog, and rebuilt", "rotten"),
        ):
            family = CounterMetricFamily(f"holdfast_{name}", text, labels=("table", "partition"))
            for (table, partition), counts in self._partitions.items():
                family.add_metric((table, str(partition)), getattr(counts, attribute))
            yield family
        yield CounterMetricFamily(
            "holdfast_rebalances", "Assignments this worker has taken up", value=self.rebalances
        )
        yield CounterMetricFamily(
            "holdfast_fenced", "Partitions lost because a newer owner fenced this worker", value=self.fenced
        )
        queries = CounterMetricFamily(
            "holdfast_queries", "Answered and refused queries", labels=("table", "verb", "outcome")
        )
        for labels, count in self.queries.items():
            queries.add_metric(labels, count)
        yield queries
        refused = CounterMetricFamily(
            "holdfast_web_refused", "Connections and requests the web port did not take", labels=("cause",)
        )
        for cause, count in self.web_refused.items():
            refused.add_metric((cause,), count)
        yield refused

    def histograms(self) -> Iterator[Metric]:
        """Yield the times."""
        commit = [((table,), times.commit_s) for table, times in self._tables.items()]
        restore = [((table,), times.restore_s) for table, times in self._tables.items()]
        query = [((verb,), histogram) for verb, histogram in self._query_s.items()]
        yield _histogram(
            "commit_seconds", "From the end of folding a batch to its being readable", ("table",), commit
        )
        yield _histogram("restore_seconds", "Restores of partitions", ("table",), restore)
        yield _histogram("query_seconds", "Queries, waiting for an offset included", ("verb",), query)
        yield _histogram(
            "loop_stall_seconds", "By how much the event loop was late", (), [((), self.loop_stall_s)]
        )

    def exposition(self, serving: Serving, accept: str) -> tuple[bytes, str]:
        """Return the page for a scraper that accepts *accept*, and its content type."""
        registry = CollectorRegistry(auto_describe=False)
        for collector in (ProcessCollector, GCCollector, PlatformCollector):
            collector(registry=registry)
        registry.register(_Page(self, serving, self._clock))
        for page in self.pages:
            registry.register(page)
        encoder, content_type = choose_encoder(accept)
        return encoder(registry), content_type


class _Page(Collector):
    """All families of one scrape, the replicas' own state included."""

    def __init__(self, metrics: Metrics, serving: Serving, clock: Clock) -> None:
        self._metrics, self._serving, self._now_ms = metrics, serving, clock.now_ms()

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "holdfast_ready",
            "1 when every assigned partition is serving",
            value=int(self._serving.unready() is None),
        )
        replicas = [
            replica
            for table in self._serving.tables()
            for partition in range(self._serving.partitions(table))
            if (replica := self._serving.lookup(table, partition)) is not None
        ]
        yield from self._unreadable(replicas)
        yield from self._group(replicas)
        kept = [
            earlier
            for replica in replicas
            if (earlier := self._serving.earlier(replica.processor.name, replica.partition)) is not None
        ]
        yield from self._replicas([*replicas, *kept])
        yield from self._building(replicas)
        yield from book_families(replicas)
        yield from global_families(self._serving.global_tables().values())
        yield from self._metrics.counters()
        yield from self._metrics.histograms()

    def _unreadable(self, replicas: Iterable[Replica]) -> Iterator[Metric]:
        labels, about = (
            ("topic", "partition"),
            "1 while a partition stands before a batch which cannot be read; /health/ready names it",
        )
        standing = GaugeMetricFamily("holdfast_unreadable_batches", about, labels=labels)
        skipped = CounterMetricFamily(
            "holdfast_skipped_batches", "Batches which cannot be read and were skipped", labels=labels
        )
        unreadable, counts = set(self._serving.unreadable()), self._metrics.skipped
        read = {
            (topic, replica.partition)
            for replica in replicas
            if replica.active
            for topic in replica.processor.topics
        }
        for place in sorted(read | unreadable | set(counts)):
            values = (place[0], str(place[1]))
            standing.add_metric(values, int(place in unreadable))
            skipped.add_metric(values, counts[place])
        yield standing
        yield skipped

    def _group(self, replicas: Iterable[Replica]) -> Iterator[Metric]:
        """The names of kafka_exporter.

        Several tables may fold one topic: the group is where the slowest of them is.
        """
        labels = ("consumergroup", "topic", "partition")
        offset = GaugeMetricFamily(
            "kafka_consumergroup_current_offset", "Next source offset to fold", labels=labels
        )
        lag = GaugeMetricFamily("kafka_consumergroup_lag", "Source records not yet folded", labels=labels)
        slowest: dict[tuple[str, int], tuple[int, int]] = {}
        for replica in replicas:
            for topic, applied, end in source_positions(replica) if replica.active else ():
                place = (topic, replica.partition)
                if place not in slowest or applied < slowest[place][0]:
                    slowest[place] = applied, end
        for (topic, partition), (applied, end) in slowest.items():
            values = (self._metrics.app, topic, str(partition))
            offset.add_metric(values, applied + 1)
            if end != UNKNOWN:
                lag.add_metric(values, max(0, end - applied - 1))
        yield offset
        yield lag

    def _building(self, replicas: Iterable[Replica]) -> Iterator[Metric]:
        building = GaugeMetricFamily(
            "holdfast_building",
            "1 while this version of a partition has not caught up with the current one, and is not read",
            labels=("table", "partition", "version"),
        )
        waiting = GaugeMetricFamily(
            "holdfast_waiting",
            "1 while this version of a partition has folded all there is, and waits for partitions that old"
            " workers have",
            labels=("table", "partition", "version"),
        )
        for replica in replicas:
            name, number = replica.processor.name, replica.partition
            labels = (name, str(number), str(replica.processor.version))
            building.add_metric(labels, int(self._serving.building(name, number) is not None))
            waiting.add_metric(labels, int(self._serving.waiting(name, number)))
        yield building
        yield waiting

    def _replicas(self, replicas: Iterable[Replica]) -> Iterator[Metric]:
        labels = ("table", "partition", "role")
        serving = GaugeMetricFamily("holdfast_serving", "1 while this replica answers queries", labels=labels)
        stalled, standing = (
            GaugeMetricFamily(name, meaning, labels=labels[:2])
            for name, meaning in (
                ("holdfast_stalled", "1 while a partition waits or is stalled; /health/ready says why"),
                ("holdfast_standing", "The old name of holdfast_stalled"),
            )
        )
        applied = GaugeMetricFamily(
            "holdfast_applied_offset",
            "Last source offset in the state, -1 for none; of several sources, how many offsets less one",
            labels=labels,
        )
        stream = GaugeMetricFamily(
            "holdfast_stream_time_seconds", "Highest append time in the state, -1 for none", labels=labels
        )
        held_back = GaugeMetricFamily(
            "holdfast_watermark_lag_seconds",
            "By how much event time this origin, the last of a step's source partitions, holds windows or a"
            " join back; +Inf for one that has said nothing",
            labels=("table", "partition", "topic", "origin"),
        )
        late = CounterMetricFamily(
            "holdfast_late_records",
            "Records that windows or a join have found late since the table began: late by their own origin"
            " (cause own), or only because others went on while that had let go (after_idle)",
            labels=("table", "partition", "cause"),
        )
        rows = GaugeMetricFamily("holdfast_rows", "Keys in the store, estimated", labels=labels)
        partial = GaugeMetricFamily(
            "holdfast_partial",
            "1 when records of a source were deleted before this version of the table began",
            labels=labels,
        )
        lag = GaugeMetricFamily(
            "holdfast_standby_lag",
            "Offsets of the source not yet in this standby, those of markers included",
            labels=labels[:2],
        )
        age = GaugeMetricFamily(
            "holdfast_standby_age_seconds", "How old a standby's state may be at most", labels=labels[:2]
        )
        for replica in replicas:
            place = (replica.processor.name, str(replica.partition))
            labelled = (*place, replica.role)
            serving.add_metric(labelled, int(replica.serving))
            if replica.active:
                stalled.add_metric(place, int(replica.stalled is not None))
                standing.add_metric(place, int(replica.stalled is not None))
                for each in replica.held_back:
                    held_back.add_metric((*place, each.topic, each.origin), each.lag_s)
                if (found := replica.late) is not None:
                    late.add_metric((*place, "own"), found[0])
                    late.add_metric((*place, "after_idle"), found[1])
            applied.add_metric(labelled, replica.applied)
            stream.add_metric(
                labelled, replica.stream_ms if replica.stream_ms < 0 else replica.stream_ms / 1000
            )
            rows.add_metric(labelled, replica.approximate_rows())
            partial.add_metric(labelled, int(bool(replica.partial)))
            if replica.role == "standby":
                if replica.source_end != UNKNOWN:
                    lag.add_metric(place, behind(replica))
                if (age_ms := age_bound_ms(replica, self._now_ms)) is not None:
                    age.add_metric(place, age_ms / 1000)
        yield from (serving, stalled, standing, applied, stream, held_back, late, rows, partial, lag, age)


def source_positions(replica: Replica) -> Iterator[tuple[str, int, int]]:
    """Yield (topic, last offset applied, end) of each source."""
    ends = replica.source_ends
    for topic, applied in replica.offsets.items():
        yield topic, applied, ends[topic]


def global_families(copies: Collection[GlobalReplica]) -> Iterator[Metric]:
    """Yield the metrics of this worker's copies of global tables; none where no processor reads one."""
    if not copies:
        return
    of_all, of_each = ("table",), ("table", "partition")
    serving = GaugeMetricFamily(
        "holdfast_global_serving",
        "1 once the copy of a global table has caught up and is read",
        labels=of_all,
    )
    rows = GaugeMetricFamily(
        "holdfast_global_rows", "Keys in the copy of a global table, estimated", labels=of_all
    )
    applied = GaugeMetricFamily(
        "holdfast_global_applied_offset",
        "Last offset of the topic in the copy of a global table, -1 for none",
        labels=of_each,
    )
    lag = GaugeMetricFamily(
        "holdfast_global_lag",
        "Offsets of the topic not yet in the copy of a global table, those of markers included",
        labels=of_each,
    )
    failures = CounterMetricFamily(
        "holdfast_global_failures",
        "Records of a global table which its fold refused in this copy; they change nothing",
        labels=of_each,
    )
    for copy in copies:
        name, counts = copy.table.name, copy.failures
        serving.add_metric((name,), int(copy.unready() is None))
        rows.add_metric((name,), copy.approximate_rows())
        for partition, offset in copy.applied.items():
            applied.add_metric((name, str(partition)), offset)
            failures.add_metric((name, str(partition)), counts.get(partition, 0))
        for partition, count in copy.lags.items():
            lag.add_metric((name, str(partition)), count)
    yield from (serving, rows, applied, lag, failures)


def behind(replica: Replica) -> int:
    """Return how many source offsets are not in the replica's state, as far as the ends of its sources are
    known.
    """
    return max(0, replica.source_end - replica.applied - 1)


def age_bound_ms(replica: Replica, now_ms: int) -> int | None:
    """Return the age in ms that the replica's state cannot exceed, None when nothing bounds it.

    Its last record's append time bounds it too: whatever was appended before that is in the state.
    """
    known_ms = max(replica.current_ms, replica.stream_ms)
    return None if known_ms < 0 else max(0, now_ms - known_ms)


def _histogram(
    name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], Histogram]]
) -> Metric:
    family = HistogramMetricFamily(f"holdfast_{name}", text, labels=labels)
    for values, histogram in rows:
        family.add_metric(values, histogram.cumulative(), histogram.total)
    return family
