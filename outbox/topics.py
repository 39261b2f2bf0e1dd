"""The harvester's own topics: made when they are missing, checked when they are not."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
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
from holdfast.kafka.codes import NO_ANSWER, UNAUTHORIZED, code_of
from holdfast.kafka.leader_requests import has_leaders
from holdfast.outbox.schema.layouts import layout_named
from holdfast.outbox.settings import HarvestSettings, Strategy
from holdfast.outbox.troubles import RIGHTS

logger = logging.getLogger(__name__)

TIMEOUT_S = 15.0
POLL_S = 0.05
_SLACK_S = 1.0

UNPACKED = {"compression.type": "uncompressed"}
"""A broker unpacks compressed batches, and refuses those that are then too large: so a client cannot stop a
harvester by a batch that it cannot unpack.
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
    """Return the topics a harvester needs besides those it publishes to, and how each is configured."""
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
    """Create the missing topics with a partition for each shard, and return their names, once all can be
    seen.

    Raises TopicError when a topic exists with another number of partitions or another cleanup.policy, or
    cannot be made; BrokerError when the cluster does not answer.
    """
    client = make_admin(settings.kafka.client())
    topics = wanted(settings)
    try:
        there = client.list_topics(timeout=TIMEOUT_S).topics
        made = _create(client, settings, [name for name in topics if name not in there])
        known = _await_leaders(client, topics)
    except KafkaException as error:
        raise BrokerError(
            f"topics {', '.join(topics)} at {settings.kafka.bootstrap_servers}: {error.args[0].str()}; check"
            " bootstrap.servers and the broker"
        ) from error
    for name in topics:
        if name in known:
            _check_partitions(settings, name, len(known[name].partitions))
    _check_policies(settings, client, topics)
    return sorted(made)


def _create(client: AdminClient, settings: HarvestSettings, names: Sequence[str]) -> Sequence[str]:
    """Create topics, and return those created; one that another process has made by now is no error."""
    topics = wanted(settings)
    new = [
        NewTopic(name, partitions(settings, name), settings.kafka.replication_factor, config=topics[name])
        for name in names
    ]
    asked, made = client.create_topics(new, request_timeout=TIMEOUT_S) if new else {}, []
    for name, created in asked.items():
        try:
            created.result(TIMEOUT_S + _SLACK_S)  # the request's own deadline comes first
        except LateError:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
        except KafkaException as error:
            code = code_of(error)
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                continue
            if code in NO_ANSWER:
                raise
            raise TopicError(_why_not_made(settings, name, error.args[0])) from error
        made.append(name)
    return made


def _why_not_made(settings: HarvestSettings, name: str, error: KafkaError) -> str:
    why = f"topic {name} is not there for this principal, and cannot be made: {error.str()}"
    if error.code() in UNAUTHORIZED:
        return f"{why.removesuffix('.')}; grant it Create, or Describe of a topic that exists: {RIGHTS}"
    return f"{why}; create it with {partitions(settings, name)} partition(s)"


def _check_partitions(settings: HarvestSettings, name: str, count: int) -> None:
    shards = settings.shards
    if (
        name in (settings.commands_topic, settings.answers_topic)
        or count in (0, shards)  # 0: the topic is just being made
        or settings.interop
    ):
        return
    more = "start each with --shards {0}" if count > shards else "add partitions to the topic"
    if not layout_named(settings.layout).sharded:
        more = f"delete the topic, or name the outbox otherwise: layout {settings.layout} has one shard"
    raise TopicError(
        f"topic {name} has {count} partition(s) for {shards} shard(s): every harvester must use the same"
        f" number. To change it, stop all of them and {more.format(count)}"
    )


def _await_leaders(client: AdminClient, topics: Iterable[str]) -> Mapping[str, Any]:
    """Return the brokers' metadata of topics once these have leaders, at the latest after the timeout: a
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


def _check_policies(
    settings: HarvestSettings, client: AdminClient, topics: Mapping[str, Mapping[str, str]]
) -> None:
    """Raise TopicError for a topic whose cleanup.policy is another: without its last progress a producer
    begins its sequences again, and readers drop its records as seen; records without keys are refused where
    they would be compacted. What does not answer is not looked at.
    """
    asked = client.describe_configs(
        [ConfigResource(ResourceType.TOPIC, name) for name in topics], request_timeout=TIMEOUT_S
    )
    for resource, future in asked.items():
        name = resource.name
        try:
            policy = future.result(TIMEOUT_S + _SLACK_S)["cleanup.policy"].value
        except (KafkaException, LateError, KeyError) as error:
            may_not = code_of(error) in UNAUTHORIZED
            logger.log(
                logging.WARNING if may_not else logging.INFO,
                "the broker does not report cleanup.policy of topic %(topic)s, which must be %(wanted)s:"
                " %(why)s",
                {
                    "topic": name,
                    "wanted": topics[name]["cleanup.policy"],
                    "why": "grant this principal DescribeConfigs" if may_not else repr(error),
                },
            )
            continue
        if why := _why_unfit(topics[name]["cleanup.policy"], policy):
            raise TopicError(
                f"topic {name} has cleanup.policy={policy}: {why}. Run kafka-configs --bootstrap-server"
                f" {settings.kafka.bootstrap_servers} --alter --entity-type topics --entity-name {name}"
                f" --add-config cleanup.policy={topics[name]['cleanup.policy']}"
            )


def _why_unfit(wanted: str, policy: str) -> str | None:
    if wanted == "compact" and policy != "compact":
        return "it would forget what later harvesters must know of this outbox"
    if wanted == "delete" and "compact" in policy:
        return "brokers refuse records without keys there, as harvesters write them"
    return None
