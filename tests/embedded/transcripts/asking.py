"""Helpers of the scenarios: batches, Produce and Fetch, and the registry of scenarios."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from holdfast.core.kafka.record_batch import (
    Record,
    RecordBatch,
    encode_batch,
)
from tests.embedded.transcripts.talk import Talk

SCENARIOS: dict[str, Callable[[Talk], None]] = {}
ANY_SEQUENCE = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1}


def scenario(body: Callable[[Talk], None]) -> Callable[[Talk], None]:
    SCENARIOS[body.__name__] = body
    return body


def batch(*values: bytes, **fields: Any) -> bytes:
    """Return the bytes of a batch of *values*, of now."""
    now_ms = fields.pop("at_ms", int(time.time() * 1000))
    key = fields.pop("key", b"k")
    records = tuple(Record(offset_delta=number, key=key, value=value) for number, value in enumerate(values))
    told: dict[str, Any] = {
        "last_offset_delta": len(values) - 1,
        "base_timestamp_ms": now_ms,
        "max_timestamp_ms": now_ms,
        **fields,
    }
    return encode_batch(RecordBatch(records=records, **told))


def produce(talk: Talk, topic: str, data: bytes | None, version: int = 11, **more: Any) -> dict[str, Any]:
    """Produce one batch to partition 0."""
    told = {"acks": -1, "timeout_ms": 10_000, "index": 0, **more}
    partition = {"index": told.pop("index"), "records": data}
    named = {"topic_id": talk.topic_id(topic)} if version >= 13 else {"name": topic}
    return talk.ask("Produce", version, topic_data=[{**named, "partition_data": [partition]}], **told)


def fetch(talk: Talk, topic: str, offset: int, version: int = 12, **more: Any) -> dict[str, Any]:
    """Fetch from partition 0, without waiting."""
    told = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "partition_max_bytes": 1 << 20, **more}
    one = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": told.pop("partition_max_bytes")}
    for name in ("current_leader_epoch", "last_fetched_epoch"):
        if name in told:
            one[name] = told.pop(name)
    named = {"topic_id": talk.topic_id(topic)} if version >= 13 else {"topic": topic}
    wanted = told.pop("topics", [{**named, "partitions": [one]}])
    return talk.ask("Fetch", version, topics=wanted, **told)
