"""A lake in an object store, through delta-rs, by either engine: the same tables, and as exact when landings
race, or are killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from threading import Barrier

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from holdfast.config import Settings
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import LakeError
from holdfast.pipeline.bronze.lake import bronze_path
from holdfast.pipeline.checks.check import check_table
from holdfast.pipeline.landing.landing import Landing
from holdfast.pipeline.landing.local_table import LocalTable
from holdfast.pipeline.landing.options import LandOptions
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.upkeep.compact import compact
from holdfast.pipeline.upkeep.expire import expire
from holdfast.pipeline.upkeep.vacuum import vacuum
from tests.pipeline.accounts import accounts
from tests.pipeline.lakes import write_bronze
from tests.pipeline.topics_in_memory import TopicInMemory, topic
from tests.support.object_store import BUCKET, object_store
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

__all__ = ["topic"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Run one server for all tests here."""
    with object_store(tmp_path_factory.mktemp("s3")) as reached:
        yield reached


@pytest.fixture
def lake(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Give a lake of its own, in the environment in which it is reached."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return f"s3a://{BUCKET}/{random.randrange(1 << 40):x}"


def landing_at(topic: TopicInMemory, lake: str, options: LandOptions | None = None) -> Landing:
    table = LocalTable(Settings(), bronze_path(lake, topic.topic))
    return Landing(table, Settings(), topic, options or LandOptions())  # type: ignore[arg-type]


def places(lake: str) -> list[tuple[int, int]]:
    found = DeltaTable(bronze_path(lake, "t").replace("s3a://", "s3://")).to_pyarrow_table(
        columns=["partition", "offset"]
    )
    return sorted((row["partition"], row["offset"]) for row in found.to_pylist())


def all_of(topic: TopicInMemory, first: int = 0) -> list[tuple[int, int]]:
    return [(p, each.offset) for p, log in topic.logs.items() for each in log if each.offset >= first]


def faults(lake: str) -> list[str]:
    return [each.told for each in check_table(Settings(), "t", lake, deep=True).faults]


def test_the_door_lets_one_of_several_writers_of_a_key_win(environment: Mapping[str, str]) -> None:
    host = environment["AWS_ENDPOINT_URL"].removeprefix("http://")

    def put(key: str, start: Barrier) -> int:
        connection = HTTPConnection(host, timeout=DEADLINE_S)
        start.wait(DEADLINE_S)
        connection.request("PUT", f"/{BUCKET}/{key}", b"x", {"If-None-Match": "*"})
        status = connection.getresponse().status
        connection.close()
        return status

    with ThreadPoolExecutor(4) as pool:
        for number in range(50):
            start = Barrier(4)
            told = [pool.submit(put, f"raced-{number}", start) for _ in range(4)]
            assert sorted(each.result(DEADLINE_S) for each in told) == [200, 412, 412, 412]


def test_a_table_lives_there_as_it_does_in_a_folder(topic: TopicInMemory, lake: str) -> None:
    landing = landing_at(topic, lake)
    for _ in range(4):
        topic.append(0, [b"a"] * 5)
        topic.append(1, [b"b"] * 3, gap=1)
        landing.step(landing.ends())
    assert (places(lake), faults(lake)) == (all_of(topic), [])
    assert compact("t", lake).files_after == 2
    expire("t", lake, before_ms=1_008)
    topic.append(0, [b"a"] * 5)
    landing.step(landing.ends())
    assert (places(lake), faults(lake)) == (all_of(topic, 8), [])
    assert vacuum("t", lake, hours=1).files == ()


def test_a_replay_reads_it(topic: TopicInMemory, lake: str, tmp_path: Path) -> None:
    for at in range(200):
        topic.append(at % 2, [b"add k%d %d" % (at % 7, at % 60)])
    landing = landing_at(topic, lake, LandOptions(max_records=60))
    while landing.step(landing.ends()) is not None:
        pass
    write_bronze(tmp_path, "t", topic.logs)
    found, known = (
        replay(accounts("t"), Settings(), ReplayOptions(engine="local", source="bronze", lake=each))
        for each in (lake, str(tmp_path))
    )
    assert (found.records, found.digest) == (200, known.digest)


def test_of_two_landings_that_race_one_wins(topic: TopicInMemory, lake: str) -> None:
    lost = 0
    with ThreadPoolExecutor(2) as pool:
        for _ in range(8):
            topic.append(0, [b"v"] * 3, gap=1)
            topic.append(1, [b"v"])
            made = [landing_at(topic, lake) for _ in range(2)]
            told = [pool.submit(each.step, each.ends()) for each in made]
            errors = [error for each in told if (error := each.exception(120)) is not None]
            assert all(isinstance(error, LakeError) for error in errors), errors
            lost += len(errors)
    assert (places(lake), faults(lake)) == (all_of(topic), [])
    assert lost, "they raced"


_LANDS = """
import os, sys
from holdfast.pipeline.landing import landing, local_table
from holdfast.pipeline.landing.options import LandOptions
from tests.pipeline.landing.test_object_store import landing_at, topic_of
from tests.pipeline.topics_in_memory import _NoSkips
topic = topic_of()
local_table.TopicReader = lambda settings, name, skips: topic
landing.read_skips = lambda settings: _NoSkips()
made = landing_at(topic, sys.argv[1], LandOptions(max_records=20))
steps = int(sys.argv[2])
for _ in range(steps or sys.maxsize):
    if made.step(made.ends()) is None:
        break
    print("landed", flush=True)
if steps:
    os.close(1)
    sys.stdin.read()
"""
"""Lands all, or so many steps and then waits for its end: one that is to be killed leaves something to
others, however late that comes.
"""
STEPS = 6


def topic_of() -> TopicInMemory:
    """Return a topic with 600 records, the same in each process."""
    made = TopicInMemory()
    for at in range(300):
        for partition in (0, 1):
            made.append(partition, [b"%d" % at], gap=at % 5 == 0)
    return made


def test_landings_that_are_killed_lose_and_double_nothing(lake: str) -> None:
    chance, kills = random.Random(3), 0
    for _ in range(40):
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", _LANDS, lake, str(STEPS if kills < 8 else 0)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert child.stdout is not None
        with child:
            if kills < 8:
                for _ in range(chance.randrange(1, 5)):
                    child.stdout.readline()
                time.sleep(chance.random() * 0.2)
                child.send_signal(signal.SIGKILL)
            code = child.wait(DEADLINE_S)
        kills += code == -signal.SIGKILL
        if code == 0:
            break
    topic = topic_of()
    assert (places(lake), faults(lake)) == (all_of(topic), [])
    assert kills >= 3


def test_a_lake_that_does_not_exist_is_reported(lake: str) -> None:
    with pytest.raises(LakeError, match="no Delta table at s3a://lake/"):
        check_table(Settings(), "t", lake)
    with pytest.raises(LakeError, match="s3a://no-bucket/"):
        check_table(Settings(), "t", "s3a://no-bucket/lake")
    with pytest.raises(LakeError, match=r"cannot .* s3a://no-bucket/"):
        LocalTable(Settings(), "s3a://no-bucket/lake/bronze/t")


# -- by tasks of Spark


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(seed=53) as running:
        running.create_topic("t", partitions=2, config={"retention.ms": "-1"})
        yield running


def on_spark(what: str, lake: str, kafka: EmbeddedKafka) -> subprocess.Popen[bytes]:
    """Start a process with Spark, and its JVM in a group with it."""
    command = [sys.executable, "-P", "-m", "tests.support.s3_spark", what, lake, "t"]
    return subprocess.Popen(
        [*command, str(kafka.client_config()["bootstrap.servers"])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )


def checked(kafka: EmbeddedKafka, lake: str) -> list[str]:
    settings = Settings(
        app="s3", kafka={"bootstrap.servers": str(kafka.client_config()["bootstrap.servers"])}
    )
    return [each.told for each in check_table(settings, "t", lake, deep=True, against_topic=True).faults]


@pytest.mark.spark
def test_tasks_of_spark_and_a_process_race_there_and_one_wins(kafka: EmbeddedKafka, lake: str) -> None:
    with on_spark("race", lake, kafka) as child:
        out, _ = child.communicate(timeout=DEADLINE_S)
    assert child.returncode == 0
    told = json.loads(out.splitlines()[-1])
    assert places(lake) == [(partition, offset) for partition in (0, 1) for offset in range(60)]
    assert (told["lost"] > 0, told["engines"], told["records"]) == (True, ["local", "spark"], 120)
    assert len({*told["digests"]}) == 1
    assert checked(kafka, lake) == []


@pytest.mark.spark
def test_landings_of_spark_that_are_killed_lose_and_double_nothing(kafka: EmbeddedKafka, lake: str) -> None:
    producer, chance, kills = Producer(kafka.client_config()), random.Random(7), 0
    for at in range(1_200):
        producer.produce("t", b"v%d" % at, partition=at % 2)
    assert producer.flush(DEADLINE_S) == 0
    for _ in range(8):
        with on_spark("land" if kills >= 3 else "land-some", lake, kafka) as child:
            assert child.stdout is not None
            if kills < 3:
                for _ in range(chance.randrange(1, 4)):
                    child.stdout.readline()
                time.sleep(chance.random() * 0.5)
                os.killpg(child.pid, signal.SIGKILL)
            child.stdout.read()
            code = child.wait(DEADLINE_S)
        kills += code == -signal.SIGKILL
        if code == 0:
            break
    assert kills >= 2
    assert places(lake) == [(partition, offset) for partition in (0, 1) for offset in range(600)]
    assert checked(kafka, lake) == []
