"""Makes a broker just started as quick as one that has run for a while, for benchmarks of latency.

A JVM compiles what it does often: a transaction costs a broker 5 to 8 ms of CPU at first and 1.5 ms after some thousand of them, and
until then its compiler takes cores from whoever is measured beside it.
"""

from __future__ import annotations

import threading
import time
import uuid

from confluent_kafka import Producer

from bench.traffic import PARTITIONS, create

SECONDS = 25.0
RECORDS = 20
_PAUSE_S = 0.003  # without it the broker sends back most of them: the markers of the one before are not written yet
_DEADLINE_S = 30.0


def warm(bootstrap: str, seconds: float = SECONDS) -> None:
    """Run small transactions on a topic of their own, a producer for each partition, and print how many there were and how long they took."""
    topic = f"warm-{uuid.uuid4().hex[:8]}"
    create(bootstrap, topic, cleanup="compact")
    took_s: list[list[float]] = [[] for _ in range(PARTITIONS)]
    threads = [threading.Thread(target=_transact, args=(bootstrap, topic, each, seconds, took_s[each])) for each in range(PARTITIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, last = (sorted(took for each in took_s for took in each[part]) for part in (slice(0, 100), slice(-100, None)))
    print(
        f"broker warmed by {sum(map(len, took_s)):,} transactions: p50 {first[len(first) // 2] * 1e3:.1f} ms at first, "
        f"{last[len(last) // 2] * 1e3:.1f} ms at last",
        flush=True,
    )


def _transact(bootstrap: str, topic: str, partition: int, seconds: float, took_s: list[float]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{partition}", "log_level": 3})
    producer.init_transactions(_DEADLINE_S)
    until_s = time.perf_counter() + seconds
    while (began_s := time.perf_counter()) < until_s:
        producer.begin_transaction()
        for number in range(RECORDS):
            producer.produce(topic, b"x" * 60, b"%d" % number, partition)
        producer.commit_transaction(_DEADLINE_S)
        took_s.append(time.perf_counter() - began_s)
        time.sleep(_PAUSE_S)
