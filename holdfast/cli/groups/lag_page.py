"""Metrics of the consumer groups of a cluster for Prometheus: `holdfast groups lag --metrics-port`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.cli.groups.partition_lag import PartitionLag, of_groups
from holdfast.core.broker_logs.lag import of_group

GROUP, PLACE = ("consumergroup",), ("consumergroup", "topic", "partition")
STATUS_WORDS = {"status": "", "standing": "; the old name of ..._status"}
"""The end of a metric's name and its label, and what to add to its meaning."""


class LagPage(Collector):
    """The state of every group as it was last read. A state is a label: the one that holds has the value 1,
    no other is shown.
    """

    def __init__(self, found: Sequence[PartitionLag], read_ms: int) -> None:
        self.took(found, read_ms)

    def took(self, found: Sequence[PartitionLag], read_ms: int) -> None:
        """Serve from now on the lags *found* at *read_ms*."""
        self._found, self._read_ms = found, read_ms

    def collect(self) -> Iterator[Metric]:
        found, read_ms = self._found, self._read_ms
        read = "When the groups of the cluster were last read"
        yield GaugeMetricFamily("holdfast_consumergroups_read_timestamp_seconds", read, value=read_ms / 1000)
        yield from self._groups(found)
        offset = GaugeMetricFamily(
            "kafka_consumergroup_current_offset", "Offset that the group has committed", labels=PLACE
        )
        lag = GaugeMetricFamily(
            "kafka_consumergroup_lag", "Offsets between that and the end of what is stable", labels=PLACE
        )
        status, standing = (
            GaugeMetricFamily(
                f"holdfast_consumergroup_partition_{word}",
                f"1 for the status of the group in a partition: OK, WARN, STOP, STALL or REWIND{also}",
                labels=(*PLACE, word),
            )
            for word, also in STATUS_WORDS.items()
        )
        for each in found:
            place = (each.group, each.place[0], str(each.place[1]))
            offset.add_metric(place, each.committed)
            lag.add_metric(place, each.lag)
            for family in (status, standing):
                family.add_metric((*place, str(each.standing)), 1)
        yield from (offset, lag, status, standing)

    def _groups(self, found: Sequence[PartitionLag]) -> Iterator[Metric]:
        for word, also in STATUS_WORDS.items():
            family = GaugeMetricFamily(
                f"holdfast_consumergroup_{word}",
                f"1 for the status of the group: OK, WARN or ERR{also}",
                labels=(*GROUP, word),
            )
            for group, of_it in of_groups(found):
                family.add_metric((group, str(of_group(each.standing for each in of_it))), 1)
            yield family
