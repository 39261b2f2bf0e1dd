"""A harvester's counts, as a page of metrics: of a worker that harvests, or of `holdfast outbox harvest`,
which needs no Faust.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.clock import Clock, system_clock
from holdfast.outbox.harvest.harvester import Harvester, ShardStats
from holdfast.outbox.harvest.shard.shard import LATENCY_BOUNDS_S


class HarvesterPage(Collector):
    """A harvester's counts, for Prometheus; labels are the outbox's name and the shard."""

    def __init__(self, harvester: Harvester, clock: Clock = system_clock) -> None:
        self._harvester, self._clock = harvester, clock

    def collect(self) -> Iterable[Metric]:
        name, all_stats = self._harvester.settings.name, self._harvester.stats
        yield from self._gauges(name, all_stats)
        for metric, text, attribute in (
            ("leader_changes", "Terms that began in this process", "leader_changes"),
            ("published", "Rows published", "published"),
            ("batches", "Batches (transactions) published", "batches"),
            ("aborted", "Batches that came to nothing and were tried again", "aborted"),
            ("refused", "Times that Kafka refused a row or topic", "refused"),
            ("reset", "Rows given back unpublished (strategy mark)", "resets"),
            ("dead_letter_rows", "Rows set aside in the quarantine", "quarantined"),
            ("fenced", "Terms ended by a newer leader", "fenced"),
            ("restarts", "New beginnings within a term, after an error", "restarts"),
            ("queries", "Calls to the database", "queries"),
        ):
            family = CounterMetricFamily(f"holdfast_outbox_{metric}", text, labels=("outbox", "shard"))
            for stats in all_stats:
                family.add_metric((name, str(stats.shard)), getattr(stats, attribute))
            yield family
        latency = HistogramMetricFamily(
            "holdfast_outbox_publish_latency_seconds",
            "From a batch's first row being written to its commit",
            labels=("outbox", "shard"),
        )
        for stats in all_stats:
            latency.add_metric(
                (name, str(stats.shard)), list(_cumulative(stats.latency.counts)), stats.latency.total_s
            )
        yield latency

    def _gauges(self, name: str, all_stats: Iterable[ShardStats]) -> Iterator[Metric]:
        labels, now_ms = ("outbox", "shard"), self._clock.now_ms()
        leader = GaugeMetricFamily(
            "holdfast_outbox_leader", "1 while this process leads the shard", labels=labels
        )
        stopped = GaugeMetricFamily(
            "holdfast_outbox_stopped", "1 while the shard is stopped until a person resumes it", labels=labels
        )
        in_flight = GaugeMetricFamily(
            "holdfast_outbox_in_flight_rows", "Rows handed to Kafka and not yet acknowledged", labels=labels
        )
        pending = GaugeMetricFamily(
            "holdfast_outbox_pending_rows",
            "Rows in the table, counted now and then, up to 100,000",
            labels=labels,
        )
        oldest = GaugeMetricFamily(
            "holdfast_outbox_oldest_pending_age_seconds",
            "Age of the first row last taken, 0 for none",
            labels=labels,
        )
        for stats in all_stats:
            place = (name, str(stats.shard))
            leader.add_metric(place, int(self._harvester.leads(stats.shard)))
            stopped.add_metric(place, int(bool(stats.stopped)))
            in_flight.add_metric(place, stats.in_flight)
            pending.add_metric(place, stats.pending)
            created_ms = stats.oldest_created_ms
            oldest.add_metric(place, 0 if created_ms is None else max(0, now_ms - created_ms) / 1000)
        yield from (leader, stopped, in_flight, pending, oldest)


def _cumulative(counts: Iterable[int]) -> Iterator[tuple[str, int]]:
    total = 0
    for bound, count in zip((*map(str, LATENCY_BOUNDS_S), "+Inf"), counts, strict=True):
        total += count
        yield bound, total
