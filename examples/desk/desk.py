"""An order desk as it was written for Faust: only the line that makes `app` is another. docs/from-faust.md
moves it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import faust
from faust.web import Request, View

from holdfast import create_app

BIG_CENTS = 1_000
HOUR_S = 3_600.0


class Order(faust.Record, serializer="json"):
    """An order of a customer."""

    order: str
    customer: str
    cents: int


class Payment(faust.Record, serializer="json"):
    """A payment of an order."""

    order: str
    cents: int


class Spending(faust.Record, serializer="json"):
    """The sum of a customer's orders."""

    orders: int
    cents: int


class BigCustomer(faust.Record, serializer="json"):
    """A customer who has just become a big one."""

    customer: str
    cents: int


app = create_app(topic_partitions=3)

orders = app.topic("orders", key_serializer="raw", value_type=Order)
payments = app.topic("payments", key_serializer="raw", value_type=Payment)
big_customers = app.topic("big-customers", value_type=BigCustomer)
receipts = app.topic("receipts", key_serializer="raw", value_type=Payment)
audit = app.topic("audit", value_serializer="json")

spending = app.Table("spending", default=lambda: Spending(orders=0, cents=0), value_type=Spending)
hours = app.Table("hours", default=int).tumbling(HOUR_S, expires=HOUR_S * 24 * 365)
paid = app.Table("paid", default=int)

rung: Counter[str] = Counter()


# -- what customers spend


@app.agent(orders)
async def count_spending(stream: Any) -> None:
    """Count each customer's orders, and report customers who become big."""
    async for order in stream.group_by(Order.customer):
        before = spending[order.customer]
        after = Spending(orders=before.orders + 1, cents=before.cents + order.cents)
        spending[order.customer] = after
        hours[order.customer] += order.cents
        if before.cents < BIG_CENTS <= after.cents:
            await big_customers.send(
                key=order.customer, value=BigCustomer(customer=order.customer, cents=after.cents)
            )


# -- payments


@app.agent(payments)
async def count_payments(stream: Any) -> None:
    """Sum the payments of each order, and send a receipt for it."""
    async for event in stream.events():
        payment = event.value
        paid[payment.order] += payment.cents
        await receipts.send(key=event.key, value=Payment(order=payment.order, cents=paid[payment.order]))


# -- what others want to know


@app.agent(orders)
async def write_audit(stream: Any) -> None:
    """Send orders to the auditors, several at a time."""
    async for taken in stream.take(10, within=0.2):
        await audit.send(value=[order.asdict() for order in taken])


@app.timer(1.0)
async def ring() -> None:
    """Count that the desk is alive."""
    rung["timer"] += 1


@app.crontab("0 * * * *", on_leader=True)
async def close_the_hour() -> None:
    """Do once an hour what one worker is to do."""
    rung["hour"] += 1


@app.page("/spending/")
async def show_spending(view: View, request: Request) -> Any:
    """Show what customers of this worker have spent."""
    return view.json({customer: [each.orders, each.cents] for customer, each in spending.items()})


@app.page("/hours/")
async def show_hours(view: View, request: Request) -> Any:
    """Show what customers of this worker have spent by the hour."""
    return view.json([[customer, window[0], cents] for (customer, window), cents in hours.table.items()])


@app.page("/paid/")
async def show_paid(view: View, request: Request) -> Any:
    """Show the payments of the orders of this worker."""
    return view.json(dict(paid.items()))
