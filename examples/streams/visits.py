"""Visits of a shop: what each visitor looked at, without a pause of more than half an hour."""

from __future__ import annotations

import msgspec

from holdfast import create_app
from holdfast.streams import Session, Windowed, final


class Look(msgspec.Struct, frozen=True):
    """The value of a record of `looks`, keyed by visitor: {"visitor": "ada", "item": "tea", "at_ms": 1}."""

    visitor: str
    item: str
    at_ms: int


visits = Windowed(
    name="visits",
    source="looks",
    decode=msgspec.json.Decoder(Look).decode,
    by=lambda look: look.visitor,
    time=lambda look: look.at_ms,
    window=Session("30m", grace="5m"),
    fold=lambda items, look: (*(items or ()), look.item),
    merge=lambda earlier, later: earlier + later,
    row=tuple[str, ...],
    emit=final("ended-visits"),
)
app = create_app(processors=[visits])
