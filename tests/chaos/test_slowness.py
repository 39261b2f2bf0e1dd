"""Restores that take long, topics where nothing happens, folds that never return, and a polite stop in the
middle of it all.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from holdfast.kafka.fetching.source_fetcher import HANDFUL
from tests.chaos.conftest import MakeApplication
from tests.chaos.faults import SMALL_STEP_RECORDS
from tests.support.harness import UNDISTURBED, Application, Worker, wait_for
from tests.support.limits import at_most, measured
from tests.support.patience import DEADLINE_S
from tests.support.proof import last_offsets, prove, read_topic

RECORDS = 6_000
STALL_S = 3
HASTY = {"HOLDFAST_COMMIT_TIMEOUT_S": str(STALL_S), "HOLDFAST_STALL_TIMEOUT_S": str(STALL_S)}
STILL_S = 1.0
"""A stall of the machine for so long may make a worker miss the two seconds that these tests allow."""
LOOKED_AT = 10
"""So many times as long takes a restore that is ended before it is over: the test may see late that it began.
"""


def wiped_after_work(make: MakeApplication, restore_s: float) -> tuple[Application, Worker, str]:
    """Return an application with a full changelog, a worker that has lost its stores, and the pause that
    makes its restore last.
    """
    app = make(partitions=2, instance_id="only", **UNDISTURBED)
    worker = app.worker().start()
    app.load(rate=3_000, limit=RECORDS, seed=55).wait()  # slowly, so that there are many transactions
    proof = prove(app, RECORDS)
    worker.wipe()
    longest = max(len(messages) for changelog in proof.changelogs.values() for messages in changelog.values())
    return app, worker, f"{restore_s * 1000 / (longest / SMALL_STEP_RECORDS):.0f}"


def stays(worker: Worker, does: Callable[[], None]) -> None:
    """Fail unless *worker* stays in its group while it *does* something. During a stall of the machine it may
    leave, and rightly: then it does so again.
    """
    until_s = time.monotonic() + DEADLINE_S / 2
    while True:
        with measured() as machine:
            does()
        if len(worker.said("Joined group")) == 1:
            return
        assert machine.stalled_s > STILL_S, f"it left the group\n{worker.tail()}"
        assert time.monotonic() < until_s, f"it left the group each time\n{worker.tail()}"
        worker.stop()


@pytest.mark.slow
def test_a_long_restore_can_be_ended_at_any_time_and_is_not_taken_for_stuck(
    application: MakeApplication,
) -> None:
    app, worker, pause_ms = wiped_after_work(application, 4 * STALL_S)
    worker.start(CHAOS_RESTORE_PAUSE_MS=str(LOOKED_AT * int(pause_ms)), **HASTY)
    wait_for(
        "the restore to begin", lambda: "restoring" in worker.ask("/health/ready")[1], DEADLINE_S, worker.tail
    )
    with at_most(STALL_S + 2, "the end of a worker that restores"):
        worker.stop()
    assert worker.said("generation .* restored") == [], "the restore was over before the signal came"

    def restored() -> None:
        """Longer than a worker may stall and than aiokafka may think that nothing is read."""
        worker.wipe()
        began_s = time.monotonic()
        worker.start(CHAOS_RESTORE_PAUSE_MS=pause_ms, CHAOS_MAX_POLL_S="2", **HASTY).wait_ready(DEADLINE_S)
        assert time.monotonic() - began_s > 3 * STALL_S, "the restore was too quick to show anything"

    stays(worker, restored)
    prove(app, RECORDS)


@pytest.mark.variant
def test_a_worker_with_nothing_to_do_stays_in_the_group(application: MakeApplication) -> None:
    app = application(partitions=2, **UNDISTURBED)
    worker, written = app.worker(), 0

    def idle() -> None:
        nonlocal written
        worker.start(CHAOS_MAX_POLL_S="2").wait_ready()
        ready_s = time.monotonic()
        wait_for("a long silence", lambda: time.monotonic() - ready_s > 6, DEADLINE_S)
        written += app.load(rate=5_000, limit=2_000, seed=56).wait()
        app.wait_applied(last_offsets(read_topic(app.broker, app.source)), DEADLINE_S)

    stays(worker, idle)
    prove(app, written)


def test_a_fold_that_does_not_return_ends_the_worker(application: MakeApplication) -> None:
    app = application(partitions=1)
    worker = app.worker().start(**HASTY).wait_ready()
    producer = Producer(app.broker.client_config())
    producer.produce(app.source, b"sleep k1 120000", b"k1", 0)
    assert producer.flush(DEADLINE_S) == 0
    code = worker.wait_exit(DEADLINE_S)
    assert code == 70
    assert worker.said(r"the event loop has stood still for .* s: a fold \(.* partition 0, offset \d+\)"), (
        worker.tail()
    )
    assert worker.said(r"counting\.py.* in fold"), "the log does not tell which fold"


@pytest.mark.variant
def test_a_slow_fold_with_much_in_hand_is_not_taken_for_stuck(application: MakeApplication) -> None:
    app = application(partitions=1, **UNDISTURBED)
    records, fold_ms, stall_s = 2 * HANDFUL, 2, 5  # one fetch, folded for longer than a worker may stall
    assert records * fold_ms / 1000 > 1.5 * stall_s
    producer = Producer(app.broker.client_config(**{"linger.ms": 100}))
    for _ in range(records):
        producer.produce(app.source, b"sleep %s %d" % (b"k" * 40, fold_ms), partition=0)
    assert producer.flush(DEADLINE_S) == 0
    room = {"HOLDFAST_FETCH_BYTES": "131072", "HOLDFAST_INFLIGHT_BYTES": "131072"}
    patience = {
        "HOLDFAST_COMMIT_TIMEOUT_S": str(stall_s),
        "HOLDFAST_STALL_TIMEOUT_S": str(stall_s),
        "CHAOS_MAX_POLL_S": str(stall_s),
    }
    worker = app.worker().start(**room, **patience)
    app.wait_applied({0: records - 1}, DEADLINE_S)
    assert len(worker.said(r"Joined group")) == 1, "it left the group"


def revived(worker: Worker, **settings: str) -> bool:
    """Return whether *worker* is ready. One that has ended is started again, as by its supervisor."""
    if not worker.running:
        assert worker.process.returncode > 0, worker.tail()
        assert worker.said("the event loop has stood still") == [], "it was the process that stood still"
        worker.start(**settings)
    return worker.ready


@pytest.mark.slow
def test_a_worker_frozen_for_longer_than_it_may_stall_comes_back_or_ends(
    application: MakeApplication,
) -> None:
    """On a slow machine it may well be back, and end later: a backlog of 15 s takes longer than STALL_S."""
    app = application(partitions=2)
    load = app.load(rate=1_000, seed=57)
    worker = app.worker().start(**HASTY).wait_ready()
    for _ in range(3):
        worker.signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        wait_for("a long freeze", lambda stopped_s=stopped_s: time.monotonic() - stopped_s > 15, DEADLINE_S)  # type: ignore[misc]
        worker.signal(signal.SIGCONT)
        wait_for("the worker to be back", lambda: revived(worker, **HASTY), DEADLINE_S, worker.tail)
        assert worker.said("the event loop has stood still") == [], "it was the process that stood still"
    acked = load.stop()
    ends = last_offsets(read_topic(app.broker, app.source))
    wait_for(
        "the worker to have folded all",
        lambda: (
            revived(worker) and {at == ends[number] for (_, number), at in worker.applied().items()} == {True}
        ),
        DEADLINE_S,
        worker.tail,
    )
    prove(app, acked)
