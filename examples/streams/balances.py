"""Balances of accounts: deposits less withdrawals, from two topics into one table."""

from __future__ import annotations

from holdfast import Json, Source, Stream, create_app
from holdfast.streams import cogroup

paid_in = Source("paid-in", Json(int))
paid_out = Source("paid-out", Json(int))
changed = Stream("balances-changed", Json(int | None))
balances = cogroup(
    name="balances",
    on={
        paid_in: lambda cents, more: (cents or 0) + more,
        paid_out: lambda cents, less: (cents or 0) - less,
    },
    row=int,
    to=changed,
)
app = create_app(processors=[balances])
