"""Faults caused by other programs on our topics."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from holdfast.kafka.codes import code_of, retriable
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S

OPEN_FOR_MS = 900_000
"""Transaction timeout: longer than any test, so no broker ends the transaction before."""


@contextmanager
def open_transaction(config: Mapping[str, Any], topic: str, partitions: int) -> Iterator[None]:
    """Write a record to each partition in a transaction that stays open during the block."""
    stranger = Producer(
        {**config, "transactional.id": uuid.uuid4().hex, "transaction.timeout.ms": OPEN_FOR_MS}
    )
    stranger.init_transactions(DEADLINE_S)
    stranger.begin_transaction()
    for partition in range(partitions):
        stranger.produce(topic, key=b"stranger", value=b"not ours", partition=partition)
    assert stranger.flush(DEADLINE_S) == 0
    yield
    stranger.abort_transaction(DEADLINE_S)


def leave_offsets(config: Mapping[str, Any], group: str, places: list[TopicPartition]) -> None:
    """Commit *places* for a consumer group that has no members; its coordinator may load its log, or have
    moved.
    """

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
        wait_for(f"the coordinator of {group}", committed, DEADLINE_S)
    finally:
        consumer.close()
