"""Two workers on two source partitions each against one on all four, over one backlog.

    python -P -m bench.two_workers [--records 2000000]

Rates are taken from the moment the backlog is let in to the last append to the changelog: transactions are
large, and the first is appended when much has been folded. Broker and bench share a clock. What limits the
sum is the number of cores: broker and workers share them, and the broker's and librdkafka's threads take what
one worker leaves.
"""

from __future__ import annotations

import argparse
import os
import time
import urllib.request
from contextlib import ExitStack

from confluent_kafka import Consumer, TopicPartition

from bench.processes import worker
from bench.run import Bench, bench, load_average
from bench.traffic import PARTITIONS

DEADLINE_S = 240.0


def folded(urls: list[str]) -> int:
    """Return how many records the workers have folded together."""
    total = 0.0
    for url in urls:
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as page:
            lines = page.read().decode().splitlines()
        total += sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith("holdfast_records_folded_total")
        )
    return int(total)


def last_append_s(on: Bench, topic: str) -> float:
    """Return the time of the last append to *topic*, over all partitions."""
    consumer = Consumer(
        {"bootstrap.servers": on.bootstrap, "group.id": "bench-span", "isolation.level": "read_committed"}
    )
    last: list[int] = []
    try:
        for number in range(PARTITIONS):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=30)
            consumer.assign([TopicPartition(topic, number, max(low, high - 2))])
            message = consumer.poll(30)
            assert message is not None
            last.append(message.timestamp()[1])
    finally:
        consumer.close()
    return max(last) / 1000


def measure(on: Bench, name: str, workers: int) -> float:
    """Return records/s of *workers* workers, whose group has settled before the backlog is let in."""
    gate = on.folder / f"{name}.gate"
    settings = on.environment(name, BENCH_RECORDS="0", BENCH_GATE=str(gate))
    with ExitStack() as stack:
        started = []
        for number in range(workers):
            mine = {**settings, "HOLDFAST_DATA_DIR": f"{settings['HOLDFAST_DATA_DIR']}-{number}"}
            mine["HOLDFAST_WEB_PORT"] = str(int(settings["HOLDFAST_WEB_PORT"]) + number)
            started.append(stack.enter_context(worker(mine, on.folder)))
        time.sleep(8)
        for each in started:
            each.wait_ready()
        let_in_s = time.time()
        gate.touch()
        urls = [each.url for each in started]
        started_s = time.perf_counter()
        while True:
            try:
                if folded(urls) >= on.records:
                    break
            except OSError:
                pass
            if time.perf_counter() - started_s > DEADLINE_S:
                raise SystemExit(f"{name}: not folded within {DEADLINE_S:.0f} s")
            time.sleep(0.2)
    return on.records / (last_append_s(on, f"{name}-claims.v1-changelog") - let_in_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    given = parser.parse_args()
    with bench(given.records, 10_000) as on:
        one, two = measure(on, "one", 1), measure(on, "two", 2)
        print(
            f"  one worker {one:,.0f}/s, two workers {two:,.0f}/s: {two / one:.2f} (wanted 1.6 where there"
            " are cores for it)"
        )
        print(f"  this machine has {os.cpu_count()} cores, for broker and workers together; {load_average()}")


if __name__ == "__main__":
    main()
