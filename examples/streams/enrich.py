"""Orders with the name of their customer: a stream joined with a table. Both topics are keyed by customer,
and have as many partitions.
"""

from __future__ import annotations

import msgspec

from holdfast import Json, Source, Stream, create_app
from holdfast.streams import JoinStreamTable


class Customer(msgspec.Struct, frozen=True):
    """The value of a record of `customers`: {"name": "Ada"}; without value, the customer is gone."""

    name: str


class CustomerOrder(msgspec.Struct, frozen=True):
    """The value of a record of `orders`: {"id": 7, "cents": 1999}."""

    id: int
    cents: int


class Enriched(msgspec.Struct, frozen=True):
    """The value of a record of `enriched`; *name* is None for a customer who was not known then."""

    id: int
    cents: int
    name: str | None


def enrich(order: CustomerOrder, customer: Customer | None) -> Enriched:
    return Enriched(order.id, order.cents, None if customer is None else customer.name)


customers = Source("customers", Json(Customer | None))
orders = Source("orders", Json(CustomerOrder))
enriched = Stream("enriched", Json(Enriched))
joined = JoinStreamTable(name="enrich", stream=orders, table=customers, join=enrich, to=enriched, how="left")
app = create_app(processors=[joined])
