"""A landing's metrics, and its line on a terminal."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from holdfast.cli.pipeline.landing_status import LandingPage, landing_summary
from holdfast.pipeline.landing.options import LandReport

REPORTS = {
    "orders": LandReport(
        topic="orders",
        path="lake/bronze/orders",
        commits=2,
        rows=90,
        vector={0: 50, 1: 45},
        ends={0: 60, 1: 45, 2: 7},
        committed_ms=10_000,
    ),
    "payments": LandReport(topic="payments", path="lake/bronze/payments"),
}


def test_the_line_shows_rows_rate_lag_and_the_last_commit() -> None:
    assert (
        landing_summary(REPORTS, 40, 2.0, 13_000)
        == "2 topics, 90 rows, 25 rows/s, lag 17, last commit 3 s ago"
    )
    assert landing_summary({}, 0, 0.0, 13_000) == "0 topics, 0 rows, 0 rows/s, lag 0, last commit none yet"


def test_the_metrics_show_each_topic() -> None:
    registry = CollectorRegistry()
    registry.register(LandingPage(REPORTS))
    told = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    assert told == [
        'holdfast_landing_lag_offsets{partition="0",topic="orders"} 10.0',
        'holdfast_landing_lag_offsets{partition="1",topic="orders"} 0.0',
        'holdfast_landing_lag_offsets{partition="2",topic="orders"} 7.0',
        'holdfast_landing_rows_total{topic="orders"} 90.0',
        'holdfast_landing_rows_total{topic="payments"} 0.0',
        'holdfast_landing_commits_total{topic="orders"} 2.0',
        'holdfast_landing_commits_total{topic="payments"} 0.0',
        'holdfast_landing_last_commit_timestamp_seconds{topic="orders"} 10.0',
    ]
