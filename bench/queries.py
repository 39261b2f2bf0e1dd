"""Queries: remote gets and a scan of 10,000 rows while the worker folds 20,000 records/s.

    python -P -m bench.queries [--seconds 10] [--rate 20000]

The client is a process of its own, as in life: it and the worker share the machine with the broker and the
traffic. The broker is warmed up first, and the worker by the traffic. The answers show what was folded
meanwhile: each carries the offset it reflects.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from typing import Any

from bench.processes import quantiles, worker
from bench.run import ROOT, bench, load_average
from bench.traffic import PARTITIONS, heartbeats
from bench.warm import warm
from holdfast.agents.services.rationalizer import processors
from holdfast.clients.tables.client import TableClient
from holdfast.config import Settings
from holdfast.core.claims.claim_keys import claim_key
from holdfast.core.claims.frames import Heartbeat, decode
from holdfast.core.engine.declared.processor import Processor

ASKERS = {1: "p50 < 3", 4: ">= 1,500/s", 16: ">= 1,500/s"}
WARM_S = 10.0


async def position(tables: TableClient, table: Processor[Any, Any]) -> int:
    """Return how many records of all partitions have been folded."""
    answers = [await tables.get(table, "", partition=partition) for partition in range(PARTITIONS)]
    return sum(answer.as_of_offset + 1 for answer in answers)


async def ask(settings: Settings, seconds: float) -> None:
    claims = processors(settings)[0]
    keys = []
    for partition, value in heartbeats(10_000, 10_000):
        frame = decode(value)
        assert isinstance(frame, Heartbeat)
        keys.append((partition, claim_key(frame.group_id, frame.topic, frame.partition)))
    async with TableClient(settings, [claims]) as tables:

        async def one(asker: int, out: list[float], ended_s: float) -> None:
            at = asker * 997
            while time.perf_counter() < ended_s:
                partition, key = keys[at % len(keys)]
                at += 7
                started_s = time.perf_counter()
                answer = await tables.get(claims, key, partition=partition)
                assert answer.value is not None
                out.append(time.perf_counter() - started_s)

        async def together(askers: int) -> tuple[list[float], str]:
            """Ask side by side; return what each answer took, and the rates of answers and of records
            folded.
            """
            out: list[float] = []
            folded, started_s = await position(tables, claims), time.perf_counter()
            await asyncio.gather(*(one(asker, out, started_s + seconds) for asker in range(askers)))
            took_s, folded = time.perf_counter() - started_s, await position(tables, claims) - folded
            return out, f"{len(out) / took_s:,.0f}/s beside {folded / took_s:,.0f} records/s"

        for askers, wanted in ASKERS.items():
            samples, rates = await together(askers)
            print(f"  get, {askers} at a time: {rates}  {quantiles(samples)} (wanted {wanted})", flush=True)
        scans = []
        for _ in range(10):
            started_s, rows = time.perf_counter(), 0
            async for _row in tables.scan(claims):
                rows += 1
                if rows == 10_000:
                    break
            scans.append(time.perf_counter() - started_s)
        print(f"  scan of {rows:,} rows: {quantiles(scans)} (wanted < 250)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--ask", nargs=2, metavar=("BOOTSTRAP", "TOPIC"), help="be the asking process")
    given = parser.parse_args()
    if given.ask:
        settings = Settings(
            app="queries", kafka={"bootstrap.servers": given.ask[0]}, coordination_topic=given.ask[1]
        )
        asyncio.run(ask(settings, given.seconds))
        return
    with (
        bench(10_000, 10_000) as on,
        worker(on.environment("queries", BENCH_RECORDS="0"), on.folder) as asked,
    ):
        asked.wait_ready()
        warm(on.bootstrap)
        feed = ["bench.live", "--rate", str(given.rate), "--seconds", "600", "--feed", on.bootstrap, on.topic]
        feeder = subprocess.Popen(
            [sys.executable, "-P", "-m", *feed], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        try:
            time.sleep(WARM_S)
            command = [
                sys.executable,
                "-P",
                "-m",
                "bench.queries",
                "--seconds",
                str(given.seconds),
                "--ask",
                on.bootstrap,
                on.topic,
            ]
            subprocess.run(
                command, cwd=ROOT, check=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)}
            )
            assert feeder.poll() is None, "the traffic ended meanwhile"
            print(f"  {load_average()}")
        finally:
            feeder.terminate()
            feeder.wait(10)


if __name__ == "__main__":
    main()
