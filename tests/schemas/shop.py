"""Types and processors whose records have schemas, importable by workers and by Spark's executors."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

import msgspec

from holdfast import Avro, Emit, FoldWith, Processor, Rows, Source, Stream

Moment = Annotated[dt.datetime, msgspec.Meta(tz=True)]


class Kind(enum.Enum):
    BOOK = "BOOK"
    FOOD = "FOOD"


class Line(msgspec.Struct, frozen=True):
    item: str
    pieces: int = 1


@dataclass(frozen=True)
class Address:
    street: str
    zip: str | None = None


class Order(msgspec.Struct, frozen=True):
    customer: str
    cents: int
    lines: tuple[Line, ...] = ()
    kind: Kind = Kind.BOOK
    weight: float | None = None
    notes: dict[str, str] = {}
    seal: bytes = b""
    at: Moment | None = None
    day: dt.date | None = None
    number: UUID | None = None
    to: Address | None = None


class Total(msgspec.Struct, frozen=True):
    count: int = 0
    cents: int = 0


class Big(msgspec.Struct, frozen=True):
    customer: str
    total: Total


FULL = Order(
    "ada",
    1999,
    (Line("tea", 2), Line("jam")),
    Kind.FOOD,
    0.5,
    {"gift": "yes"},
    b"\x00\xff",
    dt.datetime(2026, 11, 25, 1, 2, 3, 456789, dt.UTC),
    dt.date(2026, 11, 25),
    UUID(int=7),
    Address("High Street", "AB1"),
)


def totals_of(orders: str, big: str, serde: Any = Avro, name: str = "avro_totals") -> Processor[Any, Any]:
    """Return a processor that sums up the topic *orders*, and tells *big* of who has spent much."""
    told = Stream(big, serde(Big))

    def fold(rows: Rows[Total], order: Order, at_ms: int, key: str) -> Iterator[Emit]:
        before = rows.get(key) or Total()
        after = Total(before.count + 1, before.cents + order.cents)
        rows[key] = after
        if before.cents < 10_000 <= after.cents:
            yield told.emit(key, Big(key, after))

    source: Source[Order] = Source(orders, serde(Order))
    return Processor(name=name, on={source: FoldWith(fold, ("key",))}, row=Total, emits=(told,))
