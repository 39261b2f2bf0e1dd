"""What the cluster says of this application's topics, asked once before a worker consumes anything."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, TopicCollection

from holdfast.agents import descriptors
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import require_topics
from holdfast.clients.topics.specs import topic_names
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.kafka.compression import Compression
from holdfast.errors import BrokerError, ConfigError
from holdfast.kafka.clients import CRITICAL, make_admin
from holdfast.kafka.requests.connections import connector
from holdfast.kafka.transactions.transactional_client import producers
from holdfast.tables.partition import Environment
from holdfast.tables.rocks import Budget

logger = logging.getLogger(__name__)

REQUEST_S = 10.0
"""How long one request of a transaction waits before it is sent again over another connection."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Partition counts by processor, and what its partitions' stores need to know."""

    environment: Environment
    partitions: Mapping[str, int]


def survey(settings: Settings, processors: Sequence[Processor[Any, Any]]) -> Survey:
    """Return what a worker needs of the cluster.

    Blocks; raises TopicError for a missing or wrong topic, BrokerError without an answer.
    """
    admin = Admin(settings)
    for finding in require_topics(settings, processors, admin=admin):
        logger.warning(
            "topic %(topic)s %(problem)s: %(remedy)s",
            {"topic": finding.topic, "problem": finding.message, "remedy": finding.remedy},
        )
    found = admin.cluster(topic_names(settings, processors))
    changelogs = [processor.changelog(settings.app) for processor in processors]
    cluster_id, ids = _identity(settings, changelogs)
    environment = Environment(
        app=settings.app,
        data_dir=settings.data_dir,
        producer=producers(
            connector(settings, timeout_s=min(REQUEST_S, settings.request_timeout_s)),
            transaction_timeout_s=settings.transaction_timeout_s,
            compression=_compression(settings),
        ),
        budget=Budget.of(settings.store_cache_bytes, settings.store_write_buffer_bytes),
        cluster_id=cluster_id,
        changelog_ids=ids,
        cache_rows=settings.cache_rows,
        tombstones_kept_ms=min(
            (int(found.topics[topic].config["delete.retention.ms"]) for topic in changelogs), default=0
        ),
    )
    partitions = {processor.name: found.partitions(processor.topics[0]) or 0 for processor in processors}
    limit = descriptors.raised_limit()
    if (
        short := descriptors.shortage(
            limit, sum(partitions.values()), descriptors.connections_within(limit, settings.web_connections)
        )
    ) is not None:
        logger.warning("%(problem)s", {"problem": short})
    return Survey(environment, partitions)


def _compression(settings: Settings) -> int:
    """Return the number by which record batches tell how they are packed."""
    name = str(settings.kafka.get("compression.type", "none"))
    try:
        return int(Compression[name.upper()])
    except KeyError:
        raise ConfigError(
            f"compression.type is {name!r}: write one of {', '.join(kind.name.lower() for kind in Compression)}"
        ) from None


def _identity(settings: Settings, topics: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return the cluster's id and the topics' ids: a topic deleted and made again under its name has
    another.
    """
    client, timeout_s = make_admin(settings.client(), log_level=CRITICAL), settings.request_timeout_s
    try:
        described = client.describe_topics(TopicCollection(list(topics)), request_timeout=timeout_s)
        ids = {topic: str(future.result(timeout_s).topic_id) for topic, future in described.items()}
        return client.list_topics(timeout=timeout_s).cluster_id or "", ids
    except KafkaException as error:
        raise BrokerError(
            f"Kafka at {settings.bootstrap_servers} did not describe the changelogs: {error.args[0].str()}"
        ) from error
