"""What the benchmarks of the outbox stand on: a broker and a database, filled tables, the systems that
drain them, and what came out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.run import ROOT
from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.databases.servers import Postgres
from holdfast.outbox.schema.layouts import bucket_of
from holdfast.outbox.schema.migrate import upgrade

PARTITIONS, KEYS = 4, 10_000
LIMIT_S = 60.0
_PAD = b"x" * 176


@dataclass(frozen=True)
class Ground:
    """One broker and one database for all runs."""

    bootstrap: str
    url: str
    folder: Path
    database_folder: Path

    @property
    def dsn(self) -> str:
        return self.url.replace("+psycopg", "")


@contextmanager
def grounded() -> Iterator[Ground]:
    """Start both; everything is gone afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        Cluster(Path(folder) / "kafka") as cluster,
        Postgres(durable=True) as postgres,
    ):
        yield Ground(cluster.bootstrap, postgres.url, Path(folder), postgres.folder)


@dataclass(frozen=True)
class Table:
    """One filled outbox and its destination."""

    ground: Ground
    layout: str
    name: str
    topic: str

    @classmethod
    def make(cls, ground: Ground, layout: str) -> Table:
        name = f"o_{uuid.uuid4().hex[:8]}"
        upgrade(ground.url, layout=layout, table=name)
        topic = f"{name}-events"
        admin = AdminClient({"bootstrap.servers": ground.bootstrap})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(20)
        return cls(ground, layout, name, topic)

    def fill(self, rows: int, keys: int) -> None:
        """Write *rows* rows with COPY, number 0 first."""
        now_ms = time.time_ns() // 1_000_000
        with psycopg.connect(self.ground.dsn) as connection, connection.cursor() as cursor:
            if self.layout == "holdfast":
                columns, types = (
                    "bucket,created_ms,topic,key,value,headers",
                    ["int2", "int8", "varchar", "bytea", "bytea", "bytea"],
                )
            else:
                columns = (
                    "create_time,kafka_topic,kafka_key,kafka_value,kafka_header_keys,kafka_header_values"
                )
                types = ["text", "varchar", "varchar", "varchar", "text[]", "text[]"]
            buckets = {key: bucket_of(self.topic, b"key-%d" % key) for key in range(keys)}
            with cursor.copy(f"COPY {self.name} ({columns}) FROM STDIN") as copy:
                if self.layout == "holdfast":
                    copy.set_types(types)
                for number in range(rows):
                    key = number * 7919 % keys
                    value = b'{"seq":%08d,"pad":"%s"}' % (number, _PAD)
                    if self.layout == "holdfast":
                        headers = msgspec.msgpack.encode([("Seq", b"%d" % number)])
                        copy.write_row((buckets[key], now_ms, self.topic, b"key-%d" % key, value, headers))
                    else:
                        copy.write_row(
                            ("now", self.topic, f"key-{key}", value.decode(), "{Seq}", f"{{{number}}}")
                        )
            connection.commit()
            connection.autocommit = True
            cursor.execute(f"VACUUM ANALYZE {self.name}")
            cursor.execute("CHECKPOINT")

    def read(self) -> list[tuple[int, bytes, int, int]]:
        """Return (timestamp ms, key, number, partition) of every committed record."""
        config = {
            "bootstrap.servers": self.ground.bootstrap,
            "group.id": "check",
            "enable.partition.eof": True,
        }
        consumer = Consumer({**config, "isolation.level": "read_committed"})
        consumer.assign([TopicPartition(self.topic, partition, 0) for partition in range(PARTITIONS)])
        out, ended = [], 0
        while ended < PARTITIONS:
            for message in consumer.consume(10_000, 0.2):
                error = message.error()
                if error is None:
                    value = message.value() or b""
                    out.append(
                        (
                            message.timestamp()[1],
                            message.key() or b"",
                            int(value[7:15]),
                            message.partition() or 0,
                        )
                    )
                else:
                    ended += error.code() == KafkaError._PARTITION_EOF
        consumer.close()
        return out

    def empty(self, connection: Any) -> bool:
        return connection.execute(f"SELECT 1 FROM {self.name} LIMIT 1").fetchone() is None


def inversions(records: Iterable[tuple[bytes, int]]) -> int:
    """Return how many of the (key, number) pairs came after a higher number of their key."""
    last: dict[bytes, int] = {}
    found = 0
    for key, number in records:
        found += last.get(key, -1) > number
        last[key] = number
    return found


System = Callable[[Table], list[str]]


def plain(batch: int) -> System:
    def command(table: Table) -> list[str]:
        ground = table.ground
        return [
            sys.executable,
            "-P",
            "-m",
            "bench.rivals.plain_relay",
            ground.dsn,
            table.name,
            ground.bootstrap,
            str(batch),
        ]

    return command


def goharvest(reaper: Path) -> System:
    """Return goharvest's reaper with the settings that were found best for it."""

    def command(table: Table) -> list[str]:
        ground, name = table.ground, f"{table.name}-goharvest"
        admin = AdminClient({"bootstrap.servers": ground.bootstrap})
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(20)
        database = psycopg.conninfo.conninfo_to_dict(ground.dsn)
        source = " ".join(f"{key}={value}" for key, value in {**database, "sslmode": "disable"}.items())
        limits = {"markQueryRecords": 2_000, "sendConcurrency": 8, "maxInFlightRecords": 10_000}
        harvest = {
            "baseKafkaConfig": {"bootstrap.servers": ground.bootstrap},
            "producerKafkaConfig": {"linger.ms": 5},
            "leaderTopic": name,
            "leaderGroupID": name,
            "dataSource": source,
            "outboxTable": table.name,
            "limits": limits,
        }
        file = ground.folder / f"{name}.yaml"
        file.write_text(json.dumps({"harvest": harvest, "logging": {"level": "Warn"}}))  # JSON is YAML
        return [str(reaper), "-f", str(file)]

    return command


def holdfast(strategy: str, **settings: Any) -> System:
    def command(table: Table) -> list[str]:
        more = [each for name, value in settings.items() for each in ("--set", f"outbox_{name}={value}")]
        base = [
            sys.executable,
            "-P",
            "-m",
            "holdfast.cli",
            "--bootstrap",
            table.ground.bootstrap,
            "--set",
            "outbox_heartbeat_timeout_s=2",
        ]
        wanted = [
            "--database",
            table.ground.url,
            "--table",
            table.name,
            "--layout",
            table.layout,
            "--strategy",
            strategy,
        ]
        return [*base, *more, "outbox", "harvest", *wanted, "--name", table.name]

    return command


LAYOUT = {"plain": "goharvest", "goharvest": "goharvest", "fenced": "holdfast", "mark": "goharvest"}


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=out, stderr=out
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


class Tail(threading.Thread):
    """Consumes committed records from the end; `at_s` is when each number came."""

    def __init__(self, table: Table) -> None:
        super().__init__(daemon=True)
        self.at_s: dict[int, float] = {}
        self._ending = threading.Event()
        config = {
            "bootstrap.servers": table.ground.bootstrap,
            "group.id": "tail",
            "isolation.level": "read_committed",
        }
        self._consumer = Consumer({**config, "fetch.wait.max.ms": 100, "fetch.queue.backoff.ms": 1})
        places = [TopicPartition(table.topic, partition) for partition in range(PARTITIONS)]
        ends = [self._consumer.get_watermark_offsets(place, timeout=10)[1] for place in places]
        self._consumer.assign(
            [
                TopicPartition(place.topic, place.partition, end)
                for place, end in zip(places, ends, strict=True)
            ]
        )

    def run(self) -> None:
        while not self._ending.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.at_s.setdefault(json.loads(message.value() or b"{}")["seq"], time.perf_counter())
        self._consumer.close()

    def end(self) -> None:
        self._ending.set()
        self.join()
