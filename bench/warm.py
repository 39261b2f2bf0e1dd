"""Makes a broker just started as quick as one that has run for a while, for benchmarks of latency.

A JVM compiles what it does often: until a broker has run some thousand transactions, each costs it several
times as much, and its compiler takes cores from the program that is measured beside it. `bench.pace` shows
how much.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Producer

from bench.traffic import PARTITIONS, create

SECONDS = 25.0
RECORDS = 20
_PAUSE_S = 0.003  # begun at once, many would be sent back: the markers of the one before are not written yet
_DEADLINE_S = 30.0


class Committer:
    """A transactional producer that writes small transactions to one partition."""

    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        self._topic, self._partition = topic, partition
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{partition}", "log_level": 3}
        )
        self._producer.init_transactions(_DEADLINE_S)

    def commit(self, records: int) -> float:
        """Write one transaction, and return how long it took."""
        began_s = time.perf_counter()
        self._producer.begin_transaction()
        for number in range(records):
            self._producer.produce(self._topic, b"x" * 60, b"%d" % number, self._partition)
        self._producer.commit_transaction(_DEADLINE_S)
        return time.perf_counter() - began_s


def on_every_partition(bootstrap: str, work: Callable[[Committer, int], None]) -> None:
    """Do *work* for each partition of a topic made for it, side by side; returns when all is done."""
    topic = f"small-{uuid.uuid4().hex[:8]}"
    create(bootstrap, topic, cleanup="compact")
    with ThreadPoolExecutor(PARTITIONS) as pool:
        for done in [
            pool.submit(lambda at: work(Committer(bootstrap, topic, at), at), at) for at in range(PARTITIONS)
        ]:
            done.result()


def warm(bootstrap: str, seconds: float = SECONDS) -> None:
    """Run small transactions, and print how many there were and how long they took."""
    took_s: list[list[float]] = [[] for _ in range(PARTITIONS)]

    def work(committer: Committer, partition: int) -> None:
        until_s = time.perf_counter() + seconds
        while time.perf_counter() < until_s:
            took_s[partition].append(committer.commit(RECORDS))
            time.sleep(_PAUSE_S)

    on_every_partition(bootstrap, work)
    first, last = (
        sorted(took for each in took_s for took in each[part]) for part in (slice(0, 100), slice(-100, None))
    )
    print(
        f"broker warmed by {sum(map(len, took_s)):,} transactions: p50 {first[len(first) // 2] * 1e3:.1f} ms"
        f" at first, {last[len(last) // 2] * 1e3:.1f} ms at last",
        flush=True,
    )
