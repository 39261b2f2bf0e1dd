"""What others do on our topics."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Producer


@contextmanager
def open_transaction(config: Mapping[str, Any], topic: str, partitions: int) -> Iterator[None]:
    """Write a record to each partition in a transaction that does not end meanwhile."""
    stranger = Producer({**config, "transactional.id": uuid.uuid4().hex, "transaction.timeout.ms": 900_000})
    stranger.init_transactions(60)
    stranger.begin_transaction()
    for partition in range(partitions):
        stranger.produce(topic, key=b"stranger", value=b"not ours", partition=partition)
    assert stranger.flush(60) == 0
    yield
    stranger.abort_transaction(60)
