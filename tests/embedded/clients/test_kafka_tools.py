"""Kafka's own programs say of the embedded broker what they say of Apache Kafka."""

from __future__ import annotations

import pytest

from holdfast.dev.fixtures import SessionBroker
from holdfast.embedded.kafka import EmbeddedKafka
from tests.embedded.clients.kafka_tools import recorded, told


@pytest.mark.process
def test_they_say_of_the_embedded_broker_what_they_said_of_kafka() -> None:
    with EmbeddedKafka(seed=1) as kafka:
        assert told(kafka.bootstrap) == recorded()


@pytest.mark.slow
@pytest.mark.kafka
def test_they_say_of_kafka_what_they_said(broker: SessionBroker) -> None:
    assert told(broker.bootstrap) == recorded()
