"""A worker of holdfast folds and emits exactly once while its broker, in a folder, is killed under it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.dev.fixtures import SessionBroker
from tests.embedded.storage.killed_broker import broker_in
from tests.support.harness import Application, Worker, running, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.proof import prove

pytestmark = pytest.mark.process

KILLS = 2


def test_a_worker_continues_after_its_broker_was_killed(tmp_path: Path) -> None:
    with broker_in(tmp_path / "broker", "no fsync") as broker:
        session = SessionBroker(config={"bootstrap.servers": broker.bootstrap})
        with running(Application(session, tmp_path, partitions=2)) as app:
            app.create_topics()
            worker = app.worker().start().wait_ready()
            load = app.load(rate=1_000, seed=5)
            for _ in range(KILLS):
                progressed(app, worker)
                broker.kill()
            progressed(app, worker)
            assert worker.running, "it goes on by itself"
            prove(app, load.stop())


def progressed(app: Application, worker: Worker) -> None:
    """Return when each partition of the worker has moved."""
    before = worker.applied()

    def condition() -> bool:
        now = worker.applied()
        return bool(before) and all(now.get(place, -1) > at for place, at in before.items())

    wait_for("progress", condition, DEADLINE_S, app.tails)
