"""The three bestsellers of each shelf: a chain of a total for each item, and a ranking for each shelf."""

from __future__ import annotations

import msgspec

from holdfast import Json, Source, create_app
from holdfast.streams import Rekey, aggregate, top


class Sale(msgspec.Struct, frozen=True):
    """The value of a record of `sales`, keyed by item: {"item": "green tea", "shelf": "tea", "pieces": 2}."""

    item: str
    shelf: str
    pieces: int


def add(so_far: Sale | None, sale: Sale) -> Sale:
    return Sale(sale.item, sale.shelf, sale.pieces + (so_far.pieces if so_far else 0))


decode = msgspec.json.Decoder(Sale).decode
sold = aggregate(
    name="sold",
    source="sales",
    decode=decode,
    key=lambda sale: sale.item,
    fold=add,
    row=Sale,
    emits="items-sold",
)
by_shelf = Rekey(name="by-shelf", source=Source("items-sold", Json(Sale)), by=lambda sale: sale.shelf)
best = top(
    3,
    name="bestsellers",
    source=by_shelf,
    key=lambda sale: sale.shelf,
    item=lambda sale: sale.item,
    score=lambda sale: sale.pieces,
    emits="bestsellers",
)
app = create_app(processors=[sold, by_shelf, best])
