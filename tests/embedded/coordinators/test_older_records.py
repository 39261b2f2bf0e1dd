"""Folders of older brokers stay in use: the records that they wrote in other versions are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from holdfast.embedded import internal_log
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.embedded.transactions import coordinator
from tests.support.patience import DEADLINE_S


def use(kafka: EmbeddedKafka, topic: str) -> None:
    """Leave a group that has had members, and a transaction that was committed."""
    consumer = Consumer(kafka.client_config(**{"group.id": "readers", "auto.offset.reset": "earliest"}))
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.05)
    consumer.close()
    producer = Producer(kafka.client_config(**{"transactional.id": "writer"}))
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, b"a")
    producer.commit_transaction(DEADLINE_S)


def test_records_of_version_4_and_without_a_previous_id_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As earlier embedded brokers wrote them: GroupMetadata of version 4, and -1 for the previous id of a
    producer.
    """
    value_of = coordinator._value
    with monkeypatch.context() as before:
        before.setattr(internal_log, "VALUE_VERSIONS", {**internal_log.VALUE_VERSIONS, "GroupMetadata": 4})
        before.setattr(coordinator, "_value", lambda known: {**value_of(known), "previous_producer_id": -1})
        with EmbeddedKafka(folder=tmp_path) as kafka:
            use(kafka, kafka.create_topic("orders"))
    with EmbeddedKafka(folder=tmp_path) as kafka:
        group, writer = kafka.cluster.groups.get("readers"), kafka.cluster.transactions.get("writer")
        assert group is not None
        assert writer is not None
        assert (group.protocol_type, group.classic.generation, writer.previous_producer_id) == (
            "consumer",
            2,
            -1,
        )
        use(kafka, "orders")
        group, again = kafka.cluster.groups.get("readers"), kafka.cluster.transactions.get("writer")
        assert group is not None
        assert again is not None
        assert (group.classic.generation, again.previous_producer_id) == (4, writer.producer_id)
