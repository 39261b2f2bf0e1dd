"""Visits of a shop: what each visitor looked at, without a pause of more than half an hour."""

from __future__ import annotations

import msgspec

from holdfast import Json, Source, create_app
from holdfast.streams import Session, Windowed, final


class Look(msgspec.Struct, frozen=True):
    """The value of a record of `looks`, keyed by visitor: {"visitor": "ada", "item": "tea", "at_ms": 1}."""

    visitor: str
    item: str
    at_ms: int


def seen(items: tuple[str, ...] | None, look: Look) -> tuple[str, ...]:
    return (*(items or ()), look.item)


def joined(earlier: tuple[str, ...], later: tuple[str, ...]) -> tuple[str, ...]:
    return earlier + later


visits = Windowed(
    name="visits",
    source=Source("looks", Json(Look), time=lambda look: look.at_ms),
    by=lambda look: look.visitor,
    window=Session("30m", grace="5m"),
    fold=seen,
    merge=joined,
    row=tuple[str, ...],
    emit=final("ended-visits"),
)
app = create_app(processors=[visits])
