"""Strategy `mark` with brokers that refuse and fall silent as a test says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.dev.fixtures import SessionBroker
from holdfast.embedded.kafka import EmbeddedKafka
from tests.outbox.databases import FreshOutbox
from tests.outbox.harvest.test_mark import MARK, astray, newly
from tests.outbox.harvesting import Alone, Rig
from tests.support.patience import DEADLINE_S

pytestmark = pytest.mark.long

HOUR_MS = 3_600_000
LONG_S = 600.0
"""Longer than any test waits."""


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(nodes=3, seed=1) as kafka:
        yield kafka


@pytest.mark.long
def test_after_a_fatal_error_of_its_producer_it_waits_for_no_broker_that_is_silent(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """O1, O3: a row is refused, which ends a gapless producer, while others' answers do not come."""
    kafka.create_topic("events")
    kafka.create_topic("latest", config={"message.timestamp.before.max.ms": "1000"})
    kafka.shift_clock(HOUR_MS)
    client = kafka.client_config(**{"socket.timeout.ms": 300_000})
    rig = Rig(
        SessionBroker(config=client),
        FreshOutbox.make(f"sqlite:///{tmp_path / 'outbox.db'}", "goharvest"),
        "events",
    )
    rig.fill(30)
    rig.write([rig.record(30, topic="latest")])  # refused: it is an hour old
    rig.filled += 1
    kafka.fault("drop", "Produce")

    class Late(Producer):
        """Sends the row that is refused when the answer of the others is lost."""

        def produce(self, topic: str, *args: Any, **more: Any) -> None:
            until_s = time.monotonic() + DEADLINE_S
            while topic == "latest" and not kafka.faults.hits:
                assert time.monotonic() < until_s, "no answer was lost"
                self.poll(0.01)
            super().produce(topic, *args, **more)

    settings = rig.settings(**MARK, attempts=1, heartbeat_timeout_s=LONG_S)
    with Alone(settings, {"make_producer": Late}) as leader:
        rig.wait_empty()
    assert leader.stats.quarantined == 1
    records = rig.read()
    assert not astray(newly(records), 30)
    assert len(records) == 60, "the rows whose answer was lost are there twice, and nothing else is"
