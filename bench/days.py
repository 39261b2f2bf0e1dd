"""A day's backlog beside Kafka Streams and Flink: how many windows and pairs each gets right, exactly
against an oracle, and what it costs.

    python -P -m bench.days [--records 200000] [--rounds 1] [--only holdfast,streams,flink]

    rekeyed  hourly windows behind a re-key, grace 0: a day in perfect order in each of four partitions
    apart    an interval join, 10 s before and after, grace 5 minutes, of two topics written in order, by
             two producers one after another, in large batches
    woven    the same, written by one producer in order of event time, in batches of 16 KB

Processor time is that of the whole process up to its last result, less what it takes for a day of 400
records: that of its start. Flink is left out where its archives (bench/rivals/flink.lock) cannot be fetched,
or there is no `javac`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from bench.days_worker import declared, out_of
from bench.run import ROOT, load_average
from bench.traffic import PARTITIONS, create
from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.core.engine.declared.partitioners import of_key
from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.ports import free_ports
from holdfast.errors import HoldfastError
from holdfast.jars import resolve

SYSTEMS, WORKS = ("holdfast", "streams", "flink"), ("rekeyed", "apart", "woven")
DAY_MS, HOUR_MS, NEAR_MS, START_MS = 86_400_000, 3_600_000, 10_000, 1_700_006_400_000
PAGES, KEYS, FEW = 50, 20, 400
QUIET_S, SETTLED_S, STOP_S, DEADLINE_S = 1.0, 20.0, 30.0, 900.0
"""A system is done when all results are there, or all is read and no more results come for SETTLED_S."""
OPENED = (
    "java.base/java.util",
    "java.base/java.lang",
    "java.base/java.time",
    "java.base/java.util.concurrent",
)
Written = tuple[str, int | None, bytes | None, bytes]
"""Topic, partition or None for that of the key, key, value."""


@dataclass(frozen=True)
class Day:
    """The logs of one work, and its expected results by name, each once."""

    work: str
    records: int
    name: str

    @property
    def topics(self) -> list[str]:
        return [f"{self.name}-left", f"{self.name}-right"] if self.work != "rekeyed" else [f"{self.name}-in"]

    def at_ms(self, number: int, records: int) -> int:
        return START_MS + number * DAY_MS // records

    def written(self) -> Iterator[Written]:
        if self.work == "rekeyed":
            yield from self._views()
            return
        sides, half = self.topics, self.records // 2
        order: Iterable[tuple[int, int]] = ((side, at) for side in (0, 1) for at in range(half))
        if self.work == "woven":
            order = ((side, at) for at in range(half) for side in (0, 1))
        for side, number in order:
            key = self._key(side, number)
            yield sides[side], None, key.encode(), _value(key, self.at_ms(number, half), number)

    def _key(self, side: int, number: int) -> str:
        return f"k{(number * 7_919 + side * 3 * (number % 5)) % KEYS}"

    def _views(self) -> Iterator[Written]:
        for number in range(self.records):
            page = f"page-{number * 7_919 // PARTITIONS % PAGES}"
            yield (
                self.topics[0],
                number % PARTITIONS,
                None,
                _value(page, self.at_ms(number, self.records), number),
            )
        # Behind the day, from each partition to each: so all windows of the day close.
        ends = [
            next(each for each in _names("end") if of_key(each.encode(), PARTITIONS) == at)
            for at in range(PARTITIONS)
        ]
        for at in range(PARTITIONS):
            for end in ends:
                yield self.topics[0], at, None, _value(end, START_MS + DAY_MS + HOUR_MS, self.records)

    @cached_property
    def expected(self) -> Counter[str]:
        """Return the results, found without streams."""
        if self.work == "rekeyed":
            found = Counter[tuple[str, int]]()
            for _, _, _, value in self.written():
                view = json.loads(value)
                found[view["page"], view["at"] // HOUR_MS * HOUR_MS] += 1
            return Counter(
                {f"{page} {at} {count}": 1 for (page, at), count in found.items() if page[:3] != "end"}
            )
        half, rights = self.records // 2, defaultdict[str, list[tuple[int, int]]](list)
        for number in range(half):
            rights[self._key(1, number)].append((self.at_ms(number, half), number))
        pairs = Counter[str]()
        for number in range(half):
            held, at_ms = rights[self._key(0, number)], self.at_ms(number, half)
            first, last = (
                bisect_left(held, (at_ms - NEAR_MS, -1)),
                bisect_right(held, (at_ms + NEAR_MS, half)),
            )
            pairs.update(f"{number} {each}" for _, each in held[first:last])
        return pairs

    def named(self, value: bytes) -> str | None:
        """Return a result as `expected` has it; None for one that is behind the day."""
        result: Any = json.loads(value)
        if self.work != "rekeyed":
            return f"{result[0]['id']} {result[1]['id']}"
        key = str(result["key"]).partition("@")[0]
        return None if key.startswith("end") else f"{key} {result['start_ms']} {result['value']}"

    def counted(self, named: str) -> int:
        """Return how many records a result holds, 1 for a pair."""
        return int(named.split()[-1]) if self.work == "rekeyed" else 1


def _value(page: str, at_ms: int, number: int) -> bytes:
    return b'{"page":"%b","at":%d,"id":%d}' % (page.encode(), at_ms, number)


def _names(stem: str) -> Iterator[str]:
    number = 0
    while True:
        yield f"{stem}-{number}"
        number += 1


@dataclass(frozen=True)
class Outcome:
    """The results of one process for a day, with the seconds that it took by the clock and the processor."""

    right: int
    wrong: int
    counted: int
    """Records in windows of the day, or pairs."""
    wall_s: float
    cpu_s: float


class Ground:
    """A broker, the days on it, and the systems."""

    def __init__(self, bootstrap: str, folder: Path, only: list[str]) -> None:
        self.bootstrap, self._folder, self._runs = bootstrap, folder, 0
        self._jars = {
            name: ":".join(map(str, resolve(ROOT / f"bench/rivals/{name}.lock")))
            for name in only
            if name == "streams"
        }
        self.systems = [each for each in only if each != "flink" or self._builds_flink()]

    def _builds_flink(self) -> bool:
        try:
            jars = ":".join(map(str, resolve(ROOT / "bench/rivals/flink.lock")))
        except HoldfastError as error:
            print(f"flink is left out: {error}")
            return False
        if shutil.which("javac") is None:
            print("flink is left out: there is no javac")
            return False
        built = self._folder / "flink"
        subprocess.run(
            ["javac", "-nowarn", "-cp", jars, "-d", built, ROOT / "bench/rivals/Days.java"], check=True
        )
        self._jars["flink"] = f"{built}:{jars}"
        return True

    def write(self, day: Day) -> None:
        for topic in day.topics:
            create(self.bootstrap, topic)
        size = 16_384 if day.work == "woven" else 1_000_000
        config = {
            "bootstrap.servers": self.bootstrap,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 20,
            "batch.size": size,
            "batch.num.messages": 100_000,
        }
        producer, last = Producer(config), ""
        for topic, partition, key, value in day.written():
            if day.work == "apart" and topic != last:
                assert producer.flush(120) == 0
            last = topic
            while True:
                try:
                    producer.produce(topic, value, key, -1 if partition is None else partition)
                    break
                except BufferError:
                    producer.poll(0.05)
        assert producer.flush(120) == 0

    def run(self, system: str, day: Day) -> Outcome:
        """Have a system read a day, and return what it sent by the time that nothing more comes."""
        self._runs += 1
        name = f"{day.name}-{system}-{self._runs}"
        out, command, environment = getattr(self, f"_{system}")(name, day)
        log = (self._folder / f"{name}.log").open("wb")
        began_s = time.monotonic()
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdout=log,
            stderr=log,
            cwd=ROOT,
        )
        try:
            found, wall_s, cpu_s = self._results(name, out, day, process, began_s)
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log.close()
        right = sum((found & day.expected).values())
        counted = sum(times * day.counted(each) for each, times in found.items())
        return Outcome(right, found.total() - right, counted, wall_s, cpu_s)

    def _results(
        self, name: str, out: str, day: Day, process: Any, began_s: float
    ) -> tuple[Counter[str], float, float]:
        config = {
            "bootstrap.servers": self.bootstrap,
            "group.id": f"{out}-reader",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
        consumer, found, wanted = Consumer(config), Counter[str](), day.expected.total()
        consumer.assign([TopicPartition(out, at, 0) for at in range(PARTITIONS)])
        last_s = read_s = began_s
        cpu_s, is_read = 0.0, False
        try:
            while True:
                for message in consumer.consume(50_000, 0.2):
                    assert message.error() is None, message.error()
                    if (named := day.named(message.value() or b"")) is not None:
                        found[named] += 1
                        last_s = time.monotonic()
                now_s = time.monotonic()
                if now_s - last_s < 1.0:
                    cpu_s = _cpu_s(process.pid)
                if process.poll() is not None or now_s - began_s > DEADLINE_S:
                    raise SystemExit(f"{out}: ended with {process.poll()}; see {self._folder}")
                if found.total() >= wanted and now_s - last_s > QUIET_S:
                    return found, last_s - began_s, cpu_s
                if not is_read and now_s - last_s > QUIET_S:
                    is_read = self._has_read(name, day)
                    read_s = now_s
                if is_read and now_s - max(read_s, last_s) > SETTLED_S:
                    return found, last_s - began_s, cpu_s
        finally:
            consumer.close()

    def _has_read(self, group: str, day: Day) -> bool:
        """Return whether a system's group has committed all that was written for the day."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        places = [TopicPartition(topic, at) for topic in day.topics for at in range(PARTITIONS)]
        try:
            return all(
                each.offset >= consumer.get_watermark_offsets(each, timeout=30)[1]
                for each in consumer.committed(places, timeout=30)
            )
        except KafkaException:
            return False  # the group is just begun
        finally:
            consumer.close()

    def _holdfast(self, name: str, day: Day) -> tuple[str, list[str], dict[str, str]]:
        settings = Settings(app=name, kafka={"bootstrap.servers": self.bootstrap})
        create(self.bootstrap, out_of(settings))
        create_topics(settings, declared(day.work, settings, day.topics), partitions=PARTITIONS)
        command = [
            sys.executable,
            "-P",
            "-m",
            "bench.days_worker",
            "--loop",
            "uvloop",
            "worker",
            "-l",
            "warn",
        ]
        return (
            out_of(settings),
            command,
            {
                "HOLDFAST_APP": name,
                "HOLDFAST_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap,
                "HOLDFAST_DATA_DIR": str(self._folder / name),
                "HOLDFAST_WEB_PORT": str(free_ports(1)[0]),
                "BENCH_WORK": day.work,
                "BENCH_IN": ",".join(day.topics),
            },
        )

    def _java(self, name: str, day: Day) -> tuple[str, list[str]]:
        out = f"{name}-out"
        create(self.bootstrap, out)
        work = "rekeyed" if day.work == "rekeyed" else "near"
        given = {
            "work": work,
            "bootstrap": self.bootstrap,
            "in": ",".join(day.topics),
            "out": out,
            "id": name,
        }
        return out, [f"{key}={value}" for key, value in given.items()]

    def _streams(self, name: str, day: Day) -> tuple[str, list[str], dict[str, str]]:
        out, given = self._java(name, day)
        main = str(ROOT / "bench/rivals/Windows.java")
        command = [
            "java",
            "-Xmx2g",
            "-cp",
            self._jars["streams"],
            main,
            *given,
            "stay=1",
            f"dir={self._folder / name}",
        ]
        return out, command, {}

    def _flink(self, name: str, day: Day) -> tuple[str, list[str], dict[str, str]]:
        out, given = self._java(name, day)
        opened = [f"--add-opens={each}=ALL-UNNAMED" for each in OPENED]
        return out, ["java", "-Xmx2g", *opened, "-cp", self._jars["flink"], "Days", *given], {}


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default=",".join(SYSTEMS))
    parser.add_argument("--works", default=",".join(WORKS))
    given = parser.parse_args()
    works = given.works.split(",")
    with (
        tempfile.TemporaryDirectory(prefix="bench-days-") as folder,
        Cluster(Path(folder) / "kafka") as cluster,
    ):
        ground = Ground(cluster.bootstrap, Path(folder), given.only.split(","))
        few = Day(works[0], FEW, "few")
        ground.write(few)
        starts = {system: ground.run(system, few).cpu_s for system in ground.systems}
        for work in works:
            day = Day(work, given.records, work)
            ground.write(day)
            print(
                f"{work}: {day.records:,} records, {day.expected.total():,} results ({load_average()})",
                flush=True,
            )
            outcomes = defaultdict[str, list[Outcome]](list)
            for number in range(given.rounds):
                for system in ground.systems[:: 1 if number % 2 == 0 else -1]:
                    outcomes[system].append(ground.run(system, day))
            tell(day, starts, outcomes)


def tell(day: Day, starts: dict[str, float], outcomes: dict[str, list[Outcome]]) -> None:
    """Print what each system got right, and its costs as medians; of holdfast they are 1."""
    costs = {
        system: median(each.cpu_s - starts[system] for each in runs) / day.records * 1e6
        for system, runs in outcomes.items()
    }
    base = costs.get("holdfast")
    for system, runs in outcomes.items():
        right, wrong = min(each.right for each in runs), max(each.wrong for each in runs)
        counted = f" ({min(each.counted for each in runs):,} records)" if day.work == "rekeyed" else ""
        rate = day.records / median(each.wall_s for each in runs)
        beside = "" if base is None else f", {costs[system] / base:.2f} of holdfast's"
        print(
            f"  {system:9} {right:9,} of {day.expected.total():,} right{counted}, {wrong:,} wrong;"
            f" {rate:9,.0f} records/s with its start; {costs[system]:6.2f} us CPU a record{beside}; start"
            f" {starts[system]:.1f} s CPU",
            flush=True,
        )


if __name__ == "__main__":
    main()
