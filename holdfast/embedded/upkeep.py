"""Recurring upkeep of logs: records past their retention are deleted, logs are compacted, and idle producers
are forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from holdfast.embedded.configs.topic import TopicConfigs
from holdfast.embedded.logs.compaction import CompactionRules
from holdfast.embedded.logs.partition_log import PartitionLog
from holdfast.embedded.recurring import Recurring, set_apart
from holdfast.embedded.settings import EmbeddedSettings
from holdfast.embedded.topics.partition import EmbeddedPartition, EmbeddedTopic
from holdfast.embedded.topics.registry import TopicRegistry
from holdfast.errors import WireError

_logger = logging.getLogger(__name__)


class Upkeep:
    """Looks at every log each ``retention_check_ms``, as Kafka's ``log.retention.check.interval.ms``. Between
    two logs, and within the compaction of a long one, others have their turn.
    """

    def __init__(self, topics: TopicRegistry, settings: EmbeddedSettings, now_ms: Callable[[], int]) -> None:
        self._topics, self._settings, self._now_ms = topics, settings, now_ms
        self._rounds = Recurring("upkeep", settings.retention_check_ms / 1000, self._look)

    def start(self) -> None:
        self._rounds.start()

    async def _look(self) -> None:
        for topic, partition in self._all():
            if self._has(partition):
                with set_apart(f"upkeep of {partition.name}", self._rounds.every_s):
                    await self._turns(topic, partition)
            await asyncio.sleep(0)

    async def _turns(self, topic: EmbeddedTopic, partition: EmbeddedPartition) -> None:
        for _ in _keep_up(partition, topic.configs, self._now_ms()):
            await asyncio.sleep(0)
            if not self._has(partition):
                break

    def _has(self, partition: EmbeddedPartition) -> bool:
        """Return whether a partition still exists: its topic may be deleted, or made again, while others have
        their turn.
        """
        return self._topics.partition(partition.topic, partition.index) is partition

    def look(self) -> None:
        """Do the upkeep that is due, at once."""
        for topic, partition in self._all():
            for _ in _keep_up(partition, topic.configs, self._now_ms()):
                pass

    def _all(self) -> list[tuple[EmbeddedTopic, EmbeddedPartition]]:
        return [(topic, partition) for topic in self._topics for partition in topic.partitions]

    def close(self) -> None:
        self._rounds.close()


def _keep_up(partition: EmbeddedPartition, configs: TopicConfigs, now_ms: int) -> Iterator[None]:
    """Do the upkeep that is due for a partition; yield where others may have their turn."""
    partition.log.sweep(now_ms)
    if "delete" in configs.policies:
        _delete(partition.log, configs, now_ms)
    if configs.is_compacted:
        yield from _compact(partition, configs, now_ms)


def _delete(log: PartitionLog, configs: TopicConfigs, now_ms: int) -> None:
    age_ms, size = configs.number("retention.ms"), configs.number("retention.bytes")
    offset = log.kept_from(
        since_ms=now_ms - age_ms if age_ms >= 0 else None, size=size if size >= 0 else None
    )
    if offset > log.start_offset:
        log.delete_before(offset)


def _compact(partition: EmbeddedPartition, configs: TopicConfigs, now_ms: int) -> Iterator[None]:
    rules = CompactionRules(
        now_ms=now_ms,
        min_lag_ms=configs.number("min.compaction.lag.ms"),
        max_lag_ms=configs.number("max.compaction.lag.ms"),
        dirty_ratio=float(configs["min.cleanable.dirty.ratio"]),
        tombstones_ms=configs.number("delete.retention.ms"),
    )
    try:
        yield from partition.log.compaction(rules)
    except WireError as error:  # Kafka's cleaner leaves such a partition alone as well
        _logger.warning(
            "%(partition)s is not compacted: %(error)s", {"partition": partition.name, "error": error}
        )
