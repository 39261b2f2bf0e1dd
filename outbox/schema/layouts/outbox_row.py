"""A row as a harvester reads it and as a service writes it, and the bucket that owns it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from zlib import crc32

import msgspec

from holdfast.core.engine.declared.partitioners import murmur2
from holdfast.core.outbox.row_marks import ALL_KNOWN, WHOLE, Known, row_mark

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

    @property
    def event_id(self) -> str | None:
        """The id that the row has besides its number, in the layout that has no time."""
        if self.created_ms is not None or not self.headers or self.headers[0][0] != "id":
            return None
        return (self.headers[0][1] or b"").decode(errors="replace")


def identity_of(row: OutboxRow) -> int:
    """Return a mark that identifies *row* beyond its number, in 32 bits."""
    return row_mark(
        row.key, row.value, row.created_ms, () if row.created_ms is not None else tuple(row.headers)
    )


def marks_of(rows: Sequence[OutboxRow]) -> dict[int, Known]:
    """Return the marks of *rows* by number, their identities with all bits known; for every row that there
    is, so without a call for each.
    """
    return {
        row.id: (
            identity_of(row)
            if row.created_ms is None
            else crc32(row.value or b"", crc32(row.key or b"", row.created_ms & WHOLE))
        )
        | ALL_KNOWN
        for row in rows
    }


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
