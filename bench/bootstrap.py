"""Bootstrap of a table of many rows from history: by this process (`--engine local`), and by Spark from the
topic and from the lake.

    python -P -m bench.bootstrap [--rows 1000000] [--engines local,spark,spark-bronze]

One record makes one row of some 100 bytes, in 4 partitions; CPU is that of this process and of its JVM,
without the broker's, the start of the session included. `verify` of the changelog follows, and must say
equal.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import Producer

from bench.run import load_average
from bench.spark_folds import ORDERS, sums
from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.dev.broker.cluster import Cluster
from holdfast.pipeline.bootstrap.bootstrap import BootstrapOptions, bootstrap
from holdfast.pipeline.landing.land import land
from holdfast.pipeline.replay import ReplayOptions
from holdfast.pipeline.spark.session import SparkOptions
from holdfast.pipeline.verify.table import verify

PARTITIONS = 4


def write(settings: Settings, rows: int) -> None:
    """Write a record for each row."""
    producer = Producer(settings.client() | {"linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    for number in range(rows):
        producer.produce(ORDERS, b"order-%08d %s" % (number, b"x" * 80), partition=number % PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0


@contextmanager
def measured(name: str) -> Iterator[None]:
    """Print what a part takes, in seconds and seconds of processor time."""
    at_s, before = time.monotonic(), os.times()
    yield
    after = os.times()
    cpu_s = sum(after[:4]) - sum(before[:4])
    print(
        f"{name:32} {time.monotonic() - at_s:6.1f} s  {cpu_s:6.1f} CPU-s  load {load_average()}", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--engines", default="local,spark,spark-bronze")
    asked = parser.parse_args()
    with TemporaryDirectory() as folder, Cluster(Path(folder) / "kafka") as cluster:
        settings = Settings(app="bench", kafka={"bootstrap.servers": cluster.bootstrap})
        create_topics(settings, [sums(1)], partitions=PARTITIONS)
        write(settings, asked.rows)
        for version, engine in enumerate(asked.engines.split(","), 2):
            made = sums(version)
            create_topics(settings, [made], partitions=PARTITIONS)
            lake = f"{folder}/lake" if engine == "spark-bronze" else None
            if lake is not None:
                land(settings, ORDERS, lake)
            options = ReplayOptions(
                engine="local" if engine == "local" else "spark",
                source="topic" if lake is None else "bronze",
                lake=lake,
                spark=SparkOptions(master="local[2]"),
            )
            with measured(f"bootstrap {engine}"):
                done = bootstrap(made, settings, BootstrapOptions(replay=options))
            assert sum(each.rows for each in done.partitions) == asked.rows
            with measured("verify"):
                assert verify(made, settings, ReplayOptions(engine="local")).equal


if __name__ == "__main__":
    main()
