"""Stateless steps on real workers: each record goes through a chain of them once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import create_topics
from holdfast.dev.fixtures import SessionBroker
from tests.support.harness import running, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.stepping_app import StepsApplication

MakeSteps = Callable[..., StepsApplication]


@pytest.fixture
def chain(broker: SessionBroker, tmp_path: Path) -> Iterator[MakeSteps]:
    """Give a maker of applications of steps; all they started is gone after the test."""
    with ExitStack() as stack:

        def make(**settings: str | float) -> StepsApplication:
            made = StepsApplication(broker, tmp_path, **settings)  # type: ignore[arg-type]
            stack.enter_context(running(made))
            return made.create_topics()

        yield make


LONG = pytest.mark.slow


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("produced", marks=LONG),
        "committing",
        pytest.param("committed", marks=LONG),
        pytest.param("stored", marks=LONG),
    ],
)
def test_a_worker_killed_in_the_middle_is_followed_by_one_that_sends_each_record_once(
    chain: MakeSteps, point: str
) -> None:
    app = chain(standbys=1)
    first = app.worker().start(CHAOS_FAULT=f"{point}:25").wait_ready()
    second = app.worker().start().wait_ready()
    assert first.wait_exit_under(lambda at: app.write(120, seed=at)) == -9
    app.write(200, seed=99)
    second.wait_ready()
    app.prove()


@pytest.mark.variant
def test_a_step_restores_its_position_alone_and_has_no_rows_to_ask_for(chain: MakeSteps) -> None:
    app = chain(partitions=1)
    worker = app.worker().start().wait_ready()
    app.write(300, seed=1)
    app.prove()
    worker.kill()
    worker.wipe()
    app.write(300, seed=2)
    worker.start().wait_ready()
    app.prove()
    status, answer = worker.ask(f"/tables/{app.processors[0].name}/0/scan")
    assert (status, json.loads(answer)["error"]) == (404, "no_such_table")
    assert "stateless step" in answer


@pytest.mark.variant
def test_a_step_that_is_raised_alone_is_refused_with_the_list_of_steps_to_raise(chain: MakeSteps) -> None:
    app = chain()
    old = app.worker().start().wait_ready()
    app.write(100, seed=1)
    app.prove()
    app.declare(version=2)
    assert app.command("topics", "create").returncode == 1, (
        "makes the topics, and tells what is wrong with the state"
    )
    told = app.command("topics", "check")
    assert told.returncode == 1
    behind = (*(f"{app.name}-{name}" for name in ("lengths", "merged", "named", "sizes")), "counts")
    assert (
        f"raise together {', '.join(f'{name} to version 2' for name in behind)}" in told.stdout + told.stderr
    )
    lone = app.worker().start()
    assert lone.wait_exit(DEADLINE_S) != 0
    assert lone.said("ChainError") or lone.said("raise together")
    verdict = app.command("verify", "counts")
    assert verdict.returncode != 0, "what is live was folded from another topic"
    assert "another version" in verdict.stdout + verdict.stderr
    assert old.running
    old.stop()


@pytest.mark.slow
def test_a_chain_raised_as_a_whole_counts_nothing_twice_in_any_order_of_restarts(chain: MakeSteps) -> None:
    app = chain()
    old = app.worker().start().wait_ready()
    app.write(300, seed=1)
    app.prove()
    app.declare(version=2, counts_version=2)
    create_topics(app.settings, app.processors)
    new = app.worker().start()
    app.write(300, seed=2, rest_s=0.02)
    old.kill()
    new.wait_ready()
    app.prove()
    new.kill()
    app.write(100, seed=3)
    app.declare()
    old.start().wait_ready()
    app.prove()
    old.stop()
    app.declare(version=2, counts_version=2)
    new.start().wait_ready()
    app.prove()


@pytest.mark.variant
def test_internal_topics_are_trimmed_up_to_the_state_of_all_and_no_record_is_lost(chain: MakeSteps) -> None:
    app = chain(trim_internal="true")
    app.write(300, seed=1)
    worker = app.worker().start(CHAOS_FAULT="committed:60").wait_ready()
    assert worker.wait_exit_under(lambda at: app.write(50, seed=at + 2)) == -9
    worker.wipe()
    app.write(300, seed=9_999_999)
    worker.start().wait_ready()
    app.wait_through()
    admin = Admin(app.settings)
    internal = [str(topic) for each in app.processors for topic in each.internal]
    places = [(topic, number) for topic in internal for number in range(app.partitions)]

    def trimmed() -> bool:
        written = {place: end for place, (_, end) in admin.offsets(places).items() if end}
        return bool(written) and all(
            admin.offsets([place])[place][0] >= end - 2 for place, end in written.items()
        )

    wait_for("internal topics to be trimmed", trimmed, DEADLINE_S, app.tails)
    app.write(200, seed=1_000)
    app.prove_what_is_counted()
    verdict = app.command("verify", "counts")
    assert verdict.returncode != 0, "what its table was folded from is not there any more"
    assert "deleted" in verdict.stdout + verdict.stderr
    worker.stop()
    app.declare(counts_version=2)
    create_topics(app.settings, app.processors)
    told = app.command("topics", "check")
    assert told.returncode == 1
    assert f"raise together {app.name}-lengths to version 3" in told.stdout, "the writer with all behind it"
    assert f"{app.name}-words to version 2, counts to version 3" in told.stdout
    lone = app.worker().start()
    assert lone.wait_exit(DEADLINE_S) != 0
    app.declare(version=2, counts_version=3)
    create_topics(app.settings, app.processors)
    assert app.command("topics", "check").returncode == 0
    app.worker().start().wait_ready()
    app.prove_what_is_counted()
