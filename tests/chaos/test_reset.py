"""An application taken back to its beginning: refused while workers live, cut at every step, and ended by
another run.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from itertools import islice

import pytest

from holdfast.cli.topics.resetting import ApplicationReset
from holdfast.clients.groups.broker import BrokerGroups
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import create_topics, require_topics
from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.errors import GroupError, TopicError
from holdfast.pipeline.replay import ReplayOptions
from holdfast.pipeline.verify.table import verify
from tests.chaos.conftest import MakeApplication
from tests.support.harness import Application
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT
from tests.support.proof import prove

KILLED_AT_STEP = """
import os, pathlib, signal, sys
from holdfast.cli.topics.resetting import ApplicationReset
from holdfast.config import Settings
from tests.chaos.counting import processors
app, bootstrap, source, out, data, last = sys.argv[1:]
settings = Settings(app=app, kafka={"bootstrap.servers": bootstrap}, data_dir=pathlib.Path(data))
for at, step in enumerate(ApplicationReset(settings, processors(source, out), empty_outputs=True).steps()):
    step.do()
    if at == int(last):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.variant
def test_a_reset_to_a_time_folds_later_records_and_verify_says_so(application: MakeApplication) -> None:
    app = application(partitions=2)
    app.load(rate=10_000, limit=1_000, seed=92).wait()
    worker = app.worker().start().wait_ready()
    prove(app)
    worker.stop()
    middle_ms = system_clock.now_ms()
    app.load(rate=10_000, limit=1_000, seed=93).wait()
    settings = replace(app.settings, data_dir=worker.data)
    places = [(app.source, 0), (app.source, 1)]
    begins = Admin(settings).offsets_at(places, middle_ms)
    assert all(begins.values()), "a toy"
    reset = ApplicationReset(settings, app.processors, empty_outputs=True, to_ms=middle_ms)
    reset.check()
    for step in reset.steps():
        step.do()
    worker.start().wait_ready()
    ends = {at: end - 1 for (_, at), (_, end) in Admin(settings).offsets(places).items()}
    app.wait_applied(ends, DEADLINE_S)
    verdict = verify(app.processors[0], settings, ReplayOptions(engine="local"))
    assert (verdict.equal, verdict.partial) == (True, ())
    assert [told.split()[-1] for told in verdict.bases] == [f"{(begins[place] or 0) - 1}" for place in places]
    worker.stop()


def reset_of(app: Application, settings: Settings) -> ApplicationReset:
    return ApplicationReset(settings, app.processors, empty_outputs=True)


def killed_at(app: Application, settings: Settings, step: int) -> None:
    """Run a reset in a process of its own, which is killed when a step is done."""
    given = (app.name, app.broker.bootstrap, app.source, app.out, str(settings.data_dir), str(step))
    ran = subprocess.run(
        [sys.executable, "-P", "-c", KILLED_AT_STEP, *given],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr


def check_shut(app: Application, settings: Settings) -> None:
    """No worker starts, and no topic is created, until the reset has ended."""
    with pytest.raises(TopicError, match="run `holdfast reset --execute` again, which ends it"):
        require_topics(settings, app.processors)
    with pytest.raises(TopicError, match="was begun and has not ended"):
        create_topics(settings, app.processors, partitions=2)


def test_a_reset_that_is_cut_anywhere_is_ended_by_the_next_and_the_source_is_folded_again(
    application: MakeApplication,
) -> None:
    app = application(partitions=2)
    app.load(rate=10_000, limit=1_500, seed=91).wait()
    worker = app.worker().start().wait_ready()
    settings = replace(app.settings, data_dir=worker.data)
    admin = Admin(settings)
    first = next(reset_of(app, settings).steps())
    with pytest.raises(GroupError, match=r"1 workers of .* run"):
        first.do()
    assert not admin.cluster([settings.reset_topic]).topics, "nothing was done, so nothing is under way"
    prove(app)
    before = admin.offsets([(app.source, 0), (app.source, 1)])
    steps = list(reset_of(app, settings).steps())
    assert {(each.action, each.kind) for each in steps} >= {("delete", "store"), ("delete", "changelog")}

    killed_at(app, settings, 0)
    check_shut(app, settings)
    killed_at(app, settings, len(steps) // 2)
    for cut in range(1, len(steps)):
        for step in islice(reset_of(app, settings).steps(), cut):
            if step.action != "end":  # there are fewer steps where topics are gone
                step.do()
        check_shut(app, settings)
    for step in reset_of(app, settings).steps():
        step.do()

    require_topics(settings, app.processors)
    assert BrokerGroups(settings, timeout_s=DEADLINE_S).describe(app.name) is None
    assert not list(worker.data.glob("*.v*"))
    ours = [each.changelog(app.name) for each in app.processors]
    # A changelog holds the note of where its table begins, and the end of that transaction.
    assert {end for _, end in admin.offsets((topic, at) for topic in ours for at in (0, 1)).values()} == {2}
    assert admin.offsets([(app.source, 0), (app.source, 1)]) == before, "sources are left"
    worker.start()
    proof = prove(app, from_source=True)
    proof.check_emits()
