"""Types and processors whose records have schemas, importable by workers and by Spark's executors."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

import msgspec

from holdfast import Avro, Emit, FoldWith, JsonSchema, Processor, Protobuf, Rows, Settings, Source, Stream
from tests.schemas import shop_pb2

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


def told_as_struct(customer: str, total: Total) -> Big:
    return Big(customer, total)


def told_as_message(customer: str, total: Total) -> Any:
    return shop_pb2.Big(customer=customer, count=total.count, cents=total.cents)


@dataclass(frozen=True, slots=True)
class Format:
    """One format's reader of orders, and writer of big customers."""

    orders: Any
    big: Any
    told: Callable[[str, Total], Any] = told_as_struct


FORMATS = {
    "avro": Format(Avro(Order), Avro(Big)),
    "json": Format(JsonSchema(Order), JsonSchema(Big)),
    "protobuf": Format(Protobuf(shop_pb2.Order), Protobuf(shop_pb2.Big), told_as_message),
}


def totals_of(orders: str, big: str, name: str = "avro") -> Processor[Any, Any]:
    """Return a processor that sums up the topic *orders*, and emits customers who have spent much to
    *big*.
    """
    form = FORMATS[name]
    told, make = Stream(big, form.big), form.told

    def fold(rows: Rows[Total], order: Any, at_ms: int, key: str) -> Iterator[Emit]:
        before = rows.get(key) or Total()
        after = Total(before.count + 1, before.cents + order.cents)
        rows[key] = after
        if before.cents < 10_000 <= after.cents:
            yield told.emit(key, make(key, after))

    source = Source(orders, form.orders)
    return Processor(name=f"{name}_totals", on={source: FoldWith(fold, ("key",))}, row=Total, emits=(told,))


def processors(settings: Settings) -> list[Processor[Any, Any]]:
    """Return a processor for each format, whose topics bear the application's name."""
    return [
        totals_of(f"{settings.app}-{name}-orders", f"{settings.app}-{name}-big", name) for name in FORMATS
    ]
