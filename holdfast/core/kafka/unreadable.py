"""A batch of a source that no reader of ours reads: it unpacks to more than a limit, or is corrupt.

Its description comes from its header.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Offsets *first* to *last* of a partition, which lie in one batch that cannot be read.

    *first* is the reader's position, which may be within the batch; *error* is a class-like name of the
    fault, *reason* a line that describes it. Values that a broken header does not give are -1, and then the
    batch is
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
