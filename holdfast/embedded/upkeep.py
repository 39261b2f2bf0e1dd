"""What happens to logs by itself: records that are kept for long enough go, and producers that are idle are forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.embedded.settings import EmbeddedSettings
from holdfast.embedded.topics.registry import TopicRegistry


class Upkeep:
    """Looks at every log each ``retention_check_ms``, as Kafka's ``log.retention.check.interval.ms``."""

    def __init__(self, topics: TopicRegistry, settings: EmbeddedSettings, now_ms: Callable[[], int]) -> None:
        self._topics, self._settings, self._now_ms = topics, settings, now_ms
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.retention_check_ms / 1000)
            self.look()

    def look(self) -> None:
        """Do at once what is due."""
        now_ms = self._now_ms()
        for topic in self._topics:
            deletes = "delete" in topic.configs.policies
            age_ms, size = topic.configs.number("retention.ms"), topic.configs.number("retention.bytes")
            for partition in topic.partitions:
                partition.log.sweep(now_ms)
                if deletes:
                    offset = partition.log.kept_from(
                        since_ms=now_ms - age_ms if age_ms >= 0 else None, size=size if size >= 0 else None
                    )
                    if offset > partition.log.start_offset:
                        partition.log.delete_before(offset)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
