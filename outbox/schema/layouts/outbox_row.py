"""What a harvester reads of a table, what a service writes to it, and which bucket owns it."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.core.engine.declared.partitioners import murmur2

BUCKETS: Final = 256
LIMIT_TOPIC: Final = 249  # Kafka's own

Header = tuple[str, bytes | None]


class OutboxRow(msgspec.Struct, frozen=True, gc=False):
    """One row that waits to be published. *id* orders rows; *bucket* says which shard owns it; *attempts*
    have failed so far.

    *created_ms* is None where the layout has no time; *mark* is goharvest's, whose row it is among reapers. A
    row with a *flaw* cannot be published as it lies there: set it aside with the flaw as its reason.
    """

    id: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    partition: int | None
    timestamp_ms: int | None
    bucket: int
    attempts: int
    created_ms: int | None
    flaw: str | None = None
    mark: str | None = None


class PreparedRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One record as Kafka will be given it, checked. *value* None is a tombstone."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    partition: int | None
    timestamp_ms: int | None
    event_id: str | None
    event_type: str | None


def bucket_of(topic: str, key: bytes | None) -> int:
    """Return the bucket, 0 to 255, that owns *key*; rows without a key go by their topic.

    >>> bucket_of("orders", b"key-0"), bucket_of("orders", None) == bucket_of("x", b"orders")
    (185, True)
    """
    return murmur2(topic.encode() if key is None else key) & (BUCKETS - 1)
