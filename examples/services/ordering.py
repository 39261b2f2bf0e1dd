"""A service with an outbox: `python ordering.py CUSTOMER CENTS [TIMES]`. What it adopts of holdfast are the
lines from `upgrade` on.

A harvester publishes what it writes: `holdfast outbox harvest --database sqlite:///shop.db`.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing

import msgspec

from holdfast import OutboxWriter
from holdfast.outbox.schema.migrate import upgrade

DATABASE = "shop.db"


def main(customer: str, cents: int, times: int = 1) -> None:
    upgrade(f"sqlite:///{DATABASE}")  # or `holdfast outbox init`, once
    outbox = OutboxWriter(value_encoder=msgspec.json.encode)
    with closing(sqlite3.connect(DATABASE, timeout=30)) as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT, cents INTEGER)"
        )
        for _ in range(times):
            with connection:  # one transaction: the order and its message, or neither
                number = connection.execute(
                    "INSERT INTO orders (customer, cents) VALUES (?, ?)", (customer, cents)
                ).lastrowid
                outbox.write(
                    connection,
                    "orders",
                    key=customer,
                    value={"order": number, "customer": customer, "cents": cents},
                )
                if cents < 0:
                    raise ValueError(
                        "nobody is paid for an order"
                    )  # rolled back: the message was never there


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *map(int, sys.argv[3:]))
