"""Clients of other processes: claims and ranges of partitions, queries, the outbox's writer, producers with a name, admin verbs.

The names below are public, as they are in `holdfast`; each is imported at its first use.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.clients.claim_blocking import BlockingClaimConsumer
    from holdfast.clients.claim_consumer import ClaimConsumer
    from holdfast.clients.claim_messages import ClaimedMessage
    from holdfast.clients.range_consumer import RangeConsumer
    from holdfast.clients.sequenced_producer import SequencedProducer
    from holdfast.clients.tables import TableClient
    from holdfast.clients.tables_blocking import BlockingTableClient
    from holdfast.outbox.writer import OutboxRecord, OutboxWriter

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
