"""The harvester's own topics: made when they are missing, checked when they are not."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import TimeoutError as LateError
from typing import Any

from confluent_kafka import KafkaError, KafkaException

# the package does not declare what it re-exports
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from holdfast.clock import system_clock
from holdfast.errors import BrokerError, TopicError
from holdfast.kafka.clients import make_admin
from holdfast.kafka.leader_requests import has_leaders
from holdfast.outbox.settings import HarvestSettings, Strategy

logger = logging.getLogger(__name__)

TIMEOUT_S = 15.0
POLL_S = 0.05

UNPACKED = {"compression.type": "uncompressed"}
"""A broker unpacks what comes compressed, and refuses what is then too large: nobody can stop a harvester
by a batch that it cannot unpack.
"""
LEADER_CONFIG = UNPACKED | {"cleanup.policy": "delete", "retention.ms": "3600000", "segment.ms": "600000"}
"""Heartbeats are of no use to anybody who was not there."""
PROGRESS_CONFIG = UNPACKED | {
    # The last record of each key is all that counts. Small segments: only closed ones are compacted, and a
    # new leader reads the rest.
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
    "max.compaction.lag.ms": "3600000",
}


COMMANDS_CONFIG = UNPACKED | {"cleanup.policy": "compact", "segment.ms": "3600000"}
"""The last pause or resume holds for later harvesters too."""
ANSWERS_CONFIG = UNPACKED | {"cleanup.policy": "delete", "retention.ms": "3600000"}


def wanted(settings: HarvestSettings) -> dict[str, dict[str, str]]:
    """Return the topics a harvester needs beside those it publishes to, and how each is configured."""
    election = settings.election()
    out = {
        election.leader_topic: LEADER_CONFIG,
        settings.commands_topic: COMMANDS_CONFIG,
        settings.answers_topic: ANSWERS_CONFIG,
    }
    if settings.strategy is Strategy.FENCED:
        out[settings.progress_topic] = PROGRESS_CONFIG
    return out


def partitions(settings: HarvestSettings, topic: str) -> int:
    """Return how many partitions one of these topics has when it is made."""
    return 1 if topic in (settings.commands_topic, settings.answers_topic) else settings.shards


def ensure_topics(settings: HarvestSettings) -> list[str]:
    """Create what is missing with a partition for each shard, and return the names of what was created, once
    all can be seen.

    Raises TopicError when a topic exists with another number of partitions, or is not compacted though it
    must be; BrokerError when the cluster cannot be asked or refuses.
    """
    client = make_admin(settings.kafka.client())
    topics = wanted(settings)
    try:
        there = client.list_topics(timeout=TIMEOUT_S).topics
        missing = [
            NewTopic(name, partitions(settings, name), settings.kafka.replication_factor, config=config)
            for name, config in topics.items()
            if name not in there
        ]
        made = client.create_topics(missing, request_timeout=TIMEOUT_S) if missing else {}
        for created in made.values():
            try:
                created.result(TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        known = _await_leaders(client, topics)
    except KafkaException as error:
        raise BrokerError(
            f"topics {', '.join(topics)} at {settings.kafka.bootstrap_servers}: {error.args[0].str()}; check"
            " bootstrap.servers, the broker, and what this principal may do"
        ) from error
    for name in topics.keys() & known.keys():
        count = len(known[name].partitions)
        if (
            name not in (settings.commands_topic, settings.answers_topic)
            and count not in (0, settings.shards)  # none: of one that is just being made
            and not settings.interop
        ):
            raise TopicError(
                f"topic {name} has {count} partition(s) for {settings.shards} shard(s): every harvester must"
                " use the same number. To change it, stop all of them and add partitions to the topic"
            )
    _refuse_forgetful(client, [name for name in topics if topics[name]["cleanup.policy"] == "compact"])
    return sorted(made)


def _await_leaders(client: AdminClient, topics: Iterable[str]) -> Mapping[str, Any]:
    """Return what the brokers tell of topics once these have leaders, at the latest after the timeout: a
    broker learns of a topic a moment after the controller made it, and until then a harvester that leads
    would take it for missing. It tries again by itself.
    """
    deadline_s = system_clock.monotonic_s() + TIMEOUT_S
    while True:
        seen = client.list_topics(timeout=TIMEOUT_S).topics
        if all(name in seen and has_leaders(seen[name]) for name in topics):
            return seen
        if system_clock.monotonic_s() > deadline_s:
            return seen
        time.sleep(POLL_S)


def _refuse_forgetful(client: AdminClient, topics: Iterable[str]) -> None:
    """Raise TopicError for a topic that deletes old records: without its last progress a producer begins its
    sequences again, and readers drop its records as seen. What cannot be asked, for want of a right or an
    answer, is not looked at.
    """
    asked = client.describe_configs(
        [ConfigResource(ResourceType.TOPIC, name) for name in topics], request_timeout=TIMEOUT_S
    )
    for resource, future in asked.items():
        try:
            policy = future.result(TIMEOUT_S + 1)["cleanup.policy"].value
        except (KafkaException, LateError, KeyError) as error:
            logger.info(
                "topic %(topic)s does not tell its cleanup.policy: %(error)s",
                {"topic": resource.name, "error": error},
            )
            continue
        if policy != "compact":
            raise TopicError(
                f"topic {resource.name} has cleanup.policy={policy}: it would forget what later harvesters"
                " must know of this outbox. Run kafka-configs --alter --entity-type topics --entity-name"
                f" {resource.name} --add-config cleanup.policy=compact"
            )
