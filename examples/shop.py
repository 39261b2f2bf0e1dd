"""A shop: sums orders by customer, announces each big customer once, and reminds quiet ones. docs/tutorial.md
shows how to run it.

Besides its rows it has an `Emit` in a fold, a timer, and an ordinary Faust agent that acts on the world.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast import Emit, Processor, Rows, by_key, create_app

BIG_CENTS = 100_000
QUIET_MS = 2_000  # a real shop would say a month


class Order(msgspec.Struct, frozen=True):
    """The value of a record of `orders`: {"customer": "ada", "cents": 1999}."""

    customer: str
    cents: int


class Total(msgspec.Struct, frozen=True):
    """A customer's orders, and the count of reminders sent to them."""

    count: int = 0
    cents: int = 0
    reminders: int = 0


def fold(rows: Rows[Total], order: Order, at_ms: int) -> Iterator[Emit]:
    before = rows.get(order.customer) or Total()
    after = msgspec.structs.replace(before, count=before.count + 1, cents=before.cents + order.cents)
    rows[order.customer] = after
    rows.wake_at(order.customer, at_ms + QUIET_MS)  # each order puts it off again
    if before.cents < BIG_CENTS <= after.cents:
        yield Emit("big-customers", key=order.customer, value=msgspec.json.encode(after))


def on_wake(rows: Rows[Total], customer: str, at_ms: int) -> Iterator[Emit]:
    """Called when the log's time has passed a customer's timer: before the next record of the partition,
    of any customer.
    """
    before = rows[customer]
    rows[customer] = after = msgspec.structs.replace(before, reminders=before.reminders + 1)
    yield Emit("reminders", key=customer, value=msgspec.json.encode(after))


totals = Processor(
    name="totals",
    source="orders",
    decode=msgspec.json.Decoder(Order).decode,
    fold=fold,
    on_wake=on_wake,
    row=Total,
    route=by_key,  # orders are keyed by customer, so a row lives in the partition of its key
    emits=("big-customers", "reminders"),
)
app = create_app(processors=[totals])


@app.agent(app.topic("big-customers", key_serializer="raw", value_serializer="raw"), name="greeter")
async def greet(stream: Any) -> None:
    """Act on the world at least once for each record: it is acked when that is done, and comes again if it
    never was.
    """
    async for event in stream.noack().events():
        total = msgspec.json.decode(event.value, type=Total)
        print(f"a present for {event.key.decode()}, who has spent {total.cents / 100:.2f}", flush=True)
        event.ack()
