"""Landing of one topic in Delta tables: by this process (`--engine local`), by Spark, and by Spark's own
Structured Streaming (`availableNow`) as the rival, in one run.

    python -P -m bench.landing [--records 1000000] [--rounds 3]

Each part is a process of its own; CPU is that of it and of its JVM, the start of the session included, and
peak memory that of the largest of its processes. "nothing new" is a landing by this process that finds
nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.run import load_average
from bench.traffic import load
from holdfast.config import Settings
from holdfast.dev.broker.cluster import Cluster
from holdfast.pipeline.landing.land import land
from holdfast.pipeline.landing.options import LandOptions
from holdfast.pipeline.spark.session import SparkOptions, open_session

TOPIC = "heartbeats"
MASTER = "local[2]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """What one part took: seconds, seconds of processor time, and MB at most."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def rival(settings: Settings, folder: str) -> None:
    """Land as Spark's documents tell: a stream of all there is, with a checkpoint beside the table."""
    with open_session(SparkOptions(master=MASTER)) as session:
        stream = (
            session.readStream.format("kafka")
            .option("kafka.bootstrap.servers", settings.bootstrap_servers)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")
            .load()
        )
        writing = (
            stream.writeStream.format("delta")
            .partitionBy("topic", "partition")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start(f"{folder}/table")
        )
        writing.awaitTermination()


def part(name: str, bootstrap: str, folder: str) -> None:
    settings = Settings(app="bench", kafka={"bootstrap.servers": bootstrap})
    if name == "rival":
        rival(settings, folder)
        return
    options = LandOptions(engine="spark" if name == "spark" else "local")
    land(settings, TOPIC, f"{folder}/lake", options=options, spark=SparkOptions(master=MASTER))


def took(name: str, bootstrap: str, folder: Path) -> Took:
    command = [sys.executable, "-P", "-m", "bench.landing", "--part", name, bootstrap, str(folder)]
    began_s = time.monotonic()
    _, status, used = os.wait4(os.spawnve(os.P_NOWAIT, command[0], command, os.environ), 0)
    if status != 0:
        raise SystemExit(f"{name} ended with {status}")
    return Took(
        wall_s=time.monotonic() - began_s,
        cpu_s=used.ru_utime + used.ru_stime,
        peak_mb=used.ru_maxrss / 1024,
    )


def rounds(bootstrap: str, folder: Path, count: int) -> Iterator[Mapping[str, Took]]:
    for number in range(count):
        found = {}
        for name in ("local", "spark", "rival"):
            where = folder / f"{name}-{number}"
            where.mkdir()
            found[name] = took(name, bootstrap, where)
        found["nothing new"] = took("local", bootstrap, folder / f"local-{number}")
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", nargs=3, metavar=("NAME", "BOOTSTRAP", "FOLDER"))
    given = parser.parse_args()
    if given.part:
        part(*given.part)
        return
    with TemporaryDirectory(prefix="holdfast-bench-") as folder, Cluster(Path(folder) / "kafka") as cluster:
        load(cluster.bootstrap, TOPIC, given.records, 10_000)
        print(f"{given.records:,} records; load {load_average()}")
        found = list(rounds(cluster.bootstrap, Path(folder), given.rounds))
    rival_s = statistics.median(each["rival"].cpu_s for each in found)
    for name in found[0]:
        every = [each[name] for each in found]
        cpu_s, wall_s = (
            statistics.median(values) for values in zip(*((t.cpu_s, t.wall_s) for t in every), strict=True)
        )
        peak_mb = max(each.peak_mb for each in every)
        ratio = "" if name == "nothing new" else f"; rival / this: {rival_s / cpu_s:.2f}"
        print(f"{name:12s} {cpu_s:6.2f} s of processor time, {wall_s:6.1f} s, {peak_mb:5.0f} MB{ratio}")


if __name__ == "__main__":
    main()
