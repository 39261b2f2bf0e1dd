"""The metrics of a scrape: names, units, and numbers that follow from the counts."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.agents.metrics import Metrics
from holdfast.clock import ManualClock
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.dev.memory_tables import MemoryWorker
from tests.clients.tables.test_globals import ORDERS, with_rates
from tests.support.patience import DEADLINE_S
from tests.test_operating_page import check, metrics_table

NOW_MS = 1_700_000_000_000


class Total(msgspec.Struct, frozen=True):
    count: int = 0


def fold(rows: Any, event: Any, at_ms: int) -> None:
    """These rows are put by the tests."""


TOTALS: Processor[Any, Total] = Processor(name="totals", source="orders", decode=bytes, fold=fold, row=Total)
MAXIMA: Processor[Any, Total] = Processor(name="maxima", source="orders", decode=bytes, fold=fold, row=Total)

Sample = tuple[str, tuple[tuple[str, str], ...]]


@pytest.fixture
def worker() -> MemoryWorker:
    return MemoryWorker(
        Settings(app="shop"),
        [TOTALS, MAXIMA],
        partitions=3,
        active=[0, 1],
        standby=[2],
        clock=ManualClock(now_ms=NOW_MS),
    )


def scrape(worker: MemoryWorker) -> dict[Sample, float]:
    body, _ = worker.metrics.exposition(worker, "")
    samples = [
        sample for family in text_string_to_metric_families(body.decode()) for sample in family.samples
    ]
    found = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}
    assert len(found) == len(samples), "no series is told twice"
    return found


def sample(samples: dict[Sample, float], name: str, **labels: str) -> float | None:
    return samples.get((name, tuple(sorted(labels.items()))))


def test_the_group_is_where_its_slowest_table_is(worker: MemoryWorker) -> None:
    for processor, applied in ((TOTALS, 90), (MAXIMA, 70)):
        replica = worker.replica(processor, 0)
        replica.applied, replica.source_end = applied, 100
    samples = scrape(worker)
    labels = {"consumergroup": "shop", "topic": "orders", "partition": "0"}
    assert sample(samples, "kafka_consumergroup_current_offset", **labels) == 71
    assert sample(samples, "kafka_consumergroup_lag", **labels) == 29


def test_lag_is_absent_while_the_end_of_the_log_is_unknown_and_for_standbys(worker: MemoryWorker) -> None:
    worker.replica(TOTALS, 2).source_end = 100
    samples = scrape(worker)
    labels = {"consumergroup": "shop", "topic": "orders"}
    assert sample(samples, "kafka_consumergroup_current_offset", **labels, partition="1") == 0
    assert sample(samples, "kafka_consumergroup_lag", **labels, partition="1") is None
    assert sample(samples, "kafka_consumergroup_lag", **labels, partition="2") is None
    assert sample(samples, "holdfast_standby_lag", table="totals", partition="2") == 100


def test_transactions_are_counted_by_table_and_partition_and_timed_by_table(worker: MemoryWorker) -> None:
    for partition, seconds in ((0, 0.003), (0, 0.2), (1, 40.0)):
        counts = worker.metrics.partition("totals", partition)
        counts.committed(records=100, rows=10, emitted=Counter({"paid": 2}), quarantined=1, seconds=seconds)
    samples = scrape(worker)
    for name, value in (
        ("holdfast_records_folded_total", 200),
        ("holdfast_transactions_total", 2),
        ("holdfast_rows_written_total", 20),
        ("holdfast_records_emitted_total", 4),
        ("holdfast_quarantined_total", 2),
    ):
        assert sample(samples, name, table="totals", partition="0") == value, name
    assert sample(samples, "holdfast_commit_seconds_count", table="totals") == 3
    assert sample(samples, "holdfast_commit_seconds_sum", table="totals") == pytest.approx(40.203)
    assert [
        sample(samples, "holdfast_commit_seconds_bucket", table="totals", le=le)
        for le in ("0.0025", "0.005", "0.25", "30.0", "+Inf")
    ] == [
        0,
        1,
        2,
        2,
        3,
    ]


def test_counters_outlive_losing_the_partition(worker: MemoryWorker) -> None:
    counts = worker.metrics.partition("totals", 0)
    counts.committed(records=5, rows=1, emitted=Counter(), quarantined=0, seconds=0.001)
    counts.restored(records=7, seconds=1.5)
    del worker.replicas["totals", 0]
    samples = scrape(worker)
    assert sample(samples, "holdfast_applied_offset", table="totals", partition="0", role="active") is None
    assert sample(samples, "holdfast_records_folded_total", table="totals", partition="0") == 5
    assert sample(samples, "holdfast_restored_records_total", table="totals", partition="0") == 7
    assert sample(samples, "holdfast_restore_seconds_count", table="totals") == 1
    assert worker.metrics.partition("totals", 0) is counts


def test_replicas_have_their_state_at_the_moment_of_the_scrape(worker: MemoryWorker) -> None:
    worker.put(TOTALS, 0, "ada", Total(1), offset=41)
    worker.replica(TOTALS, 0).stream_ms = NOW_MS - 500
    standby = worker.replica(TOTALS, 2)
    standby.serving, standby.current_ms, standby.stream_ms = False, NOW_MS - 2_000, NOW_MS - 9_000
    worker.cause = "restoring"
    samples = scrape(worker)
    active = {"table": "totals", "partition": "0", "role": "active"}
    assert sample(samples, "holdfast_applied_offset", **active) == 41
    assert sample(samples, "holdfast_rows", **active) == 1
    assert sample(samples, "holdfast_serving", **active) == 1
    assert sample(samples, "holdfast_stream_time_seconds", **active) == (NOW_MS - 500) / 1000
    assert sample(samples, "holdfast_stream_time_seconds", table="totals", partition="1", role="active") == -1
    assert sample(samples, "holdfast_serving", table="totals", partition="2", role="standby") == 0
    assert sample(samples, "holdfast_standby_age_seconds", table="totals", partition="2") == 2
    assert sample(samples, "holdfast_standby_age_seconds", table="maxima", partition="2") is None
    assert sample(samples, "holdfast_ready") == 0


def test_metrics_of_global_tables_are_there_and_documented() -> None:
    worker = MemoryWorker(Settings(app="shop"), [ORDERS], partitions=2)
    rates = with_rates(worker).globals["rates"]
    rates.lags, rates.failures = {0: 3, 1: 0}, {1: 2}
    samples = scrape(worker)
    for name, value in (("serving", 1), ("rows", 4)):
        assert sample(samples, f"holdfast_global_{name}", table="rates") == value
    for name, values in (("applied_offset", (20, 30)), ("lag", (3, 0)), ("failures_total", (0, 2))):
        for partition, value in enumerate(values):
            labels = {"table": "rates", "partition": str(partition)}
            assert sample(samples, f"holdfast_global_{name}", **labels) == value
    rates.cause = "global table rates is not caught up"
    assert sample(scrape(worker), "holdfast_global_serving", table="rates") == 0
    body, _ = worker.metrics.exposition(worker, "")
    page = "".join(line for line in body.decode().splitlines(keepends=True) if "holdfast_global_" in line)
    check("global-metrics", metrics_table(page))


def test_a_worker_without_globals_has_no_metrics_of_them(worker: MemoryWorker) -> None:
    assert not [name for name, _ in scrape(worker) if name.startswith("holdfast_global_")]


def test_worker_wide_counts_are_there(worker: MemoryWorker) -> None:
    worker.metrics.rebalances += 3
    worker.metrics.fenced += 1
    worker.metrics.query("totals", "get", "ok", 0.0007)
    worker.metrics.query("totals", "get", "moved", 0.0007)
    samples = scrape(worker)
    assert sample(samples, "holdfast_rebalances_total") == 3
    assert sample(samples, "holdfast_fenced_total") == 1
    assert sample(samples, "holdfast_queries_total", table="totals", verb="get", outcome="moved") == 1
    assert sample(samples, "holdfast_query_seconds_bucket", verb="get", le="0.001") == 2
    assert sample(samples, "holdfast_query_seconds_bucket", verb="get", le="0.0005") == 0
    assert (sample(samples, "process_cpu_seconds_total") or 0) > 0


def test_names_are_in_base_units_and_no_label_can_hold_a_key(worker: MemoryWorker) -> None:
    worker.metrics.query("totals", "get", "ok", 0.1)
    for name, labels in scrape(worker):
        if name.startswith(("holdfast_", "kafka_")):
            assert not re.search(r"_(ms|us|millis|kb|mb|percent)(_|$)", name), name
            assert {label for label, _ in labels} <= {
                "table",
                "partition",
                "role",
                "verb",
                "outcome",
                "cause",
                "le",
                "consumergroup",
                "topic",
                "version",
            }, name


def test_a_scraper_gets_the_format_it_asks_for(worker: MemoryWorker) -> None:
    _, plain = worker.metrics.exposition(worker, "text/plain")
    body, modern = worker.metrics.exposition(worker, "application/openmetrics-text; version=1.0.0")
    assert plain.startswith("text/plain")
    assert modern.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_a_late_event_loop_is_seen() -> None:
    clock = ManualClock()
    metrics = Metrics("shop", clock)

    async def run() -> None:
        watching = asyncio.create_task(metrics.watch_loop())
        await asyncio.sleep(0)
        clock.advance_ms(600)  # the probe is due after 100
        while not sum(metrics.loop_stall_s.counts):  # noqa: ASYNC110  ends with the probe's own tenth of a second
            await asyncio.sleep(0.01)
        watching.cancel()

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
    assert metrics.loop_stall_s.total == pytest.approx(0.5)
