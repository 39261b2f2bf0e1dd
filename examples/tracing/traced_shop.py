"""A service that takes an order: the row it writes for the outbox carries the trace of the request."""

import sqlite3

from opentelemetry import trace

from holdfast import OutboxWriter

tracer = trace.get_tracer("shop")
outbox = OutboxWriter()


def take_order(connection: sqlite3.Connection, order: str) -> None:
    with tracer.start_as_current_span("take order"), connection:
        outbox.write(connection, "orders", key=order, value=order)
