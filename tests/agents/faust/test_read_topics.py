"""Topics of ordinary agents that are deleted and made again: agents begin the new one at its beginning.

Brokers forget the commits of groups for a topic that is deleted, but not later ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from holdfast.agents.faust.transport.read_topics import ReadTopics
from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.core.engine.commit_notes import CommitNote, encode_commit_note
from holdfast.embedded.kafka import EmbeddedKafka
from tests.agents.faust.reading_shop import HEARD, ORDERS
from tests.agents.fleet import environment_of
from tests.support.harness import TIMES, Worker, module_command, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.proof import read_topic


class Shop:
    """The application on a broker of its own."""

    def __init__(self, kafka: EmbeddedKafka, folder: Path) -> None:
        self.kafka = kafka
        config = {key: str(value) for key, value in kafka.client_config().items()}
        self.settings = Settings(app="shop", kafka=config, data_dir=folder / "data")
        kafka.create_topic(ORDERS)
        kafka.create_topic(HEARD)
        create_topics(self.settings, [], partitions=1)
        environment = {
            **environment_of(self.settings),
            **{f"HOLDFAST_{key.upper()}": str(value) for key, value in TIMES.items()},
        }
        self.worker = Worker("w1", folder, environment, module_command("tests.agents.faust.reading_shop"))

    def write(self, first: int, count: int) -> None:
        producer = Producer(self.kafka.client_config())
        for number in range(first, first + count):
            producer.produce(ORDERS, b"%d" % number, partition=0)
        assert producer.flush(DEADLINE_S) == 0

    def make_again(self) -> None:
        admin = AdminClient(self.kafka.client_config())
        admin.delete_topics([ORDERS])[ORDERS].result(DEADLINE_S)
        self.kafka.create_topic(ORDERS)

    def heard(self) -> list[int]:
        return [int(each.value() or b"") for each in read_topic(self.kafka, HEARD)[0]]  # type: ignore[arg-type]

    def hear(self, first: int, count: int) -> None:
        """Have a worker run until its agent has received these orders and committed, and stop it."""
        self.worker.start().wait_ready()
        wanted = set(range(first, first + count))
        wait_for("all is heard", lambda: wanted <= set(self.heard()), DEADLINE_S, self.worker.tail)
        self.worker.stop()

    @contextmanager
    def group(self) -> Iterator[Consumer]:
        consumer = Consumer({**self.kafka.client_config(), "group.id": "shop", "enable.auto.commit": False})
        try:
            yield consumer
        finally:
            consumer.close()

    def committed(self) -> TopicPartition:
        with self.group() as consumer:
            return consumer.committed([TopicPartition(ORDERS, 0)], DEADLINE_S)[0]


@pytest.mark.process
@pytest.mark.long
def test_agents_begin_a_topic_that_was_made_again_at_its_beginning(tmp_path: Path) -> None:
    with EmbeddedKafka() as kafka:
        shop = Shop(kafka, tmp_path)
        shop.write(0, 12)
        shop.hear(0, 12)
        late = shop.committed()
        assert (late.offset, bool(late.metadata)) == (12, True)
        shop.make_again()
        shop.write(100, 30)
        with shop.group() as group:
            group.commit(offsets=[late], asynchronous=False)
        shop.hear(100, 30)
        assert len(shop.worker.said("begin the new one at its beginning")) == 1
        shop.write(200, 5)
        shop.hear(200, 5)
        assert shop.heard() == [*range(12), *range(100, 130), *range(200, 205)], "each once"


def test_an_offset_counts_unless_its_note_names_another_topic(caplog: pytest.LogCaptureFixture) -> None:
    old, new = (ReadTopics(Settings(app="shop")) for _ in range(2))
    old._ids, new._ids = {ORDERS: "an id"}, {ORDERS: "another"}
    place, folded = (ORDERS, 3), encode_commit_note(CommitNote(topic="an id", tables={}))
    for note in (old.note(ORDERS), folded or ""):
        assert old.of_these({place: 9}, {place: note}) == {place: 9}
        assert new.of_these({place: 9}, {place: note}) == {place: 0}
        assert ReadTopics(Settings(app="shop")).of_these({place: 9}, {place: note}) == {place: 9}
    for note in ("", "of another program"):
        assert new.of_these({place: 9}, {place: note}) == {place: 9}, "an earlier release notes nothing"
    said = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert len(said) == 2
