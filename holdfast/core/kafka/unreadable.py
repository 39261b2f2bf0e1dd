"""A batch of a source that no reader of ours reads: it unpacks to more than a limit, or is corrupt.

Its description comes from its header.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Offsets *first* to *last* of a partition, which lie in one batch that cannot be read.

    *first* is where the reader stands, which may be within the batch; *error* is a class-like name for what
    is wrong, *reason* a line that tells it. What a broken header does not tell is -1, and then the batch is
    taken for one record.
    """

    topic: str
    partition: int
    first: int
    last: int
    reason: str
    error: str
    codec: str
    size_bytes: int
    records_count: int
    producer_id: int
    producer_epoch: int
    at_ms: int

    def __str__(self) -> str:
        where = f"offset {self.first}" if self.first == self.last else f"offsets {self.first} to {self.last}"
        return (
            f"{self.topic} partition {self.partition} stands before {where}, which cannot be read:"
            f" {self.reason} ({self.codec}, {self.size_bytes} bytes)"
        )
