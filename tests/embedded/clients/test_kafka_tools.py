"""Kafka's own programs print the same for the embedded broker as for Apache Kafka."""

from __future__ import annotations

import pytest

from holdfast.dev.fixtures import SessionBroker
from holdfast.embedded.kafka import EmbeddedKafka
from tests.embedded.clients.kafka_tools import recorded, told


@pytest.mark.process
def test_they_print_the_same_for_the_embedded_broker_as_for_kafka() -> None:
    with EmbeddedKafka(seed=1) as kafka:
        assert told(kafka.bootstrap) == recorded()


@pytest.mark.slow
@pytest.mark.kafka
def test_they_print_the_same_for_kafka_as_recorded(broker: SessionBroker) -> None:
    assert told(broker.bootstrap) == recorded()
