"""The coordinators' own records in the internal topics, read as Kafka's own bytes are read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place

from holdfast.core.broker_logs.folds import (
    Committed,
    GroupNote,
    OffsetNote,
    decode_group,
    decode_transaction,
)
from holdfast.core.kafka.record_batch import Record, decode_batch
from holdfast.core.kafka.transaction_state import ALLOWED_PREVIOUS, TransactionState
from holdfast.embedded.kafka import EmbeddedKafka
from tests.support.patience import DEADLINE_S


def records(kafka: EmbeddedKafka, topic: str) -> Iterator[Record]:
    """Yield every record of a topic that is no marker."""
    found = kafka.cluster.topics.get(topic)
    assert found is not None
    for partition in found.partitions:
        for stored in partition.log:
            batch = decode_batch(stored.data)
            if not batch.is_control:
                yield from batch.records


def test_kafkas_readers_read_the_coordinators_records() -> None:
    with EmbeddedKafka() as kafka:
        topic = kafka.create_topic("orders", partitions=2)
        consumer = Consumer(kafka.client_config(**{"group.id": "readers", "auto.offset.reset": "earliest"}))
        consumer.subscribe([topic])
        producer = Producer(kafka.client_config(**{"transactional.id": "writer"}))
        producer.init_transactions(DEADLINE_S)
        for offset, commit in ((1, True), (2, False)):
            producer.begin_transaction()
            producer.produce(topic, b"a", partition=0)
            producer.flush(DEADLINE_S)
            while not consumer.assignment():
                consumer.poll(0.05)
            group = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction([Place(topic, 0, offset)], group, DEADLINE_S)
            (producer.commit_transaction if commit else producer.abort_transaction)(DEADLINE_S)
        consumer.close()
        offsets = [decode_group(each.key, each.value) for each in records(kafka, "__consumer_offsets")]
        noted = [decode_transaction(each.key, each.value) for each in records(kafka, "__transaction_state")]
    committed = [each for each in offsets if isinstance(each, OffsetNote)]
    told = [(each.group, each.topic, each.partition, each.noted) for each in committed]
    assert [each[:3] for each in told[:2]] == [("readers", topic, 0)] * 2
    assert [isinstance(each[3], Committed) and each[3].offset for each in told[:2]] == [1, 2]
    generations = [each.noted for each in offsets if isinstance(each, GroupNote)]
    assert [each is not None and (each.generation, len(each.members)) for each in generations] == [
        (0, 0),
        (1, 1),
        (2, 0),
    ]
    states = [each.noted.state for each in noted if each.noted is not None]
    assert {each.transactional_id for each in noted} == {"writer"}
    assert states.count(TransactionState.COMPLETE_COMMIT) == 1
    assert states.count(TransactionState.COMPLETE_ABORT) == 1
    steps = itertools.pairwise(states)
    assert all(before in ALLOWED_PREVIOUS[after] for before, after in steps)
