"""Windows after a step that a worker from before watermarks began: its records bear no header. The bytes of
topics and changelogs in testdata/before_watermarks.json are those that workers of commit 66046a7c wrote.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest
from confluent_kafka import Message, Producer

from holdfast.core.engine.origins import is_mark, told_of
from holdfast.dev.fixtures import SessionBroker
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.pipeline.verify.table import verify
from tests.chaos.pacing import Fare
from tests.support.books_app import LOCAL
from tests.support.harness import wait_for
from tests.support.paced_app import BEGIN_MS, DAY_MS, DRIVERS, HOUR_MS, LAST, PacedApplication, Window
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT
from tests.support.proof import read_topic

pytestmark = [pytest.mark.process, pytest.mark.long]
RECORDS = 240
FARES = [Fare(str(at * 7 % DRIVERS), BEGIN_MS + at * DAY_MS // RECORDS, at) for at in range(RECORDS)]
LAST_WINDOW = LAST, BEGIN_MS + 1_000 * HOUR_MS


@pytest.fixture
def app(tmp_path: Path) -> Iterator[PacedApplication]:
    """Give an application half of whose records an older worker has folded; the rest is in its sources."""
    with EmbeddedKafka(seed=47) as kafka:
        config = {key: str(value) for key, value in kafka.client_config().items()}
        found = PacedApplication(SessionBroker(config=config), tmp_path, partitions=2, name="before")
        try:
            found.write(("fares", fare, fare.number % 2) for fare in FARES)
            write_recorded(found)
            yield found
        finally:
            found.close()


def write_recorded(app: PacedApplication) -> None:
    recorded = json.loads((ROOT / "tests/testdata/before_watermarks.json").read_bytes())
    step, hours = app.processors
    topics = {
        "internal": app.internal,
        "step": step.changelog(app.name),
        "windows": hours.changelog(app.name),
        "done": f"{app.name}-done.v1",
    }
    producer = Producer(app.broker.client_config())
    for role, topic in topics.items():
        for partition, key, value in recorded[role]:
            if role == "internal":
                producer.produce(topic, value.encode(), key.encode(), partition)
            else:
                stored = None if value is None else bytes.fromhex(value)
                producer.produce(topic, stored, bytes.fromhex(key), partition)
    assert producer.flush(DEADLINE_S) == 0


def by_the_rule(log: list[Message]) -> Counter[Window]:
    """Return the windows of one partition: of records without a header, which are one origin, those that are
    in time by its highest; of other records, by their own origin's, and by what the first had closed.
    """
    found, nameless_ms, heard = Counter[Window](), -1, False
    for message in log:
        headers = tuple(cast("list[tuple[str, bytes | None]]", message.headers() or []))
        if is_mark(headers):
            heard = True
            continue
        fare, told = msgspec.json.decode(message.value() or b"", type=Fare), told_of(headers)
        assert told is not None or not heard, "the older worker is gone"
        heard |= told is not None
        hour = fare.at_ms // HOUR_MS * HOUR_MS
        if hour + HOUR_MS > max(nameless_ms, -1 if told is None else told.before_ms):
            found[fare.driver, hour] += 1
        if told is None:
            nameless_ms = max(nameless_ms, fare.at_ms)
    return found


def wait_through(app: PacedApplication) -> Counter[Window]:
    """Return the rule's windows of all that the step has sent, once there is no more."""
    app.write_last()
    wait_for("all is sent on", lambda: len(app.values(app.internal)) == RECORDS + 2, DEADLINE_S, app.tails)
    wanted = Counter[Window]()
    for log in read_topic(app.broker, app.internal).values():
        wanted.update(by_the_rule(log))
    assert wanted.pop(LAST_WINDOW) == 2
    return wanted


def check(app: PacedApplication, wanted: Counter[Window], what: str) -> None:
    app.wait_windows(wanted, what)
    for worker in app.workers:
        worker.stop()
    assert all(verify(each, app.settings, LOCAL).equal for each in app.processors), what


def test_windows_continue_and_the_old_records_are_one_origin(app: PacedApplication) -> None:
    app.worker().start()
    wanted = wait_through(app)
    assert wanted.total() < RECORDS, "the older worker dropped some"
    check(app, wanted, "in place")


def test_a_version_of_the_windows_alone_folds_the_old_records_by_the_same_rule(app: PacedApplication) -> None:
    app.declare(done=2)
    app.worker().start()
    check(app, wait_through(app), "the windows raised")


def test_a_version_of_both_has_every_record_in_its_window(app: PacedApplication) -> None:
    app.declare(step=2, done=2)
    app.worker().start()
    wanted = wait_through(app)
    assert wanted == Counter((each.driver, each.at_ms // HOUR_MS * HOUR_MS) for each in FARES)
    check(app, wanted, "both raised")
