"""A version that emits from where its predecessor ended, on real workers: each record is emitted once,
whichever worker is killed, and whatever comes back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.clients.topics.application import create_topics
from holdfast.core.engine.state.handover import HANDOVER, decode_handover
from holdfast.dev.fixtures import SessionBroker
from holdfast.pipeline.bootstrap.bootstrap import BootstrapOptions, bootstrap
from holdfast.pipeline.replay import ReplayOptions
from tests.agents.reminders import Reminded, reminders
from tests.agents.test_timers_and_versions import Reminders
from tests.support.patience import DEADLINE_S

SECOND = {"REMINDERS_VERSION": "2", "REMINDERS_HANDOVER": "1"}


@pytest.fixture
def fleet(broker: SessionBroker, tmp_path: Path) -> Iterator[Reminders]:
    with closing(Reminders(broker, tmp_path)) as fleet:
        yield fleet


def test_a_version_emits_from_where_the_one_before_it_ended_whichever_worker_is_killed(
    fleet: Reminders,
) -> None:
    second = reminders(fleet.settings.app, 2, handover=True)
    worker = fleet.worker().start().wait_ready()
    fleet.wait_applied(worker, fleet.write(*(f"add ada {number}" for number in range(50))))
    worker.kill()
    # The next one dies in its first transaction, which is the one that records up to where it is silent.
    create_topics(fleet.settings, [second])
    worker.start(CHAOS_FAULT="produced:1", **SECOND)
    assert worker.wait_exit(DEADLINE_S) == -9
    # So does version 1 get the partition once more, and continues.
    worker.start().wait_ready()
    fleet.wait_applied(worker, fleet.write(*(f"add bob {number}" for number in range(20))))
    worker.kill()
    worker.start(**SECOND).wait_ready()
    fleet.wait_applied(worker, fleet.write("add carl 1"))
    # A fixed position stays so, though version 1 might have continued.
    worker.kill()
    worker.wipe()
    worker.start(**SECOND).wait_ready()
    last = fleet.write("add carl 2")
    fleet.wait_applied(worker, last)
    rows = fleet.rows(second, last)
    worker.stop()
    assert rows == {
        "ada": Reminded(2 * sum(range(50))),
        "bob": Reminded(2 * sum(range(20))),
        "carl": Reminded(2 * 3),
    }, "what is silent is folded all the same"
    emitted = fleet.emitted()
    assert sum(emitted.values()) == 72
    assert {key.split(" added ")[0] for key in emitted} == {"ada: v1", "bob: v1", "carl: v2"}
    handover = decode_handover(dict(fleet.logged(second))[HANDOVER])
    assert handover is not None
    assert handover.applied == (69,)


@pytest.mark.variant
def test_a_version_is_built_while_the_one_before_it_folds_and_emits_on(fleet: Reminders) -> None:
    second = reminders(fleet.settings.app, 2, handover=True)
    worker = fleet.worker().start().wait_ready()
    fleet.wait_applied(worker, fleet.write(*(f"add ada {number}" for number in range(50))))
    create_topics(fleet.settings, [second])
    done = bootstrap(second, fleet.settings, BootstrapOptions(replay=ReplayOptions(engine="local")))
    assert [each.applied for each in done.partitions] == [49]
    fleet.wait_applied(worker, fleet.write(*(f"add bob {number}" for number in range(20))))
    assert worker.ask("/health/ready")[0] == 200, "version 1 was not shut out"
    worker.kill()
    worker.start(**SECOND).wait_ready()
    last = fleet.write("add carl 1")
    fleet.wait_applied(worker, last)
    rows = fleet.rows(second, last)
    worker.stop()
    sums = {"ada": sum(range(50)), "bob": sum(range(20)), "carl": 1}
    assert rows == {key: Reminded(2 * total) for key, total in sums.items()}
    emitted = fleet.emitted()
    assert sum(emitted.values()) == 71
    assert {key.split(" added ")[0] for key in emitted} == {"ada: v1", "bob: v1", "carl: v2"}
    handovers = [decode_handover(value) for key, value in fleet.logged(second) if key == HANDOVER]
    assert [each.applied for each in handovers if each is not None] == [(49,), (69,)]


def test_a_version_without_one_before_it_does_not_start(fleet: Reminders) -> None:
    second = reminders(fleet.settings.app, 2, handover=True)
    create_topics(fleet.settings, [second])
    fleet.broker.delete_topics([fleet.processors[0].changelog(fleet.settings.app)])
    worker = fleet.worker().start(**SECOND)
    assert worker.wait_exit(DEADLINE_S) > 0
    assert worker.said("no changelog of an earlier version tells up to where it emitted"), worker.tail()
