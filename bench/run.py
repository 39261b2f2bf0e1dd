"""Runs a benchmark's parts as processes of their own on a broker of their own, interleaved, and prints
medians and ratios.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.ports import free_ports
from holdfast.jars import resolve

ROOT = Path(__file__).resolve().parents[1]
RESULT = re.compile(r"RESULT (\S+) (.*)")
DEADLINE_S = 300

Result = dict[str, float]
Part = Callable[[str], tuple[list[str], dict[str, str]]]
"""A part of a benchmark: given a fresh name, its command line and its additions to the environment."""


@contextmanager
def bench(records: int, claims: int) -> Iterator[Bench]:
    """Start a broker, fill a topic, and hand out a `Bench`; everything is gone afterwards."""
    from bench.traffic import load

    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        Cluster(Path(folder) / "kafka") as cluster,
    ):
        topic = f"heartbeats-{records}"
        load(cluster.bootstrap, topic, records, claims)
        yield Bench(cluster.bootstrap, topic, records, Path(folder))


class Bench:
    """One broker with one filled topic, and what runs on it."""

    def __init__(self, bootstrap: str, topic: str, records: int, folder: Path) -> None:
        self.bootstrap, self.topic, self.records, self.folder = bootstrap, topic, records, folder
        self._streams = ":".join(map(str, resolve(ROOT / "bench/rivals/streams.lock")))

    def environment(self, name: str, fold: str = "claims", **more: str) -> dict[str, str]:
        """Return the settings of one worker, and make its topics."""
        settings = Settings(
            app=name, kafka={"bootstrap.servers": self.bootstrap}, coordination_topic=self.topic
        )
        create_topics(settings, self.declared(fold, settings), partitions=4)
        return {
            "HOLDFAST_APP": name,
            "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap,
            "HOLDFAST_COORDINATION_TOPIC": self.topic,
            "HOLDFAST_DATA_DIR": str(self.folder / name),
            "HOLDFAST_WEB_PORT": str(free_ports(1)[0]),
            "HOLDFAST_SESSION_TIMEOUT_S": "6",
            "HOLDFAST_HEARTBEAT_INTERVAL_S": "1",
            "BENCH_FOLD": fold,
            "BENCH_RECORDS": str(self.records),
            **more,
        }

    @staticmethod
    def declared(fold: str, settings: Settings) -> Sequence[Processor]:  # type: ignore[type-arg]
        from bench.worker import declared

        return declared(fold, settings)

    def holdfast(self, fold: str, **more: str) -> Part:
        command = [sys.executable, "-P", "-m", "bench.worker", "--loop", "uvloop", "worker", "-l", "warn"]
        return lambda name: (command, self.environment(name, fold, **more))

    def loop(self, batch: int) -> Part:
        def part(name: str) -> tuple[list[str], dict[str, str]]:
            folder = self.folder / name
            folder.mkdir()
            return [
                sys.executable,
                "-P",
                "-m",
                "bench.rivals.loop",
                self.bootstrap,
                self.topic,
                str(batch),
                str(folder),
            ], {}

        return part

    def streams(self, **options: str) -> Part:
        def part(name: str) -> tuple[list[str], dict[str, str]]:
            given = {
                "bootstrap": self.bootstrap,
                "topic": self.topic,
                "id": name,
                "dir": str(self.folder / name),
                **options,
            }
            command = ["java", "-Xmx2g", "-cp", self._streams, str(ROOT / "bench/rivals/Streams.java")]
            return [*command, *(f"{key}={value}" for key, value in given.items())], {}

        return part

    def stock_faust(self, records: int) -> Part:
        def part(name: str) -> tuple[list[str], dict[str, str]]:
            from bench.traffic import create

            create(self.bootstrap, f"{name}-t-changelog", cleanup="compact")
            rival = {
                "RIVAL_BOOTSTRAP": self.bootstrap,
                "RIVAL_TOPIC": self.topic,
                "RIVAL_RECORDS": str(records),
                "RIVAL_APP": name,
            }
            command = [
                sys.executable,
                "-P",
                "-m",
                "bench.rivals.stock_faust",
                "--datadir",
                str(self.folder / name),
                "worker",
                "-l",
                "info",
            ]
            return command, rival

        return part


def run(command: Sequence[str], more: Mapping[str, str]) -> tuple[str, Result]:
    """Run one part to its RESULT line; it gets its own session and ends with it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    found = RESULT.search(done.stdout + done.stderr)
    if found is None:
        raise SystemExit(
            f"{' '.join(command[:6])} gave no result (exit"
            f" {done.returncode}):\n{(done.stdout + done.stderr)[-3000:]}"
        )
    figures = {
        key: float(value) for key, value in (pair.split("=") for pair in found[2].split() if "=" in pair)
    }
    return found[1], figures


def interleave(parts: Mapping[str, Part], rounds: int) -> dict[str, list[Result]]:
    """Run every part once a round, in turn, and return what each measured; prints each run as it ends."""
    out: dict[str, list[Result]] = {name: [] for name in parts}
    for turn in range(rounds):
        for name, part in parts.items():
            label = re.sub(r"[^a-z0-9]+", "-", f"{name}-{turn}-{time.time_ns() % 10**9}".lower())
            command, more = part(label)
            _, figures = run(command, more)
            shutil.rmtree(Path(more.get("HOLDFAST_DATA_DIR", "/nonexistent")), ignore_errors=True)
            out[name].append(figures)
            print(
                f"  {name:24s} "
                + "  ".join(f"{key}={value:,.2f}".rstrip("0").rstrip(".") for key, value in figures.items()),
                flush=True,
            )
    return out


def median(results: Mapping[str, list[Result]], name: str, figure: str = "rate") -> float:
    return statistics.median(each[figure] for each in results[name])


def ratio(results: Mapping[str, list[Result]], a: str, b: str, wanted: float, figure: str = "rate") -> None:
    """Print the median of the rounds' ratios a/b, and whether it reaches what is wanted."""
    pairs = [x[figure] / y[figure] for x, y in zip(results[a], results[b], strict=True)]
    found = statistics.median(pairs)
    verdict = "reached" if found >= wanted else "NOT reached"
    print(
        f"  {a} / {b}: {found:.2f} [{min(pairs):.2f}-{max(pairs):.2f}], wanted {wanted:.2f}: {verdict}",
        flush=True,
    )


def load_average() -> str:
    """Return the load, and how quick a core is now: on a shared machine that halves and doubles from hour
    to hour.
    """
    began_s, total = time.perf_counter(), 0
    for number in range(1_000_000):
        total += number & 7
    took_ms = (time.perf_counter() - began_s) * 1e3
    return (
        "load "
        + " ".join(f"{each:.1f}" for each in os.getloadavg())
        + f", a million additions in {took_ms:.0f} ms"
    )
