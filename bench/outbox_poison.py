"""Outbox beside a poisoned key: the rate of the others with and without one row that Kafka refuses each time it is tried.

    python -P -m bench.outbox_poison [--rows 200000] [--rounds 3]

Policy `wait`: the row is tried again after 1, 2, 4 ... seconds as long as the drain lasts. Rate: from the first published record's
timestamp to the others being gone. Rounds with and without take turns. The promise is at least 0.9.
"""

from __future__ import annotations

import argparse
import statistics
import time

import msgspec
import psycopg
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.outbox_ground import KEYS, LIMIT_S, Ground, Table, grounded, holdfast, inversions, running
from holdfast.outbox.layouts import bucket_of


def poison(table: Table) -> None:
    """Write one row, the lowest of all, that its topic refuses."""
    topic = f"{table.topic}-small"
    admin = AdminClient({"bootstrap.servers": table.ground.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": "2000"})])[topic].result(20)
    row = {"bucket": bucket_of(topic, b"poison"), "topic": topic, "key": b"poison", "value": b"x" * 20_000}
    with psycopg.connect(table.ground.dsn, autocommit=True) as connection:
        connection.execute(
            f"INSERT INTO {table.name} (bucket, created_ms, topic, key, value, headers) "
            "VALUES (%(bucket)s, 0, %(topic)s, %(key)s, %(value)s, %(headers)s)",
            {**row, "headers": msgspec.msgpack.encode([])},
        )


def drain(ground: Ground, rows: int, *, poisoned: bool) -> float:
    """Return the rate at which *rows* rows leave, after checking that each did once and in order."""
    table = Table.make(ground, "holdfast")
    if poisoned:
        poison(table)
    table.fill(rows, KEYS)
    with (
        running(holdfast("fenced", poison="wait")(table), ground.folder / "poison.log") as process,
        psycopg.connect(ground.dsn, autocommit=True) as connection,
    ):
        until_s = time.monotonic() + LIMIT_S
        while connection.execute(f"SELECT 1 FROM {table.name} LIMIT 1 OFFSET {int(poisoned)}").fetchone() is not None:
            assert process.poll() is None, (ground.folder / "poison.log").read_text()[-2000:]
            assert time.monotonic() < until_s, "rows are left"
            time.sleep(0.005)
        ended_ms = time.time_ns() / 1e6
        tried = connection.execute(f"SELECT max(attempts) FROM {table.name}_attempts").fetchone() if poisoned else None
    records = table.read()
    assert sorted(number for _, _, number, _ in records) == list(range(rows)), "each row once"
    assert inversions((key, number) for _, key, number, _ in records) == 0
    rate = rows / (ended_ms - min(at_ms for at_ms, *_ in records)) * 1000
    print(f"  {'beside a poisoned key' if poisoned else 'alone':22} {rate:10,.0f} rows/s{f', tried {tried[0]} times' if tried else ''}")
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    rates: dict[bool, list[float]] = {False: [], True: []}
    with grounded() as ground:
        drain(ground, asked.rows, poisoned=False)  # warm
        for turn in range(2 * asked.rounds):
            rates[turn % 2 == 1].append(drain(ground, asked.rows, poisoned=turn % 2 == 1))
    print(f"poisoned / alone: {statistics.median(rates[True]) / statistics.median(rates[False]):.2f} (0.9)")


if __name__ == "__main__":
    main()
