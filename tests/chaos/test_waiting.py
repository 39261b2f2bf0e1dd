"""A fold's dependency is away, and records may not be refused: nothing is lost, other partitions continue,
live is replay.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from holdfast import BlockingTableClient
from holdfast.clients.topics.application import create_topics
from holdfast.dev.fixtures import SessionBroker
from holdfast.errors import OffsetTimeoutError
from holdfast.pipeline.verify.table import verify
from tests.chaos.waiting import needy
from tests.clients.tables.tabling import deadline_after
from tests.support.harness import Application, Worker, running, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.proof import last_offsets, read_topic

APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}


class NeedyApplication(Application):
    """An application of `tests.chaos.waiting`: its folds wait while the file `needs` is not there."""

    def __init__(self, broker: SessionBroker, folder: Path, **settings: str | float) -> None:
        super().__init__(broker, folder, partitions=2, module="tests.chaos.waiting", **settings)  # type: ignore[arg-type]
        self.needs = folder / "registry"
        self._environment["CHAOS_NEEDS"] = str(self.needs)
        self.processors = needy(self.source, str(self.needs))
        for topic in (self.source, f"{self.source}-more"):
            broker.create_topic(topic, partitions=2, config=APPEND_TIME, exact=True)
        create_topics(self.settings, self.processors)
        self._producer = Producer(broker.client_config())

    def write(self, partition: int, *words: str) -> None:
        for word in words:
            self._producer.produce(self.source, word.encode(), partition=partition)
            self._producer.produce(f"{self.source}-more", json.dumps("more").encode(), partition=partition)
            assert self._producer.flush(DEADLINE_S) == 0

    def cause(self, worker: Worker, *told: str) -> str:
        """Wait until readiness reports all of these texts, and return its cause."""

        def condition() -> str | None:
            status, body = worker.ask("/health/ready")
            cause = str(json.loads(body).get("cause")) if status == 503 else ""
            return cause if all(each in cause for each in told) else None

        return wait_for(f"readiness to tell {told}", condition, DEADLINE_S, self.tails)

    def wait_at(self, worker: Worker, **wanted: int) -> None:
        """Wait until partition 1 of each table is at an offset."""

        def condition() -> bool:
            applied = worker.applied()
            return all(applied.get((name, 1)) == offset for name, offset in wanted.items())

        wait_for(f"partition 1 at {wanted}", condition, DEADLINE_S, self.tails)


@pytest.fixture
def app(broker: SessionBroker, tmp_path: Path) -> Iterator[NeedyApplication]:
    made = NeedyApplication(broker, tmp_path)
    with running(made):
        yield made


def test_a_fold_waits_for_its_dependency_and_a_refused_record_stops_it_until_a_skip(
    app: NeedyApplication,
) -> None:
    app.write(0, "a", "needs-1", "a", "needs-2")
    app.write(1, "a", "b")
    worker = app.worker().start()
    waits = f"waits for file {app.needs}, at offset 1 of {app.source}"
    app.cause(worker, f"one partition 0 {waits}", f"two partition 0 {waits}")
    app.wait_at(worker, one=1, two=3)
    assert worker.applied()["one", 0] == 0, "what lies before it is in the state"
    standing = worker.metric("holdfast_standing")
    assert sorted(standing.values()) == [0, 0, 1, 1]
    assert sum(worker.metric("holdfast_waits_total").values()) >= 2
    with BlockingTableClient(app.settings, app.processors) as tables:
        assert tables.get("one", "a", partition=0, timeout_s=DEADLINE_S).value == 1, "it is served meanwhile"
        with deadline_after(), pytest.raises(OffsetTimeoutError, match="waits for file"):
            tables.get("one", "a", partition=0, at_least={0: 3}, timeout_s=DEADLINE_S)

    worker.kill()
    worker = app.worker().start()
    app.cause(worker, f"one partition 0 {waits}", f"two partition 0 {waits}")
    app.write(1, "bad", "c")
    skip = f"holdfast quarantine skip {app.source} 1 2 --execute"
    app.cause(worker, f"one partition 1 is stalled before offset 2 of {app.source} partition 1", skip)
    app.needs.touch()
    cause = wait_for(
        "partition 0 to go on",
        lambda: found if "partition 0" not in (found := app.cause(worker, skip)) else None,
        DEADLINE_S,
        app.tails,
    )
    assert "two partition 1" in cause
    shown = app.command("quarantine", "skip", app.source, "1", "2")
    assert (shown.returncode, "would allow" in shown.stdout, "one,two" in shown.stdout) == (0, True, True), (
        shown.stderr
    )
    asked = app.command(*skip.split()[1:])
    assert asked.returncode == 0, asked.stderr
    worker.wait_ready()
    app.wait_at(worker, one=3, two=7)

    quarantined = read_topic(app.broker, app.settings.quarantine_topic).values()
    refused = [dict(each.headers() or ()) for messages in quarantined for each in messages]
    assert sorted((each["holdfast-processor"], each["holdfast-offset"]) for each in refused) == [
        (b"one", b"2"),
        (b"two", b"2"),
    ], "no good record"
    assert last_offsets(read_topic(app.broker, app.source)) == {0: 3, 1: 3}
    for each in app.processors:
        assert verify(each, app.settings).equal, each.name
    with BlockingTableClient(app.settings, app.processors) as tables:
        found = {answer.key: answer.value for answer in tables.scan("one", partition=0, timeout_s=DEADLINE_S)}
    assert found == {"a": 2, "needs-1": 1, "needs-2": 1}


@pytest.mark.variant
def test_a_worker_that_waits_can_end_and_the_next_one_continues_to_wait(app: NeedyApplication) -> None:
    app.write(0, "needs-1")
    worker = app.worker(later_timeout_s=2).start()
    assert worker.wait_exit(DEADLINE_S) != 0
    worker.wait_said(
        r"offset 0 of .* has waited [0-9]+ s for file .*, longer than later_timeout_s", DEADLINE_S
    )
    app.needs.touch()
    app.worker().start().wait_ready()
