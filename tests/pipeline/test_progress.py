"""A replay reports its progress."""

from __future__ import annotations

import msgspec
import pytest
from confluent_kafka import Producer

from holdfast import Bytes, Processor, Source, by_key
from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.core.engine.state.rows import Rows
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.pipeline.progress import watched
from holdfast.pipeline.replay import ReplayOptions, replay
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S

RECORDS = 300


class Seen(msgspec.Struct, frozen=True):
    records: int = 0


def fold(rows: Rows[Seen], value: bytes, at_ms: int) -> None:
    rows["all"] = Seen((rows.get("all") or Seen()).records + 1)


@pytest.mark.parametrize("several", [False, True], ids=["one source", "several sources"])
def test_it_begins_with_all_offsets_and_ends_with_all_done(
    embedded_kafka: EmbeddedKafka, several: bool
) -> None:
    app = f"shop-{ending()}"
    settings = Settings(app=app, kafka={"bootstrap.servers": embedded_kafka.bootstrap})
    topics = [f"{app}-left", f"{app}-right"][: 2 if several else 1]
    given = (
        {"on": {Source(topic, Bytes()): fold for topic in topics}}
        if several
        else {"source": topics[0], "decode": bytes, "fold": fold, "route": by_key}
    )
    processor = Processor(name="seen", row=Seen, **given)
    for topic in topics:
        embedded_kafka.create_topic(topic, partitions=2)
    create_topics(settings, [processor], partitions=2)
    producer = Producer(embedded_kafka.client_config())
    for number in range(RECORDS):
        producer.produce(topics[number % len(topics)], b"x", key=b"k", partition=number // 2 % 2)
    assert producer.flush(DEADLINE_S) == 0
    with watched() as watcher:
        replayed = replay(processor, settings, ReplayOptions(engine="local"))
    assert watcher.work is not None
    assert replayed.records == RECORDS == watcher.work.total == watcher.work.done
    assert watcher.work.what == "replay of seen"
