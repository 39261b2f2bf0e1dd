"""Topics of an application on a real cluster: what is there, what has to be created, what is wrong. Every wait has a deadline."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package does not declare what it re-exports
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from holdfast.clients.topics import (
    Action,
    AlterConfig,
    Cluster,
    CreateTopic,
    Finding,
    PartitionState,
    Processors,
    Severity,
    TopicSpec,
    TopicState,
    check,
    check_processors,
    plan,
    specs_for,
    topic_names,
)
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.errors import BrokerError, ConfigError, TopicError

__all__ = [
    "Admin",
    "Cluster",
    "Finding",
    "Severity",
    "TopicSpec",
    "check",
    "check_topics",
    "create_topics",
    "plan",
    "require_topics",
    "specs_for",
    "topic_names",
]

log = logging.getLogger(__name__)
T = TypeVar("T")

POLL_S = 0.05
FIRST_WAIT_S = 1.0
LIMIT_RESOURCES = 500
"""Topics asked about in one request."""


class Admin:
    """The cluster that the settings name. Nothing is kept between calls but connections, which close with the object."""

    def __init__(
        self, settings: Settings, *, timeout_s: float | None = None, connect_timeout_s: float | None = None, clock: Clock = system_clock
    ) -> None:
        self._servers = settings.bootstrap_servers
        self._timeout_s = settings.request_timeout_s if timeout_s is None else timeout_s
        self._connect_timeout_s = min(self._timeout_s, connect_timeout_s or self._timeout_s)
        self._clock = clock
        self._last_error = ""
        self._refused = False
        config: dict[str, Any] = {**settings.client(), "error_cb": self._on_error}
        try:
            self._client = AdminClient(config, logger=log)
        except KafkaException as error:
            raise ConfigError(f"a Kafka property is refused by librdkafka: {_text(error)}") from error

    def cluster(self, names: Iterable[str] | None = None) -> Cluster:
        """Return the brokers and the topics of these names that exist (None: all topics), with their configurations."""
        metadata = self._metadata(self._connect_timeout_s)
        wanted = set(metadata.topics) if names is None else set(names) & set(metadata.topics)
        configs = self._configs(sorted(wanted))
        topics = {name: _topic(metadata.topics[name], configs[name]) for name in sorted(wanted) if name in configs}
        return Cluster(brokers=tuple(sorted(metadata.brokers)), topics=topics)

    def apply(self, actions: Sequence[Action]) -> None:
        """Carry out *actions* and return when every created topic is visible and all its partitions have leaders."""
        creations = [action for action in actions if isinstance(action, CreateTopic)]
        if creations:
            self._create(creations)
            self._await_leaders({creation.spec.name: creation.partitions for creation in creations})
        alterations = [action for action in actions if isinstance(action, AlterConfig)]
        if alterations:
            self._alter(alterations)

    def offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the first offset and the next one to be written of each partition."""
        wanted = [TopicPartition(topic, partition) for topic, partition in partitions]
        ends = []
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest()):  # type: ignore[no-untyped-call]
            asked = self._client.list_offsets({partition: spec for partition in wanted}, request_timeout=self._timeout_s) if wanted else {}
            found = {
                (partition.topic, partition.partition): self._result(future, f"offsets of {partition.topic}")
                for partition, future in asked.items()
            }
            ends.append({partition: int(answer.offset) for partition, answer in found.items()})
        return {partition: (ends[0][partition], ends[1][partition]) for partition in ends[0]}

    # Parts

    def _metadata(self, timeout_s: float) -> Any:
        # A first short wait, since a wrong password or certificate is known at once and no patience will mend it.
        first_s = min(FIRST_WAIT_S, timeout_s)
        for wait_s in (first_s, timeout_s - first_s):
            try:
                return self._client.list_topics(timeout=wait_s)
            except KafkaException as error:
                self._client.poll(0)  # lets the client say what it ran into
                if not self._refused and wait_s == first_s < timeout_s:
                    continue
                reason = self._last_error or _text(error)
                if self._refused:
                    raise BrokerError(
                        f"cannot log in to Kafka at {self._servers}: {reason}; check the sasl.* and ssl.* properties"
                    ) from error
                raise BrokerError(
                    f"no Kafka broker at {self._servers} answered within {timeout_s:g} s: {reason}; "
                    "check bootstrap.servers and security.protocol, or start one with `holdfast dev up`"
                ) from error
        raise AssertionError("unreachable")

    def _configs(self, names: Sequence[str]) -> dict[str, Mapping[str, ConfigEntry]]:
        found: dict[str, Mapping[str, ConfigEntry]] = {}
        for start in range(0, len(names), LIMIT_RESOURCES):
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in names[start : start + LIMIT_RESOURCES]]
            for resource, future in self._client.describe_configs(resources, request_timeout=self._timeout_s).items():
                try:
                    found[resource.name] = self._result(future, f"configuration of {resource.name}")
                except TopicError as error:
                    if _code(error.__cause__) != KafkaError.UNKNOWN_TOPIC_OR_PART:  # deleted since the metadata was read
                        raise
        return found

    def _create(self, creations: Sequence[CreateTopic]) -> None:
        topics = [
            NewTopic(
                creation.spec.name,
                num_partitions=creation.partitions,
                replication_factor=creation.spec.replication_factor,
                config=dict(creation.spec.config),
            )
            for creation in creations
        ]
        asked = self._client.create_topics(topics, operation_timeout=self._timeout_s, request_timeout=self._timeout_s)
        for name, future in asked.items():
            try:
                self._result(future, f"creation of topic {name}")
                log.info("topic created", extra={"topic": name})
            except TopicError as error:
                # Another worker was faster, or our first request had succeeded and its answer was lost. Whether the topic is the one
                # that was wanted is seen when its partitions are awaited, and by `check`.
                if _code(error.__cause__) != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    def _await_leaders(self, wanted: Mapping[str, int]) -> None:
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        while True:
            topics = self._metadata(self._timeout_s).topics
            pending = [name for name in wanted if name not in topics or not _has_leaders(topics[name])]
            if not pending:
                break
            if self._clock.monotonic_s() > deadline_s:
                raise BrokerError(
                    f"topics {', '.join(pending)} were created but not ready within {self._timeout_s:g} s: look at the brokers' logs"
                )
            time.sleep(POLL_S)
        for name, count in wanted.items():
            if len(topics[name].partitions) != count:
                raise TopicError(
                    f"topic {name} was created by someone else with {len(topics[name].partitions)} partitions instead of {count}"
                )

    def _alter(self, alterations: Sequence[AlterConfig]) -> None:
        resources = [
            ConfigResource(
                ResourceType.TOPIC,
                alteration.topic,
                incremental_configs=[
                    ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in alteration.config.items()
                ],
            )
            for alteration in alterations
        ]
        for resource, future in self._client.incremental_alter_configs(resources, request_timeout=self._timeout_s).items():
            self._result(future, f"configuration of {resource.name}")
            log.info("topic configuration altered", extra={"topic": resource.name})

    def _result(self, future: Future[T], what: str) -> T:
        """Wait for an answer; transport trouble is a BrokerError, a refusal a TopicError."""
        try:
            return future.result(self._timeout_s + 1)  # the request's own deadline comes first and says more
        except FutureTimeoutError as error:
            raise BrokerError(f"{what}: no answer within {self._timeout_s:g} s from {self._servers}") from error
        except KafkaException as error:
            kind: Callable[[str], Exception] = BrokerError if _code(error) in _TRANSPORT else TopicError
            raise kind(f"{what}: {_text(error)}") from error

    def _on_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last_error = error.str().partition(" (after ")[0]
            self._refused = error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL)


_TRANSPORT = (
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_CONTROLLER,
)


def _code(error: BaseException | None) -> int | None:
    return int(error.args[0].code()) if isinstance(error, KafkaException) else None


def _text(error: KafkaException) -> str:
    return str(error.args[0].str())


def _has_leaders(topic: Any) -> bool:
    return topic.error is None and bool(topic.partitions) and all(partition.leader >= 0 for partition in topic.partitions.values())


def _topic(topic: Any, entries: Mapping[str, Any]) -> TopicState:
    partitions = tuple(
        PartitionState(
            partition=found.id,
            leader=found.leader if found.leader >= 0 else None,
            replicas=tuple(found.replicas),
            in_sync=tuple(sorted(found.isrs)),
        )
        for _, found in sorted(topic.partitions.items())
    )
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return TopicState(
        name=topic.topic,
        partitions=partitions,
        config={key: entry.value for key, entry in sorted(entries.items()) if entry.value is not None},
        overrides={key: entry.value for key, entry in sorted(entries.items()) if entry.source == own and entry.value is not None},
    )


def create_topics(
    settings: Settings, processors: Processors, *, partitions: int | None = None, alter: bool = False, admin: Admin | None = None
) -> list[Action]:
    """Create the topics of an application that are missing, wait until they can be used, and return what was done."""
    admin = admin or Admin(settings)
    cluster = admin.cluster(topic_names(settings, processors))
    actions = plan(specs_for(settings, processors, cluster, partitions=partitions), cluster, alter=alter)
    admin.apply(actions)
    return actions


def check_topics(settings: Settings, processors: Processors, *, admin: Admin | None = None) -> list[Finding]:
    """Return what is wrong with the topics of an application, errors first."""
    cluster = (admin or Admin(settings)).cluster(topic_names(settings, processors))
    wiring = check_processors(settings, processors)
    return [*wiring, *check(specs_for(settings, processors, cluster), cluster)]


def require_topics(settings: Settings, processors: Processors, *, admin: Admin | None = None) -> list[Finding]:
    """Return the warnings about the topics of an application; errors are one TopicError, so that a worker does not start on them."""
    findings = check_topics(settings, processors, admin=admin)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        raise TopicError("; ".join(f"topic {finding.topic} {finding.message}: {finding.remedy}" for finding in errors))
    return findings
