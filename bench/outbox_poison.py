"""Outbox beside a poisoned key: the rate of the other keys with and without one row of 2 MB in the middle,
which their topic cannot take.

    python -P -m bench.outbox_poison [--rows 10000] [--rounds 5]

For both strategies and both policies: `pass` sets the row aside after its attempts, `wait` tries it for ever.
Rate: rows of the other keys over the time from the first published record's timestamp to the last of them
being gone. Rounds with and without take turns. The promise is at least 0.9 of the clean rate.
"""

from __future__ import annotations

import argparse
import statistics
import time

import psycopg

from bench.outbox_ground import LAYOUT, LIMIT_S, Ground, Table, grounded, holdfast, inversions, running

KEYS = 100
POISON_BYTES = 2_000_000
COLUMNS = {"holdfast": ("key", "value"), "goharvest": ("kafka_key", "kafka_value")}


def poison(table: Table, number: int) -> int:
    """Make row *number* as large as its topic cannot take it, and return how many rows have its key."""
    key, value = COLUMNS[table.layout]
    more = f"repeat(' ', {POISON_BYTES})"
    with psycopg.connect(table.ground.dsn, autocommit=True) as connection:
        if table.layout == "goharvest":
            for each in (table.name, f"{table.name}_quarantine"):
                connection.execute(f"ALTER TABLE {each} ALTER COLUMN kafka_value TYPE text")
        else:
            more = f"convert_to({more}, 'UTF8')"
        connection.execute(
            f"UPDATE {table.name} SET {value} = {value} || {more} WHERE id = (SELECT min(id) + {number} FROM"
            f" {table.name})"
        )
        connection.execute(f"VACUUM ANALYZE {table.name}")
        connection.execute("CHECKPOINT")
        (count,) = connection.execute(
            f"SELECT count(*) FROM {table.name} WHERE {key} = (SELECT {key} FROM {table.name} ORDER BY id"
            f" LIMIT 1 OFFSET {number})"
        ).fetchone() or (0,)
    return int(count)


def drain(ground: Ground, rows: int, strategy: str, policy: str, *, poisoned: bool) -> float:
    """Return the rate in rows/s at which the rows of the other keys leave, after checking that each did
    once and in order.
    """
    table = Table.make(ground, LAYOUT[strategy])
    table.fill(rows, KEYS)
    number = rows // 2
    with psycopg.connect(ground.dsn, autocommit=True) as connection:
        key = COLUMNS[table.layout][0]
        (bad,) = connection.execute(
            f"SELECT {key} FROM {table.name} ORDER BY id LIMIT 1 OFFSET {number}"
        ).fetchone() or (None,)
        mine = poison(table, number) if poisoned else rows // KEYS
        others = f"SELECT 1 FROM {table.name} WHERE {key} <> %s LIMIT 1"
        with running(holdfast(strategy, poison=policy)(table), ground.folder / "poison.log") as process:
            until_s = time.monotonic() + LIMIT_S
            while connection.execute(others, (bad,)).fetchone() is not None:
                assert process.poll() is None, (ground.folder / "poison.log").read_text()[-2000:]
                assert time.monotonic() < until_s, "rows are left"
                time.sleep(0.005)
            ended_ms = time.time_ns() / 1e6
    records = [
        record
        for record in table.read()
        if record[1] != (bad if isinstance(bad, bytes) else str(bad).encode())
    ]
    assert len({number for _, _, number, _ in records}) == len(records) == rows - mine, "each row once"
    assert inversions((key, number) for _, key, number, _ in records) == 0
    return len(records) / (ended_ms - min(at_ms for at_ms, *_ in records)) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with grounded() as ground:
        for strategy in ("fenced", "mark"):
            drain(ground, asked.rows, strategy, "pass", poisoned=False)  # warm
            for policy in ("pass", "wait"):
                rates: dict[bool, list[float]] = {False: [], True: []}
                for turn in range(2 * asked.rounds):
                    rates[turn % 2 == 1].append(
                        drain(ground, asked.rows, strategy, policy, poisoned=turn % 2 == 1)
                    )
                clean, other = (statistics.median(rates[poisoned]) for poisoned in (False, True))
                print(
                    f"{strategy:6} {policy}: clean {clean:9,.0f} rows/s, poisoned {other:9,.0f} rows/s:"
                    f" {other / clean:.2f} (0.9)",
                    flush=True,
                )


if __name__ == "__main__":
    main()
