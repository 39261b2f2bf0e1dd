"""The span of a batch of rows that was published."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.outbox.schema.layouts import OutboxRow
from holdfast.tracing.spans import MetTraces, Told, is_on, tell


def tell_published(outbox: str, rows: Sequence[OutboxRow], began_ms: int, ended_ms: int) -> None:
    """Make the span of *rows*, which were published between these times of the wall clock; none if they carry
    no trace.
    """
    if not is_on():
        return
    topics = {row.topic for row in rows}
    attributes: dict[str, str | int] = {
        "messaging.system": "kafka",
        "messaging.operation.type": "send",
        "messaging.destination.name": topics.pop() if len(topics) == 1 else outbox,
        "messaging.batch.message_count": len(rows),
    }
    told = Told(
        name=f"send {outbox}", kind="PRODUCER", began_ms=began_ms, ended_ms=ended_ms, attributes=attributes
    )
    tell(told, MetTraces().take(row.headers for row in rows))
