"""Doctor, groups describe and the console show the origin that windows wait for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from holdfast.clients.topics.application import create_topics
from holdfast.core.engine.emits import Headers
from holdfast.core.engine.origins import Mark, mark_headers, record_header
from holdfast.dev.fixtures import SessionBroker
from holdfast.embedded.kafka import EmbeddedKafka
from tests.support.harness import Application, running, wait_for
from tests.support.held_app import Look, held
from tests.support.patience import DEADLINE_S

HOUR = 3_600_000


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Application]:
    with EmbeddedKafka(seed=43) as kafka:
        broker = SessionBroker(config={"bootstrap.servers": kafka.bootstrap})
        made = Application(broker, tmp_path, partitions=1, module="tests.support.held_app")
        made._environment["HELD_PREFIX"] = made.name
        made.processors = held(made.name)
        with running(made):
            broker.create_topic(made.processors[0].topics[0], partitions=1, exact=True)
            create_topics(made.settings, made.processors, partitions=1)
            yield made


def write(app: Application, *records: tuple[bytes | None, Headers]) -> None:
    """Write what a step would to its topic."""
    producer = Producer(app.broker.client_config())
    for value, headers in records:
        producer.produce(app.processors[0].topics[0], value, b"home", 0, headers=[*headers])
    assert producer.flush(DEADLINE_S) == 0


def seen(origin: int, at_ms: int) -> tuple[bytes, Headers]:
    return msgspec.json.encode(Look("home", at_ms)), (record_header(origin, 0, at_ms),)


@pytest.mark.long
@pytest.mark.process
def test_a_person_sees_which_origin_windows_wait_for_and_for_how_long(app: Application) -> None:
    topic = app.processors[0].topics[0]
    worker = app.worker().start().wait_ready()
    write(app, seen(0, 12 * HOUR), seen(1, 10 * HOUR), (None, mark_headers(Mark(0, 12 * HOUR, False, 2))))
    wait_for("the worker to wait", lambda: "held_back" in worker.ask("/tables")[1], DEADLINE_S)
    [told] = json.loads(worker.ask("/tables")[1])["tables"]["hours"]["held"][0]["held_back"]
    assert {name: told[name] for name in ("topic", "origin", "of", "lag_s")} == {
        "topic": topic,
        "origin": "1",
        "of": [topic],
        "lag_s": 7_200.0,
    }
    assert worker.metric("holdfast_watermark_lag_seconds") == {
        f'origin="1",partition="0",table="hours",topic="{topic}"': 7_200.0
    }
    waits = rf"hours partition 0 waits for {topic}-1, 2\.0 h of event time behind, for [\d.]+ (ms|s)"
    doctor = app.command("doctor", "--output", "json")
    found = {each["check"]: each for each in json.loads(doctor.stdout)}
    assert (found["event time"]["state"], found["event time"]["cure"]) == ("ok", ""), doctor.stderr
    assert re.fullmatch(waits, found["event time"]["found"])
    described = app.command("groups", "describe", app.name)
    assert re.search(waits, described.stderr), described.stderr

    write(app, (None, mark_headers(Mark(1, 10 * HOUR, True, 2))))
    wait_for("it to let go", lambda: "held_back" not in worker.ask("/tables")[1], DEADLINE_S)
    again: dict[str, Any] = {
        each["check"]: each for each in json.loads(app.command("doctor", "--output", "json").stdout)
    }
    assert again["event time"]["found"] == "no windows or joins wait for an origin"
    assert "waits for" not in app.command("groups", "describe", app.name).stderr
