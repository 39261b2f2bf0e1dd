"""Payments, each once: a sender that tries again within a day is not paid twice."""

from __future__ import annotations

import msgspec

from holdfast import create_app
from holdfast.streams import dedupe


class Payment(msgspec.Struct, frozen=True):
    """The value of a record of `payments`, keyed by payment: {"id": "p-1", "cents": 500}."""

    id: str
    cents: int


once = dedupe(
    name="payments-once",
    source="payments",
    to="payments-once",
    decode=msgspec.json.Decoder(Payment).decode,
    key=lambda payment: payment.id,
    ttl="1d",
)
app = create_app(processors=[once])
