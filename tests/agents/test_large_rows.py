"""Rows of 900 KB on two workers, of which one is killed and comes back again and again while they are asked
for: each answer has at least the words that its reader has written, and is of the row asked for.
"""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from holdfast.clients.tables.answers import ReachedOffsets
from holdfast.clients.tables.blocking import BlockingTableClient
from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.pipeline.replay import ReplayOptions
from holdfast.pipeline.verify.table import verify
from tests.agents.fleet import environment_of
from tests.agents.large_rows import PAGES, SIZE
from tests.support.harness import TIMES, Worker, module_command
from tests.support.patience import DEADLINE_S

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.slow]

PARTITIONS, WORDS = 4, [f"w{at}" for at in range(12)]


class Writer:
    """Writes words, and reads each row until it has them."""

    def __init__(self, kafka: EmbeddedKafka, tables: BlockingTableClient) -> None:
        self._producer, self._tables = Producer(kafka.client_config()), tables
        self.counts = dict.fromkeys(WORDS, 0)
        self.reached = ReachedOffsets({})

    def write(self, word: str) -> int:
        written = list[int]()
        place = by_key(word, PARTITIONS)
        self._producer.produce(
            "words", word, word, place, on_delivery=lambda _, record: written.append(record.offset() or 0)
        )
        assert self._producer.flush(DEADLINE_S) == 0
        self.counts[word] += 1
        return written[0]

    def turn(self) -> None:
        for word in WORDS:
            place, offset = by_key(word, PARTITIONS), self.write(word)
            answer = self._tables.get("pages", word, at_least=(place, offset), timeout_s=DEADLINE_S)
            assert answer.value is not None
            assert (len(answer.value), answer.as_of_offset >= offset) == (SIZE, True)
            assert int(answer.value.partition(b" ")[0]) == self.counts[word]
            again = self._tables.get("pages", word, at_least=answer.reached, timeout_s=DEADLINE_S)
            assert again.value == answer.value


def test_rows_of_900_kb_are_answered_while_workers_come_and_go(tmp_path: Path) -> None:
    with EmbeddedKafka() as kafka:
        config = {key: str(value) for key, value in kafka.client_config().items()}
        settings = Settings(app="shop", kafka=config, data_dir=tmp_path / "data")
        kafka.create_topic("words", partitions=PARTITIONS, config={"message.timestamp.type": "LogAppendTime"})
        create_topics(settings, [PAGES], partitions=PARTITIONS)
        environment = {
            **environment_of(settings),
            **{f"HOLDFAST_{key.upper()}": str(value) for key, value in TIMES.items()},
        }
        command = module_command("tests.agents.large_rows")
        first, second = (Worker(name, tmp_path, environment, command) for name in ("w1", "w2"))
        with closing(first), closing(second), BlockingTableClient(settings, [PAGES]) as tables:
            for each in (first, second):
                each.start()
            for each in (first, second):
                each.wait_ready()
            writer, over, faults = Writer(kafka, tables), threading.Event(), list[BaseException]()

            def write_on() -> None:
                try:
                    while not over.is_set():
                        writer.turn()
                except BaseException as error:  # noqa: BLE001  the test raises it
                    faults.append(error)

            asking = threading.Thread(target=write_on)
            asking.start()
            try:
                for each in (first, second, first):
                    each.kill()
                    if each is second:
                        each.wipe()
                    each.start().wait_ready()
            finally:
                over.set()
                asking.join(DEADLINE_S)
            assert faults == []
            assert min(writer.counts.values()) > 0
            found = {each.key: each.value for each in tables.scan("pages", timeout_s=DEADLINE_S)}
            assert {key: int(value.partition(b" ")[0]) for key, value in found.items()} == writer.counts
            for each in (first, second):
                each.stop()
        assert verify(PAGES, settings, ReplayOptions(engine="local")).equal
