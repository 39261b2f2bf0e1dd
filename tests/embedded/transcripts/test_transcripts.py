"""The same conversations with Apache Kafka and with the embedded broker: every answer is the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.dev.fixtures import SessionBroker
from holdfast.embedded.apis.handlers import HANDLERS
from holdfast.embedded.kafka import EmbeddedKafka
from tests.embedded.transcripts.guarded import Guarded, GuardedKafka, guarded_embedded
from tests.embedded.transcripts.guarded_sessions import SCENARIOS as GUARDED_SCENARIOS
from tests.embedded.transcripts.recording import GUARDED, recorded, told, told_guarded
from tests.embedded.transcripts.scenarios import SCENARIOS


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_embedded_broker_answers_what_kafka_did(embedded: EmbeddedKafka, name: str) -> None:
    assert told(embedded.bootstrap, name) == recorded()[name]


@pytest.mark.parametrize("name", SCENARIOS)
def test_kafka_answers_what_it_did(broker: SessionBroker, name: str) -> None:
    assert told(broker.bootstrap, name) == recorded()[name]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with guarded_embedded() as found:
        yield found


@pytest.mark.parametrize("name", GUARDED_SCENARIOS)
def test_the_embedded_broker_guards_as_kafka_did(guarded: Guarded, name: str) -> None:
    assert told_guarded(guarded, name) == recorded(GUARDED)[name]


@pytest.mark.slow
@pytest.mark.broker
def test_kafka_guards_as_it_did(tmp_path: Path) -> None:
    with GuardedKafka(tmp_path) as kafka:
        for name in GUARDED_SCENARIOS:
            assert told_guarded(kafka, name) == recorded(GUARDED)[name], name


def test_every_api_is_asked_for() -> None:
    """WriteTxnMarkers by one who may not only: a client that may can damage what it asks about."""
    every = [*recorded().values(), *recorded(GUARDED).values()]
    asked = {line.split(" ")[0] for lines in every for line in lines}
    asked |= {"JoinGroup", "ConsumerGroupHeartbeat"}
    assert set(HANDLERS) <= asked
