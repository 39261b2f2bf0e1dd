"""The span of a transaction, linked to the traces of its records; it is reported once that is durable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.clock import Clock
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.emits import Headers
from holdfast.core.engine.fold.folding import Changes
from holdfast.core.engine.fold.stretches import Stretch
from holdfast.core.engine.trace_context import TRACEPARENT, is_sampled
from holdfast.tables.partition import Partition
from holdfast.tracing.spans import MetTraces, Told, is_on, tell

LIMIT_MET = 1_000
"""The most records with a trace that are remembered of one transaction; a span links to fewer."""


class TracedBatches:
    """Reports the transactions of one partition as spans.

    A span links to the traces of the transaction's records, for processors that read their records' headers,
    as those made by `traced` do. Without OpenTelemetry no record is looked at.
    """

    def __init__(self, part: Partition, clock: Clock) -> None:
        inputs = [each.inputs for each in part.processor.folds]
        self._part, self._clock = part, clock
        self._columns = [each.index("headers") if "headers" in each else None for each in inputs]
        self._reads_headers = any(at is not None for at in self._columns)
        self._met: list[tuple[int, int, Headers]] = []
        self._began_ms = 0

    def watched(self, given: Iterator[Any]) -> Iterator[Any]:
        """Return *given*, with the traces collected from the items that a folder takes."""
        self._met.clear()
        if not self._reads_headers or not is_on():
            return given
        self._began_ms = self._clock.now_ms()
        return self._watching(given)

    def _watching(self, given: Iterator[Any]) -> Iterator[Any]:
        for each in given:
            if isinstance(each, Stretch):
                for source, portion in enumerate(each.portions):
                    if portion is not None:
                        self._look(source, portion.batch)
            else:
                self._look(0, each)
            yield each

    def _look(self, source: int, batch: Batch) -> None:
        if (at := self._columns[source]) is None:
            return
        for offset, headers in zip(batch.offsets, batch.columns[at], strict=True):
            if headers and len(self._met) < LIMIT_MET and _carries_sampled(headers):
                self._met.append((source, offset, headers))

    def committed(self, changes: Changes) -> None:
        """Make the span of *changes*, which are durable; none if no record of them is of a sampled trace."""
        if not self._met:
            return
        applied = changes.marker.applied
        # The transaction may have left the last of the given records to the next one.
        met = MetTraces().take(headers for source, offset, headers in self._met if offset <= applied[source])
        self._met.clear()
        part, refused = self._part, len(changes.refused)
        attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.type": "process",
            "messaging.destination.name": ",".join(part.processor.topics),
            "messaging.destination.partition.id": str(part.partition),
            "messaging.batch.message_count": changes.records,
            "holdfast.emitted": len(changes.emits),
            "holdfast.refused": refused,
        }
        told = Told(
            name=f"process {part.processor.name}",
            kind="CONSUMER",
            began_ms=self._began_ms,
            ended_ms=self._clock.now_ms(),
            attributes=attributes,
            failed=f"{refused} record(s) quarantined" if refused else "",
        )
        tell(told, met)


def _carries_sampled(headers: Headers) -> bool:
    return any(name == TRACEPARENT and is_sampled(value) for name, value in headers)
