"""The stock that a shop can sell: a table of prices joined with a table of stock, both keyed by item."""

from __future__ import annotations

import msgspec

from holdfast import Json, Source, Stream, create_app
from holdfast.streams import JoinTables


class Offer(msgspec.Struct, frozen=True):
    """The value of a record of `offers`; without value, the item is sold no more."""

    cents: int
    pieces: int


prices = Source("item-prices", Json(int | None))
stock = Source("item-stock", Json(int | None))
offers = Stream("offers", Json(Offer | None))
shelves = JoinTables(name="shelves", left=prices, right=stock, join=Offer, to=offers)
app = create_app(processors=[shelves])
