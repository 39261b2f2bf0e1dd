"""A healthy worker is quiet: whatever looks at the clock an hour after the start finds nothing to say,
with records coming in and without.
"""

from __future__ import annotations

import re

import pytest
from confluent_kafka import Producer

from tests.chaos.conftest import MakeApplication
from tests.support.harness import UNDISTURBED, Application, Worker, wait_for
from tests.support.patience import DEADLINE_S

LOOKS = 4
LOOKED = "watchers have looked"
LOUD = r"\[(WARNING|ERROR|CRITICAL)\]|Traceback|^%[0-4]\|"


def write(app: Application) -> None:
    producer = Producer(app.broker.client_config())
    producer.produce(app.source, b"add key 1", partition=0)
    assert producer.flush(DEADLINE_S) == 0


def an_hour_later(app: Application, instance: str) -> Worker:
    write(app)
    return app.worker(instance_id=instance).start(CHAOS_HOURS="1").wait_ready()


def loud(worker: Worker) -> list[str]:
    """Return its log lines at WARNING or above since it is healthy: a broker just started is asked more
    than once.
    """
    lines = worker.said("")
    healthy = next(at for at, line in enumerate(lines) if LOOKED in line)
    return [line for line in lines[healthy:] if re.search(LOUD, line)]


def wait_looked_at(worker: Worker, times: int = LOOKS) -> None:
    wait_for("Faust's watchers to look", lambda: len(worker.said(LOOKED)) >= times, DEADLINE_S, worker.tail)


def test_an_idle_worker_says_nothing_in_an_hour(application: MakeApplication) -> None:
    worker = an_hour_later(application(partitions=2, **UNDISTURBED), "idle")
    wait_looked_at(worker)
    assert loud(worker) == []


@pytest.mark.variant
def test_a_worker_that_folds_a_record_now_and_then_says_nothing_in_an_hour(
    application: MakeApplication,
) -> None:
    app = application(partitions=2, **UNDISTURBED)
    worker = an_hour_later(app, "trickle")
    written = 1
    for looked in range(LOOKS):
        write(app)
        written += 1
        wait_looked_at(worker, looked + 1)
    wait_for(
        "all of it to be folded",
        lambda: worker.applied().get(("counts", 0)) == written - 1,
        DEADLINE_S,
        worker.tail,
    )
    assert loud(worker) == []
