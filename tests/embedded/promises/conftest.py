"""The embedded broker in the place of the real one: the tests of this folder have the bodies of others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.embedded.serving.connection import KafkaConnection


@pytest.fixture(scope="session")
def broker(embedded: EmbeddedKafka) -> SessionBroker:
    """Give the embedded broker as if it were the session's."""
    return SessionBroker(config=embedded.client_config())


@pytest.fixture
def fresh_topic(broker: SessionBroker) -> Iterator[FreshTopic]:
    topics = FreshTopic(broker)
    yield topics
    topics.delete_all()


@pytest.fixture(autouse=True)
def an_embedded_broker_is_asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that sends no byte to an embedded broker: whatever its body shows, it shows nothing of that
    broker.
    """
    received = 0
    take = KafkaConnection.data_received

    def counted(connection: KafkaConnection, data: bytes) -> None:
        nonlocal received
        received += len(data)
        take(connection, data)

    monkeypatch.setattr(KafkaConnection, "data_received", counted)
    yield
    assert received, "no request reached an embedded broker: leave this test to the folder of its body"
