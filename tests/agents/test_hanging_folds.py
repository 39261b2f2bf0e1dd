"""A fold that does not return: the worker says which record it is at and where, answers that it is not ready,
and ends when it is asked to.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.embedded.kafka import EmbeddedKafka
from tests.agents import hanging_shop
from tests.agents.fleet import environment_of
from tests.support.harness import TIMES, Worker, module_command, wait_for
from tests.support.patience import DEADLINE_S

pytestmark = [pytest.mark.process, pytest.mark.long]

BEFORE = 20
"""The number of records that are folded before the one that hangs."""


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as kafka:
        yield kafka


def hanging(kafka: EmbeddedKafka, folder: Path, how: str, place: str, **settings: str) -> Worker:
    """Return a worker that is ready, and is about to meet the record that hangs, at offset BEFORE."""
    config = {key: str(value) for key, value in kafka.client_config().items()}
    found = Settings(app="shop", kafka=config, data_dir=folder / "data")
    for topic in (hanging_shop.ORDERS, hanging_shop.CUSTOMERS):
        kafka.create_topic(topic, config={"message.timestamp.type": "CreateTime"})
    environment = {
        **environment_of(found),
        **{f"HOLDFAST_{key.upper()}": str(value) for key, value in TIMES.items()},
        "HOLDFAST_FOLD_LIMIT_S": "1",
        "HANG": how,
        "HANG_AT": place,
        **{f"HOLDFAST_{key.upper()}": value for key, value in settings.items()},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hanging_shop, "PLACE", place)
        create_topics(found, hanging_shop.processors(), partitions=1)
    worker = Worker("w1", folder, environment, module_command("tests.agents.hanging_shop")).start()
    worker.wait_ready()
    producer = Producer(kafka.client_config(**{"linger.ms": 50}))
    first = [f"w{at}" for at in range(BEFORE - 1)] + ["timer"]
    for at_ms, words in ((1_000, first), (2_000, ["hang", *["behind"] * 5])):
        for word in words:
            producer.produce(hanging_shop.ORDERS, word.encode(), timestamp=at_ms)
    assert producer.flush(DEADLINE_S) == 0
    return worker


@pytest.mark.parametrize(
    ("how", "place"),
    [
        ("loop", "fold"),
        *(
            pytest.param(how, place, marks=pytest.mark.variant)
            for how, place in (
                ("sleep", "decode"),
                ("sleep", "timer"),
                ("loop", "merged"),
                ("sleep", "fold"),
                ("loop", "time"),
                ("loop", "key"),
            )
        ),
    ],
)
def test_it_is_named_with_its_record_and_ends_when_asked(
    kafka: EmbeddedKafka, tmp_path: Path, how: str, place: str
) -> None:
    worker = hanging(kafka, tmp_path, how, place)
    line = worker.wait_said("a fold does not return", DEADLINE_S)
    name = "both" if place in ("merged", "time", "key") else "totals"
    assert re.search(rf"\({name}: orders partition 0, offset {BEFORE}\)", line), line
    assert worker.said(r"tests/agents/hanging_shop\.py.*in hang")
    status, body = worker.ask("/health/ready")
    assert (status, "a fold does not return" in body) == (503, True), body
    assert worker.ask("/health/live")[0] == 200
    worker.signal(signal.SIGTERM)
    assert worker.wait_exit(DEADLINE_S) == 70
    assert worker.said(r"SIGTERM, and the event loop has stood still.*offset 20")


@pytest.mark.variant
def test_code_that_keeps_pythons_lock_is_ended_by_the_kernel(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    limits = {"stall_timeout_s": "8", "commit_timeout_s": "2", "rebalance_timeout_s": "10"}
    worker = hanging(kafka, tmp_path, "lock", "fold", **limits)
    worker.wait_said(r"hanging_shop\.py.*in hang", DEADLINE_S)
    assert worker.running, "the stack is written long before the end"
    assert worker.wait_exit(DEADLINE_S) == -signal.SIGPROF


@pytest.mark.variant
def test_a_fold_of_a_global_table_is_named_too_and_ends_the_worker(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    limits = {"stall_timeout_s": "4", "commit_timeout_s": "2", "rebalance_timeout_s": "10"}
    worker = hanging(kafka, tmp_path, "loop", "global", **limits)
    line = worker.wait_said("fold of global table rates", DEADLINE_S)
    assert re.search(rf"rates, partition 0 does not return \(orders, offset {BEFORE}\)", line), line
    assert worker.said(r"tests/agents/hanging_shop\.py.*in hang")
    status, body = worker.ask("/health/ready")
    assert (status, "does not return" in body) == (503, True), body
    assert worker.wait_exit(DEADLINE_S) == 70
    assert worker.said("fold of global table rates, partition 0 has not returned for 4 s")


@pytest.mark.variant
def test_a_client_that_asks_twice_does_not_wait(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    worker = hanging(kafka, tmp_path, "loop", "fold", fold_limit_s="600")
    wait_for("an event loop that stands", lambda: worker.ask("/health/live", 1)[0] == 0, DEADLINE_S)
    worker.signal(signal.SIGINT)

    def ends() -> bool:
        if worker.running:
            worker.signal(signal.SIGINT)
        return not worker.running

    wait_for("the end", ends, DEADLINE_S)
    assert worker.wait_exit(DEADLINE_S) == 70
