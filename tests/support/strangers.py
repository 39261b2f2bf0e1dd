"""What others do on our topics."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from holdfast.kafka.codes import code_of, retriable
from tests.support.harness import wait_for


@contextmanager
def open_transaction(config: Mapping[str, Any], topic: str, partitions: int) -> Iterator[None]:
    """Write a record to each partition in a transaction that does not end meanwhile."""
    open_ms = 900_000  # the longest that brokers allow: what is tried meanwhile may take long
    stranger = Producer({**config, "transactional.id": uuid.uuid4().hex, "transaction.timeout.ms": open_ms})
    stranger.init_transactions(60)
    stranger.begin_transaction()
    for partition in range(partitions):
        stranger.produce(topic, key=b"stranger", value=b"not ours", partition=partition)
    assert stranger.flush(60) == 0
    yield
    stranger.abort_transaction(60)


def leave_offsets(config: Mapping[str, Any], group: str, places: list[TopicPartition]) -> None:
    """Commit *places* for a consumer group that has no members; its coordinator may load its log, or have moved."""

    def committed() -> bool:
        try:
            consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            if not retriable(code_of(error)):
                raise
            return False
        return True

    consumer = Consumer({**config, "group.id": group, "enable.auto.commit": False})
    try:
        wait_for(f"the coordinator of {group}", committed, 120)
    finally:
        consumer.close()
