"""holdfast: event-sourced processors on Kafka, claims, and outboxes.

The names below are the public face, with `holdfast.clients`, `holdfast.errors`, `holdfast.outbox.migrate` (tables of an outbox),
`holdfast.outbox.goharvest` (settings of a reaper) and `holdfast.dev.fixtures` (for pytest). Everything else is internal: it may change in any
release. Each name is imported at its first use, for a Spark executor that imports `holdfast.core` runs this file, and a service that
only claims partitions needs no Faust.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.agents.app import create_app
    from holdfast.clients.claim_blocking import BlockingClaimConsumer
    from holdfast.clients.claim_consumer import ClaimConsumer
    from holdfast.clients.claim_messages import ClaimedMessage
    from holdfast.clients.range_consumer import RangeConsumer
    from holdfast.clients.sequenced_producer import SequencedProducer
    from holdfast.clients.tables import TableClient
    from holdfast.clients.tables_blocking import BlockingTableClient
    from holdfast.config import Settings, settings_from_environment
    from holdfast.core.partitioners import by_key
    from holdfast.core.processor import Emit, Processor
    from holdfast.core.rows import Rows
    from holdfast.errors import HoldfastError
    from holdfast.outbox.writer import OutboxRecord, OutboxWriter

__all__ = [
    "BlockingClaimConsumer",
    "BlockingTableClient",
    "ClaimConsumer",
    "ClaimedMessage",
    "Emit",
    "HoldfastError",
    "OutboxRecord",
    "OutboxWriter",
    "Processor",
    "RangeConsumer",
    "Rows",
    "SequencedProducer",
    "Settings",
    "TableClient",
    "by_key",
    "create_app",
    "settings_from_environment",
]

_HOMES = {
    "BlockingClaimConsumer": "clients.claim_blocking",
    "BlockingTableClient": "clients.tables_blocking",
    "ClaimConsumer": "clients.claim_consumer",
    "ClaimedMessage": "clients.claim_messages",
    "Emit": "core.processor",
    "HoldfastError": "errors",
    "OutboxRecord": "outbox.writer",
    "OutboxWriter": "outbox.writer",
    "Processor": "core.processor",
    "RangeConsumer": "clients.range_consumer",
    "Rows": "core.rows",
    "SequencedProducer": "clients.sequenced_producer",
    "Settings": "config",
    "TableClient": "clients.tables",
    "by_key": "core.partitioners",
    "create_app": "agents.app",
    "settings_from_environment": "config",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f"holdfast.{home}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
