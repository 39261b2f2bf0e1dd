"""Topics that change below a running worker: one that gets more partitions, or is deleted and made again.

Tables do not fit it any more, and every answer of the worker is of a part of the keys, or of a log that is
gone. A topic of results that is made again ends nothing: results sent to it from then on are noted as sent to
the new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.agents.cluster import logs_of, outs_of
from holdfast.agents.partitions.held.holdings import Holdings
from holdfast.agents.partitions.types import RunInThread, Supervisor
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.types import ClusterIds
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.errors import BrokerError, TopicError
from holdfast.tables.partition import Partition

logger = logging.getLogger(__name__)


class TopicWatch:
    """Looks every `metadata_interval_s` whether the topics of *processors* are those of the worker's start,
    and ends the worker otherwise.
    """

    def __init__(
        self,
        settings: Settings,
        processors: Mapping[str, Processor[Any, Any]],
        thread: RunInThread,
        supervisor: Supervisor,
        holdings: Holdings,
    ) -> None:
        self._settings, self._processors = settings, processors
        self._thread, self._supervisor, self._holdings = thread, supervisor, holdings

    async def run(self, started: ClusterIds) -> None:
        """Look until something has changed, or until cancelled. *started* is how the topics were."""
        if not self._processors:
            return
        admin = Admin(self._settings)
        processors = self._processors.values()
        outs = {topic for each in processors for topic in outs_of(each, self._settings)}
        names = logs_of(processors, self._settings.app) | outs
        while True:
            await asyncio.sleep(self._settings.metadata_interval_s)
            try:
                now: ClusterIds = await self._thread(lambda: admin.topic_ids(names, there_only=True))
            except (BrokerError, TopicError) as error:
                logger.info("topics cannot be looked at: %(error)s", {"error": error})
                continue
            if changed := [*made_again(started, now, self._processors, self._settings.app)]:
                self._supervisor.crash(TopicError("; ".join(changed)))
                return
            if grown := [*grown_below(started, now, self._processors)]:
                self._supervisor.crash(TopicError("; ".join(grown)))
                return
            for owned in self._holdings.owned.values():
                learn_outs(owned.part, now, self._settings)


def learn_outs(part: Partition, now: ClusterIds, settings: Settings) -> None:
    """Have *part* note from now on which topics it sends to."""
    if part.owner.sources is not None:
        outs = outs_of(part.processor, settings)
        part.owner.out = {topic: now.topics[topic] for topic in outs if topic in now.topics}


def made_again(
    started: ClusterIds, now: ClusterIds, processors: Mapping[str, Processor[Any, Any]], app: str
) -> Iterator[str]:
    """Yield the error for each topic that has another id than before."""
    if started.cluster_id != now.cluster_id:
        return
    for topic in sorted(now.topics):
        if now.topics[topic] == started.topics.get(topic, now.topics[topic]):
            continue
        readers = sorted(
            name for name, each in processors.items() if topic in (*each.logs(app), each.changelog(app))
        )
        yield (
            f"topic {topic} was deleted and made again while this worker ran (its id was"
            f" {started.topics[topic]}, is {now.topics[topic]}), and {', '.join(readers)} read or wrote the"
            " old one: stop all workers and start them again; they say what can go on"
        )


def grown_below(
    started: ClusterIds, now: ClusterIds, processors: Mapping[str, Processor[Any, Any]]
) -> Iterator[str]:
    """Yield the error for each source that has more partitions than before."""
    for topic, count in sorted(now.partitions.items()):
        readers = [each for each in processors.values() if topic in each.topics]
        before = started.partitions.get(topic, count)
        if count > before and readers:
            yield more_partitions(topic, before, count, readers[0])


def more_partitions(topic: str, before: int, count: int, processor: Processor[Any, Any]) -> str:
    """Return the error for a source that has got partitions, with the cure."""
    return (
        f"topic {topic} had {before} partitions when this worker started, and has {count} now: table"
        f" {processor.table} covers {before} of them, and producers put keys elsewhere than before. Write its"
        f" records to a new topic of {count} partitions and have processor {processor.name} fold that, or,"
        f" where rows of one key may lie in two partitions, raise it to version={processor.version + 1},"
        " which folds the topic from its beginning; `holdfast topics check` tells what else does not fit"
    )
