"""Restore: a wiped store from a changelog of 1,000,000 records beside Kafka Streams; a warm restart; the
promotion of a standby.

    python -P -m bench.restore [--rounds 3]

Three changelogs. With 10,000 claims each row is there a hundred times: Kafka Streams writes it without its
cache, holdfast in transactions too small to hold a row twice. With as many claims as records every row is
there once, in small transactions and in those that holdfast makes of a backlog, of some 100,000 rows. Both
clocks run from the first batch restored to the last; a restart and a promotion are timed from outside.
"""

from __future__ import annotations

import argparse
import re
import shutil
import time
import urllib.request

from bench.processes import worker
from bench.run import Bench, bench, load_average, run
from bench.traffic import PARTITIONS

SESSION_S = 6.0
_SERVING = re.compile(r'holdfast_serving\{[^}]*role="active"[^}]*\} 1.0')
_RESTORED = re.compile(r"restored (\d+) records in ([\d.]+) s")
SMALL = {"HOLDFAST_FETCH_BYTES": str(64 << 10), "HOLDFAST_INFLIGHT_BYTES": str(64 << 10)}


def restored(on: Bench, name: str) -> tuple[int, float]:
    """Return records and seconds of the last restore in a worker's log."""
    found = _RESTORED.findall((on.folder / f"{name}.log").read_text())
    return int(found[-1][0]), float(found[-1][1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000)
    given = parser.parse_args()
    shapes: list[tuple[int, dict[str, str]]] = [(10_000, SMALL), (given.records, SMALL), (given.records, {})]
    for claims, settings in shapes:
        with bench(given.records, claims) as on:
            print(f"{claims:,} rows in {'small' if settings else 'large'} transactions", flush=True)
            environment = wiped(on, settings, given.rounds)
            if not settings:
                for _ in range(given.rounds):
                    with worker(environment, on.folder) as warm:
                        print(
                            f"  warm restart: ready after {warm.wait_ready():.1f} s (wanted < 6)", flush=True
                        )
                promote(on, environment)


def wiped(on: Bench, settings: dict[str, str], rounds: int) -> dict[str, str]:
    """Write both changelogs, restore wiped stores from them in turn, and return the worker's environment."""
    command, more = on.streams(cache="0")("streams")
    run(command, more)
    command, environment = on.holdfast("claims", **settings)("holdfast")
    _, filled = run(command, environment)
    environment = {**environment, "BENCH_RECORDS": "0"}
    rates = []
    for _ in range(rounds):
        shutil.rmtree(on.folder / "streams")
        command, more = on.streams(restore="1")("streams")
        _, theirs = run(command, more)
        shutil.rmtree(environment["HOLDFAST_DATA_DIR"])
        with worker(
            {**environment, "BENCH_RESTORE_RECORDS": str(int(filled["changelog"]))}, on.folder
        ) as empty:
            empty.wait_ready()
            records, seconds = restored(on, "holdfast")
            memory_mb = empty.rss_mb()
        rates.append(records / seconds / theirs["rate"])
        print(
            f"  wiped: {records:,} records, {records / seconds:,.0f}/s, {memory_mb} MB; Kafka Streams"
            f" {theirs['rate']:,.0f}/s",
            flush=True,
        )
    print(
        f"  ratio {sorted(rates)[len(rates) // 2]:.2f} [{min(rates):.2f}-{max(rates):.2f}] (wanted 1.20);"
        f" {load_average()}",
        flush=True,
    )
    return environment


def promote(on: Bench, environment: dict[str, str]) -> None:
    """Kill the owner of everything while another stands by; time from the end of its session to the other
    serving all of it.
    """
    other = {**environment, "HOLDFAST_DATA_DIR": f"{environment['HOLDFAST_DATA_DIR']}-2"}
    other["HOLDFAST_WEB_PORT"] = str(int(environment["HOLDFAST_WEB_PORT"]) + 1)
    with worker(environment, on.folder) as first, worker(other, on.folder) as second:
        first.wait_ready()
        second.wait_ready()
        time.sleep(20)  # a second generation moves partitions, and standbys read their changelogs once
        started_s = time.perf_counter()
        first.kill()
        while not _serves_all(second.url):
            if time.perf_counter() - started_s > 60:
                raise SystemExit("the standby was not promoted within 60 s")
            time.sleep(0.05)
        took_s = time.perf_counter() - started_s
        print(
            f"  standby serving {took_s:.1f} s after SIGKILL, {took_s - SESSION_S:.1f} s after the session of"
            f" {SESSION_S:.0f} s (wanted < 3)"
        )


def _serves_all(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=2) as page:
            text = page.read().decode()
    except OSError:
        return False
    return len(_SERVING.findall(text)) >= PARTITIONS and "holdfast_ready 1.0" in text


if __name__ == "__main__":
    main()
