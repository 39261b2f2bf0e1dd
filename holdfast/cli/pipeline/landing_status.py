"""The progress of a landing: metrics for Prometheus, and one line for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.cli.status_line import status_line
from holdfast.clock import system_clock

if TYPE_CHECKING:
    from holdfast.pipeline.landing.options import LandReport

Reports = Mapping[str, "LandReport"]


class LandingPage(Collector):
    """The metrics of a landing; *reports* are those of its topics, by name."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports

    def collect(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "holdfast_landing_lag_offsets",
            "offsets that are committed and not landed",
            labels=["topic", "partition"],
        )
        rows = CounterMetricFamily("holdfast_landing_rows", "rows landed by this process", labels=["topic"])
        commits = CounterMetricFamily(
            "holdfast_landing_commits", "commits to the lake by this process", labels=["topic"]
        )
        last = GaugeMetricFamily(
            "holdfast_landing_last_commit_timestamp_seconds",
            "when the last commit was made",
            labels=["topic"],
        )
        for topic, report in sorted(self._reports.items()):
            rows.add_metric([topic], report.rows)
            commits.add_metric([topic], report.commits)
            for partition, behind in report.lag.items():
                lag.add_metric([topic, str(partition)], behind)
            if report.committed_ms is not None:
                last.add_metric([topic], report.committed_ms / 1000)
        yield from (lag, rows, commits, last)


def landing_summary(reports: Reports, rows_before: int, passed_s: float, now_ms: int) -> str:
    """Return how the landing is doing: *rows_before* is how many rows there were *passed_s* ago."""
    every = [*reports.values()]
    rows, lag = sum(each.rows for each in every), sum(sum(each.lag.values()) for each in every)
    last_ms = max((each.committed_ms for each in every if each.committed_ms is not None), default=None)
    last = "none yet" if last_ms is None else f"{max(0, now_ms - last_ms) / 1000:.0f} s ago"
    rate = (rows - rows_before) / passed_s if passed_s > 0 else 0.0
    return f"{len(every)} topics, {rows:,} rows, {rate:,.0f} rows/s, lag {lag:,}, last commit {last}"


@contextmanager
def landing_line(reports: Reports) -> Iterator[None]:
    """Keep a line of how the landing is doing at the bottom of a terminal; do nothing where there is none."""
    rows, at_s = 0, 0.0

    def tell(passed_s: float) -> str:
        nonlocal rows, at_s
        now = dict(reports)
        line = landing_summary(now, rows, passed_s - at_s, system_clock.now_ms())
        rows, at_s = sum(each.rows for each in now.values()), passed_s
        return line

    with status_line(tell, in_logs=False):
        yield
