"""The metrics of the ledgers that a worker keeps: the sums of each partition, read from one row, and never a
producer's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from holdfast.agents.serving import Replica
from holdfast.core.engine.state.codec import RowCodec
from holdfast.core.producers.ledger import TOTALS_KEY, BookRow, Totals

_decode = RowCodec[BookRow](BookRow).decode

GAUGES = (
    ("producers", "Producers in the ledgers", "producers"),
    ("producer_missing_sequences", "Sequences that have not come, as far as is known", "missing"),
)
COUNTERS = (
    ("producer_gaps", "Records that left a gap before them", "gaps"),
    ("producer_late_records", "Records that came out of order, into a gap", "late"),
    ("producer_duplicates", "Records whose sequence had come before", "duplicates"),
    ("producer_doubtful_records", "Records that may have come before: too many gaps to tell", "doubtful"),
    ("producer_zombie_records", "Records of an epoch that was replaced", "zombies"),
    ("producer_restarts", "New epochs that count anew", "restarts"),
    ("producer_unstamped_records", "Records without a stamp", "unstamped"),
)


def book_families(replicas: Iterable[Replica]) -> Iterator[Metric]:
    """Yield the families of the ledgers this worker owns and serves; none when it keeps none.

    The counts are part of the state: they continue where another worker stopped, and begin at 0 with a new
    version of the table.
    """
    found: list[tuple[Replica, Totals]] = []
    for replica in replicas:
        if replica.processor.row == BookRow and replica.active and replica.serving:
            row = replica.get(TOTALS_KEY)
            totals = None if row is None else _decode(row)
            found.append((replica, totals if isinstance(totals, Totals) else Totals()))
    if not found:
        return
    labels = ("table", "topic", "partition")
    for name, text, attribute in GAUGES:
        gauge = GaugeMetricFamily(f"holdfast_{name}", text, labels=labels)
        for replica, totals in found:
            gauge.add_metric(_labels(replica), getattr(totals, attribute))
        yield gauge
    for name, text, attribute in COUNTERS:
        counter = CounterMetricFamily(f"holdfast_{name}", text, labels=labels)
        for replica, totals in found:
            counter.add_metric(_labels(replica), getattr(totals, attribute))
        yield counter


def _labels(replica: Replica) -> tuple[str, str, str]:
    return replica.processor.name, replica.processor.topics[0], str(replica.partition)
