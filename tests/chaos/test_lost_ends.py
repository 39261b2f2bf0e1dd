"""A transaction on a changelog that never ends, as brokers leave it when they lose its end: state is restored
only once it has ended.
"""

from __future__ import annotations

import time

import pytest

from tests.chaos.conftest import MakeApplication
from tests.chaos.test_stores import RECORDS, worked
from tests.support.harness import Worker, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.proof import prove
from tests.support.strangers import open_transaction


@pytest.mark.variants("warm")
@pytest.mark.parametrize("wiped", [True, False], ids=["wiped", "warm"])
def test_a_worker_does_not_take_records_before_an_open_transaction_for_the_whole_state(
    application: MakeApplication, wiped: bool
) -> None:
    app, worker = worked(application)
    if wiped:
        worker.wipe()
    with open_transaction(app.broker.config, f"{app.name}-counts.v1-changelog", app.partitions):
        worker.start(HOLDFAST_COMMIT_TIMEOUT_S="6", HOLDFAST_STALL_TIMEOUT_S="6")
        assert worker.wait_exit(DEADLINE_S) > 0
        assert worker.said(
            r"counts\.v1-changelog partition \d ends at \d+, but from \d+ on a transaction is open"
        ), worker.tail()
        assert worker.said("A transaction that never ends"), worker.tail()
    worker.start()
    prove(app, RECORDS)


@pytest.mark.variant
def test_a_worker_resumes_when_the_transaction_ends_in_time(application: MakeApplication) -> None:
    app, worker = worked(application, stall_timeout_s=240)
    worker.wipe()
    with open_transaction(app.broker.config, f"{app.name}-counts.v1-changelog", app.partitions):
        worker.start()
        wait_for("the restore", lambda: restores(worker), DEADLINE_S, worker.tail)
        time.sleep(5)  # far longer than these few records take
        assert restores(worker), worker.tail()
    worker.wait_ready()
    prove(app, RECORDS)


def restores(worker: Worker) -> bool:
    return "restoring" in worker.ask("/health/ready")[1]
