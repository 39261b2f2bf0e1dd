"""Harvesters that come and go while rows are written, with and without faults: what goharvest proves of
itself, and the audit at the end.

One after the other starts, then all but the last are stopped in the same order. Each step waits for traffic
to flow, not for time to pass.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer

from holdfast.core.engine.declared.partitioners import murmur2
from holdfast.core.producers.audit import Rules
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.outbox.harvest.harvester import Harvester
from holdfast.pipeline.audit import AuditOptions, audit
from tests.outbox.databases import FreshOutbox
from tests.outbox.harvesting import Record, Rig
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S, SCENARIO_S

PARTITIONS = 10
KEYS = 10
TRANSACTION_ROWS = 20
SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of writing rows, and how many must be published between two steps."""

    every_s: float
    rows_between: int


SHORT = Pace(0.4, 20)
LONG = Pace(0.1, 400)
"""A row every 5 ms and two seconds of it, as in goharvest's tests."""
SLOWER = Pace(0.25, 200)
"""The time to keep up if every third transaction fails."""

Answer = Callable[[KafkaError | None, Message], None]


class Faulty(Producer):
    """Of what it is given, 2 % is refused at once, and of 2 % it says later that it was not delivered; of
    each one is among the first records of a test, however few it comes to write.
    """

    SURELY_REFUSED, SURELY_LOST = 5, 12
    chance = random.Random(11)
    refused = lost = given = 0

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(
            {**config, "delivery.report.only.error": False}
        )  # deliveries must be reported, to be denied
        self._struck = self._spoiled = False

    def produce(self, *args: Any, **kwargs: Any) -> None:
        Faulty.given += 1
        if self.chance.random() < SHARE or Faulty.given == self.SURELY_REFUSED:
            Faulty.refused += 1
            self._struck = True
            raise BufferError("Local: Queue full")
        if self.chance.random() < SHARE or Faulty.given == self.SURELY_LOST:
            Faulty.lost += 1
            answer: Answer | None = kwargs.get("on_delivery")
            if answer is None:
                self._spoiled = True  # its transaction cannot be committed
            else:
                kwargs["on_delivery"] = partial(_denied, answer)
        super().produce(*args, **kwargs)

    def poll(self, timeout: float = -1) -> int:
        struck, self._struck = self._struck, False
        return super().poll(0 if struck else timeout)  # nothing is really full

    def flush(self, *args: Any) -> int:
        spoiled, self._spoiled = self._spoiled, False
        if spoiled:
            self.purge()
        return super().flush(*args)


def _denied(answer: Answer, _: KafkaError | None, message: Message) -> None:
    answer(KafkaError(KafkaError._MSG_TIMED_OUT, "planted"), message)


@pytest.fixture(autouse=True)
def count() -> None:
    Faulty.given = 0


@contextmanager
def traffic(rig: Rig, every_s: float) -> Iterator[threading.Event]:
    """Write 20 rows in a transaction *every_s*, until the block or the event ends it."""
    ended, failed = threading.Event(), list[Exception]()

    def write() -> None:
        try:
            while not ended.wait(every_s):
                rig.fill(TRANSACTION_ROWS, keys=KEYS)
        except Exception as error:  # noqa: BLE001  raised by the waiting thread
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield ended
    finally:
        ended.set()
        thread.join(DEADLINE_S)
    assert not failed, failed[0]


def roll(rig: Rig, nodes: int, pace: Pace, clients: dict[str, Any], **settings: Any) -> list[Harvester]:
    """Start *nodes* harvesters and stop all but the last, with rows flowing at *pace*; return them, all
    stopped.
    """
    started: list[Harvester] = []

    def published() -> int:
        return sum(node.stats[0].published for node in started)

    def flow() -> None:
        goal = published() + pace.rows_between
        wait_for(
            "rows that flow",
            lambda: published() >= goal,
            DEADLINE_S,
            lambda: str([node.stats for node in started]),
        )

    with ExitStack() as running, traffic(rig, pace.every_s) as ended:
        for number in range(nodes):
            node = rig.harvester(
                clients=clients, instance=f"node-{number}", batch_rows=TRANSACTION_ROWS, **settings
            )
            running.enter_context(node)
            started.append(node)
            flow()
        for node in started[:-1]:
            node.stop()
            flow()
        ended.set()
        rig.wait_empty(started[-1], SCENARIO_S)
    # the rows being written when the traffic ended
    with rig.harvester(instance="last", **settings) as last:
        rig.wait_empty(last)
    return started


def received(rig: Rig) -> list[Record]:
    """Return a receiver's records, after goharvest's own checks of them: keys' numbers never decrease, no
    number is missing, headers are intact.
    """
    records = rig.read()
    assert {record.number for record in records} == set(range(rig.filled))
    last: dict[bytes | None, int] = defaultdict(lambda: -1)
    for record in records:
        assert record.key is not None
        assert record.key == b"key-%d" % (record.number % KEYS)
        assert record.partition == (murmur2(record.key) & 0x7FFFFFFF) % PARTITIONS
        assert record.number >= last[record.key], (
            f"{record.number} after {last[record.key]} at offset {record.offset}"
        )
        last[record.key] = record.number
        assert record.headers[0] == ("n", b"%d" % record.number)
    return records


def prove_fenced(rig: Rig, nodes: list[Harvester]) -> None:
    """Everything once, over several leaders, and the audit says so too."""
    records = received(rig)
    assert len(records) == rig.filled
    assert {tuple(name for name, _ in record.headers) for record in records} == {
        ("n", "holdfast-digest", "holdfast-producer", "holdfast-epoch", "holdfast-sequence")
    }
    assert len({record.header("holdfast-epoch") for record in records}) >= 2
    assert sum(node.stats[0].leader_changes for node in nodes) >= 2
    options = AuditOptions(rules=Rules(outbox=rig.name, number="n"), engine="local")
    report = audit(rig.settings().kafka, options)
    assert report.is_clean, report.document()["findings"][:10]
    assert (report.audited, {each.topic for each in report.partitions}) == (rig.filled, {rig.topic})
    assert all(each.ends for each in report.partitions)
    assert not any(each.undigested for each in report.partitions)
    again = records[0]  # and it would have found one more
    producer = Producer(rig.broker.client_config())
    producer.produce(rig.topic, again.value, again.key, again.partition, headers=again.headers)  # type: ignore[arg-type]
    assert producer.flush(DEADLINE_S) == 0
    planted = audit(rig.settings().kafka, options)
    assert {each.first for _, each in planted.findings} == {
        int(again.header("holdfast-sequence")),
        again.number,
    }
    assert {where.partition for where, _ in planted.findings} == {again.partition}


def prove_mark(rig: Rig, nodes: list[Harvester]) -> int:
    """Everything at least once and no key out of order, and the audit says so too; return how many came
    again.
    """
    records = received(rig)
    assert all(len(record.headers) == 1 for record in records)
    assert sum(node.stats[0].leader_changes for node in nodes) >= 2
    rules = Rules(number="n", at_least_once=True)
    report = audit(
        rig.settings(strategy="mark").kafka, AuditOptions(topics=(rig.topic,), rules=rules, engine="local")
    )
    assert report.is_clean, report.document()["findings"][:10]
    assert sum(each.repeated for each in report.partitions) == len(records) - rig.filled
    return len(records) - rig.filled


def rig_of(layout: str, broker: SessionBroker, fresh_topic: FreshTopic, run_database: str) -> Rig:
    return Rig(broker, FreshOutbox.make(run_database, layout), fresh_topic("rolling", partitions=PARTITIONS))


MARK: dict[str, Any] = {"strategy": "mark", "key_in_flight": 1}
FAULTY: dict[str, Any] = {"make_producer": Faulty}


@pytest.mark.parametrize("pace", [SHORT, pytest.param(SLOWER, marks=pytest.mark.slow)], ids=["short", "long"])
def test_four_fenced_harvesters_with_faults_come_and_go(
    broker: SessionBroker, fresh_topic: FreshTopic, run_database: str, pace: Pace
) -> None:
    """O1: 2 % of rows refused by the client, 2 % not delivered."""
    rig = rig_of("holdfast", broker, fresh_topic, run_database)
    refused, lost = Faulty.refused, Faulty.lost
    nodes = roll(rig, 4, pace, FAULTY)
    assert Faulty.refused > refused
    assert Faulty.lost > lost
    assert sum(node.stats[0].aborted for node in nodes) > 0
    prove_fenced(rig, nodes)


@pytest.mark.slow
def test_eight_fenced_harvesters_come_and_go(
    broker: SessionBroker, fresh_topic: FreshTopic, run_database: str
) -> None:
    """O1."""
    rig = rig_of("holdfast", broker, fresh_topic, run_database)
    prove_fenced(rig, roll(rig, 8, LONG, {}))


@pytest.mark.variant
@pytest.mark.parametrize("pace", [SHORT, pytest.param(SLOWER, marks=pytest.mark.slow)], ids=["short", "long"])
def test_four_marking_harvesters_with_faults_come_and_go(
    broker: SessionBroker, fresh_topic: FreshTopic, run_database: str, pace: Pace
) -> None:
    """O1: rows that were delivered but reported lost come again, and nothing out of order."""
    rig = rig_of("goharvest", broker, fresh_topic, run_database)
    nodes = roll(rig, 4, pace, FAULTY, **MARK)
    assert prove_mark(rig, nodes) > 0


@pytest.mark.slow
def test_eight_marking_harvesters_come_and_go(
    broker: SessionBroker, fresh_topic: FreshTopic, run_database: str
) -> None:
    """O1."""
    rig = rig_of("goharvest", broker, fresh_topic, run_database)
    prove_mark(rig, roll(rig, 8, LONG, {}, **MARK))


def test_a_row_that_is_changed_or_moved_after_publishing_is_found(
    broker: SessionBroker, fresh_topic: FreshTopic, run_database: str
) -> None:
    """A mirror of the topic, stamps and all, in which one row has another value, one another key, and one
    lies elsewhere.
    """
    rig = rig_of("holdfast", broker, fresh_topic, run_database)
    rig.fill(60)
    with rig.harvester() as harvester:
        rig.wait_empty(harvester)
    mirror = fresh_topic("mirror", partitions=PARTITIONS)
    records = rig.read()
    changes: dict[int, dict[str, Any]] = {
        5: {"value": b"another"},
        11: {"key": b"another"},
        17: {"partition": (records[17].partition + 1) % PARTITIONS},
    }
    producer = Producer(broker.client_config())
    for at, record in enumerate(records):
        sent: dict[str, Any] = {
            "value": record.value,
            "key": record.key,
            "partition": record.partition,
            **changes.get(at, {}),
        }
        producer.produce(mirror, headers=record.headers, **sent)  # type: ignore[arg-type]
    assert producer.flush(DEADLINE_S) == 0
    options = AuditOptions(topics=(mirror,), rules=Rules(outbox=rig.name), engine="local", ends=False)
    found = {(str(each.kind), each.first) for _, each in audit(rig.settings().kafka, options).findings}
    numbers = {at: int(records[at].header("holdfast-sequence")) for at in changes}
    assert {("changed", numbers[5]), ("changed", numbers[11]), ("misplaced", numbers[17])} <= found
    assert {number for kind, number in found if kind == "changed"} == {numbers[5], numbers[11]}
