"""A fetcher's state of each partition, and the chunks that it delivers."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.kafka.topic_partition import Place


class HeldResponse:
    """An answer's bytes, which stay in memory until the last of its chunks is done."""

    __slots__ = ("chunks", "size_bytes")

    def __init__(self, size_bytes: int, chunks: int) -> None:
        self.size_bytes, self.chunks = size_bytes, chunks


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole batches of one partition, fetched from offset *first* on; *following* is where the next fetch
    begins.
    """

    source: FetchedPartition
    first: int
    following: int
    data: memoryview
    aborted: tuple[tuple[int, int], ...]
    answer: HeldResponse


class FetchedPartition:
    """A partition that is fetched:

    *following* is the next offset to ask for, *queued_bytes* what waits to be taken. *head* is the offset at
    which the log began when it was to be read from 0 and did not reach back to there any more; else 0.
    """

    __slots__ = (
        "advised",
        "chunks",
        "following",
        "head",
        "last_stable",
        "pause_s",
        "place",
        "queued_bytes",
        "resting_until_s",
        "size_bytes",
        "stopped",
        "unknown_since_s",
    )

    def __init__(self, place: Place, offset: int, *, advised: bool) -> None:
        self.place, self.following, self.advised = place, offset, advised
        self.queued_bytes = self.chunks = self.size_bytes = self.head = 0
        self.last_stable = -1
        self.stopped = False
        self.resting_until_s = self.pause_s = 0.0
        self.unknown_since_s = -1.0

    def __str__(self) -> str:
        return f"{self.place[0]} partition {self.place[1]}"
