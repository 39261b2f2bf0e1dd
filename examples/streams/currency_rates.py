"""Orders with their amount in euros: a stream that looks into a global table of exchange rates. The topic of
rates may have any number of partitions; each worker has a copy of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast import Emit, Global, Json, Processor, Rows, Source, Stream, by_key, create_app


class ForeignOrder(msgspec.Struct, frozen=True):
    """The value of a record of `foreign-orders`: {"id": "o-7", "currency": "usd", "amount": 1999}."""

    id: str
    currency: str
    amount: int


class InEuros(msgspec.Struct, frozen=True):
    """The value of a record of `orders-in-euros`; *amount* is None where no rate was known then."""

    id: str
    amount: float | None


def convert(rows: Rows[InEuros], order: ForeignOrder, at_ms: int) -> Iterator[Emit]:
    rate = rows.globals[rates].get(order.currency)
    rows[order.id] = converted = InEuros(order.id, None if rate is None else round(order.amount * rate, 2))
    yield in_euros.emit(order.id, converted)


rates: Global[float] = Global("rates", Source("rates", Json(float)))
orders = Source("foreign-orders", Json(ForeignOrder))
in_euros = Stream("orders-in-euros", Json(InEuros))
converted: Processor[ForeignOrder, InEuros] = Processor(
    name="in-euros", on={orders: convert}, row=InEuros, reads=(rates,), route=by_key, emits=(in_euros,)
)
app = create_app(processors=[converted])
