"""Topics that Faust's own parts declare: repartition topics, changelogs of tables, the leader's topic.

Stock makes them by requests of its own, of versions that brokers no longer support; here the admin client
makes them that makes all others of holdfast.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from faust.transport.drivers import aiokafka as driver
from mode.utils.times import want_seconds

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.types import CreateTopic, TopicRole, TopicSpec
from holdfast.config import Settings
from holdfast.errors import TopicError


def make_topic(
    settings: Settings, topic: str, partitions: int, replicas: int, config: Mapping[str, str]
) -> None:
    """Make *topic* where there is none. Blocks; TopicError or BrokerError where it cannot be made."""
    admin = Admin(settings)
    if admin.cluster([topic]).partitions(topic) is not None:
        return
    spec = TopicSpec(
        name=topic,
        partitions=partitions,
        config=config,
        replication_factor=replicas,
        role=TopicRole.BESIDE,
    )
    try:
        admin.apply([CreateTopic(spec=spec, partitions=partitions)])
    except TopicError as error:
        raise TopicError(
            f"topic {topic}, which an agent or a table of this application needs, cannot be made: {error};"
            f" let the worker create topics, or make it with {partitions} partitions and {dict(config)}"
        ) from error


class DeclaringProducer(driver.Producer):
    """Faust's producer, which makes the topics that are declared."""

    app: Any

    async def create_topic(
        self,
        topic: str,
        partitions: int,
        replication: int,
        *,
        config: Mapping[str, Any] | None = None,
        timeout: Any = 20.0,
        retention: Any = None,
        compacting: bool | None = None,
        deleting: bool | None = None,
        ensure_created: bool = False,
    ) -> None:
        """Make *topic* where there is none, and where Faust may; a processor's changelog is made by
        `holdfast topics create` alone.
        """
        app = self.app
        own = {processor.changelog(app.settings.app) for processor in app.processors.values()}
        if topic in own or not app.conf.topic_allow_declare:
            return
        retention_ms = int(want_seconds(retention) * 1000) if retention else None
        wanted = {
            **app.transport._topic_config(retention_ms, compacting, deleting),
            **(config or {}),
        }
        properties = {name: str(value) for name, value in wanted.items()}
        await asyncio.to_thread(make_topic, app.settings, topic, partitions, replication, properties)
        await self._ensure_producer().client.force_metadata_update()
