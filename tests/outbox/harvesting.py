"""An outbox with rows to publish, its harvesters with and without faults, and the proof of what came out of
it.

python -P -m tests.outbox.harvesting SPEC      harvests by itself and dies where the spec says so; with
several traps, time and again
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from holdfast.clock import ManualClock, system_clock
from holdfast.config import Settings
from holdfast.core.engine.declared.partitioners import murmur2
from holdfast.core.kafka.sequences import advance
from holdfast.core.outbox.election import Leadership
from holdfast.dev import parent_death
from holdfast.dev.fixtures import SessionBroker
from holdfast.outbox.harvest.harvester import STRATEGIES, Harvester, open_rows
from holdfast.outbox.harvest.publishing import destinations
from holdfast.outbox.harvest.shard.shard import LeaderSignals, ShardRows, ShardStats, Term
from holdfast.outbox.harvest.strategies.fenced import FencedTerm
from holdfast.outbox.harvest.table.rows import OutboxRows
from holdfast.outbox.schema.layouts import OutboxRow
from holdfast.outbox.settings import HarvestSettings
from holdfast.outbox.topics import ensure_topics
from holdfast.outbox.writer.records import OutboxRecord
from tests.outbox.databases import FreshOutbox
from tests.support.harness import wait_for
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

PARTITIONS = 4
DAY_MS = 86_400_000
PROMPT_S = 2.0
"""The shortest timeout of an election: a leader is succeeded soon, and also when the machine stops it for
this long.
"""


@dataclass(frozen=True)
class Record:
    """One published record as its reader sees it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    @property
    def number(self) -> int:
        """The number that `Rig.fill` gave it."""
        return int(json.loads(self.value or b"{}")["number"])

    def header(self, name: str) -> bytes:
        return next(value or b"" for header, value in reversed(self.headers) if header == name)


@dataclass
class Rig:
    """One outbox, one destination topic, one name."""

    broker: SessionBroker
    outbox: FreshOutbox
    topic: str
    name: str = field(default_factory=lambda: f"rig-{ending()}")
    filled: int = 0

    def settings(self, **more: Any) -> HarvestSettings:
        kafka = Settings(kafka={name: str(value) for name, value in self.broker.config.items()})
        given: dict[str, Any] = {
            "database": self.outbox.url,
            "kafka": kafka,
            "name": self.name,
            "table": self.outbox.table,
            "layout": self.outbox.layout.name,
            "heartbeat_timeout_s": 30.0,  # deliveries end after it, a slow broker's too
            "retry_s": 0.05,
            "transaction_timeout_s": 60.0,
            "commit_timeout_s": 60.0,
        }
        return HarvestSettings(**{**given, **more})

    def fill(self, rows: int, *, keys: int = 10, size: int = 20) -> None:
        """Write *rows* more rows: their keys in turn, their numbers contiguous."""
        records = [
            self.record(number, keys=keys, size=size) for number in range(self.filled, self.filled + rows)
        ]
        self.write(records)
        self.filled += rows

    def record(self, number: int, *, keys: int = 10, size: int = 20, **more: Any) -> OutboxRecord:
        value = json.dumps({"number": number, "pad": "x" * size}).encode()
        return OutboxRecord(
            **{
                "topic": self.topic,
                "key": b"key-%d" % (number % keys),
                "value": value,
                "headers": [("n", b"%d" % number)],
                **more,
            }
        )

    def write(self, records: Sequence[OutboxRecord]) -> None:
        with self.outbox.engine().begin() as connection:
            self.outbox.writer(limit_bytes=None).write_many(connection, records)

    def left(self) -> int:
        with self.outbox.rows() as rows:
            return rows.count()

    def harvester(
        self, *, clients: dict[str, Any] | None = None, heartbeat_timeout_s: float = PROMPT_S, **more: Any
    ) -> Harvester:
        settings = self.settings(heartbeat_timeout_s=heartbeat_timeout_s, **more)
        return Harvester(settings, clients=clients)

    def wait_empty(self, harvester: Harvester | None = None, deadline_s: float = DEADLINE_S) -> None:
        """Return once no row is left."""
        wait_for(
            "an empty table", lambda: self.left() == 0, deadline_s, lambda: str(harvester and harvester.stats)
        )

    def read(self, isolation: str = "read_committed", topic: str = "") -> list[Record]:
        """Return every record of the destination topic."""
        config = self.broker.client_config(
            **{"group.id": "reader", "enable.partition.eof": True, "isolation.level": isolation}
        )
        consumer = Consumer(config)
        out, topic = [], topic or self.topic
        try:
            todo = set(consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, partition, 0) for partition in todo])
            until_s = time.monotonic() + DEADLINE_S
            while todo:
                assert time.monotonic() < until_s, f"partitions {todo} of {topic} have no end"
                for message in consumer.consume(10_000, 0.2):
                    error = message.error()
                    if error is not None and error.code() == KafkaError._PARTITION_EOF:
                        todo.discard(message.partition() or 0)
                    elif error is None:
                        found = (
                            message.partition() or 0,
                            message.offset() or 0,
                            message.key(),
                            message.value(),
                            message.headers() or [],
                        )
                        out.append(Record(*found))  # type: ignore[arg-type]
        finally:
            consumer.close()
        return out

    def prove(self, *, missing: Sequence[int] = ()) -> list[Record]:
        """Check that every row but *missing* was published exactly once, its key's in order, where and
        numbered as they must be.
        """
        records = self.read()
        faults = flaws(records, set(range(self.filled)) - set(missing))
        assert not faults, "\n".join(faults[:20])
        return records


def flaws(records: Sequence[Record], wanted: set[int]) -> list[str]:
    """Return the flaws of the published records."""
    out = []
    numbers = [record.number for record in records]
    if len(numbers) != len(set(numbers)):
        out.append(f"{len(numbers) - len(set(numbers))} duplicates")
    if set(numbers) != wanted:
        out.append(
            f"lost: {sorted(wanted - set(numbers))[:10]}, unexpected: {sorted(set(numbers) - wanted)[:10]}"
        )
    last: dict[bytes | None, int] = {}
    for record in records:
        if record.key is not None and last.get(record.key, -1) >= record.number:
            out.append(f"key {record.key!r}: {record.number} after {last[record.key]}")
        last[record.key] = record.number
        if record.key is not None and record.partition != (murmur2(record.key) & 0x7FFFFFFF) % PARTITIONS:
            out.append(f"key {record.key!r} in partition {record.partition}")
    out += unordered(records)
    return out


def unordered(records: Sequence[Record]) -> list[str]:
    """Return where sequences are not contiguous per producer and partition, or epochs go back."""
    out = []
    at: dict[tuple[bytes, int], tuple[int, int]] = defaultdict(lambda: (-1, 0))
    for record in sorted(records, key=lambda record: (record.partition, record.offset)):
        place = (record.header("holdfast-producer"), record.partition)
        sequence, epoch = int(record.header("holdfast-sequence")), int(record.header("holdfast-epoch"))
        before, before_epoch = at[place]
        if sequence != advance(before, 1):
            out.append(f"{place}: sequence {sequence} after {before} at offset {record.offset}")
        if epoch < before_epoch:
            out.append(f"{place}: epoch {epoch} after {before_epoch} at offset {record.offset}")
        at[place] = (sequence, epoch)
    return out


class Leaping(ManualClock):
    """A clock on which a waiting thread has waited for long as soon as it looks again; its day is the one
    before.
    """

    def __init__(self) -> None:
        super().__init__(now_ms=system_clock.now_ms() - DAY_MS)

    def monotonic_s(self) -> float:
        self.advance_ms(DAY_MS // 10)
        return super().monotonic_s()


# -- faults


class Trap:
    """Counts how often a point is passed and springs at one of them: the process kills or stops itself."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.place, self.at = spec.get("place", ""), int(spec.get("at", 1))
        self.signal = signal.Signals[spec.get("signal", "SIGKILL")]
        self._passed = 0

    def passing(self, place: str) -> None:
        if place == self.place:
            self._passed += 1
            if self._passed == self.at:
                os.kill(os.getpid(), self.signal)


class TrappedProducer(Producer):
    """A producer whose process may end at any step of a transaction."""

    trap = Trap({})

    def init_transactions(self, *args: Any) -> None:
        self.trap.passing("before fence")
        super().init_transactions(*args)
        self.trap.passing("after fence")

    def produce(self, *args: Any, **kwargs: Any) -> None:
        super().produce(*args, **kwargs)
        self.trap.passing("produce")

    def commit_transaction(self, *args: Any) -> None:
        if self.trap.place == "flushed":
            self.flush(DEADLINE_S)
            self.trap.passing("flushed")
        self.trap.passing("before commit")
        super().commit_transaction(*args)
        self.trap.passing("after commit")


class TrappedRows(OutboxRows):
    """Rows whose process may end at any step."""

    trap = Trap({})

    def epoch(self, shard: int, leader: str) -> int:
        found = super().epoch(shard, leader)
        self.trap.passing("epoch")
        return found

    def take(self, limit: int, **more: Any) -> list[OutboxRow]:
        found = super().take(limit, **more)
        self.trap.passing("take")
        return found

    def delete(self, ids: Any) -> int:
        self.trap.passing("before delete")
        found = super().delete(ids)
        self.trap.passing("after delete")
        return found


class SlowProducer(Producer):
    """Hears of each record before it takes the next."""

    def produce(self, *args: Any, **more: Any) -> None:
        super().produce(*args, **more)
        time.sleep(0.2)


class FaultyProducer(Producer):
    """A producer that fails now and then: refuses to queue, loses its queue, does not say how a commit
    ended.
    """

    chance = random.Random(7)
    share = 0.02
    faults = 0

    def _strikes(self, share: float) -> bool:
        struck = self.chance.random() < share
        FaultyProducer.faults += struck
        return struck

    def produce(self, *args: Any, **kwargs: Any) -> None:
        if self._strikes(self.share / 10):
            raise BufferError("Local: Queue full")
        super().produce(*args, **kwargs)

    def flush(self, *args: Any) -> int:
        if self._strikes(self.share * 5):
            self.purge()  # unsent records fail to be delivered, so the transaction must be aborted
        return super().flush(*args)

    def commit_transaction(self, *args: Any) -> None:
        super().commit_transaction(*args)
        if self._strikes(self.share * 5):
            raise KafkaException(KafkaError(KafkaError._FAIL, "nobody knows how it ended"))


# -- harvesters without an election, and as processes of their own


class Alone:
    """Leads a shard without an election: for what happens within a term.

    It waits long for a broker that a busy machine makes slow to list a topic: tests count its restarts.
    """

    def __init__(
        self,
        settings: HarvestSettings,
        clients: dict[str, Any] | None = None,
        make_rows: Any = open_rows,
        shard: int = 0,
    ) -> None:
        ensure_topics(settings)
        self.signals, self.stats = LeaderSignals(lambda: True), ShardStats(shard)
        self.shard_rows = ShardRows(settings, shard, self.signals, self.stats, make_rows)
        held = Leadership(role=shard, epoch=0, leader_id="alone")
        term = Term(
            settings=settings,
            shard=shard,
            leadership=held,
            signals=self.signals,
            stats=self.stats,
            shard_rows=self.shard_rows,
            clients=clients or {},
        )
        self.term = STRATEGIES[settings.strategy](term)
        self._thread = threading.Thread(target=self.term.run, daemon=True)
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Self:
        self._patch.setattr(destinations, "METADATA_TIMEOUT_S", DEADLINE_S)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.signals.stop()
        self.shard_rows.interrupt()
        self._thread.join(DEADLINE_S)
        self._patch.undo()
        assert not self._thread.is_alive(), "the term did not end"
        self.shard_rows.close(DEADLINE_S)

    @property
    def published(self) -> int:
        return self.stats.published


def harvest_process(
    rig: Rig,
    *,
    election: bool = False,
    trap: Mapping[str, Any] | None = None,
    traps: Sequence[Mapping[str, Any]] = (),
    **more: Any,
) -> subprocess.Popen[str]:
    """Start a harvester as a process of its own; it prints how many rows it has published, each time that
    changes.

    With *traps* it is one after the other, each a process that harvests until it is caught; printed is how
    each ended.
    """
    spec = {
        "settings": {
            "database": rig.outbox.url,
            "name": rig.name,
            "table": rig.outbox.table,
            "layout": rig.outbox.layout.name,
            "heartbeat_timeout_s": PROMPT_S,
            **more,
        },
        "kafka": {name: str(value) for name, value in rig.broker.config.items()},
        "trap": trap or {},
        "traps": list(traps),
        "election": election,
    }
    command = [sys.executable, "-P", "-m", "tests.outbox.harvesting", json.dumps(spec)]
    bound = [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid()), *command]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        bound, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def ends(process: subprocess.Popen[str]) -> list[int]:
    """Return how each of the traps' processes ended: minus the signal, as Popen says it; each has a
    deadline of its own.
    """
    assert process.stdout is not None
    return [int(line.split()[1]) for line in process.stdout if line.startswith("ended ")]


def main() -> None:
    spec = json.loads(sys.argv[1])
    settings = HarvestSettings(kafka=Settings(kafka=spec["kafka"]), **spec["settings"])
    for trap in spec["traps"]:
        if not (
            child := os.fork()
        ):  # before there is any client: what has been imported need not be imported again
            signal.alarm(int(DEADLINE_S))
            harvest(settings, trap, election=spec["election"])
            os._exit(0)
        print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    if not spec["traps"]:
        harvest(settings, spec["trap"], election=spec["election"])


def harvest(settings: HarvestSettings, trap: Mapping[str, Any], *, election: bool) -> None:
    """Harvest until standard input ends, or the trap springs."""
    TrappedProducer.trap = TrappedRows.trap = Trap(trap)
    clients = {"make_producer": TrappedProducer}

    def make_rows(settings: HarvestSettings) -> OutboxRows:
        return TrappedRows(settings.database, table=settings.table, layout=settings.layout)

    ended = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    print("ready", flush=True)
    before = 0
    with (
        Harvester(settings, clients=clients, make_rows=make_rows)
        if election
        else Alone(settings, clients, make_rows) as running
    ):
        while not ended.wait(0.01):
            published = (
                sum(each.published for each in running.stats)
                if isinstance(running, Harvester)
                else running.published
            )
            if published != before:
                print(published, flush=True)
                before = published


__all__ = ["Alone", "FaultyProducer", "FencedTerm", "Record", "Rig", "ends", "flaws", "harvest_process"]

if __name__ == "__main__":
    main()
