"""An embedded Kafka with one topic, and one outbox on it, published in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from holdfast.config import Settings
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.outbox.harvest.table.row_types import ShardStop
from holdfast.outbox.settings import HarvestSettings, Strategy
from holdfast.outbox.writer.records import OutboxRecord
from tests.outbox.databases import FreshOutbox
from tests.outbox.harvesting import Alone
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S

TOPICS = {"holdfast": "orders", "goharvest": "orders", "debezium": "outbox.event.orders"}


@dataclass
class Bench:
    """One outbox and where its rows go."""

    kafka: EmbeddedKafka
    outbox: FreshOutbox
    name: str = "shop"
    strategy: Strategy = Strategy.FENCED

    @property
    def topic(self) -> str:
        return TOPICS[self.outbox.layout.name]

    def settings(self, **more: Any) -> HarvestSettings:
        given: dict[str, Any] = {
            "database": self.outbox.url,
            "kafka": Settings(kafka={key: str(value) for key, value in self.kafka.client_config().items()}),
            "name": self.name,
            "table": self.outbox.table,
            "layout": self.outbox.layout.name,
            "idle_poll_s": 0.01,
            "retry_s": 0.01,
            "retry_limit_s": 0.05,
        }
        return HarvestSettings(**{**given, **more})

    def write(self, *values: str) -> None:
        with self.outbox.engine().begin() as connection:
            self.outbox.writer().write_many(
                connection, [OutboxRecord(topic=self.topic, key="k", value=f'"{each}"') for each in values]
            )

    def left(self) -> int:
        with self.outbox.rows() as rows:
            return rows.count()

    def stops(self) -> list[ShardStop]:
        with self.outbox.rows() as rows:
            return [*rows.status().stops]

    @contextmanager
    def leading(self, **more: Any) -> Iterator[Alone]:
        """Lead the only shard while inside."""
        with Alone(self.settings(**more)) as alone:
            yield alone

    def publish(self, **more: Any) -> None:
        """Lead until no row is left."""
        with self.leading(**more) as alone:
            wait_for("an empty table", lambda: self.left() == 0, DEADLINE_S, lambda: str(alone.stats))

    def published(self, topic: str = "") -> list[str]:
        """Return the values of all committed records, in order."""
        config: dict[str, Any] = {"group.id": "reader", "isolation.level": "read_committed"}
        config["enable.partition.eof"] = True
        config["fetch.wait.max.ms"] = 10  # the end of a topic is reported when this is over
        reader, found = Consumer(self.kafka.client_config(**config)), list[str]()
        reader.assign([TopicPartition(topic or self.topic, 0, 0)])
        try:
            while True:
                (message,) = reader.consume(1, DEADLINE_S)
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return found
                assert error is None, error
                found.append((message.value() or b"").decode().strip('"'))
        finally:
            reader.close()


@contextmanager
def bench(outbox: FreshOutbox) -> Iterator[Bench]:
    """Give an embedded Kafka with the topic of *outbox*."""
    with EmbeddedKafka() as kafka:
        made = Bench(kafka, outbox)
        kafka.create_topic(made.topic, partitions=1)
        yield made
