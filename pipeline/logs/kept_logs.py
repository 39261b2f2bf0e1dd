"""The logs of global tables as read for the other partitions that are folded in the same process: each
partition sees its own positions, and reads the part that those before it have not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.sources import Input
from holdfast.pipeline.topic import Span

KEPT_BYTES = 64 << 20
"""The limit on all kept logs together."""

Read = Callable[[Span], Iterator[tuple[Batch, int]]]
"""Reads a part of a log: batches, each with its size in bytes."""


class KeptLogs:
    """Logs that are read once by all, as far as they fit *limit_bytes* together; each reader reads the rest
    itself.

    Not for several threads. In another process it is empty.
    """

    def __init__(self, limit_bytes: int = KEPT_BYTES) -> None:
        self._left_bytes = limit_bytes
        self._logs: dict[tuple[str, tuple[Input, ...], int, Span], _KeptLog] = {}

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()

    def batches(
        self, topic: str, inputs: tuple[Input, ...], partition: int, span: Span, read: Read
    ) -> Iterator[Batch]:
        """Yield the records in *span* of a partition of *topic*, with the columns *inputs*.

        The part not read before comes from one call of *read*, for all; the part that is not kept from
        another call, for this caller alone.
        """
        place = (topic, inputs, partition, span)
        if (log := self._logs.get(place)) is None:
            log = self._logs[place] = _KeptLog(read(span), self._keeps)
        following = span.first
        for batch in log.batches():
            yield batch
            following = batch.offsets[-1] + 1
        if not log.is_whole:
            yield from (batch for batch, _ in read(Span(first=following, end=span.end)))

    def _keeps(self, size_bytes: int) -> bool:
        fits = size_bytes <= self._left_bytes
        if fits:
            self._left_bytes -= size_bytes
        return fits


class _KeptLog:
    """The batches of *read* that *keeps* has room for. `is_whole` is True if its yielded batches are all
    there are.
    """

    def __init__(self, read: Iterator[tuple[Batch, int]], keeps: Callable[[int], bool]) -> None:
        self._read: Iterator[tuple[Batch, int]] | None = read
        self._keeps, self._kept, self.is_whole = keeps, list[Batch](), False

    def batches(self) -> Iterator[Batch]:
        at = 0
        while at < len(self._kept) or self._go_on():
            yield self._kept[at]
            at += 1

    def _go_on(self) -> bool:
        """Keep the next batch; False where there is none, or no room."""
        read, self._read = self._read, None  # a reader that has failed is at no end, and cannot continue
        found: Any = None if read is None else next(read, None)
        if found is None:
            self.is_whole = self.is_whole or read is not None
            return False
        batch, size_bytes = found
        if not self._keeps(size_bytes):
            return False
        self._kept.append(batch)
        self._read = read
        return True
