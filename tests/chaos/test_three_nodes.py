"""Three brokers, one of them killed under load: leaders, coordinators and transactions move, workers
continue, counts stay exact.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.fixtures import SessionBroker
from tests.support.harness import Application, running, wait_for
from tests.support.parts import part
from tests.support.patience import DEADLINE_S
from tests.support.proof import prove

AWAY_S = 20.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
@part("kafka")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionBroker]:
    with Cluster(tmp_path_factory.mktemp("three"), nodes=3) as cluster:
        yield SessionBroker(config=cluster.client_config(), cluster=cluster)


def test_a_broker_of_three_dies_under_load_and_nothing_is_lost_or_doubled(
    three: SessionBroker, tmp_path: Path
) -> None:
    cluster = three.cluster
    assert cluster is not None
    with running(
        Application(three, tmp_path, partitions=6, replication_factor=3, commit_timeout_s=30)
    ) as app:
        app.create_topics({"min.insync.replicas": "2"})
        fleet = [app.worker().start(), app.worker().start()]
        wait_for("both at work", lambda: all(worker.ready for worker in fleet), DEADLINE_S, app.tails)
        load = app.load(rate=1_000, seed=75)
        for node in cluster.node_ids:
            before = {place: at for worker in fleet for place, at in worker.applied().items()}
            cluster.kill(node)

            def moved(before: dict[tuple[str, int], int] = before) -> bool:
                for worker in fleet:
                    if not worker.running:
                        assert worker.process.returncode > 0, (
                            f"{worker.name} ended in silence\n{worker.tail()}"
                        )
                        worker.start()
                now = {place: at for worker in fleet for place, at in worker.applied().items()}
                return len(now) == 2 * app.partitions and all(
                    at > before.get(place, -1) for place, at in now.items()
                )

            wait_for(f"every partition to move on without node {node}", moved, DEADLINE_S, app.tails)
            cluster.restart(node)
        prove(app, load.stop())


def test_the_outage_of_one_broker_of_three_is_logged_when_it_begins_and_when_all_answer_again(
    three: SessionBroker, tmp_path: Path
) -> None:
    cluster = three.cluster
    assert cluster is not None
    with running(
        Application(three, tmp_path, partitions=6, replication_factor=3, commit_timeout_s=30)
    ) as app:
        app.create_topics({"min.insync.replicas": "2"})
        worker = app.worker().start().wait_ready()
        load = app.load(rate=50, seed=76)
        cluster.kill(cluster.node_ids[0])
        time.sleep(AWAY_S)
        cluster.restart(cluster.node_ids[0])
        time.sleep(AWAY_S / 3)
        count = load.stop()
        assert worker.running, worker.tail()
        told = [
            line for line in worker.log.read_text().splitlines() if "[WARNING]" in line and "broker" in line
        ]
        assert [re.sub(r".*WARNING\] |[:,].*", "", line) for line in told] == [
            "a broker cannot be reached",
            "brokers that are asked answer again",
        ], told
        prove(app, count)
