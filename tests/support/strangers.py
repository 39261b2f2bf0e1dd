"""What others do on our topics."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Producer

DEADLINE_S = 120.0
OPEN_FOR_MS = 900_000
"""No broker ends it before: longer than any test goes on meanwhile."""


@contextmanager
def open_transaction(config: Mapping[str, Any], topic: str, partitions: int) -> Iterator[None]:
    """Write a record to each partition in a transaction that does not end meanwhile."""
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
