"""The embedded broker in the place of the real one: the tests of this folder have the bodies of others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.embedded.kafka import EmbeddedKafka


@pytest.fixture(scope="session")
def broker(embedded: EmbeddedKafka) -> SessionBroker:
    """Give the embedded broker as if it were the session's."""
    return SessionBroker(config=embedded.client_config())


@pytest.fixture
def fresh_topic(broker: SessionBroker) -> Iterator[FreshTopic]:
    topics = FreshTopic(broker)
    yield topics
    topics.delete_all()
