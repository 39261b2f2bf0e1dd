"""The cost of each order at today's prices: orders name a product, and products have another key."""

from __future__ import annotations

import msgspec

from holdfast import Json, Source, Stream, create_app
from holdfast.streams import JoinForeign


class OpenOrder(msgspec.Struct, frozen=True):
    """The value of a record of `open-orders`, keyed by order: {"product": "tea", "pieces": 2}."""

    product: str
    pieces: int


orders = Source("open-orders", Json(OpenOrder | None))
products = Source("products", Json(int | None))
costs = Stream("order-costs", Json(int | None))
priced = JoinForeign(
    name="priced",
    left=orders,
    right=products,
    key=lambda order: order.product,
    join=lambda order, cents: order.pieces * cents,
    to=costs,
)
app = create_app(processors=[*priced])
