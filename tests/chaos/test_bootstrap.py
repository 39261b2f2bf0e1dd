"""A table bootstrapped from history under load, with processes killed on the way: workers continue with the
next record.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from holdfast.pipeline.bootstrap.bootstrap import BootstrapOptions, bootstrap
from holdfast.pipeline.bootstrap.sink import BootstrapOutcome, BootstrapStep
from holdfast.pipeline.replay import ReplayOptions
from holdfast.pipeline.verify.table import read_live, verify
from tests.chaos.conftest import MakeApplication
from tests.support.harness import Application, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT
from tests.support.proof import last_offsets, prove, read_topic

KILLED_AT_STEP = """
import os, signal, sys
from holdfast.config import Settings
from holdfast.pipeline.bootstrap.bootstrap import BootstrapOptions, bootstrap
from holdfast.pipeline.replay import ReplayOptions
from tests.chaos.counting import processors
app, bootstrap_servers, source, out, name, place, last = sys.argv[1:]
settings = Settings(app=app, kafka={"bootstrap.servers": bootstrap_servers})
(processor,) = [each for each in processors(source, out) if each.name == name]
def told(partition, step):
    if (str(partition), step.value) == (place, last):
        os.kill(os.getpid(), signal.SIGKILL)
options = BootstrapOptions(replay=ReplayOptions(engine="local"), emits="send")
bootstrap(processor, settings, options, told=told)
"""


def killed_at(app: Application, name: str, partition: int, step: BootstrapStep) -> None:
    given = (app.name, app.broker.bootstrap, app.source, app.out, name, str(partition), step.value)
    ran = subprocess.run(
        [sys.executable, "-P", "-c", KILLED_AT_STEP, *given],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    ("kills", "left"),
    [
        pytest.param(
            [(0, BootstrapStep.APPENDED), (1, BootstrapStep.APPENDING)],
            [BootstrapOutcome.KEPT, BootstrapOutcome.WRITTEN],
            id="twice",
        ),
        pytest.param(
            [(partition, step) for partition in (0, 1) for step in BootstrapStep],
            [BootstrapOutcome.KEPT, BootstrapOutcome.KEPT],
            id="at every step",
        ),
    ],
)
def test_workers_resume_after_a_bootstrap_that_was_killed(
    application: MakeApplication,
    kills: list[tuple[int, BootstrapStep]],
    left: list[BootstrapOutcome],
) -> None:
    app = application(partitions=2)
    load = app.load(rate=1_500, seed=19)
    wait_for(
        "a history",
        lambda: sum(last_offsets(read_topic(app.broker, app.source)).values()) > 4_000,
        DEADLINE_S,
    )
    for partition, step in kills:
        killed_at(app, "counts", partition, step)
    options = BootstrapOptions(replay=ReplayOptions(engine="local"), emits="send")
    counts, tally = app.processors
    done = bootstrap(counts, app.settings, options)
    assert [each.outcome for each in done.partitions] == left
    bootstrap(tally, app.settings, options)
    begun = {each.partition: each.applied for each in read_live(counts, app.settings)}
    assert min(begun.values()) > 1_000
    worker = app.worker().start()
    worker.wait_ready()
    assert verify(counts, app.settings, ReplayOptions(engine="local")).equal
    proof = prove(app, load.stop())
    ends = {at: each.marker.applied[0] for (name, at), each in proof.outcomes.items() if name == "counts"}
    assert all(ends[at] > begun[at] for at in ends), "no record came behind the bootstrap"
