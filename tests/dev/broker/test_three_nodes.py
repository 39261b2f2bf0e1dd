"""Three real nodes under load: one dies by SIGKILL, comes back, another dies.

Every acknowledged record is there. And the report on an application's topics while one of the nodes is away.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import check_topics, create_topics
from holdfast.clients.topics.specs import topic_names
from holdfast.clients.topics.types import CreateTopic, Severity, TopicState
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.rows import Rows
from holdfast.dev.broker.cluster import Cluster
from holdfast.errors import DevBrokerError
from tests.support.parts import part
from tests.support.patience import DEADLINE_S

PARTITIONS = 6
IN_FLIGHT_MAX = 200
"""Records sent and not yet acknowledged: so many are at risk at any moment."""
PACE_S, BURST = 0.01, 10
"""At most 1,000 records a second: the nodes need the processor more than the load does."""


class Load:
    """A producer that sends numbered records all the time and books what the cluster acknowledged."""

    def __init__(self, config: dict[str, str], topic: str) -> None:
        quiet: dict[str, Any] = {"log_level": 0, "error_cb": lambda _: None}
        self._producer = Producer(
            {**config, **quiet, "acks": "all", "enable.idempotence": True, "linger.ms": 5}
        )
        self._topic = topic
        self._slots = threading.BoundedSemaphore(IN_FLIGHT_MAX)
        self._stopping = threading.Event()
        self._progress = threading.Condition()
        self.acknowledged: list[bytes] = []
        self.failures: list[str] = []

    @contextmanager
    def running(self) -> Iterator[Load]:
        thread = threading.Thread(target=self._send)
        thread.start()
        try:
            yield self
        finally:
            self._stopping.set()
            thread.join(DEADLINE_S)
            assert self._producer.flush(DEADLINE_S) == 0

    def _send(self) -> None:
        number = 0
        while not self._stopping.wait(PACE_S):
            self._producer.poll(0)
            for _ in range(BURST):
                if not self._slots.acquire(blocking=False):
                    break
                self._producer.produce(
                    self._topic,
                    str(number).encode(),
                    partition=number % PARTITIONS,
                    on_delivery=self._delivered,
                )
                number += 1

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        with self._progress:
            if error is None:
                value = message.value()
                assert value is not None
                self.acknowledged.append(value)
            else:
                self.failures.append(str(error))
            self._progress.notify_all()
        self._slots.release()

    def wait_for(self, more: int) -> None:
        """Return when *more* records than now are acknowledged: enough that each partition took part."""
        with self._progress:
            goal = len(self.acknowledged) + more
            assert self._progress.wait_for(lambda: len(self.acknowledged) >= goal, DEADLINE_S), (
                f"{goal - len(self.acknowledged)} missing"
            )


def stored(config: dict[str, str], topic: str, *, begin: int = 0) -> Counter[bytes]:
    """Return every record of *topic* from offset *begin* to the end."""
    found: Counter[bytes] = Counter()
    consumer = Consumer(
        {
            **config,
            "log_level": 0,
            "group.id": "reader",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, begin) for partition in range(PARTITIONS)])
        ends, until_s = set[int | None](), time.monotonic() + DEADLINE_S
        while len(ends) < PARTITIONS:
            assert time.monotonic() < until_s, f"only the partitions {ends} were read to their ends"
            for message in consumer.consume(10_000, timeout=0.5):
                error = message.error()
                if error is None:
                    found[message.value() or b""] += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    ends.add(message.partition())
    finally:
        consumer.close()
    return found


def lost(acknowledged: list[bytes], found: Counter[bytes]) -> list[bytes]:
    return [value for value in acknowledged if value not in found]


def wait_in_sync(client: AdminClient, topic: str, replicas: set[int]) -> None:
    """Return when every partition of *topic* has exactly *replicas* in sync."""
    until_s = time.monotonic() + DEADLINE_S
    while True:
        in_sync = [
            set(each.isrs)
            for each in client.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions.values()
        ]
        if in_sync == [replicas] * PARTITIONS:
            return
        assert time.monotonic() < until_s, f"in sync are {in_sync}, wanted {replicas}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
@part("kafka")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("three"), nodes=3) as made:
        yield made
    assert [each.condition for each in made.status()] == ["stopped"] * 3


@pytest.fixture
def cluster(three: Cluster) -> Cluster:
    """Give three nodes that run, whatever the test before has done to them."""
    for each in three.status():
        if each.condition == "stopped":
            three.restart(each.node_id)
    return three


@pytest.mark.slow
def test_three_nodes_lose_nothing_when_one_is_killed_under_load_and_it_rejoins(cluster: Cluster) -> None:
    config = cluster.client_config()
    client = AdminClient({**config, "log_level": 0})
    client.create_topics([NewTopic("orders", PARTITIONS)])["orders"].result(DEADLINE_S)
    wait_in_sync(client, "orders", {1, 2, 3})
    leaders = {
        each.leader
        for each in client.list_topics("orders", timeout=DEADLINE_S).topics["orders"].partitions.values()
    }
    assert leaders == {1, 2, 3}, "so whichever node dies, it dies as a leader"

    with Load(config, "orders").running() as load:
        load.wait_for(1_000)
        cluster.kill(1)
        load.wait_for(1_000)
        assert [each.condition for each in cluster.status()] == ["stopped", "running", "running"]
        with pytest.raises(DevBrokerError, match="does not run"):
            cluster.pause(1)
        cluster.restart(1)
        wait_in_sync(client, "orders", {1, 2, 3})
        cluster.kill(
            2
        )  # two in sync are needed to acknowledge: this continues only because node 1 is truly back
        load.wait_for(1_000)

    found = stored(config, "orders")
    assert load.failures == []
    assert len(load.acknowledged) >= 3_000
    assert lost(load.acknowledged, found) == []
    assert set(found.values()) == {1}, "and the idempotent producer's retries doubled nothing"

    # The check can fail: without the first record of each partition it names just those.
    assert lost(sorted(load.acknowledged, key=int), stored(config, "orders", begin=1)) == [
        b"0",
        b"1",
        b"2",
        b"3",
        b"4",
        b"5",
    ]


class Total(msgspec.Struct, frozen=True):
    cents: int = 0


def fold(rows: Rows[Total], event: bytes, at_ms: int) -> None:
    rows["all"] = Total(len(event))


@pytest.mark.slow
def test_with_three_replicas_the_loss_of_a_node_is_a_warning_and_nothing_stops(cluster: Cluster) -> None:
    processor = Processor(name="totals", source="sales", decode=bytes, fold=fold, row=Total)
    settings = Settings(app="shop", replication_factor=3, kafka=cluster.client_config())
    create_topics(settings, [processor], partitions=3)
    assert check_topics(settings, [processor]) == []
    cluster.kill(3)
    admin = Admin(settings, timeout_s=DEADLINE_S)
    names = topic_names(settings, [processor])
    admin._await(
        "in-sync sets",
        lambda *_: [
            name for name, state in admin.cluster(names).topics.items() if _has_not_seen_the_loss(state)
        ],
    )
    findings = check_topics(settings, [processor])
    assert {finding.severity for finding in findings} == {Severity.WARNING}
    assert all("not in sync" in finding.message for finding in findings)
    (created,) = create_topics(settings, [replace(processor, version=2)])
    assert isinstance(created, CreateTopic), "two nodes of three still create topics with three replicas"


def _has_not_seen_the_loss(state: TopicState) -> bool:
    return any(len(partition.in_sync) == 3 or partition.leader in (None, 3) for partition in state.partitions)
