"""Every example program on real workers, all in one application: an owner is killed, another frozen and
thawed, and the output is that of the programs in the test kit.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast import BlockingTableClient
from holdfast.clients.topics.application import create_topics
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.positions import position_format
from holdfast.core.engine.state.codec import APPLIED, ROW, text_key
from holdfast.core.streams.windowing.rows import holds_windows, parse_window_key
from holdfast.dev.broker.cluster import Cluster
from holdfast.dev.fixtures import SessionBroker
from holdfast.pipeline.verify.table import verify
from holdfast.testing import Topology
from tests.chaos.programs import all_processors
from tests.support.harness import Application, running, wait_for
from tests.support.parts import part
from tests.support.patience import DEADLINE_S
from tests.support.program_load import PHASES, load
from tests.support.proof import read_topic

PARTITIONS = 2
IDLE_MS = 10 * 60_000
APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
ONCE = (
    "payments-once",
    "enriched",
    "orders-in-euros",
    "hourly-views",
    "ended-visits",
    "word-counts",
    "outcomes",
    "items-sold",
)
"""Topics of which every record is known; of the others, the last one of each key."""
CHANGES = ("balances-changed", "bestsellers", "offers", "order-costs")


Told = dict[str, list[tuple[bytes | None, bytes | None]]]


@pytest.fixture(scope="module")
@part("kafka")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionBroker]:
    """Give a broker of its own: the programs' topics have the names that their users read."""
    with Cluster(tmp_path_factory.mktemp("alone"), short_lived=True) as cluster:
        yield SessionBroker(config=cluster.client_config(), cluster=cluster)


class Programs(Application):
    """The application of all programs."""

    def __init__(self, broker: SessionBroker, folder: Path) -> None:
        super().__init__(broker, folder, partitions=PARTITIONS, module="tests.chaos.programs")
        self.processors = all_processors()
        self._producer = Producer(broker.client_config(**{"linger.ms": 1, "partitioner": "murmur2_random"}))

    def create(self) -> None:
        own = {each.topic for phase in range(PHASES) for step in load(phase) for each in step}
        own |= {topic for each in self.processors for topic in each.emits if topic in (*ONCE, *CHANGES)}
        for topic in sorted({*own, "late-views"}):
            self.broker.create_topic(topic, partitions=PARTITIONS, config=APPEND_TIME, exact=True)
        create_topics(self.settings, self.processors, partitions=PARTITIONS)

    def write(self, phase: int) -> None:
        for step in load(phase):
            for topic, key, value in step:
                self._producer.produce(topic, value, key.encode())
            assert self._producer.flush(DEADLINE_S) == 0

    def is_through(self) -> bool:
        """Return whether each processor has folded its whole input, including the output of those before
        it.
        """
        for processor in self.processors:
            logs = [read_topic(self.broker, topic) for topic in processor.topics]
            form = position_format(processor)
            for number, messages in read_topic(self.broker, processor.changelog(self.name)).items():
                ends = tuple((log[number][-1].offset() or 0) if log[number] else -1 for log in logs)
                told = [each.value() or b"" for each in messages if each.key() == APPLIED]
                marker = form.decode(told[-1]) if told else form.start
                if marker.applied != ends:
                    return False
        return True

    def wait_through(self) -> None:
        wait_for("every program to be through", self.is_through, DEADLINE_S, self.tails)

    def told(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        return [(each.key(), each.value()) for log in read_topic(self.broker, topic).values() for each in log]


def in_the_kit() -> tuple[Told, Told]:
    """Return the programs' emits in the test kit, by topic; and those that ticks add after a long time
    without records.
    """
    with Topology(all_processors(), partitions=PARTITIONS) as topology:
        now_ms = 1_700_000_000_000
        for phase in range(PHASES):
            for step in load(phase):
                now_ms += 1_000
                for topic, key, value in step:
                    topology.pipe(topic, value, key=key, at=now_ms)

        def told() -> Told:
            return {
                topic: [(each.key, each.value) for each in topology.read(topic)]
                for topic in (*ONCE, *CHANGES)
            }

        soon = told()
        topology.tick(now_ms + IDLE_MS)
        assert not topology.refused
        return soon, told()


@pytest.mark.slow
def test_each_program_continues_exactly_once_past_a_kill_and_a_thawed_owner(
    alone: SessionBroker, tmp_path: Path
) -> None:
    app = Programs(alone, tmp_path)
    with running(app):
        app.create()
        _go_through_it(app)
        expected, ticked = in_the_kit()
        for topic in ONCE:
            told, least = Counter(app.told(topic)), Counter(expected[topic])
            assert least <= told <= least + Counter(ticked[topic]), topic
        for topic in CHANGES:
            assert dict(app.told(topic)) == dict(expected[topic]), topic
        for processor in app.processors:
            assert verify(processor, app.settings).equal, processor.name


def _read_windows(app: Programs, processor: Processor[Any, Any]) -> None:
    """Ask the workers for the windows of all keys, and of the later half of all starts: they are those of the
    changelog.
    """
    rows = {
        (number, each.key() or b""): each.value()
        for number, log in read_topic(app.broker, processor.changelog(app.name)).items()
        for each in log
    }
    found = {
        parse_window_key(text_key(key))
        for (_, key), value in rows.items()
        if key[:1] == ROW and value is not None
    }
    windows = {each for each in found if each is not None}
    middle_ms = sorted(start_ms for _, start_ms in windows)[len(windows) // 2]
    with BlockingTableClient(app.settings, [processor]) as tables:
        for since_ms in (None, middle_ms):
            told = [
                each.value
                for each in tables.windows(processor, since_ms=since_ms, page_rows=3, timeout_s=DEADLINE_S)
            ]
            assert sorted((each.key, each.start_ms) for each in told) == sorted(
                (key, start_ms) for key, start_ms in windows if since_ms is None or start_ms >= since_ms
            ), processor.name


def _go_through_it(app: Programs) -> None:
    """Kill an owner in the midst of a phase, freeze the next, and wake it when another has its partitions."""
    app.write(0)
    first, second = app.worker().start().wait_ready(), app.worker()
    app.write(1)
    first.kill()
    second.start().wait_ready()
    app.wait_through()
    second.signal(signal.SIGSTOP)
    try:
        first.start()
        app.write(2)
        first.wait_ready()
        app.wait_through()
    finally:
        second.signal(signal.SIGCONT)
    app.write(3)
    app.wait_through()
    for processor in app.processors:
        if holds_windows(processor.row):
            _read_windows(app, processor)
    for each in app.live:
        each.stop()
