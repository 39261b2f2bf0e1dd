"""Events as a transport hands them to a runner, without a broker."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.kafka.fetching.source_fetcher import Fetched

AT_MS = 1_000


class HandedEvent:
    """One fetch. It is counted by the host that acks or drops it."""

    message = None

    def __init__(self, value: Fetched) -> None:
        self.value = value

    def ack(self) -> bool:
        return True


def event_of(
    first: int,
    values: Sequence[bytes],
    *,
    topic: str = "events",
    epoch: int = 0,
    at_ms: int = AT_MS,
    size_bytes: int | None = None,
) -> HandedEvent:
    """Return an event of records with *values* from offset *first* on, a byte each by default."""
    count = len(values)
    fetched = Fetched(
        epoch,
        topic,
        0,
        first,
        last=first + count - 1,
        size_bytes=count if size_bytes is None else size_bytes,
    )
    fetched.records.append(range(first, first + count), [at_ms] * count, values, [None] * count, None)
    return HandedEvent(fetched)
