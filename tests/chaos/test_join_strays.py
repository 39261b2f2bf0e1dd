"""Something else than a worker writes to the changelog of a table of two sources: each way on ends in an
equal table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from holdfast.core.engine.state.codec import APPLIED, row_key, tick_key
from holdfast.dev.fixtures import SessionBroker
from tests.support.harness import running, wait_for
from tests.support.joining_app import JoinApplication
from tests.support.patience import DEADLINE_S


@pytest.fixture
def app(broker: SessionBroker, tmp_path: Path) -> Iterator[JoinApplication]:
    """Give an application whose worker has folded two sources, with barriers, and stopped; then a stranger
    wrote a row, a timer of ticks and a position.
    """
    with ExitStack() as stack:
        made = JoinApplication(broker, tmp_path, instance_id="only")
        stack.enter_context(running(made))
        made.create_topics()
        worker = made.worker(source_wait_ms=0).start(JOIN_LIE="1").wait_ready()
        made.write_late_orders(3)
        made.write(400, seed=21)
        made.prove()
        worker.stop()
        producer = Producer(broker.client_config())
        changelog = made.joined.changelog(made.name)
        for key in (row_key("k1"), row_key("ghost"), tick_key("ghost"), APPLIED):
            producer.produce(changelog, b"stray", key, 0)
        assert producer.flush(DEADLINE_S) == 0
        client = AdminClient(broker.client_config())

        def nobody() -> bool:
            found = client.describe_consumer_groups([made.name], request_timeout=DEADLINE_S)[made.name]
            return not found.result(DEADLINE_S).members

        wait_for("the group to be empty", nobody, DEADLINE_S)
        yield made


def asked(app: JoinApplication, *words: str, code: int = 0) -> Any:
    done = app.command("tables", "repair", "joined", *words, "-o", "json")
    assert done.returncode == code, f"{done.stdout}{done.stderr}"
    return json.loads(done.stdout)


def goes_on(app: JoinApplication) -> None:
    """Have a new worker restore the table, and prove all it folds."""
    worker = app.worker()
    worker.wipe()
    worker.start().wait_ready()
    app.write(200, seed=22)
    app.prove()
    worker.stop()


@pytest.mark.slow
def test_the_table_resumes_from_its_last_good_position(app: JoinApplication) -> None:
    shown = asked(app, code=1)
    assert [(each["partition"], each["kind"]) for each in shown["strays"]] == [
        (0, "row"),
        (0, "row"),
        (0, "timer of ticks"),
        (0, "bookkeeping"),
    ]
    done = asked(app, "--execute")
    (first, second) = done["partitions"]
    assert (first["how"], second["how"]) == ("restored from the changelog", "nothing to repair")
    assert first["applied"] == dict(zip(app.joined.topics, app.ends()[0], strict=True))
    assert asked(app)["partitions"][0]["applied"] is None
    goes_on(app)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["--rebuild", "--applied"])
def test_the_table_is_rebuilt_from_its_sources(app: JoinApplication, way: str) -> None:
    before = app.ends()[0]
    customers, orders = app.joined.topics
    named = f"0:{orders}:{before[1] // 2}"
    words = ["--partition", "0", way, *([named] if way == "--applied" else [])]
    done = asked(app, *words, "--execute")
    reached = done["partitions"][0]["applied"]
    if way == "--rebuild":
        assert reached == {customers: -1, orders: -1}
    else:
        assert reached[orders] == before[1] // 2
        assert -1 < reached[customers] <= before[0]
    verdict = app.command("verify", "joined", "--output", "json")
    assert json.loads(verdict.stdout)["equal"], verdict.stderr
    if way == "--applied":
        refused = app.command("tables", "repair", "joined", "--applied", "0:7")
        assert f"write P:TOPIC:OFFSET, 0:{customers}:4711" in refused.stderr
    goes_on_without_emits(app)


def goes_on_without_emits(app: JoinApplication) -> None:
    """As `goes_on`, except that a rebuilt table's emits exist twice."""
    worker = app.worker()
    worker.wipe()
    worker.start().wait_ready()
    app.write(100, seed=23)
    app.wait_folded()
    for words in (("verify", "joined"), ("verify", "joined", "--store")):
        verdict = app.command(*words, "--output", "json")
        assert json.loads(verdict.stdout)["equal"], verdict.stderr
    worker.stop()
