"""The fixtures a user's tests import: one broker, topics of their own, and any cluster instead of it."""

from __future__ import annotations

import socket
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from holdfast.dev import fixtures
from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.fixtures import FreshTopic, SessionBroker, session_broker
from holdfast.errors import DevBrokerError
from tests.support.patience import DEADLINE_S


def test_a_fresh_topic_is_as_asked_ready_and_unshared(broker: SessionBroker, fresh_topic: FreshTopic) -> None:
    topic, other = (
        fresh_topic("orders", partitions=3, config={"cleanup.policy": "compact"}) for _ in range(2)
    )
    assert topic != other
    assert topic.startswith("orders-")
    client = AdminClient(broker.client_config())
    assert len(client.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions) == 3
    resource = ConfigResource(ResourceType.TOPIC, topic)
    assert (
        client.describe_configs([resource])[resource].result(DEADLINE_S)["cleanup.policy"].value == "compact"
    )
    producer = Producer(broker.client_config(acks="all"))
    producer.produce(topic, b"value", b"key", partition=2)
    assert producer.flush(DEADLINE_S) == 0


def test_topics_are_deleted_after_the_test_and_twice_does_no_harm(broker: SessionBroker) -> None:
    topics = FreshTopic(broker)
    made = [topics(), topics("other")]
    broker.delete_topics(made[:1])
    topics.delete_all()
    client = AdminClient(broker.client_config())
    assert not {*made} & {*client.list_topics(timeout=DEADLINE_S).topics}


class Behind:
    """The admin client of a broker that hears of a deletion a while after its controller."""

    def __init__(self, *shown: str | KafkaError) -> None:
        self.shown = [*shown]
        """The broker's answers in turn: a topic's id, or why not."""

    def describe_topics(self, asked: TopicCollection, **_timeout: float) -> dict[str, Future[Any]]:
        return {"orders": self._answer(self.shown.pop(0))}

    def delete_topics(self, topics: list[str], **_timeout: float) -> dict[str, Future[Any]]:
        return {"orders": self._answer("")}

    def _answer(self, told: str | KafkaError) -> Future[Any]:
        answer: Future[Any] = Future()
        if isinstance(told, KafkaError):
            answer.set_exception(KafkaException(told))
        else:
            answer.set_result(SimpleNamespace(topic_id=told))
        return answer


MISSING = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(("old", "old", "old", MISSING), id="gone"),
        pytest.param(("old", "old", "new"), id="made again"),
        pytest.param((KafkaError(KafkaError._TRANSPORT), "old", MISSING), id="silent at first"),
        pytest.param((MISSING,), id="never there"),
    ],
)
def test_a_deletion_is_waited_for_until_the_broker_shows_the_topic_no_longer(
    monkeypatch: pytest.MonkeyPatch, shown: tuple[str | KafkaError, ...]
) -> None:
    """Else a topic made at once is not the one that is shown, and its records are deleted with the old
    one.
    """
    behind = Behind(*shown)
    monkeypatch.setattr(fixtures, "make_admin", lambda config: behind)
    SessionBroker(config={"bootstrap.servers": "kafka.example:9092"}).delete_topics(["orders"])
    assert behind.shown == []


def test_a_topic_that_a_broker_continues_to_show_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixtures, "make_admin", lambda config: Behind("old", "old", "old"))
    monkeypatch.setattr(fixtures, "DEADLINE_S", 0.0)
    with pytest.raises(DevBrokerError, match="still shows topics that were deleted: orders"):
        SessionBroker(config={"bootstrap.servers": "kafka.example:9092"}).delete_topics(["orders"])


def test_a_topic_that_cannot_be_made_says_why(broker: SessionBroker) -> None:
    with pytest.raises(DevBrokerError, match=r"topic bad.* could not be created .*no\.such"):
        broker.create_topic("bad", config={"no.such": "1"})
    made = broker.create_topic("exact")
    with pytest.raises(DevBrokerError, match="already exists"):
        broker.create_topic(made, exact=True)
    broker.delete_topics([made])


def test_kafka_bootstrap_servers_names_the_cluster_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "kafka.example:9092")
    monkeypatch.setenv("HOLDFAST_KAFKA__SECURITY_PROTOCOL", "SSL")

    def never() -> Path:
        raise AssertionError("no broker is started")

    (given,) = session_broker(never)
    assert (given.bootstrap, given.cluster) == ("kafka.example:9092", None)
    assert given.client_config(acks=1).items() >= {"security.protocol": "SSL", "acks": 1}.items()


def test_kafka_bootstrap_servers_embedded_is_an_embedded_kafka_without_a_jdk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "embedded")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no JDK"))

    def never() -> Path:
        raise AssertionError("no node of Apache Kafka is started")

    given = session_broker(never)
    broker = next(given)
    assert broker.cluster is None
    topics = FreshTopic(broker)
    topic = topics("orders", partitions=3)
    client = AdminClient(broker.client_config())
    assert len(client.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions) == 3
    topics.delete_all()
    host, _, port = broker.bootstrap.rpartition(":")
    assert next(given, None) is None, "it ends with the session"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=DEADLINE_S).close()


@pytest.mark.kafka
def test_without_it_the_session_starts_a_node_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    for started in session_broker(lambda: tmp_path / "kafka"):
        assert started.cluster is not None
        assert [each.condition for each in started.cluster.status()] == ["running"]
        pid = started.cluster.status()[0].pid
    assert pid is not None
    assert not (tmp_path / "kafka").exists()
    assert Cluster.find(tmp_path / "kafka") is None
