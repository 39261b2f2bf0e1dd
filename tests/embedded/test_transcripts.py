"""The same conversations with Apache Kafka and with the embedded broker: every answer is the same."""

from __future__ import annotations

import pytest

from holdfast.dev.fixtures import SessionBroker
from holdfast.embedded.apis.handlers import HANDLERS
from holdfast.embedded.kafka import EmbeddedKafka
from tests.embedded.scenarios import SCENARIOS
from tests.embedded.transcripts import recorded, told


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_embedded_broker_answers_what_kafka_did(embedded: EmbeddedKafka, name: str) -> None:
    assert told(embedded.bootstrap, name) == recorded()[name]


@pytest.mark.parametrize("name", SCENARIOS)
def test_kafka_answers_what_it_did(broker: SessionBroker, name: str) -> None:
    assert told(broker.bootstrap, name) == recorded()[name]


def test_every_api_is_asked_for() -> None:
    """WriteTxnMarkers is left to brokers: a client that may ask for it can damage what it asks about."""
    asked = {line.split(" ")[0] for lines in recorded().values() for line in lines}
    asked |= {"JoinGroup", "ConsumerGroupHeartbeat"}
    assert set(HANDLERS) - asked == {"WriteTxnMarkers"}
