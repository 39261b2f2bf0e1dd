"""A shop without a mistake: type checkers find nothing in it."""

from __future__ import annotations

from decimal import Decimal
from typing import TypedDict

import msgspec
import pydantic

from holdfast import Emit, Global, Json, Processor, Rows, Source, Stream, Text, by_key
from holdfast.streams import (
    Branch,
    Filter,
    JoinStreamTable,
    JoinWithin,
    Map,
    Merge,
    Rekey,
    Session,
    Tumbling,
    Windowed,
    WindowResult,
    count,
    final,
    latest,
    reduce,
    total,
)


class Order(msgspec.Struct, frozen=True):
    id: str
    customer: str
    cents: int
    at_ms: int


class Payment(msgspec.Struct, frozen=True):
    order: str
    cents: int


class Total(msgspec.Struct, frozen=True):
    count: int = 0
    cents: int = 0


class Seen(TypedDict):
    page: str


class Priced(pydantic.BaseModel, frozen=True):
    sku: str
    price: Decimal


orders = Source("orders", Json(Order), key=Text(), time=lambda order: order.at_ms)
payments = Source("payments", Json(Payment), key=Text(), time="append")
customers = Source("customers", Json(str), key=Text())
big = Stream("big", Json(Total), key=Text())


def fold(rows: Rows[Total], order: Order, at_ms: int) -> list[Emit]:
    before = rows.get(order.customer) or Total()
    after = Total(before.count + 1, before.cents + order.cents)
    rows[order.customer] = after
    return [big.emit(order.customer, after)] if after.cents > 1_000 else []


def pay(rows: Rows[Total], payment: Payment, at_ms: int) -> None:
    rows[payment.order] = Total(1, payment.cents)


def name_of(rows: Rows[str], name: str, at_ms: int) -> None:
    rows["name"] = name


totals = Processor(name="totals", on={orders: fold, payments: pay}, row=Total, emits=(big,), route=by_key)
names = Global("names", customers, fold=name_of, row=str)

cents = Map(name="cents", source=orders, each=lambda order: order.cents, serde=Json(int))
dear = Filter(name="dear", source=orders, keep=lambda order: order.cents > 100)
paths = Branch(
    name="paths", source=orders, into={"dear": lambda order: order.cents > 100, "cheap": lambda order: True}
)
by_customer = Rekey(name="by-customer", source=orders, by=lambda order: order.customer)
both = Merge(name="both", sources=[paths["dear"], paths["cheap"]])


hourly = Windowed(
    name="hourly",
    source=by_customer,
    by=lambda order: order.customer,
    window=Tumbling("1h", grace="10m"),
    fold=lambda cents, order: (cents or 0) + order.cents,
    row=int,
    emit=final(Stream("hourly", Json(WindowResult[int]), key=Text())),
)
visits = Windowed(
    name="visits",
    source=by_customer,
    by=lambda order: order.customer,
    window=Session("30m"),
    fold=lambda n, order: (n or 0) + 1,
    merge=lambda one, other: one + other,
    row=int,
)
paid = JoinWithin(
    name="paid",
    left=orders,
    right=payments,
    before="0s",
    after="1h",
    how="left",
    join=lambda order, payment: (order.id, None if payment is None else payment.cents),
    to=Stream("paid", Json(tuple[str, int | None]), key=Text()),
)
named = JoinStreamTable(
    name="named",
    stream=orders,
    table=customers,
    join=lambda order, name: (order.id, name),
    how="inner",
    to=Stream("named", Json(tuple[str, str]), key=Text()),
)
words = count(name="words", source=orders, key=lambda order: order.customer)
spent = total(name="spent", source=orders, key=lambda order: order.customer, value=lambda order: order.cents)
last = latest(
    name="last", source=orders, key=lambda order: order.customer, value=lambda order: order.id, row=str
)
most = reduce(
    name="most",
    source=orders,
    key=lambda order: order.customer,
    value=lambda order: order.cents,
    by=max,
    row=int,
)
seen = Map(name="seen", source=Source("pages", Json(Seen)), each=lambda seen: seen["page"], serde=Json(str))
priced = Map(
    name="priced", source=Source("prices", Json(Priced)), each=lambda line: line.sku, serde=Json(str)
)
