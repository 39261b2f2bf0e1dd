"""`python -P -m holdfast.dev.demo.processes.writer DATABASE TOPIC SEED`: a service of the demo that takes
orders into SQLite, until SIGTERM.

Each order is a row of `orders` and a row of the outbox, in one transaction. Some transactions are rolled back
at the very end, as when a payment fails: the number of such an order is given to the next one, so its message
would be a lie if anybody ever saw it.
"""

from __future__ import annotations

import random
import signal
import sqlite3
import sys

import msgspec

from holdfast.cli.asked import StopRequest
from holdfast.outbox.writer.outbox_writer import OutboxWriter

CUSTOMERS = 40
PAUSE_S = 0.008
WAIT_S = 120.0
GIVE_UP_EVERY = 10
REFUSED_CENTS = 13
"""The price of all orders that are rolled back, and of no others."""


def main(database: str, topic: str, seed: int) -> None:
    """Take orders until asked to end, then say how many."""
    chance, over = random.Random(seed), StopRequest()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    outbox = OutboxWriter(value_encoder=msgspec.json.encode)
    connection = sqlite3.connect(database, timeout=WAIT_S, isolation_level=None)
    taken = refused = 0
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
        while not over.wait(chance.uniform(0, 2 * PAUSE_S)):
            if place(connection, outbox, topic, chance):
                taken += 1
            else:
                refused += 1
    finally:
        connection.close()
    print(f"{taken} orders taken, {refused} rolled back", flush=True)


def place(connection: sqlite3.Connection, outbox: OutboxWriter, topic: str, chance: random.Random) -> bool:
    """Take one order, message included, and return whether it was kept."""
    kept = chance.randrange(GIVE_UP_EVERY) > 0
    customer, cents = (
        f"customer-{chance.randrange(CUSTOMERS):02d}",
        chance.randrange(100, 10_000) if kept else REFUSED_CENTS,
    )
    connection.execute("BEGIN IMMEDIATE")
    try:
        number = connection.execute(
            "INSERT INTO orders (customer, cents) VALUES (?, ?)", (customer, cents)
        ).lastrowid
        value = {"order": number, "customer": customer, "cents": cents}
        outbox.write(connection, topic, key=customer, value=value, headers={"number": str(number)})
    except BaseException:
        connection.rollback()
        raise
    if kept:
        connection.commit()
    else:
        connection.rollback()
    return kept


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
