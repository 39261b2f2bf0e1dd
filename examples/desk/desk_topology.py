"""The order desk as a topology: every table is a processor, exactly once; what acts on the world is still an
agent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast import Emit, Json, Processor, Rows, Source, by_key, create_app
from holdfast.streams import Rekey

BIG_CENTS = 1_000
HOUR_MS = 3_600_000


class Order(msgspec.Struct, frozen=True):
    """An order of a customer."""

    order: str
    customer: str
    cents: int


class Payment(msgspec.Struct, frozen=True):
    """A payment of an order."""

    order: str
    cents: int


class Spending(msgspec.Struct, frozen=True):
    """The sum of a customer's orders."""

    orders: int = 0
    cents: int = 0


class BigCustomer(msgspec.Struct, frozen=True):
    """A customer who has just become a big one."""

    customer: str
    cents: int


# -- customers' spending: group_by is a step, and each table a processor downstream of it

by_customer = Rekey(name="by-customer", source=Source("orders", Json(Order)), by=lambda order: order.customer)


def count_order(rows: Rows[Spending], order: Order, at_ms: int) -> Iterator[Emit]:
    """Count each customer's orders, and report customers who become big."""
    before = rows.get(order.customer) or Spending()
    after = rows[order.customer] = Spending(before.orders + 1, before.cents + order.cents)
    if before.cents < BIG_CENTS <= after.cents:
        value = msgspec.json.encode(BigCustomer(order.customer, after.cents))
        yield Emit("big-customers", key=msgspec.json.encode(order.customer), value=value)


def spending_row(customer: str, value: dict[str, int]) -> tuple[str, Spending]:
    """Return the row for a key and a value of the old table `spending`."""
    return customer, msgspec.convert(value, Spending)


spending = Processor(
    name="spending",
    source=by_customer,
    fold=count_order,
    row=Spending,
    route=by_key,
    emits=("big-customers",),
)


def hour_key(customer: str, begin_ms: int) -> str:
    """Return the key of an hour of a customer, which lies with the customer."""
    return f"{customer}@{begin_ms}"


def count_hour(rows: Rows[int], order: Order, at_ms: int) -> None:
    """Count what each customer spends by the hour."""
    key = hour_key(order.customer, at_ms // HOUR_MS * HOUR_MS)
    rows[key] = (rows.get(key) or 0) + order.cents


def hour_row(key: tuple[str, tuple[float, float]], cents: int) -> tuple[str, int]:
    """Return the row for a key and a value of the old windowed table `hours`."""
    customer, (begin_s, _) = key
    return hour_key(customer, int(begin_s * 1000)), cents


hours = Processor(
    name="hours",
    source=by_customer,
    fold=count_hour,
    row=int,
    route=lambda key, partitions: by_key(key.rpartition("@")[0], partitions),
)

# -- payments, as before


def count_payment(rows: Rows[int], payment: Payment, at_ms: int) -> Iterator[Emit]:
    """Sum the payments of each order, and send a receipt for it."""
    cents = rows[payment.order] = (rows.get(payment.order) or 0) + payment.cents
    yield Emit("receipts", key=payment.order, value=msgspec.json.encode(Payment(payment.order, cents)))


paid = Processor(
    name="paid",
    source="payments",
    decode=msgspec.json.Decoder(Payment).decode,
    fold=count_payment,
    row=int,
    emits=("receipts",),
)
app = create_app([by_customer, spending, hours, paid], topic_partitions=3)

# -- what others want to know: an agent reads what the step reads

orders = app.topic("orders", key_serializer="raw", value_serializer="raw")
audit = app.topic("audit", value_serializer="json")
rung: Counter[str] = Counter()


@app.agent(orders)
async def write_audit(stream: Any) -> None:
    """Send orders to the auditors, several at a time."""
    async for taken in stream.take(10, within=0.2):
        await audit.send(value=[msgspec.json.decode(order) for order in taken])


@app.timer(1.0)
async def ring() -> None:
    """Count that the desk is alive."""
    rung["timer"] += 1


@app.crontab("0 * * * *", on_leader=True)
async def close_the_hour() -> None:
    """Do once an hour what one worker is to do."""
    rung["hour"] += 1
