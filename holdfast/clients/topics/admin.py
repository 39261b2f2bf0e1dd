"""Topics, their configurations and their offsets on a real cluster.

Every wait has a deadline.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition

# the package does not declare what it re-exports
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ListOffsetsResultInfo,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from holdfast.clients.topics.types import (
    AlterConfig,
    ClusterIds,
    ClusterTopics,
    CreateTopic,
    PartitionState,
    TopicChange,
    TopicState,
)
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.kafka.grants import Operation
from holdfast.errors import BrokerError, ConfigError, TopicError
from holdfast.kafka.clients import make_admin
from holdfast.kafka.codes import code_of, refuses_connection, retriable
from holdfast.kafka.leader_requests import delete_records, has_leaders, list_offsets
from holdfast.kafka.librdkafka_log import Quiet

log = logging.getLogger(__name__)
T = TypeVar("T")

POLL_S = 0.05
FIRST_WAIT_S = 1.0
ATTEMPT_S = 5.0
SILENT_S = 1.0
LONG_S = 5.0
"""A wait for a first broker that is longer than this is no silent one."""
WAITS_LOGGER = f"{__name__}.waits"
NO_ANSWER = "no Kafka broker at %(servers)s answers yet: %(reason)s; trying for %(more_s)g s more"
waits = logging.getLogger(WAITS_LOGGER)
_FIRST, _LAST = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
_NEWEST = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
_OPERATIONS = {each.name: each for each in Operation}
LIMIT_RESOURCES = 500
"""Topics asked about in one request."""


class Admin:
    """The cluster that the settings name.

    Nothing is kept between calls but connections, which close with the object.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        timeout_s: float | None = None,
        connect_timeout_s: float | None = None,
        clock: Clock = system_clock,
    ) -> None:
        self._servers = settings.bootstrap_servers
        self._timeout_s = settings.request_timeout_s if timeout_s is None else timeout_s
        self._connect_timeout_s = min(self._timeout_s, connect_timeout_s or self._timeout_s)
        self._clock = clock
        self._last_error = ""
        self._refused = False
        try:
            self._client = make_admin(settings.client(), logger=Quiet(log), on_error=self._on_error)
        except KafkaException as error:
            raise ConfigError(f"a Kafka property is refused by librdkafka: {_text(error)}") from error

    def cluster(self, names: Iterable[str] | None = None) -> ClusterTopics:
        """Return the brokers and the topics of these names that exist (None: all topics), with their
        configurations.
        """
        asked = None if names is None else set(names)

        def look(metadata: Any, wait_s: float) -> ClusterTopics:
            wanted = sorted(metadata.topics if asked is None else asked & metadata.topics.keys())
            # Any broker can answer, so ask the one that has just answered: it is alive.
            configs = self._configs(wanted, metadata.orig_broker_id, wait_s)
            topics = {
                name: _topic(metadata.topics[name], configs[name]) for name in wanted if name in configs
            }
            return ClusterTopics(brokers=tuple(sorted(metadata.brokers)), topics=topics)

        return self._persist(look)

    def partition_counts(self) -> dict[str, int]:
        """Return how many partitions each topic has that this principal may see."""
        return self._persist(
            lambda metadata, wait_s: {name: len(each.partitions) for name, each in metadata.topics.items()}
        )

    def apply(self, actions: Sequence[TopicChange]) -> None:
        """Carry out *actions* and return when each can be seen: topics with all their leaders,
        configurations with their new values.
        """
        creations = [action for action in actions if isinstance(action, CreateTopic)]
        if creations:
            self._persist(lambda metadata, wait_s: self._create(creations, wait_s))
            wanted = {creation.spec.name: creation.partitions for creation in creations}
            self._await("topics", lambda metadata, wait_s: self._unready(wanted, metadata, wait_s))
        alterations = [action for action in actions if isinstance(action, AlterConfig)]
        if alterations:
            self._persist(lambda metadata, wait_s: self._alter(alterations, wait_s))
            self._await(
                "configurations", lambda metadata, wait_s: self._unaltered(alterations, metadata, wait_s)
            )

    def delete(self, names: Iterable[str]) -> None:
        """Delete topics and return when no broker knows them any more; one that does not exist is no
        error.
        """
        wanted = sorted(names)
        if wanted:
            self._persist(lambda metadata, wait_s: self._delete(wanted, wait_s))
            self._await("deletions of", lambda metadata, wait_s: self._undeleted(wanted, metadata, wait_s))

    def offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the first offset and the next one to be written of each partition."""
        wanted = list(partitions)
        begin, end = self._offsets(wanted, _FIRST), self._offsets(wanted, _LAST)
        return {place: (int(begin[place].offset), int(end[place].offset)) for place in begin}

    def stable_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the last stable offset of each partition: where its first open transaction begins, else its
        end.
        """
        found = self._offsets(partitions, _LAST, isolation=IsolationLevel.READ_COMMITTED)
        return {place: int(answer.offset) for place, answer in found.items()}

    def leader_epochs(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return the leader epoch of each partition that has records."""
        found = self._offsets(partitions, _LAST)
        return {
            place: answer.leader_epoch for place, answer in found.items() if answer.leader_epoch is not None
        }

    def offsets_at(
        self, partitions: Iterable[tuple[str, int]], at_ms: int
    ) -> dict[tuple[str, int], int | None]:
        """Return the first offset whose record is not older than *at_ms* of each partition, None where
        there is none.
        """
        found = self._offsets(partitions, OffsetSpec.for_timestamp(at_ms), known=False)
        return {place: int(answer.offset) if answer.offset >= 0 else None for place, answer in found.items()}

    def ends_at(self, times_ms: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int | None]:
        """Return where each partition ended at a time of its own, by the timestamps of its records; None
        where it still does.
        """
        wanted = {
            TopicPartition(*place): OffsetSpec.for_timestamp(at_ms + 1) for place, at_ms in times_ms.items()
        }
        found = self._persist(
            lambda metadata, wait_s: self._list_offsets(wanted, wait_s, IsolationLevel.READ_UNCOMMITTED)
        )
        return {place: int(answer.offset) if answer.offset >= 0 else None for place, answer in found.items()}

    def newest_ms(self, topic: str, partition: int) -> int | None:
        """Return the latest timestamp of a partition's records, None where it has none or there is no such
        topic.
        """
        if not self.cluster([topic]).topics:
            return None
        found = self._offsets([(topic, partition)], _NEWEST, known=False)[topic, partition]
        return int(found.timestamp) if found.offset >= 0 else None

    def allowed(self, names: Iterable[str]) -> dict[str, frozenset[Operation]]:
        """Return this principal's rights on each of these topics; those that it may not see, or that do not
        exist, and all of them on a cluster without ACLs, are left out.
        """
        asked = sorted(names)

        def ask(metadata: Any, wait_s: float) -> dict[str, frozenset[Operation]]:
            futures = self._client.describe_topics(
                TopicCollection(asked), include_authorized_operations=True, request_timeout=wait_s
            )
            found = dict[str, frozenset[Operation]]()
            for name, future in futures.items():
                with suppress(TopicError):
                    told = self._result(future, f"rights on {name}", wait_s).authorized_operations
                    if told is not None:
                        found[name] = frozenset(
                            _OPERATIONS[each.name] for each in told if each.name in _OPERATIONS
                        )
            return found

        return self._persist(ask) if asked else {}

    def topic_ids(self, names: Iterable[str], *, there_only: bool = False) -> ClusterIds:
        """Return the ids of the cluster and of these topics: one that is deleted and made again under its
        name has another. TopicError for one that is not there, unless those that are *there_only* are asked
        for.
        """
        wanted = sorted(names)

        def ask(metadata: Any, wait_s: float) -> ClusterIds:
            asked = [name for name in wanted if not there_only or name in metadata.topics]
            if not asked:
                return ClusterIds(metadata.cluster_id or "", {})
            futures = self._client.describe_topics(TopicCollection(asked), request_timeout=wait_s)
            found = {
                name: self._result(future, f"the id of {name}", wait_s) for name, future in futures.items()
            }
            return ClusterIds(
                metadata.cluster_id or "",
                {name: str(each.topic_id) for name, each in found.items()},
                {name: len(each.partitions) for name, each in found.items()},
            )

        return self._persist(ask)

    def delete_before(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Delete the records before these offsets of partitions; a call with nothing to delete is no
        error.
        """
        wanted = [
            TopicPartition(topic, partition, offset) for (topic, partition), offset in sorted(offsets.items())
        ]

        def ask(metadata: Any, wait_s: float) -> None:
            for place, asked in delete_records(self._client, wanted, timeout_s=wait_s).items():
                self._result(asked, f"deletion of records of {place.topic}", wait_s)

        self._persist(ask)

    # Parts

    def _persist(self, step: Callable[[Any, float], T]) -> T:
        """Return the result of *step* for fresh metadata; while brokers come and go it is tried again until
        the deadline.

        An attempt is much shorter than the deadline: librdkafka sends to the controller of its last metadata,
        and waits for that one in vain when it has died since.
        """
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        while True:
            metadata = self._metadata(self._connect_timeout_s)
            try:
                return step(metadata, min(ATTEMPT_S, self._timeout_s))
            except BrokerError:
                if self._clock.monotonic_s() > deadline_s:
                    raise
            time.sleep(POLL_S)

    def _metadata(self, timeout_s: float) -> Any:
        # A first short wait, since a wrong password or certificate is known at once and no patience will mend
        # it.
        first_s = min(FIRST_WAIT_S, timeout_s)
        silent_s = min(SILENT_S, timeout_s - first_s) if timeout_s > LONG_S else 0.0
        left_s = timeout_s
        for wait_s in (first_s, silent_s, timeout_s - first_s - silent_s):
            left_s = round(left_s - wait_s, 6)
            if wait_s == 0.0 and left_s > 0.0:
                continue
            try:
                return self._client.list_topics(timeout=wait_s)
            except KafkaException as error:
                self._client.poll(0)  # lets the client say what it ran into
                if not self._refused and left_s > 0:
                    if left_s < timeout_s - first_s:
                        told = {"servers": self._servers, "reason": self._last_error or _text(error)}
                        waits.warning(NO_ANSWER, told | {"more_s": left_s})
                    continue
                reason = self._last_error or _text(error)
                if self._refused:
                    raise BrokerError(
                        f"cannot log in to Kafka at {self._servers}: {reason}; check the sasl.* and ssl.*"
                        " properties"
                    ) from error
                raise BrokerError(
                    f"no Kafka broker at {self._servers} answered within {timeout_s:g} s: {reason}; "
                    "check bootstrap.servers and security.protocol, or start one with `holdfast dev up`"
                ) from error
        raise AssertionError("unreachable")

    def _configs(
        self, names: Sequence[str], broker: int, wait_s: float
    ) -> dict[str, Mapping[str, ConfigEntry]]:
        """Return the configurations as *broker* knows them, leaving out topics it does not know."""
        whom = {"broker": broker} if broker >= 0 else {}
        found: dict[str, Mapping[str, ConfigEntry]] = {}
        for start in range(0, len(names), LIMIT_RESOURCES):
            resources = [
                ConfigResource(ResourceType.TOPIC, name) for name in names[start : start + LIMIT_RESOURCES]
            ]
            for resource, future in self._client.describe_configs(
                resources, request_timeout=wait_s, **whom
            ).items():
                try:
                    found[resource.name] = self._result(future, f"configuration of {resource.name}", wait_s)
                except TopicError as error:
                    if code_of(error.__cause__) != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
        return found

    def _offsets(
        self,
        partitions: Iterable[tuple[str, int]],
        spec: OffsetSpec,
        *,
        known: bool = True,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[tuple[str, int], ListOffsetsResultInfo]:
        """Return the leaders' answers for their partitions; with *known*, those that do not know an offset
        yet are asked again.
        """
        wanted = {TopicPartition(topic, partition): spec for topic, partition in partitions}

        def ask(metadata: Any, wait_s: float) -> dict[tuple[str, int], ListOffsetsResultInfo]:
            answers = self._list_offsets(wanted, wait_s, isolation)
            return _told(answers) if known else answers

        return self._persist(ask) if wanted else {}

    def _list_offsets(
        self, wanted: Mapping[TopicPartition, OffsetSpec], wait_s: float, isolation: IsolationLevel
    ) -> dict[tuple[str, int], ListOffsetsResultInfo]:
        return {
            (place.topic, place.partition): self._result(future, f"offsets of {place.topic}", wait_s)
            for place, future in list_offsets(
                self._client, wanted, timeout_s=wait_s, isolation=isolation
            ).items()
        }

    def _create(self, creations: Sequence[CreateTopic], wait_s: float) -> None:
        topics = [
            NewTopic(
                creation.spec.name,
                num_partitions=creation.partitions,
                replication_factor=creation.spec.replication_factor,
                config=dict(creation.spec.config),
            )
            for creation in creations
        ]
        asked = self._client.create_topics(topics, operation_timeout=wait_s, request_timeout=wait_s)
        for name, future in asked.items():
            try:
                self._result(future, f"creation of topic {name}", wait_s)
                log.info("topic %(topic)s created", {"topic": name})
            except TopicError as error:
                # Another worker was faster, or our first request had succeeded and its answer was lost.
                # Whether the topic is the one that was wanted is seen when its partitions are awaited, and by
                # `check`.
                match code_of(error.__cause__):
                    case KafkaError.TOPIC_ALREADY_EXISTS:
                        continue
                    case KafkaError.INVALID_REPLICATION_FACTOR:
                        raise TopicError(f"{error}; lower replication_factor or add brokers") from error
                    case _:
                        raise

    def _delete(self, names: Sequence[str], wait_s: float) -> None:
        asked = self._client.delete_topics([*names], operation_timeout=wait_s, request_timeout=wait_s)
        for name, future in asked.items():
            try:
                self._result(future, f"deletion of topic {name}", wait_s)
                log.info("topic %(topic)s deleted", {"topic": name})
            except TopicError as error:
                if code_of(error.__cause__) != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise

    def _undeleted(self, names: Sequence[str], metadata: Any, wait_s: float) -> list[str]:
        """Return the topics that some broker still knows."""
        known = set(metadata.topics).union(*self._everywhere(names, metadata, wait_s))
        return [name for name in names if name in known]

    def _unready(self, wanted: Mapping[str, int], metadata: Any, wait_s: float) -> list[str]:
        """Return the topics that lack a leader or that some broker does not know yet: to its clients they
        would not exist.
        """
        led = [name for name in wanted if name in metadata.topics and has_leaders(metadata.topics[name])]
        for name in led:
            if (found := len(metadata.topics[name].partitions)) != wanted[name]:
                raise TopicError(
                    f"topic {name} was created by someone else with {found} partitions instead of"
                    f" {wanted[name]}"
                )
        known = set(led).intersection(*self._everywhere(led, metadata, wait_s))
        return [name for name in wanted if name not in known]

    def _everywhere(
        self, names: Sequence[str], metadata: Any, wait_s: float
    ) -> list[dict[str, Mapping[str, ConfigEntry]]]:
        """Return the configurations as each broker knows them; what the controller accepted reaches the
        others a little later.
        """
        return [self._configs(names, broker, wait_s) for broker in metadata.brokers] if names else []

    def _await(self, what: str, pending: Callable[[Any, float], list[str]]) -> None:
        """Return when nothing is pending any more; the cluster gives no other sign than its answers."""
        deadline_s = self._clock.monotonic_s() + self._timeout_s
        while names := self._persist(pending):
            if self._clock.monotonic_s() > deadline_s:
                raise BrokerError(
                    f"{what} {', '.join(names)} were accepted but are not ready within {self._timeout_s:g} s:"
                    " look at the brokers' logs"
                )
            time.sleep(POLL_S)

    def _alter(self, alterations: Sequence[AlterConfig], wait_s: float) -> None:
        resources = [
            ConfigResource(
                ResourceType.TOPIC,
                alteration.topic,
                incremental_configs=[
                    ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
                    for key, value in alteration.config.items()
                ],
            )
            for alteration in alterations
        ]
        for resource, future in self._client.incremental_alter_configs(
            resources, request_timeout=wait_s
        ).items():
            self._result(future, f"configuration of {resource.name}", wait_s)
            log.info("configuration of topic %(topic)s altered", {"topic": resource.name})

    def _unaltered(self, alterations: Sequence[AlterConfig], metadata: Any, wait_s: float) -> list[str]:
        """Return the topics of which some broker still has the old configuration."""
        everywhere = self._everywhere([alteration.topic for alteration in alterations], metadata, wait_s)
        return [
            alteration.topic
            for alteration in alterations
            for key, value in alteration.config.items()
            if any(configs[alteration.topic][key].value != value for configs in everywhere)
        ]

    def _result(self, future: Future[T], what: str, wait_s: float) -> T:
        """Wait for an answer; transport trouble is a BrokerError, a refusal a TopicError."""
        try:
            return future.result(wait_s + 1)  # the request's own deadline comes first and says more
        except FutureTimeoutError as error:
            raise BrokerError(f"{what}: no answer within {wait_s:g} s from {self._servers}") from error
        except KafkaException as error:
            if retriable(code_of(error)):
                raise BrokerError(
                    f"{what}: {_text(error)}; asked {self._servers} for {self._timeout_s:g} s"
                ) from error
            raise TopicError(f"{what}: {_text(error)}") from error

    def _on_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last_error = error.str().partition(" (after ")[0]
            self._refused = refuses_connection(error)


def _text(error: KafkaException) -> str:
    return str(error.args[0].str())


def _told(
    answers: dict[tuple[str, int], ListOffsetsResultInfo],
) -> dict[tuple[str, int], ListOffsetsResultInfo]:
    """Return *answers*, or raise BrokerError: a leader that has just changed says -1, and the next attempt
    gets the truth.
    """
    for (topic, partition), answer in answers.items():
        if answer.offset < 0:
            raise BrokerError(f"offsets of {topic}/{partition}: its leader does not know them yet")
    return answers


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
        overrides={
            key: entry.value
            for key, entry in sorted(entries.items())
            if entry.source == own and entry.value is not None
        },
    )
