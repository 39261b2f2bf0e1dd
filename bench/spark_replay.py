"""Replay of 4,000,000 heartbeats on local[2] from one Delta table: Spark, one plain Python process, and
applyInPandas, in one run.

    python -P -m bench.spark_replay [--events 4000000] [--claims 10000] [--rounds 3] [--fold claims|count]
    [--no-pandas]

All three run the same decode and fold, with the records' append time in the rows, and end with the same
digest or the benchmark fails. "plain" is `replay --engine local`, the same as a loop over delta-rs' file list
with pyarrow. CPU is that of all processes at work: this one, the JVM, its Python workers. The session's start
is shown apart; the first Spark replay is cold: it is shown, but not in the medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]
import pyarrow as pa

from bench.run import load_average
from bench.spark_folds import counting, pandas_fold
from bench.traffic import PARTITIONS, heartbeats
from holdfast.agents.services.rationalizer import processors
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.codec import combine_digests, digest
from holdfast.pipeline.bronze.lake import Landed, bronze_path
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.spark.errors import explained
from holdfast.pipeline.spark.session import SparkOptions, open_session
from holdfast.pipeline.spark.shipping import ship

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "heartbeats"
COMMITS = 20
T0_MS = 1_476_147_600_000
EVENTS_PER_MS = 50
MASTER = "local[2]"
NO_KAFKA = Settings(coordination_topic=TOPIC)


# -- the table


def write_table(lake: str, events: int, claims: int) -> str:
    """Write the heartbeats as `pipeline land` would: one file per commit and partition, offsets in order,
    microseconds.
    """
    from deltalake import CommitProperties, write_deltalake

    path = bronze_path(lake, TOPIC)
    traffic = heartbeats(events, claims)
    ends, produced = dict.fromkeys(range(PARTITIONS), 0), 0
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("timestamp_type", pa.int32()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ]
    )
    for commit in range(COMMITS):
        parts: dict[int, list[bytes]] = {partition: [] for partition in ends}
        times: dict[int, list[int]] = {partition: [] for partition in ends}
        for partition, value in islice(
            traffic, events * (commit + 1) // COMMITS - events * commit // COMMITS
        ):
            parts[partition].append(value)
            times[partition].append((T0_MS + produced // EVENTS_PER_MS) * 1000)
            produced += 1
        batches, before = [], dict(ends) if commit else {}
        for partition, values in parts.items():
            start, size = ends[partition], len(values)
            columns = [
                [TOPIC] * size,
                [partition] * size,
                range(start, start + size),
                times[partition],
                [1] * size,
                [None] * size,
                values,
            ]
            arrays = [pa.array(column, each.type) for column, each in zip(columns, schema, strict=False)]
            batches.append(
                pa.RecordBatch.from_arrays(
                    [*arrays, pa.nulls(size, schema.field("headers").type)], schema=schema
                )
            )
            ends[partition] += size
        begins = dict.fromkeys(ends, 0)
        told = Landed(
            topic=TOPIC, topic_id="bench", batch=f"b{commit}", start=before, end=ends, begins=begins
        ).encode()
        properties = CommitProperties(custom_metadata={"userMetadata": told})
        write_deltalake(
            path,
            pa.Table.from_batches(batches),
            mode="append",
            partition_by=["topic", "partition"],
            commit_properties=properties,
        )
    return path


# -- measuring


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One replay: seconds, and CPU seconds of this process and Spark's Python workers, and of the JVM."""

    wall_s: float
    python_s: float
    jvm_s: float
    digest: str

    @property
    def cpu_s(self) -> float:
        return self.python_s + self.jvm_s


def cpu_s() -> tuple[float, float]:
    """Return the CPU seconds spent so far by Python and by the JVM: live processes, and those that have
    ended below them.
    """
    python, jvm = time.process_time(), 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            spent = process.cpu_times()
            if "java" in process.name():
                jvm += spent.user + spent.system
                python += spent.children_user + spent.children_system
            else:
                python += spent.user + spent.system + spent.children_user + spent.children_system
        except psutil.NoSuchProcess:
            continue
    return python, jvm


def measured(name: str, events: int, work: Callable[[], str]) -> Run:
    before, started_s = cpu_s(), time.perf_counter()
    found = work()
    wall_s, after = time.perf_counter() - started_s, cpu_s()
    run = Run(wall_s=wall_s, python_s=after[0] - before[0], jvm_s=after[1] - before[1], digest=found)
    print(
        f"  {name:16s} {wall_s:7.2f} s  {events / wall_s:11,.0f} events/s  CPU {run.cpu_s:6.2f} s (Python"
        f" {run.python_s:.2f}, JVM {run.jvm_s:.2f})  {run.cpu_s / events * 1e6:.2f} us/event  {found[:12]} "
        f" {load_average()}",
        flush=True,
    )
    return run


def by_engine(processor: Processor[Any, Any], lake: str, engine: Any) -> str:
    options = ReplayOptions(
        engine=engine, source="bronze", lake=lake, rows=False, spark=SparkOptions(master=MASTER)
    )
    return replay(processor, NO_KAFKA, options).digest


def by_pandas(session: SparkSession, processor: Processor[Any, Any], path: str) -> str:
    """Fold by applyInPandas over claims, as one would without a partition-aligned replay, and return the
    table's digest.
    """
    from pyspark.sql import functions as F

    ship(session, counting(TOPIC))  # with it comes this package, where the rival's function is
    frame = F.split(F.col("value").cast("string"), "/")
    events = (
        session.read.format("delta")
        .load(path)
        .select("partition", "offset", "timestamp", "value", F.slice(frame, 6, 3).alias("claim"))
    )
    folded = events.groupBy("partition", "claim").applyInPandas(
        pandas_fold(processor), "partition int, key binary, value binary"
    )
    states: dict[int, list[tuple[bytes, bytes]]] = {}
    with explained("applyInPandas"):
        rows = folded.toArrow().to_pylist()
    for row in rows:
        states.setdefault(row["partition"], []).append((row["key"], row["value"]))
    return combine_digests(
        (partition, digest(sorted(states.get(partition, [])))) for partition in range(PARTITIONS)
    )


# -- the run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=4_000_000)
    parser.add_argument("--claims", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fold", choices=("claims", "count"), default="claims")
    parser.add_argument("--no-pandas", action="store_true", help="leave applyInPandas out: it takes minutes")
    given = parser.parse_args()
    processor = processors(NO_KAFKA)[0] if given.fold == "claims" else counting(TOPIC)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        path = write_table(folder, given.events, given.claims)
        print(
            f"{given.events:,} heartbeats of {given.claims:,} claims, fold {given.fold}, {MASTER},"
            f" {load_average()}",
            flush=True,
        )
        started_s = time.perf_counter()
        with open_session(SparkOptions(master=MASTER)) as session:
            start_s = time.perf_counter() - started_s
            print(f"  session started in {start_s:.1f} s")
            results = rounds(
                session, processor, folder, path, given.events, given.rounds, pandas=not given.no_pandas
            )
    report(results, start_s, given.events)


def rounds(
    session: SparkSession,
    processor: Processor[Any, Any],
    lake: str,
    path: str,
    events: int,
    turns: int,
    *,
    pandas: bool,
) -> dict[str, list[Run]]:
    results: dict[str, list[Run]] = {
        "spark cold": [measured("spark cold", events, lambda: by_engine(processor, lake, "spark"))]
    }
    for turn in range(turns):
        for name, engine in (("plain", "local"), ("spark", "spark")):
            results.setdefault(name, []).append(
                measured(name, events, lambda engine=engine: by_engine(processor, lake, engine))  # type: ignore[misc]
            )
        if (
            pandas and turn == turns // 2
        ):  # once: its own spread is small beside its distance, and each takes minutes
            results["applyInPandas"] = [
                measured("applyInPandas", events, lambda: by_pandas(session, processor, path))
            ]
    return results


def report(results: dict[str, list[Run]], start_s: float, events: int) -> None:
    """Print ratios of medians, and stop with exit code 1 when states differ."""
    digests = {run.digest for runs in results.values() for run in runs}
    for line in _ratios(results):
        print(line)
    plain, spark = (statistics.median(run.wall_s for run in results[name]) for name in ("plain", "spark"))
    lost_s = start_s + results["spark cold"][0].wall_s - spark
    if spark < plain:
        even = lost_s / (plain - spark) * events
        print(
            f"  Spark loses {lost_s:.1f} s at its start and is done first from about {even / 1e6:,.0f} M"
            f" events on {MASTER}"
        )
    else:
        print(f"  Spark loses {lost_s:.1f} s at its start and never makes up for it on {MASTER}")
    print(f"  differing states: {len(digests) - 1}")
    if len(digests) != 1:
        raise SystemExit("the engines do not agree")


def _ratios(results: dict[str, list[Run]]) -> Iterator[str]:
    median = {name: statistics.median(run.wall_s for run in runs) for name, runs in results.items()}
    cpu = {name: statistics.median(run.cpu_s for run in runs) for name, runs in results.items()}
    pairs = [("spark is faster than plain", median["plain"] / median["spark"], 1.0, True)]
    if "applyInPandas" in results:
        pairs.append(
            ("spark is faster than applyInPandas", median["applyInPandas"] / median["spark"], 5.0, True)
        )
    pairs.append(("spark's CPU over plain's", cpu["spark"] / cpu["plain"], 2.0, False))
    for name, found, wanted, at_least in pairs:
        reached = found >= wanted if at_least else found <= wanted
        yield (
            f"  {name}: {found:.2f}x, wanted at {'least' if at_least else 'most'} {wanted:.1f}x:"
            f" {'reached' if reached else 'NOT reached'}"
        )


if __name__ == "__main__":
    main()
