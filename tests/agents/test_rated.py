"""A worker joins the backlogs of two raw topics as of event time, whichever was written first, through a
kill -9; and a replay agrees.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from random import Random

import msgspec
import pytest
from confluent_kafka import Producer

from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.pipeline.replay import ReplayOptions
from holdfast.pipeline.verify.table import read_live, verify
from tests.agents import rated
from tests.agents.fleet import environment_of
from tests.support.harness import TIMES, Worker, module_command, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.proof import read_topic

pytestmark = [pytest.mark.process, pytest.mark.long]

FIRST_MS = 1_700_000_000_000
DRIVERS = 7
RATES, RIDES = 4_000, 12_000


def told(rng: Random, name: str, records: int) -> list[tuple[str, rated.Told]]:
    """Return (key, event) of a day of records, some out of order by up to a minute."""
    made, step_ms = list[tuple[str, rated.Told]](), 86_400_000 // records
    for number in range(records):
        at_ms = FIRST_MS + number * step_ms - rng.choice((0, 0, 0, 60_000))
        made.append((f"driver-{rng.randrange(DRIVERS)}", (f"{name}-{number}", at_ms)))
    return made


def oracle(rates: list[tuple[str, rated.Told]], rides: list[tuple[str, rated.Told]]) -> list[list[str]]:
    """Return each ride with its rate: the next record is that of the least time among the first of both."""
    now, found, at = dict[str, str](), list[list[str]](), [0, 0]
    while at[1] < len(rides):
        if at[0] < len(rates) and rates[at[0]][1][1] <= rides[at[1]][1][1]:
            key, (name, _) = rates[at[0]]
            now[key], at[0] = name, at[0] + 1
        else:
            key, (name, _) = rides[at[1]]
            found.append([name, now.get(key, "")])
            at[1] += 1
    return found


def write(kafka: EmbeddedKafka, topic: str, records: Iterable[tuple[str, rated.Told]]) -> None:
    producer = Producer(kafka.client_config())
    for key, event in records:
        producer.produce(topic, msgspec.json.encode(event), key=key.encode())
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0


@pytest.mark.parametrize("first", ["rates", "rides"])
def test_rides_of_a_backlog_have_the_rates_of_their_time(first: str, tmp_path: Path) -> None:
    rng = Random(7)
    logs = {"rates": told(rng, "rate", RATES), "rides": told(rng, "ride", RIDES)}
    with EmbeddedKafka() as kafka:
        config = {key: str(value) for key, value in kafka.client_config().items()}
        settings = Settings(app="rated", kafka=config, data_dir=tmp_path / "data")
        for topic in logs:
            kafka.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
        processors = rated.processors()
        create_topics(settings, processors, partitions=1)
        for topic in sorted(logs, key=lambda each: each != first):
            write(kafka, topic, logs[topic])

        def rides() -> list[list[str]]:
            messages = read_topic(kafka, "rated")[0]  # type: ignore[arg-type]
            return [msgspec.json.decode(each.value() or b"") for each in messages]

        environment = environment_of(settings) | {
            f"HOLDFAST_{key.upper()}": str(value) for key, value in TIMES.items()
        }
        environment["HOLDFAST_FETCH_RECORDS"] = "500"
        worker = Worker("w1", tmp_path, environment, module_command("tests.agents.rated"))
        with closing(worker):
            worker.start().wait_ready()
            wait_for("some rides are rated", rides, DEADLINE_S, worker.tail)
            worker.kill()
            worker.start().wait_ready()
            wait_for("all rides are rated", lambda: len(rides()) >= RIDES, DEADLINE_S, worker.tail)
            worker.stop()
        assert rides() == oracle(logs["rates"], logs["rides"])
        (live,) = read_live(processors[0], settings, rows=False)
        assert live.marker.by_event
        assert verify(processors[0], settings, ReplayOptions(engine="local")).equal
