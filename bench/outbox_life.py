"""Outbox: ten million rows through one table, and the leader killed under live traffic, on a real broker and
Postgres with fsync.

    python -P -m bench.outbox_life [--rows 10000000] [--kills 5] [--only flow|kills]

Flow: a writer keeps up to 100,000 rows waiting; it prints the sizes of the table with its indexes as it goes
on. Kills: two harvesters with a session of 6 s, 50 rows a second; from the SIGKILL to a consumer of committed
records having the first row committed after it.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaError, TopicPartition

from bench.outbox import insert
from bench.outbox_ground import KEYS, LIMIT_S, PARTITIONS, Ground, Table, Tail, grounded, holdfast, running
from bench.processes import cpu_s, rss_mb
from bench.run import load_average
from holdfast.outbox.schema.layouts import bucket_of

WAITING_ROWS, CHUNK_ROWS, EVERY_S = 100_000, 10_000, 10.0
PAD = "x" * 176
SESSION_S = 6.0
RATE = 50


def chunks(table: Table, rows: int) -> Iterator[bytes]:
    """Yield *rows* rows as text for COPY, their numbers from 0; a header is the msgpack of [["Seq", the
    number]].
    """
    line = f'{{}}\t{table.topic}\tkey-{{}}\t{{{{"seq":{{:08d}},"pad":"{PAD}"}}}}\t\\\\221\\\\222\\\\243Seq\\\\304\\\\010{{:08d}}\n'  # noqa: E501
    buckets = [bucket_of(table.topic, b"key-%d" % key) for key in range(KEYS)]
    for begin in range(0, rows, CHUNK_ROWS):
        numbers = range(begin, min(begin + CHUNK_ROWS, rows))
        keys = ((number, number * 7919 % KEYS) for number in numbers)
        yield "".join([line.format(buckets[key], key, number, number) for number, key in keys]).encode()


def flow(ground: Ground, rows: int) -> None:
    """Write and drain *rows* rows, telling the table's size; then check that each is there once, each key
    in order.
    """
    table = Table.make(ground, "holdfast")
    reader = Consumer({"bootstrap.servers": ground.bootstrap, "group.id": "ends"})
    places = [TopicPartition(table.topic, partition) for partition in range(PARTITIONS)]

    def published() -> int:
        """Markers count as well, one of some thousand."""
        return sum(reader.get_watermark_offsets(place, timeout=20)[1] for place in places)

    sizes: list[float] = []
    with (
        running(holdfast("fenced")(table), ground.folder / "flow.log") as process,
        psycopg.connect(ground.dsn, autocommit=True) as connection,
    ):
        began_s = told_s = time.time()
        written = last = 0
        for chunk in chunks(table, rows):
            while written - published() > WAITING_ROWS:
                assert process.poll() is None, "the harvester has ended"
                time.sleep(0.01)
            with connection.cursor().copy(
                f"COPY {table.name} (bucket,topic,key,value,headers) FROM STDIN"
            ) as copy:
                copy.write(chunk)
            written = min(written + CHUNK_ROWS, rows)
            if time.time() - told_s >= EVERY_S:
                sizes.append(size_mb(connection, table))
                rate, last, told_s = (written - last) / (time.time() - told_s), written, time.time()
                print(
                    f"  {written:>10,} rows  {rate:8,.0f} rows/s  table {sizes[-1]:6.1f} MB  RSS"
                    f" {rss_mb(process.pid):.0f} MB",
                    flush=True,
                )
        until_s = time.time() + LIMIT_S
        while not table.empty(connection):
            assert time.time() < until_s, "the table is not drained"
            time.sleep(0.05)
        spent_s, peak_mb, used_s = time.time() - began_s, rss_mb(process.pid), cpu_s(process.pid)
        sizes.append(size_mb(connection, table))
    reader.close()
    half = len(sizes) // 2
    early, late = max(sizes[: half or 1]), max(sizes[half:])
    print(
        f"  {rows:,} rows in {spent_s:.0f} s: {rows / spent_s:,.0f} rows/s, {used_s / rows * 1e6:.1f} us of"
        f" CPU a row, RSS {peak_mb:.0f} MB"
    )
    print(
        f"  largest table: {early:.1f} MB in the first half, {late:.1f} MB in the second (all rows together"
        f" are {rows * 330 / 1e6:,.0f} MB)"
    )
    check(ground, table, rows)


def size_mb(connection: Any, table: Table) -> float:
    """Return the size of the table with its indexes."""
    (size,) = connection.execute(f"SELECT pg_total_relation_size('{table.name}')").fetchone()
    return int(size) / 1e6


def check(ground: Ground, table: Table, rows: int) -> None:
    """Read everything back: each number once, those of a key ascending."""
    config = {
        "bootstrap.servers": ground.bootstrap,
        "group.id": "check",
        "enable.partition.eof": True,
        "fetch.queue.backoff.ms": 5,
    }
    consumer = Consumer({**config, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(table.topic, partition, 0) for partition in range(PARTITIONS)])
    seen, last, ended, inverted, repeated = bytearray(rows), dict[bytes, int](), 0, 0, 0
    while ended < PARTITIONS:
        for message in consumer.consume(10_000, 0.2):
            error = message.error()
            if error is not None:
                ended += error.code() == KafkaError._PARTITION_EOF
                continue
            number, key = int((message.value() or b"")[7:15]), message.key() or b""
            inverted += last.get(key, -1) > number
            last[key] = number
            repeated += seen[number]
            seen[number] = 1
    consumer.close()
    lost = seen.count(0)
    print(f"  read back: {lost} lost, {repeated} repeated, {inverted} out of their key's order", flush=True)
    assert not lost + repeated + inverted


def kills(ground: Ground, rounds: int) -> None:
    """Kill the leader again and again while rows are written."""
    table = Table.make(ground, "holdfast")
    command = holdfast("fenced")(table)
    gaps: list[float] = []
    with ExitStack() as stack, psycopg.connect(ground.dsn, autocommit=True) as connection:

        def start() -> subprocess.Popen[bytes]:
            return stack.enter_context(running(command, ground.folder / "kills.log"))

        processes = [start(), start()]
        tail = Tail(table)
        tail.start()
        number = 0
        for _ in range(rounds):
            settled_s = time.time() + SESSION_S + 2  # the one that was started last has joined and stands by
            while time.time() < settled_s or number - 1 not in tail.at_s:
                assert time.time() < settled_s + LIMIT_S, "nothing is published"
                insert(table, connection, number)
                number += 1
                time.sleep(1 / RATE)
            victim = leader(connection, table)
            os.kill(victim, signal.SIGKILL)
            killed_s, first = time.perf_counter(), number
            while first not in tail.at_s:
                assert time.perf_counter() - killed_s < LIMIT_S, "nobody took over"
                insert(table, connection, number)
                number += 1
                time.sleep(1 / RATE)
            gaps.append(tail.at_s[first] - killed_s)
            print(f"  killed: {gaps[-1]:.2f} s to the next row", flush=True)
            assert victim in [each.pid for each in processes]
            processes = [each for each in processes if each.pid != victim] + [start()]
        until_s = time.time() + LIMIT_S
        while len(tail.at_s) < number:
            assert time.time() < until_s, f"{number - len(tail.at_s)} rows did not arrive"
            time.sleep(0.05)
        tail.end()
    print(
        f"  SIGKILL to the next row, session {SESSION_S:.0f} s: median {statistics.median(gaps):.2f} s,"
        f" longest {max(gaps):.2f} s, wanted {SESSION_S + 1:.0f} s; {number:,} rows, none lost",
        flush=True,
    )


def leader(connection: Any, table: Table) -> int:
    """Return the process that took the last epoch."""
    (name,) = connection.execute(f"SELECT leader FROM {table.name}_lease WHERE shard = 0").fetchone()
    return int(name.rpartition("_")[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--only", choices=("flow", "kills"))
    given = parser.parse_args()
    with grounded() as ground:
        if given.only in (None, "kills"):
            kills(ground, given.kills)
        if given.only in (None, "flow"):
            flow(ground, given.rows)
        print(f"  {load_average()}", flush=True)


if __name__ == "__main__":
    main()
