"""Landing many topics in one process, on a real broker."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Self, cast

import pytest
from confluent_kafka import KafkaError, Message, Producer
from deltalake import DeltaTable

from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import ConfigError, HoldfastError, LakeError, PipelineError, TopicError
from holdfast.pipeline.bronze.lake import Landed, bronze_path
from holdfast.pipeline.landing import land_topics
from holdfast.pipeline.landing.land_topics import TopicsLanding
from holdfast.pipeline.landing.options import LandEngine, LandOptions
from tests.support.harness import add_partitions
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S

LOCAL = LandOptions(engine="local")


def send(broker: SessionBroker, topic: str, count: int, partition: int = 0) -> None:
    producer, failed = Producer(broker.client_config()), list[KafkaError]()

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    for at in range(count):
        producer.produce(topic, b"add k %d" % at, b"k", partition, on_delivery=delivered)
    assert (producer.flush(DEADLINE_S), failed) == (0, [])


def offsets(lake: Path, topic: str) -> list[tuple[int, int]]:
    table = DeltaTable(bronze_path(str(lake), topic)).to_pyarrow_table(columns=["partition", "offset"])
    return sorted((row["partition"], row["offset"]) for row in table.to_pylist())


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)])
def test_names_and_patterns_are_landed_by_one_process(
    request: pytest.FixtureRequest,
    broker: SessionBroker,
    settings: Settings,
    fresh_topic: FreshTopic,
    lake: Path,
    engine: str,
) -> None:
    if engine == "spark":
        request.getfixturevalue("spark")
    named, one, other, apart = (fresh_topic(f"many-{engine}-{each}") for each in "abcd")
    for number, topic in enumerate((named, one, other, apart)):
        send(broker, topic, 5 + number)
    wanted = [named, f"{one[:-2]}*", f"{other[:-2]}??"]
    options = LandOptions(engine=cast(LandEngine, engine))
    landing = TopicsLanding(settings, wanted, str(lake), options=options)
    reports = landing.run()
    assert [(each.topic, each.rows) for each in reports] == sorted([(named, 5), (one, 6), (other, 7)])
    assert [sum(each.lag.values()) for each in reports] == [0, 0, 0]
    assert {topic: len(offsets(lake, topic)) for topic in (named, one, other)} == {named: 5, one: 6, other: 7}
    assert not Path(bronze_path(str(lake), apart)).exists()


class Following:
    """A landing that follows in a thread of its own."""

    def __init__(self, settings: Settings, wanted: list[str], lake: Path, **more: Any) -> None:
        self.seen: list[Landed] = []
        self._came, self._stop = threading.Condition(), threading.Event()
        options = LandOptions(engine="local", follow=True, **more)
        self.landing = TopicsLanding(settings, wanted, str(lake), options=options, progress=self._told)
        self.error: HoldfastError | None = None
        self._thread = threading.Thread(target=self._run)

    def _told(self, landed: Landed) -> None:
        with self._came:
            self.seen.append(landed)
            self._came.notify_all()

    def _run(self) -> None:
        try:
            self.landing.run(self._stop)
        except HoldfastError as error:
            self.error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def until(self, topic: str, end: dict[int, int]) -> None:
        """Wait until the topic is landed that far."""
        until_s = system_clock.monotonic_s() + DEADLINE_S
        with self._came:
            while not any(each.topic == topic and each.end == end for each in self.seen):
                assert self.error is None, self.error
                assert self._came.wait(until_s - system_clock.monotonic_s()), self.seen


def test_topics_and_partitions_that_come_later_are_taken_up(
    broker: SessionBroker,
    settings: Settings,
    fresh_topic: FreshTopic,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(land_topics, "DISCOVER_S", 0.2)
    prefix = f"later-{ending()}"
    first = fresh_topic(f"{prefix}-a")
    send(broker, first, 3)
    with Following(settings, [f"{prefix}-*"], lake, every_s=0) as following:
        following.until(first, {0: 3})
        second = fresh_topic(f"{prefix}-b")
        send(broker, second, 4)
        following.until(second, {0: 4})
        add_partitions(settings.client(), first, 2)
        send(broker, first, 2, partition=1)
        following.until(first, {0: 3, 1: 2})
    assert following.error is None
    assert offsets(lake, first) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


def test_a_commit_is_made_before_its_time_when_enough_bytes_wait(
    broker: SessionBroker, settings: Settings, fresh_topic: FreshTopic, lake: Path
) -> None:
    topic = fresh_topic("bytes")
    send(broker, topic, 100)
    with Following(settings, [topic], lake, every_s=3_600, every_bytes=1_000) as following:
        following.until(topic, {0: 100})
        send(broker, topic, 1_000)
        following.until(topic, {0: 1_100})
    assert following.error is None


def test_a_topic_that_fails_ends_all_and_is_reported(
    broker: SessionBroker, settings: Settings, fresh_topic: FreshTopic, lake: Path
) -> None:
    good, bad = fresh_topic("good"), fresh_topic("bad")
    for topic in (good, bad):
        send(broker, topic, 3)
    TopicsLanding(settings, [good, bad], str(lake), options=LOCAL).run()
    DeltaTable(bronze_path(str(lake), bad)).restore(0)
    send(broker, good, 1)
    with pytest.raises(LakeError, match=f"{bad}: version 2 .RESTORE."):
        TopicsLanding(settings, [good, bad], str(lake), options=LOCAL).run()
    assert len(offsets(lake, good)) == 4, "the other one was landed"
    with Following(settings, [good, bad], lake) as following:
        following._thread.join(DEADLINE_S)
    assert isinstance(following.error, LakeError)
    DeltaTable(bronze_path(str(lake), good)).restore(0)
    with pytest.raises(PipelineError, match=rf"2 topics were not landed: .*{bad}.*{good}"):
        TopicsLanding(settings, [good, bad], str(lake), options=LOCAL).run()


def test_a_topic_that_does_not_exist_is_reported(settings: Settings, lake: Path) -> None:
    with pytest.raises(TopicError, match="no-such-topic: there is none"):
        TopicsLanding(settings, ["no-such-topic"], str(lake)).run()
    with pytest.raises(TopicError, match=r"no topic is like no-such\.\*"):
        TopicsLanding(settings, ["no-such.*"], str(lake)).run()
    with pytest.raises(ConfigError, match="say which topics"):
        TopicsLanding(settings, [], str(lake))
