"""The outbox, for services: `OutboxWriter` writes records in the transaction of the change they tell of."""

from __future__ import annotations

from holdfast.outbox.writer import Encoder, OutboxRecord, OutboxWriter

__all__ = ["Encoder", "OutboxRecord", "OutboxWriter"]
