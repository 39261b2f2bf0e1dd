"""Tumbling windows, sessions and an interval join on workers, exactly once, beside Kafka Streams' DSL.

python -P -m bench.windows_live [--rounds 3] [--records 1000000] [--only tumbling,sessions,interval]

Records are spread evenly over a day of event time and lie in its order: of 10,000 keys for tumbling windows
of an hour, of 100,000 for sessions of a gap of 10 minutes. Results are final on both sides, and counted: each
side tells all windows that its last records have closed. The join is of two topics of half as many records
each: a second one comes within ten seconds of a first of its key.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Producer

from bench.joins import committed
from bench.run import ROOT, Part, interleave, load_average, ratio
from bench.traffic import PARTITIONS, create
from bench.windows_worker import declared, out_of
from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.ports import free_ports
from holdfast.jars import resolve

DAY_MS, START_MS = 86_400_000, 1_700_006_400_000
KEYS = {"tumbling": 10_000, "sessions": 100_000, "interval": 100_000}
WITHIN_MS = 9_000
SHARE = 0.98
"""Two sides have closed as many windows, but for those of the last hour: a partition's clock is a record's on
one side, and a task's on the other.
"""

Record = tuple[int, bytes, bytes]
"""Which topic, key and value."""


def views(work: str, records: int) -> Iterator[Record]:
    """Yield the records of a work in order of event time."""
    rng, keys = random.Random(7), KEYS[work]
    if work != "interval":
        for at in range(records):
            key = b"page-%d" % rng.randrange(keys)
            yield 0, key, b'{"page":"%s","at":%d}' % (key, START_MS + at * DAY_MS // records)
        return
    pairs = []
    for at in range(records // 2):
        key, at_ms = b"page-%d" % rng.randrange(keys), START_MS + at * DAY_MS // records
        pairs += [(at_ms, 0, key), (at_ms + rng.randrange(WITHIN_MS), 1, key)]
    for at_ms, topic, key in sorted(pairs):
        yield topic, key, b'{"page":"%s","at":%d}' % (key, at_ms)


class Ground:
    """A broker with the topics of one work filled, and what runs on it."""

    def __init__(self, bootstrap: str, folder: Path, work: str, records: int) -> None:
        self.bootstrap, self._folder, self.work, self.records = bootstrap, folder, work, records
        self.topics = [f"{work}-in"] if work != "interval" else [f"{work}-left", f"{work}-right"]
        self._streams = ":".join(map(str, resolve(ROOT / "bench/rivals/streams.lock")))
        self._out: list[str] = []
        for topic in self.topics:
            create(bootstrap, topic)
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 20,
                "batch.size": 100_000,
            }
        )
        for at, key, value in views(work, records):
            while True:
                try:
                    producer.produce(self.topics[at], value, key)
                    break
                except BufferError:
                    producer.poll(0.05)
        assert producer.flush(120) == 0

    def holdfast(self, name: str) -> tuple[list[str], dict[str, str]]:
        settings = Settings(app=name, kafka={"bootstrap.servers": self.bootstrap})
        create(self.bootstrap, self._made(out_of(settings)))
        create_topics(settings, declared(self.work, settings, self.topics), partitions=PARTITIONS)
        command = [
            sys.executable,
            "-P",
            "-m",
            "bench.windows_worker",
            "--loop",
            "uvloop",
            "worker",
            "-l",
            "warn",
        ]
        return command, {
            "HOLDFAST_APP": name,
            "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap,
            "HOLDFAST_DATA_DIR": str(self._folder / name),
            "HOLDFAST_WEB_PORT": str(free_ports(1)[0]),
            "HOLDFAST_SESSION_TIMEOUT_S": "6",
            "HOLDFAST_HEARTBEAT_INTERVAL_S": "1",
            "BENCH_FOLD": self.work,
            "BENCH_RECORDS": str(self.records),
            "BENCH_IN": ",".join(self.topics),
        }

    def streams(self, name: str) -> tuple[list[str], dict[str, str]]:
        out = self._made(f"{name}-out")
        create(self.bootstrap, out)
        given = {
            "work": self.work,
            "bootstrap": self.bootstrap,
            "in": ",".join(self.topics),
            "out": out,
            "id": name,
            "dir": str(self._folder / name),
        }
        command = ["java", "-Xmx2g", "-cp", self._streams, str(ROOT / "bench/rivals/Windows.java")]
        return [*command, *(f"{key}={value}" for key, value in given.items())], {}

    def _made(self, topic: str) -> str:
        self._out.append(topic)
        return topic

    def check(self) -> None:
        """Print how many results each run has sent; SystemExit when they are not about as many."""
        found = {topic: committed(self.bootstrap, topic) for topic in self._out}
        print(f"  results: {', '.join(f'{count:,}' for count in found.values())}")
        if min(found.values()) < SHARE * max(found.values()):
            raise SystemExit(f"results differ: {found}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--only", default=",".join(KEYS))
    given = parser.parse_args()
    for work in given.only.split(","):
        with (
            tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
            Cluster(Path(folder) / "kafka") as cluster,
        ):
            ground = Ground(cluster.bootstrap, Path(folder), work, given.records)
            parts: dict[str, Part] = {f"holdfast-{work}": ground.holdfast, f"streams-{work}": ground.streams}
            print(f"{work}: {given.records:,} records, {load_average()}", flush=True)
            results = interleave(parts, given.rounds)
            ground.check()
            print(load_average())
            ratio(results, f"holdfast-{work}", f"streams-{work}", 1.0)


if __name__ == "__main__":
    main()
