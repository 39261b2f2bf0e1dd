"""Another program writes to a changelog: workers end and name the remedies, the command shows the records,
and both remedies lead to an equal table.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from holdfast.core.engine.positions import Position, encode_position
from holdfast.core.engine.state.codec import APPLIED, row_key
from tests.chaos.conftest import MakeApplication
from tests.support import fork_server
from tests.support.harness import Application, Worker, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT
from tests.support.proof import logged_state, prove, read_topic

RECORDS = 3_000

Plant = Callable[[Application, Producer, str, dict[bytes, bytes]], None]


def run(app: Application, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command on the application."""
    (app.folder / "shop.py").write_text(
        f"from tests.chaos.counting import processors as made\nprocessors = made({app.source!r},"
        f" {app.out!r})\n"
    )
    return fork_server.run(
        [*fork_server.INTERPRETER, fork_server.COMMAND, "-A", "shop", *arguments],
        env={**os.environ, **app._environment, "PYTHONPATH": str(ROOT)},
        cwd=app.folder,
        timeout=DEADLINE_S,
    )


def holdfast(app: Application, *arguments: str, code: int = 0) -> str:
    """Run the command; return its output, stdout before stderr."""
    done = run(app, *arguments)
    assert done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def execute(app: Application, *arguments: str) -> str:
    """Run the command with --execute as soon as no worker is in the group any more: one that died is in it
    for a session.
    """
    client = AdminClient(app.broker.client_config())

    def nobody() -> bool:
        found = client.describe_consumer_groups([app.name], request_timeout=DEADLINE_S)[app.name]
        return not found.result(DEADLINE_S).members

    wait_for("the group to be empty", nobody, DEADLINE_S)
    return holdfast(app, *arguments, "--execute")


def rows_for_nobody(app: Application, producer: Producer, changelog: str, state: dict[bytes, bytes]) -> None:
    """Without a transaction: over a row, of no kind that is known, and a row that there never was."""
    for key in (min(state), b"\x77key", row_key("ghost")):
        producer.produce(changelog, b"stray", key, 0)
    assert producer.flush(DEADLINE_S) == 0


def a_position(app: Application, producer: Producer, changelog: str, state: dict[bytes, bytes]) -> None:
    producer.produce(changelog, b"stray", APPLIED, 0)
    assert producer.flush(DEADLINE_S) == 0


def a_transaction(app: Application, producer: Producer, changelog: str, state: dict[bytes, bytes]) -> None:
    """It deletes rows and says that all was folded a hundred records ago."""
    stranger = Producer(app.broker.client_config(**{"transactional.id": f"{app.name}-stranger"}))
    stranger.init_transactions(DEADLINE_S)
    stranger.begin_transaction()
    for key in sorted(state)[:3]:
        stranger.produce(changelog, None, key, 0)
    stranger.produce(changelog, encode_position(Position((100,), 1, 1)), APPLIED, 0)
    stranger.commit_transaction(DEADLINE_S)


def spoilt(app: Application, plant: Plant) -> tuple[Worker, str, str]:
    """Return a worker that has stopped, the name of its first table, and the changelog of that into which
    *plant* wrote.
    """
    worker = app.worker().start()
    app.load(rate=5_000, limit=RECORDS, seed=51).wait()
    prove(app, RECORDS)
    worker.stop()
    processor = app.processors[0]
    changelog = processor.changelog(app.name)
    state, _ = logged_state(read_topic(app.broker, changelog)[0])
    plant(app, Producer(app.broker.client_config()), changelog, state)
    return worker, processor.name, changelog


def document(text: str) -> Any:
    return json.loads(text[: text.rindex("}") + 1])


@pytest.mark.variants("rows_for_nobody-False", "rows_for_nobody-True", "a_transaction-False")
@pytest.mark.parametrize(
    ("plant", "wiped"),
    [(rows_for_nobody, False), (rows_for_nobody, True), (a_position, True), (a_transaction, False)],
)
def test_the_table_resumes_from_its_last_good_state(
    application: MakeApplication, plant: Plant, wiped: bool
) -> None:
    app = application(partitions=2, instance_id="only")
    worker, name, _ = spoilt(app, plant)
    if wiped:
        worker.wipe()
    if plant is not a_transaction:  # that one would be believed: its last record is a position
        worker.start()
        assert worker.wait_exit(DEADLINE_S) > 0
        assert worker.said(f"holdfast tables repair {name}"), worker.tail()
    shown = document(holdfast(app, "tables", "repair", name, "-o", "json", code=1))
    assert shown["strays"]
    assert {each["partition"] for each in shown["strays"]} == {0}
    assert [each["how"] for each in shown["partitions"]] == [
        "restored from the changelog",
        "nothing to repair",
    ]
    done = document(execute(app, "tables", "repair", name, "-o", "json"))
    assert done["strays"] == shown["strays"]
    assert "a worker has written over them" in holdfast(app, "tables", "repair", name)
    worker.start().wait_ready()
    app.load(rate=5_000, limit=RECORDS, seed=52).wait()
    prove(app, 2 * RECORDS)
    assert f"{name}: equal" in holdfast(app, "verify", name, "--engine", "local")


@pytest.mark.variant
@pytest.mark.parametrize("way", ["--rebuild", "--applied"])
def test_the_table_is_rebuilt_from_its_source(application: MakeApplication, way: str) -> None:
    app = application(partitions=2, instance_id="only")
    worker, name, changelog = spoilt(app, rows_for_nobody)
    chosen = ["tables", "repair", name, "--partition", "0", way, *(["0:700"] if way == "--applied" else [])]
    holdfast(app, *chosen, code=1)
    told = execute(app, *chosen)
    assert f"goes on after source offset {-1 if way == '--rebuild' else 700}" in told
    state, marker = logged_state(read_topic(app.broker, changelog)[0])
    assert marker is not None
    assert marker.applied[0] == (-1 if way == "--rebuild" else 700)
    assert bool(state) == (way == "--applied")
    worker.start().wait_ready()
    ends = {at: messages[-1].offset() or 0 for at, messages in read_topic(app.broker, app.source).items()}
    app.wait_applied(ends, DEADLINE_S)
    assert f"{name}: equal" in holdfast(app, "verify", name, "--engine", "local")


@pytest.mark.variant
def test_nothing_is_repaired_while_workers_run(application: MakeApplication) -> None:
    app = application(partitions=2)
    worker = app.worker().start().wait_ready()
    app.load(rate=5_000, limit=100, seed=51).wait()
    told = holdfast(app, "tables", "repair", app.processors[0].name, "--rebuild", "--execute", code=1)
    assert f"1 workers of {app.name} run" in told
    assert worker.running
    prove(app, 100)


def test_an_owner_that_was_not_in_the_group_is_fenced(application: MakeApplication) -> None:
    """The group's members are asked first, and the broker has the last word: the repair raises the
    writer's epoch.
    """
    app = application(partitions=1, instance_id="only")
    _, name, _ = spoilt(app, rows_for_nobody)
    owner = Producer(
        app.broker.client_config(**{"transactional.id": app.processors[0].transactional_id(app.name, 0)})
    )
    owner.init_transactions(DEADLINE_S)
    owner.begin_transaction()
    owner.produce(app.processors[0].changelog(app.name), b"late", row_key("late"), 0)
    execute(app, "tables", "repair", name)
    with pytest.raises(KafkaException, match=r"(?i)fenc|epoch|state"):
        owner.commit_transaction(DEADLINE_S)
    state, _ = logged_state(read_topic(app.broker, app.processors[0].changelog(app.name))[0])
    assert row_key("late") not in state
