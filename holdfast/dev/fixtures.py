"""pytest fixtures for code that talks to Kafka. In your ``conftest.py``:

    from holdfast.dev.fixtures import fresh_topic, holdfast_broker

- ``holdfast_broker``: one real broker for the whole session. With ``KAFKA_BOOTSTRAP_SERVERS`` set it is that
  cluster (its security
  settings as ``HOLDFAST_KAFKA__…``), with ``KAFKA_BOOTSTRAP_SERVERS=embedded`` an embedded Kafka, which needs
  no JDK; otherwise a
  node of its own, which ends with the session, however that ends.
- ``fresh_topic``: makes topics that no other test has, ready to use, and deletes them after the test.

Without a JDK the session fails and says so: a test that was skipped has proven nothing.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from holdfast.clock import system_clock
from holdfast.config import load_settings
from holdfast.dev.broker.cluster import Cluster
from holdfast.errors import DevBrokerError
from holdfast.kafka.clients import make_admin
from holdfast.kafka.codes import LEADER_MOVES, MISSING_TOPIC, NO_ANSWER, code_of
from holdfast.kafka.leader_requests import has_leaders

__all__ = ["FreshTopic", "SessionBroker", "fresh_topic", "holdfast_broker"]

EMBEDDED = "embedded"
DEADLINE_S, ATTEMPT_S, SLACK_S = 120.0, 30.0, 10.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBroker:
    """The Kafka of this test session; *cluster* only when the session started it, to kill or pause its
    node.
    """

    config: Mapping[str, str]
    cluster: Cluster | None = None

    @property
    def bootstrap(self) -> str:
        """``host:port,…`` for ``bootstrap.servers``."""
        return self.config["bootstrap.servers"]

    def client_config(self, **more: Any) -> dict[str, Any]:
        """Return the settings of a confluent-kafka client, with *more* of them:

        ``client_config(**{"group.id": "g"})``.
        """
        return {**self.config, **more}

    def create_topic(
        self,
        name: str = "topic",
        *,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        replication_factor: int = -1,
        exact: bool = False,
    ) -> str:
        """Create a topic and return its name once every partition has a leader:

        *name* with a unique ending, or *exact*ly *name*.
        """
        topic = name if exact else f"{name}-{uuid.uuid4().hex[:8]}"
        client = make_admin(self.client_config())
        created = client.create_topics(
            [NewTopic(topic, partitions, replication_factor, config=dict(config or {}))],
            request_timeout=DEADLINE_S,
        )
        try:
            created[topic].result(DEADLINE_S + SLACK_S)
        except KafkaException as error:
            raise DevBrokerError(
                f"topic {topic} could not be created on {self.bootstrap}: {error}"
            ) from error
        _wait_for_leaders(client, topic, partitions)
        return topic

    def delete_topics(self, topics: list[str]) -> None:
        """Delete *topics* and return once the broker shows them no longer; those already gone are no error.

        A controller confirms a deletion before the brokers have received it. A client that makes a topic of
        that name at once may be shown the old one: its records are acknowledged, and deleted with that topic.
        """
        until_s = system_clock.monotonic_s() + DEADLINE_S
        looking = make_admin(self.client_config())
        there = self._topic_ids(looking, topics, until_s)
        while topics:
            # A client of its own each time: one that waits for a controller may miss the one that comes.
            client = make_admin(self.client_config())
            asked = client.delete_topics(topics, request_timeout=ATTEMPT_S)
            topics = [
                topic
                for topic, deleted in asked.items()
                if not self._is_deleted(topic, deleted, may_wait=system_clock.monotonic_s() < until_s)
            ]
        while left := there.items() & self._topic_ids(looking, [*there], until_s).items():
            if system_clock.monotonic_s() > until_s:
                raise DevBrokerError(
                    f"{self.bootstrap} still shows topics that were deleted: {', '.join(sorted(dict(left)))}"
                )
            time.sleep(_POLL_S)

    def _topic_ids(self, client: AdminClient, topics: list[str], until_s: float) -> dict[str, str]:
        """Return the ids of those of *topics* that the broker shows: one that is made again has another."""
        shown: dict[str, str] = {}
        while topics:
            asked = client.describe_topics(TopicCollection(topics), request_timeout=ATTEMPT_S)
            topics = []
            for topic, described in asked.items():
                try:
                    shown[topic] = str(described.result(ATTEMPT_S + SLACK_S).topic_id)
                except KafkaException as error:
                    if code_of(error) in MISSING_TOPIC:
                        continue
                    if code_of(error) not in NO_ANSWER | LEADER_MOVES or system_clock.monotonic_s() > until_s:
                        raise DevBrokerError(
                            f"topic {topic} could not be described on {self.bootstrap}: {error}"
                        ) from error
                    topics.append(topic)
            if topics:
                time.sleep(_POLL_S)
        return shown

    def _is_deleted(self, topic: str, deleted: Future[None], *, may_wait: bool) -> bool:
        """Return whether a topic is gone, False when the broker did not say so in time and *may_wait*."""
        try:
            deleted.result(ATTEMPT_S + SLACK_S)
        except KafkaException as error:
            code = error.args[0].code()
            if code in NO_ANSWER and may_wait:
                return False
            if code != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise DevBrokerError(
                    f"topic {topic} could not be deleted on {self.bootstrap}: {error}"
                ) from error
        return True


def _wait_for_leaders(client: AdminClient, topic: str, partitions: int) -> None:
    until_s = system_clock.monotonic_s() + DEADLINE_S
    while True:
        found = client.list_topics(topic, timeout=DEADLINE_S).topics[topic]
        if has_leaders(found) and len(found.partitions) == partitions:
            return
        if system_clock.monotonic_s() > until_s:
            raise DevBrokerError(
                f"topic {topic} has not had a leader for each of its {partitions} partitions in"
                f" {DEADLINE_S:.0f} s"
            )
        time.sleep(_POLL_S)


class FreshTopic:
    """Call it for a new topic of this test alone:

    ``fresh_topic("orders", partitions=4, config={"cleanup.policy": "compact"})``.
    """

    def __init__(self, broker: SessionBroker) -> None:
        self._broker = broker
        self._made: list[str] = []

    def __call__(
        self,
        name: str = "topic",
        *,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        replication_factor: int = -1,
    ) -> str:
        topic = self._broker.create_topic(
            name, partitions=partitions, config=config, replication_factor=replication_factor
        )
        self._made.append(topic)
        return topic

    def delete_all(self) -> None:
        """Delete every topic made so far."""
        self._broker.delete_topics(self._made)
        self._made.clear()


def session_broker(folder: Callable[[], Any]) -> Iterator[SessionBroker]:
    """Yield the broker of a session, in *folder()* when it must be started."""
    if os.environ.get("KAFKA_BOOTSTRAP_SERVERS") == EMBEDDED:
        from holdfast.embedded.kafka import EmbeddedKafka  # most sessions have a real one

        with EmbeddedKafka() as kafka:
            yield SessionBroker(config=kafka.client_config())
        return
    if os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):
        given = load_settings(flags={}, env=os.environ, file=None).client()
        yield SessionBroker(config={name: str(value) for name, value in given.items()})
        return
    cluster = Cluster(folder(), short_lived=True)
    try:
        cluster.start()
        yield SessionBroker(config=cluster.client_config(), cluster=cluster)
    finally:
        if Cluster.find(cluster.folder) is not None:
            cluster.purge()


@pytest.fixture(scope="session")
def holdfast_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionBroker]:
    """Give one real Kafka for the whole session."""
    yield from session_broker(lambda: tmp_path_factory.mktemp("kafka"))


@pytest.fixture
def fresh_topic(holdfast_broker: SessionBroker) -> Iterator[FreshTopic]:
    """Give a maker of topics that no other test has."""
    topics = FreshTopic(holdfast_broker)
    yield topics
    topics.delete_all()
