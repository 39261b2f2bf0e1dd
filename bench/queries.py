"""Queries: remote gets and a scan of 10,000 rows while the worker folds 20,000 records/s.

    python -P -m bench.queries [--seconds 10] [--rate 20000]

The client is a process of its own, as in life: it and the worker share the machine with the broker and the traffic.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time

from bench.processes import quantiles, worker
from bench.run import ROOT, bench, load_average
from bench.traffic import heartbeats
from holdfast.agents.rationalizer import processors
from holdfast.clients.tables import TableClient
from holdfast.config import Settings
from holdfast.core.claims import claim_key
from holdfast.core.frames import Heartbeat, decode

ASKERS = 4


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

        await tables.get(claims, keys[0][1], partition=keys[0][0])
        alone: list[float] = []
        await one(0, alone, time.perf_counter() + seconds)
        print(f"  get, one asker: {quantiles(alone)} (wanted p50 < 3)", flush=True)
        together: list[float] = []
        started_s = time.perf_counter()
        await asyncio.gather(*(one(asker, together, started_s + seconds) for asker in range(ASKERS)))
        rate = len(together) / (time.perf_counter() - started_s)
        print(f"  get, {ASKERS} askers: {rate:,.0f}/s (wanted >= 1,500)  {quantiles(together)}", flush=True)
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
        settings = Settings(app="queries", kafka={"bootstrap.servers": given.ask[0]}, coordination_topic=given.ask[1])
        asyncio.run(ask(settings, given.seconds))
        return
    with bench(10_000, 10_000) as on, worker(on.environment("queries", BENCH_RECORDS="0"), on.folder) as asked:
        asked.wait_ready()
        feed = ["bench.live", "--rate", str(given.rate), "--seconds", str(given.seconds * 2 + 15), "--feed", on.bootstrap, on.topic]
        feeder = subprocess.Popen([sys.executable, "-P", "-m", *feed], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        try:
            time.sleep(2)
            command = [sys.executable, "-P", "-m", "bench.queries", "--seconds", str(given.seconds), "--ask", on.bootstrap, on.topic]
            subprocess.run(command, cwd=ROOT, check=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)})
            print(f"  while folding {given.rate:,} records/s; {load_average()}")
        finally:
            feeder.terminate()
            feeder.wait(10)


if __name__ == "__main__":
    main()
