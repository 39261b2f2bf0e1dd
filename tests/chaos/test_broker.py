"""The broker dies, freezes, or is not there when a worker starts or stops: workers say so, end or wait, and
counts stay exact.

An only broker may lose the end of a transaction when it dies: Kafka 4.3.1 takes a partition without a leader
for a deleted one when it sends markers, which all of an only node are while it starts
(`KRaftMetadataCache.getPartitionLeaderEndpoint`). Then the supervisor here follows docs/operating.md, "A
transaction that never ends", as an operator would, and everything is exact all the same.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.fixtures import SessionBroker
from tests.chaos.conftest import MakeApplication
from tests.support.harness import TIMES, Application, Worker, end_transactions, running, wait_for
from tests.support.limits import at_most, measured
from tests.support.parts import part
from tests.support.patience import DEADLINE_S
from tests.support.proof import prove

STALL_S, OF_A_STALL = 1.0, ("Thread keepalive is not responding",)
"""Least stall of the machine that excuses a worker's stall, and the text that mode logs in that case."""
UNREADY_DEADLINE_S = TIMES["session_timeout_s"] + 10


@pytest.fixture(scope="module")
@part("kafka")
def frail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionBroker]:
    """Give a broker that these tests may do anything to."""
    with Cluster(tmp_path_factory.mktemp("frail"), short_lived=True) as cluster:
        yield SessionBroker(config=cluster.client_config(), cluster=cluster)


@pytest.fixture
def frail_application(frail: SessionBroker, tmp_path: Path) -> Iterator[MakeApplication]:
    """Give a maker of applications on the frail broker, which is up and awake again after the test."""
    with ExitStack() as stack:

        def make(**settings: str | float) -> Application:
            made = Application(frail, tmp_path, **settings)  # type: ignore[arg-type]
            return stack.enter_context(running(made)).create_topics()

        yield make
        cluster_of(frail).resume(1)


def cluster_of(broker: SessionBroker) -> Cluster:
    assert broker.cluster is not None
    return broker.cluster


def supervised(app: Application, until: Callable[[], bool]) -> int:
    """Start again whatever ends, as a supervisor does, until the condition holds; return how often that was
    needed.

    A broker whose coordinator aborts what timed out while the client ends it too may lose the end (its log
    shows a state "COMPLETE_COMMIT, but received transaction marker result to send: ABORT"). That is for an
    operator to mend, and not counted.
    """
    restarts = 0

    def condition() -> bool:
        nonlocal restarts
        ended = [worker for worker in app.workers if not worker.running]
        for worker in ended:
            assert worker.process.returncode > 0, (
                f"{worker.name} ended in silence with {worker.process.returncode}\n{worker.tail()}"
            )
        if lost := any(worker.said("from .* on a transaction is open") for worker in ended):
            for worker in app.workers:
                worker.kill()
            end_transactions(app.broker.bootstrap)
        for worker in app.workers:
            if not worker.running:
                worker.start()
                restarts += not lost
        return until()

    wait_for("the fleet to be well again", condition, DEADLINE_S, app.tails)
    return restarts


def all_ready(app: Application) -> bool:
    return (
        all(worker.ready for worker in app.workers)
        and sum(len(worker.applied()) for worker in app.workers) == 2 * app.partitions
    )


@pytest.mark.slow
@pytest.mark.parametrize("away_s", [0, TIMES["transaction_timeout_s"] + 4])
def test_a_broker_killed_and_restarted_under_load_costs_nothing(
    frail: SessionBroker, frail_application: MakeApplication, away_s: float
) -> None:
    """Away for longer than transactions may last, it nearly always loses ends; else now and then."""
    app = frail_application()
    app.worker().start(), app.worker().start()
    wait_for("both at work", lambda: all_ready(app), DEADLINE_S, app.tails)
    load = app.load(rate=2_000, seed=71)
    progressed(app)
    met = {worker.name: worker.process for worker in app.workers}
    with measured() as machine:
        cluster_of(frail).kill(1)
        before = applied(app)
        time.sleep(away_s)
        cluster_of(frail).restart(1)
        # Ready may be left over from before the outage; a worker is well once its offsets advance.
        supervised(
            app,
            lambda: all_ready(app) and all(at > before.get(place, -1) for place, at in applied(app).items()),
        )
        progressed(app)
    beside = OF_A_STALL if machine.stalled_s > STALL_S else ()
    # A worker that was restarted, as where an end was lost, has not met the outage.
    told = [outage_lines(worker, beside) for worker in app.live if worker.process is met.get(worker.name)]
    assert all(1 <= len(lines) <= 4 for lines in told), "\n".join(line for lines in told for line in lines)
    prove(app, load.stop(), lost_ends=True)


def outage_lines(worker: Worker, beside: tuple[str, ...] = ()) -> list[str]:
    """Return a worker's log lines above INFO, except those about refused records and those with a text in
    *beside*: the beginning and the end of an outage, and what becomes of the group.
    """
    said = worker.said(r"\[(WARNING|ERROR|CRITICAL)\]")
    return [line for line in said if not any(each in line for each in ("record quarantined", *beside))]


def applied(app: Application) -> dict[tuple[str, int], int]:
    """Return the last folded offset of each owned partition."""
    return {place: at for worker in app.live for place, at in worker.applied().items()}


def progressed(app: Application) -> None:
    """Return when each owned partition has moved."""
    before = applied(app)
    wait_for(
        "progress",
        lambda: all(at > before.get(place, -1) for place, at in applied(app).items()),
        DEADLINE_S,
        app.tails,
    )


def freeze(
    frail: SessionBroker, make: MakeApplication, *, seconds: float, seed: int, **settings: float
) -> int:
    """Freeze the broker under load: workers say that they are not ready, none ends in silence, and all is
    well afterwards.

    Returns how many workers ended and had to be started again.
    """
    app = make(**settings)
    app.worker().start(), app.worker().start()
    load = app.load(rate=1_500, seed=seed)
    wait_for("both at work", lambda: all_ready(app), DEADLINE_S, app.tails)
    progressed(app)
    cluster_of(frail).pause(1)
    began_s = time.monotonic()
    try:
        late = app.worker(request_timeout_s=7).start()
        with at_most(UNREADY_DEADLINE_S, "to be unready"):
            wait_for(
                "all to be unready",
                lambda: not any(worker.ready for worker in app.workers),
                DEADLINE_S,
                app.tails,
            )
        assert late.wait_exit(DEADLINE_S) > 0, "a worker cannot begin without a broker"
        assert late.said(rf"leaving: no Kafka broker at {app.broker.bootstrap} answered within 7 s"), (
            late.tail()
        )
        app.workers.remove(late)
        # Time is what this test is about.
        wait_for("the outage to end", lambda: time.monotonic() - began_s > seconds, DEADLINE_S)
    finally:
        cluster_of(frail).resume(1)
    restarts = supervised(app, lambda: all_ready(app))
    progressed(app)
    prove(app, load.stop())
    return restarts


@pytest.mark.slow
def test_a_broker_frozen_for_15_s_is_waited_out(
    frail: SessionBroker, frail_application: MakeApplication
) -> None:
    # Longer than a session and than the broker keeps a transaction, shorter than a worker waits for a commit.
    patient = {"commit_timeout_s": 240, "rebalance_timeout_s": 240, "stall_timeout_s": 240}
    assert freeze(frail, frail_application, seconds=15, seed=72, **patient) == 0


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [5, 30, 60])
def test_a_broker_frozen_for_a_minute_costs_nothing(
    frail: SessionBroker, frail_application: MakeApplication, seconds: int
) -> None:
    freeze(frail, frail_application, seconds=seconds, seed=73)


@pytest.mark.slow
def test_sigterm_without_a_broker_ends_a_worker_in_time(
    frail: SessionBroker, frail_application: MakeApplication
) -> None:
    times = {"COMMIT": 5, "REBALANCE": 5}
    app = frail_application()
    load = app.load(rate=1_000, seed=74)
    worker = app.worker().start(**{f"HOLDFAST_{name}_TIMEOUT_S": str(each) for name, each in times.items()})
    worker.wait_ready()
    progressed(app)
    cluster_of(frail).pause(1)
    worker.signal(signal.SIGTERM)
    with at_most(sum(times.values()) + 2, "the end of a worker"):
        worker.wait_exit(DEADLINE_S)
    cluster_of(frail).resume(1)
    worker.start()
    prove(app, load.stop())
