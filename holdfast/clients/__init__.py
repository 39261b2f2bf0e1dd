"""Clients of other processes: claims and ranges of partitions, queries, the outbox's writer, producers with a
name, admin verbs.

The names below are public, as they are in `holdfast`; each is imported at its first use.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.clients.claims.blocking import BlockingClaimConsumer
    from holdfast.clients.claims.consumer import ClaimConsumer
    from holdfast.clients.claims.messages import ClaimedMessage
    from holdfast.clients.producers.sequenced import SequencedProducer
    from holdfast.clients.ranges.consumer import RangeConsumer
    from holdfast.clients.tables.blocking import BlockingTableClient
    from holdfast.clients.tables.client import TableClient
    from holdfast.outbox.writer.outbox_writer import OutboxRecord, OutboxWriter

__all__ = [
    "BlockingClaimConsumer",
    "BlockingTableClient",
    "ClaimConsumer",
    "ClaimedMessage",
    "OutboxRecord",
    "OutboxWriter",
    "RangeConsumer",
    "SequencedProducer",
    "TableClient",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(sys.modules["holdfast"], name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
