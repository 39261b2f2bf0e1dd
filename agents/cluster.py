"""What the cluster says of this application's topics, asked once before a worker consumes anything."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from holdfast.config import Settings
from holdfast.core.processor import Processor
from holdfast.errors import BrokerError, TopicError
from holdfast.tables.partition import Environment
from holdfast.tables.store import Budget

logger = logging.getLogger(__name__)

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Cluster:
    """Partition counts by processor, and what its partitions' stores need to know."""

    environment: Environment
    partitions: Mapping[str, int]


def survey(settings: Settings, processors: Sequence[Processor[Any, Any]]) -> Cluster:
    """Return what a worker needs of the cluster. Blocks; raises TopicError for a missing or wrong topic, BrokerError without an answer."""
    admin = AdminClient({**settings.client()})
    timeout_s = settings.request_timeout_s
    try:
        listed = admin.list_topics(timeout=timeout_s)
        changelogs = [processor.changelog(settings.app) for processor in processors]
        partitions = {}
        for processor in processors:
            for topic in (processor.source, processor.changelog(settings.app)):
                if topic not in listed.topics or listed.topics[topic].error is not None:
                    raise TopicError(f"topic {topic} of processor {processor.name} is missing: run `holdfast topics create`")
            count = len(listed.topics[processor.source].partitions)
            logged = len(listed.topics[processor.changelog(settings.app)].partitions)
            if count != logged:
                raise TopicError(
                    f"{processor.source} has {count} partitions but {processor.changelog(settings.app)} has {logged}: state lives where "
                    f"its source partition says. Make the changelog anew with {count} partitions; it is rebuilt from the source"
                )
            partitions[processor.name] = count
        described = admin.describe_topics(TopicCollection(changelogs), request_timeout=timeout_s)
        ids = {topic: str(future.result(timeout_s).topic_id) for topic, future in described.items()}
        kept_ms = _tombstones_kept_ms(admin, changelogs, timeout_s)
    except KafkaException as error:
        raise BrokerError(f"cannot reach Kafka at {settings.bootstrap_servers}: {error.args[0].str()}") from error
    environment = Environment(
        app=settings.app,
        data_dir=settings.data_dir,
        client=settings.producer(),
        budget=Budget.of(settings.store_cache_bytes, settings.store_write_buffer_bytes),
        cluster_id=listed.cluster_id or "",
        changelog_ids=ids,
        cache_rows=settings.cache_rows,
        transaction_timeout_s=settings.transaction_timeout_s,
        tombstones_kept_ms=kept_ms,
    )
    return Cluster(environment, partitions)


def _tombstones_kept_ms(admin: AdminClient, changelogs: Sequence[str], timeout_s: float) -> int:
    """Return for how long at least the changelogs keep tombstones; refuses one that is not compacted."""
    kept_ms = DAY_MS
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in changelogs]
    for resource, future in admin.describe_configs(resources, request_timeout=timeout_s).items():
        config = future.result(timeout_s)
        if config["cleanup.policy"].value != "compact":
            raise TopicError(
                f"changelog {resource.name} has cleanup.policy={config['cleanup.policy'].value}: state older than its retention would be "
                f"lost. Set it to compact: `holdfast topics check` tells how"
            )
        kept_ms = min(kept_ms, int(config["delete.retention.ms"].value))
    return kept_ms
