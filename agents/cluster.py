"""The cluster's state of this application's topics, asked once before a worker consumes anything."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, TopicCollection

from holdfast.agents import descriptors
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import require_topics
from holdfast.clients.topics.specs import topic_names
from holdfast.clients.topics.types import ClusterIds, TopicFinding
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.retention import landed_topics
from holdfast.core.engine.upgrades import in_version, versions_on
from holdfast.core.kafka.compression import Compression
from holdfast.errors import BrokerError, ConfigError
from holdfast.kafka.clients import CRITICAL, make_admin
from holdfast.kafka.requests.connections import connector
from holdfast.kafka.transactions.transactional_client import producers
from holdfast.tables.rocks import Budget
from holdfast.tables.state import Environment

logger = logging.getLogger(__name__)

REQUEST_S = 10.0
"""The time that one request of a transaction waits before it is sent again over another connection."""
SLACK_S = 1.0
"""The delay of an answer after its request's own deadline."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Partition counts by processor, and what its partitions' stores need to know."""

    environment: Environment
    partitions: Mapping[str, int]
    versions: Mapping[str, tuple[int, ...]]
    """Of each processor the versions that have a changelog, ascending."""
    topics: ClusterIds
    """The topics that its tables are made of and lie in, as they were then."""


def survey(settings: Settings, processors: Sequence[Processor[Any, Any]]) -> Survey:
    """Return a worker's information about the cluster.

    Blocks; raises TopicError for a missing or wrong topic, BrokerError without an answer.
    """
    admin = Admin(settings)
    tell(require_topics(settings, processors, admin=admin))
    found = admin.cluster(topic_names(settings, processors))
    partitions = {processor.name: found.partitions(processor.topics[0]) or 0 for processor in processors}
    changelogs = [processor.changelog(settings.app) for processor in processors]
    identity = _Identity(settings)
    versions = {
        each.name: versions_on(settings.app, each.name, identity.topics, partitions[each.name])
        for each in processors
    }
    earlier = [
        in_version(each, version).changelog(settings.app)
        for each in processors
        for version in versions[each.name]
        if version != each.version
    ]
    ids = identity.ids([*changelogs, *earlier])
    environment = Environment(
        app=settings.app,
        data_dir=settings.data_dir,
        producer=producers(
            connector(settings, timeout_s=min(REQUEST_S, settings.request_timeout_s)),
            transaction_timeout_s=settings.transaction_timeout_s,
            compression=_compression(settings),
        ),
        budget=Budget.of(settings.store_cache_bytes, settings.store_write_buffer_bytes),
        cluster_id=identity.cluster_id,
        changelog_ids=ids,
        cache_rows=settings.cache_rows,
        tombstones_kept_ms=min(
            (int(found.topics[topic].config["delete.retention.ms"]) for topic in changelogs), default=0
        ),
        landed=landed_topics(processors),
    )
    limit = descriptors.raised_limit()
    if (
        short := descriptors.shortage(
            limit, sum(partitions.values()), descriptors.connections_within(limit, settings.web_connections)
        )
    ) is not None:
        logger.warning("%(problem)s", {"problem": short})
    return Survey(environment, partitions, versions, admin.topic_ids(logs_of(processors, settings.app)))


def logs_of(processors: Iterable[Processor[Any, Any]], app: str) -> set[str]:
    """Return the topics that tables are folded from, and those that keep them: each is another log when it
    is made again.
    """
    return {topic for each in processors for topic in (*each.logs(app), each.changelog(app))}


def outs_of(processor: Processor[Any, Any], settings: Settings) -> set[str]:
    """Return the topics that *processor* sends results and refused records to."""
    return {*map(str, processor.emits), settings.quarantine_topic}


def tell(findings: Sequence[TopicFinding]) -> None:
    """Log warnings about topics; those that keep records for a time are one line, since that is nothing new
    at each start.
    """
    for finding in findings:
        if not finding.limited:
            logger.warning(
                "topic %(topic)s %(problem)s: %(remedy)s",
                {"topic": finding.topic, "problem": finding.message, "remedy": finding.remedy},
            )
    if limited := sorted({finding.topic for finding in findings if finding.limited}):
        logger.info(
            "%(topics)s keep their records for a time only, so a version that begins later is partial:"
            " `holdfast topics check` shows more",
            {"topics": ", ".join(limited)},
        )


def _compression(settings: Settings) -> int:
    """Return the number by which record batches name their compression."""
    name = str(settings.kafka.get("compression.type", "none"))
    try:
        return int(Compression[name.upper()])
    except KeyError:
        raise ConfigError(
            f"compression.type is {name!r}: write one of"
            f" {', '.join(kind.name.lower() for kind in Compression)}"
        ) from None


class _Identity:
    """The cluster's id, and its topics: their partitions by name, and their ids, which identify one that was
    deleted and made again under its name.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client = make_admin(settings.client(), log_level=CRITICAL)
        try:
            listed = self._client.list_topics(timeout=settings.request_timeout_s)
        except KafkaException as error:
            raise self._undescribed(error.args[0].str()) from error
        self.cluster_id = listed.cluster_id or ""
        self.topics = {name: len(topic.partitions) for name, topic in listed.topics.items()}

    def ids(self, topics: Sequence[str]) -> dict[str, str]:
        timeout_s = self._settings.request_timeout_s
        try:
            described = self._client.describe_topics(TopicCollection([*topics]), request_timeout=timeout_s)
            # The request's own deadline comes first and says more.
            return {
                topic: str(each.result(timeout_s + SLACK_S).topic_id) for topic, each in described.items()
            }
        except KafkaException as error:
            raise self._undescribed(error.args[0].str()) from error
        except TimeoutError as error:
            raise self._undescribed(f"no answer within {timeout_s:g} s") from error

    def _undescribed(self, why: str) -> BrokerError:
        return BrokerError(
            f"Kafka at {self._settings.bootstrap_servers} did not describe the changelogs: {why}"
        )
