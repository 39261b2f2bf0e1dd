"""Restore: a wiped store from a changelog of 1,000,000 records beside Kafka Streams; a warm restart; the promotion of a standby.

    python -P -m bench.restore [--rounds 3]

Every claim beats once, so that both changelogs hold a million distinct rows, whatever is cached.
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
_RESTORED = re.compile(r"\((\d+) records in ([\d.]+) s\)")


def restored(on: Bench, name: str) -> tuple[int, float]:
    """Return records and seconds of the last restore in a worker's log, opening and fencing included."""
    found = _RESTORED.findall((on.folder / f"{name}.log").read_text())
    return int(found[-1][0]), float(found[-1][1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000)
    given = parser.parse_args()
    with bench(given.records, given.records) as on:
        command, more = on.streams()("streams")
        run(command, more)
        command, environment = on.holdfast("claims")("holdfast")
        run(command, environment)
        environment = {**environment, "BENCH_RECORDS": "0"}
        rates = []
        for _ in range(given.rounds):
            shutil.rmtree(on.folder / "streams")
            command, more = on.streams(restore="1")("streams")
            _, theirs = run(command, more)
            shutil.rmtree(environment["HOLDFAST_DATA_DIR"])
            with worker(environment, on.folder) as wiped:
                wiped.wait_ready()
                records, seconds = restored(on, "holdfast")
                memory_mb = wiped.rss_mb()
            rates.append(records / seconds / theirs["rate"])
            print(
                f"  wiped: {records:,} records, {records / seconds:,.0f}/s, {memory_mb} MB; Kafka Streams {theirs['rate']:,.0f}/s",
                flush=True,
            )
        print(f"  ratio {sorted(rates)[len(rates) // 2]:.2f} (wanted 1.20); {load_average()}")
        for _ in range(given.rounds):
            with worker(environment, on.folder) as warm:
                print(f"  warm restart with {given.records:,} rows: ready after {warm.wait_ready():.1f} s (wanted < 6)", flush=True)
        promote(on, environment)


def promote(on: Bench, environment: dict[str, str]) -> None:
    """Kill the owner of everything while another stands by; time from the end of its session to the other serving all of it."""
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
            f"  standby serving {took_s:.1f} s after SIGKILL, {took_s - SESSION_S:.1f} s after the session of {SESSION_S:.0f} s (wanted < 3)"
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
