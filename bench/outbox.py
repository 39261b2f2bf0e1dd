"""Outbox: a backlog drained, one hot key, live latency and quiet hours, beside the plain relay, on a real
broker and Postgres with fsync.

    python -P -m bench.outbox [--rows 200000] [--rounds 3] [--only drain|hot|live] [--live fenced,bare]
    [--goharvest REAPER]

Rows have a value of 200 bytes, one header, 10,000 keys, 4 partitions. Rate: from the first published record's
timestamp to the table being empty. Live: 50 rows a second, from the commit of the insert to a consumer of
committed records having it; `bare` is a transaction of the same records by a producer that has no outbox,
from its beginning: what the broker and its clients take by themselves. Every run is checked: each row once,
each key in order. With --goharvest its reaper, built beforehand, takes part in the drains; without it `mark`
is shown beside what the tuned reaper measured on such a machine.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.outbox_ground import (
    KEYS,
    LAYOUT,
    LIMIT_S,
    PARTITIONS,
    Ground,
    System,
    Table,
    Tail,
    goharvest,
    grounded,
    holdfast,
    inversions,
    plain,
    running,
)
from bench.processes import cpu_s, quantiles, rss_mb
from bench.run import Result, load_average, median, ratio
from bench.warm import warm
from holdfast.outbox.schema.layouts import bucket_of

TUNED_GOHARVEST = 11_800
LIVE = ("bare", "plain-500", "fenced", "mark")
IDLE_S = 5.0
LEAD_S = 2.0
"""Live rows before those that are measured: a topic's first appends make its files, and a consumer's first
fetches settle it.
"""
_STATEMENT = re.compile(r"LOG:  (statement|execute [^:]*): ")


def drain(ground: Ground, name: str, system: System, rows: int, keys: int) -> Result:
    """Drain a backlog of *rows*; returns the rate, CPU and memory, after checking what came out."""
    table = Table.make(ground, LAYOUT[name.split("-")[0]])
    table.fill(rows, keys)
    with (
        running(system(table), ground.folder / f"{name}.log") as process,
        psycopg.connect(ground.dsn, autocommit=True) as connection,
    ):
        until_s = time.time() + LIMIT_S
        while not table.empty(connection):
            if process.poll() is not None or time.time() > until_s:
                raise SystemExit(
                    f"{name} did not drain:\n{(ground.folder / f'{name}.log').read_text()[-3000:]}"
                )
            time.sleep(0.02)
        ended_s, used_s, peak_mb = time.time(), cpu_s(process.pid), rss_mb(process.pid)
    found = table.read()
    numbers = [number for _, _, number, _ in found]
    inverted = inversions((key, number) for _, key, number, _ in found)
    assert sorted(numbers) == list(range(rows)), (
        f"{name}: {len(numbers)} records, {len(set(numbers))} different, of {rows}"
    )
    assert not inverted, f"{name}: {inverted} records out of their key's order"
    spent_s = ended_s - min(at_ms for at_ms, *_ in found) / 1000
    return {"rate": rows / spent_s, "cpu_us": used_s / rows * 1e6, "rss_mb": peak_mb}


def drains(ground: Ground, rows: int, rounds: int, reaper: Path | None) -> None:
    systems: dict[str, System] = {
        "plain-500": plain(500),
        "plain-2000": plain(2_000),
        "fenced": holdfast("fenced"),
        "mark": holdfast("mark"),
    }
    if reaper is not None:
        systems["goharvest"] = goharvest(reaper)
    out: dict[str, list[Result]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, system in systems.items():
            figures = drain(ground, name, system, rows, KEYS)
            out[name].append(figures)
            print(
                f"  {name:12s} " + "  ".join(f"{key}={value:,.1f}" for key, value in figures.items()),
                flush=True,
            )
    ratio(out, "fenced", "plain-500", 0.7)
    ratio(out, "fenced", "plain-2000", 0.7)
    if reaper is not None:
        ratio(out, "fenced", "goharvest", 6.0)
        ratio(out, "mark", "goharvest", 2.5)
    else:
        for name, times in (("fenced", 6.0), ("mark", 2.5)):
            rate = median(out, name)
            print(
                f"  {name}: {rate:,.0f} rows/s, {rate / TUNED_GOHARVEST:.1f} times what tuned goharvest"
                f" measured, wanted {times}",
                flush=True,
            )


def hot(ground: Ground, rows: int, rounds: int) -> None:
    out: dict[str, list[Result]] = {"fenced-hot": [], "fenced-many": []}
    for _ in range(rounds):
        for name, keys in (("fenced-hot", 1), ("fenced-many", KEYS)):
            out[name].append(drain(ground, name, holdfast("fenced"), rows, keys))
            print(f"  {name:12s} {out[name][-1]['rate']:,.0f} rows/s", flush=True)
    ratio(out, "fenced-hot", "fenced-many", 0.8)


def insert(table: Table, connection: Any, number: int) -> None:
    """Commit one row, as the writers of the layout do."""
    value = json.dumps({"seq": number, "pad": "x" * 176}, separators=(",", ":"))
    key = f"key-{number % KEYS}"
    with connection.transaction():
        if table.layout == "holdfast":
            columns, marks = "bucket,topic,key,value", "%s,%s,%s,%s"
            given: tuple[Any, ...] = (
                bucket_of(table.topic, key.encode()),
                table.topic,
                key.encode(),
                value.encode(),
            )
            connection.execute(f'NOTIFY "holdfast:{table.name}"')
        else:
            columns = "create_time,kafka_topic,kafka_key,kafka_value,kafka_header_keys,kafka_header_values"
            marks, given = "now(),%s,%s,%s,%s,%s", (table.topic, key, value, ["Seq"], [str(number)])
        connection.execute(f"INSERT INTO {table.name} ({columns}) VALUES ({marks})", given)


def live(ground: Ground, name: str, system: System, seconds: float, rate: int = 50) -> list[float]:
    """Return commit to consumer, seconds, of rows inserted one a transaction."""
    table = Table.make(ground, LAYOUT[name.split("-")[0]])
    with (
        running(system(table), ground.folder / f"live-{name}.log") as process,
        psycopg.connect(ground.dsn, autocommit=True) as connection,
    ):
        connection.execute("SET log_statement = 'none'")
        insert(table, connection, 10**6)
        until_s = time.time() + LIMIT_S
        while not table.empty(connection):
            assert time.time() < until_s, f"{name} does not publish"
            time.sleep(0.05)
        tail = Tail(table)
        tail.start()
        time.sleep(1.0)
        written: dict[int, float] = {}
        began_s, began_cpu_s = time.perf_counter(), cpu_s(process.pid)
        lead = int(LEAD_S * rate)
        for number in range(int(seconds * rate) + lead):
            time.sleep(max(0.0, began_s + number / rate - time.perf_counter()))
            insert(table, connection, number)
            written[number] = time.perf_counter()
        time.sleep(1.0)
        share = (cpu_s(process.pid) - began_cpu_s) / (time.perf_counter() - began_s)
        idle_s, idle_cpu_s = time.perf_counter(), cpu_s(process.pid)
        time.sleep(IDLE_S)
        idle = (cpu_s(process.pid) - idle_cpu_s) / (time.perf_counter() - idle_s)
        asked = statements(ground, connection)
        tail.end()
    lost = len(written.keys() - tail.at_s.keys())
    assert not lost, f"{name}: {lost} rows did not arrive"
    print(
        f"  {name:12s} CPU {share:.1%} of a core at {rate} rows/s; idle {idle:.1%} of a core (wanted 3 %), "
        f"{asked:.1f} statements/s to the database (wanted 5)",
        flush=True,
    )
    return [tail.at_s[number] - at_s for number, at_s in written.items() if number >= lead]


def statements(ground: Ground, connection: Any) -> float:
    """Return how many statements a second the database is asked now by others than *connection*, by its
    own log.
    """
    log = ground.database_folder / "server.log"
    log_all(connection, "all")
    with log.open("rb") as file:
        file.seek(0, 2)
        time.sleep(IDLE_S)
        found = len(_STATEMENT.findall(file.read().decode(errors="replace")))
    log_all(connection, "none")
    return found / IDLE_S


def log_all(connection: Any, which: str) -> None:
    connection.execute(f"ALTER SYSTEM SET log_statement = '{which}'")
    connection.execute("SELECT pg_reload_conf()")
    time.sleep(0.5)


def bare(ground: Ground, seconds: float, rate: int = 50) -> list[float]:
    """Return transaction's beginning to consumer, seconds: a record and two of progress, as `fenced`
    publishes one row.
    """
    name = f"bare-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": ground.bootstrap})
    for future in admin.create_topics(
        [NewTopic(name, PARTITIONS, 1), NewTopic(f"{name}-progress", 1, 1)]
    ).values():
        future.result(20)
    producer = Producer({"bootstrap.servers": ground.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    tail = Tail(Table(ground, "holdfast", name, name))
    tail.start()
    began: dict[int, float] = {}
    began_s = time.perf_counter()
    while time.perf_counter() - began_s < seconds + LEAD_S:
        number = len(began)
        time.sleep(max(0.0, began_s + number / rate - time.perf_counter()))
        value = json.dumps({"seq": number, "pad": "x" * 176}, separators=(",", ":"))
        began[number] = time.perf_counter()
        producer.begin_transaction()
        producer.produce(name, value, f"key-{number % KEYS}")
        producer.produce(f"{name}-progress", b"x" * 80, b"rows")
        producer.produce(f"{name}-progress", b"x" * 80, b"sequences")
        producer.commit_transaction(30)
    until_s = time.time() + LIMIT_S
    while len(tail.at_s) < len(began):
        assert time.time() < until_s, "records of the bare producer did not arrive"
        time.sleep(0.05)
    tail.end()
    return [tail.at_s[number] - at_s for number, at_s in began.items() if at_s - began_s >= LEAD_S]


def lives(ground: Ground, seconds: float, rounds: int, chosen: Sequence[str]) -> None:
    warm(ground.bootstrap)
    systems: Mapping[str, System] = {
        "plain-500": plain(500),
        "fenced": holdfast("fenced"),
        "mark": holdfast("mark"),
    }
    for _ in range(rounds):
        for name in chosen:
            samples = bare(ground, seconds) if name == "bare" else live(ground, name, systems[name], seconds)
            p50_ms = statistics.median(samples) * 1e3
            wanted = f"  (wanted p50 <= 6, p99 <= 15: p50 {p50_ms:.1f})" if name == "fenced" else ""
            print(f"  {name:12s} {quantiles(samples)}{wanted}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--only", choices=("drain", "hot", "live"))
    parser.add_argument(
        "--live", default=",".join(LIVE), help="which of them to measure live (default: %(default)s)"
    )
    parser.add_argument("--goharvest", type=Path)
    given = parser.parse_args()
    chosen = given.live.split(",")
    if unknown := set(chosen) - set(LIVE):
        parser.error(f"--live {given.live}: no {', '.join(sorted(unknown))}; there are {', '.join(LIVE)}")
    with grounded() as ground:
        if given.only in (None, "drain"):
            drains(ground, given.rows, given.rounds, given.goharvest)
        if given.only in (None, "hot"):
            hot(ground, given.rows, max(1, given.rounds - 1))
        if given.only in (None, "live"):
            lives(ground, given.seconds, max(1, given.rounds - 1), chosen)
        print(f"  {load_average()}", flush=True)


if __name__ == "__main__":
    main()
