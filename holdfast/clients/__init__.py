"""What a service imports: OutboxWriter, TableClient and admin verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.clients.outbox import OutboxRecord, OutboxWriter

__all__ = ["OutboxRecord", "OutboxWriter"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # at its first use: who writes to no outbox need not wait for SQLAlchemy
        from holdfast.clients import outbox

        return getattr(outbox, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
