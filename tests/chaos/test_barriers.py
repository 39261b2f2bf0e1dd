"""Unplanned orders: a leader whose clock goes back, and a broker that is away while another keeps running."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from holdfast.clients.topics.application import create_topics
from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.fixtures import SessionBroker
from tests.support.harness import running, wait_for
from tests.support.joining_app import APPEND_TIME, JoinApplication
from tests.support.parts import part
from tests.support.patience import DEADLINE_S

BACK_MS = 5_000
ROUNDS = 40
FETCH_WAIT_S = 1.5
"""Longer than a leader keeps a fetch waiting: afterwards a frozen worker has none there that could be
answered.
"""


@pytest.mark.slow
def test_records_of_a_leader_whose_clock_goes_back_are_folded_live_as_in_a_replay(
    broker: SessionBroker, tmp_path: Path
) -> None:
    """Times are the producer's here, so that a log can have those of a leader whose clock was set back by 5
    s.
    """
    app = JoinApplication(broker, tmp_path, partitions=1)
    with running(app):
        app.create_topics({"message.timestamp.type": "CreateTime"})
        worker = app.worker().start().wait_ready()
        producer = Producer(broker.client_config(**{"linger.ms": 0}))
        start_ms = time.time_ns() // 1_000_000 - 60_000
        for at in range(ROUNDS):
            if at == ROUNDS * 3 // 4:
                worker.kill()
                worker.start()
            for topic in app.joined.topics:
                back_ms = BACK_MS if topic == app.customers and at >= ROUNDS // 2 else 0
                text = f"{'later' if at % 7 == 0 else 'add'} k{at % 3} {at}"
                producer.produce(topic, text.encode(), partition=0, timestamp=start_ms + at * 100 - back_ms)
                assert producer.flush(DEADLINE_S) == 0
            time.sleep(0.05)
        worker.wait_ready()
        (outcome,) = app.prove().values()
        assert sum(outcome.marker.applied) + 2 == 2 * ROUNDS
        assert any(choice.tick_ms is not None for choice in outcome.choices)


@pytest.fixture
@part("kafka")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionBroker]:
    with Cluster(tmp_path_factory.mktemp("three"), nodes=3) as cluster:
        yield SessionBroker(config=cluster.client_config(), cluster=cluster)


@pytest.mark.slow
def test_a_record_that_a_paused_broker_kept_is_folded_after_a_barrier(
    three: SessionBroker, tmp_path: Path
) -> None:
    """It was appended before others that were folded while its broker was paused."""
    cluster = three.cluster
    assert cluster is not None
    app = JoinApplication(three, tmp_path, partitions=1, replication_factor=3, source_wait_ms=500)
    with running(app):
        admin = AdminClient(three.client_config())
        for topic, node in zip((app.customers, app.orders), cluster.node_ids, strict=False):
            made = NewTopic(
                topic, 1, replica_assignment=[[node]], config={**APPEND_TIME, "min.insync.replicas": "1"}
            )
            admin.create_topics([made])[topic].result(DEADLINE_S)
        create_topics(app.settings, app.processors, partitions=1)
        kept_by = cluster.node_ids[0]
        worker = app.worker().start().wait_ready()
        for at in range(5):
            for topic in app.joined.topics:
                app.send(topic, f"add k1 {at}")
            app.flush()
        app.wait_folded()
        worker.signal(signal.SIGSTOP)
        try:
            time.sleep(FETCH_WAIT_S)
            app.send(app.customers, "add k1 5")
            app.flush()
            cluster.pause(kept_by)
            app.send(app.orders, "add k1 6")
            app.flush()
        finally:
            worker.signal(signal.SIGCONT)
        try:
            wait_for(
                "the order to be folded",
                lambda: app.states()[0][1].applied == (4, 5),
                DEADLINE_S,
                worker.tail,
            )
        finally:
            cluster.resume(kept_by)
        (outcome,) = app.prove().values()
        assert outcome.marker.applied == (5, 5)
        assert any(each.is_barrier for each in outcome.choices)
