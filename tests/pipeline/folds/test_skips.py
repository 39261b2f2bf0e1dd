"""Skipped records are left out by every engine, from the topic and from the lake, even by a reader that could
read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.skips import Skip, encode_skip
from holdfast.dev.fixtures import SessionBroker
from holdfast.errors import LostRecordsError, UnreadableError
from holdfast.pipeline.bronze.extent import Until
from holdfast.pipeline.folds.results import Replayed
from holdfast.pipeline.landing.land import land
from holdfast.pipeline.replay import ReplayOptions, replay
from tests.chaos.counting import processors
from tests.support.damage import one_batch
from tests.support.patience import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 1 << 20
HIDDEN, HIDDEN_KEY = 1_200, "hidden" * 200
"""Sound records in one batch, and their key: more than 1 MiB, which is all that these readers unpack."""


class Source:
    """A topic of two partitions; the first holds batches too large, the second none."""

    def __init__(self, broker: SessionBroker, settings: Settings) -> None:
        self._broker, self.settings, self.hidden = broker, settings, list[tuple[int, int]]()
        self.topic = broker.create_topic("skips", partitions=2)
        broker.create_topic(settings.skips_topic, config={"cleanup.policy": "compact"}, exact=True)
        self.processor: Processor[Any, Any] = processors(self.topic, "nowhere")[1]
        end = 0
        for key, count in (
            ("a", 3),
            (HIDDEN_KEY, HIDDEN),
            ("a", 2),
            (HIDDEN_KEY, HIDDEN),
            (HIDDEN_KEY, HIDDEN),
            ("a", 1),
            (HIDDEN_KEY, HIDDEN),
        ):
            self.add(key, count, 0)
            if key == HIDDEN_KEY:
                self.hidden.append((end, end + count - 1))
            end += count
        self.add("b", 5, 1)

    def add(self, key: str, count: int, partition: int) -> None:
        producer = one_batch(self._broker, self.topic)
        for _ in range(count):
            producer.produce(self.topic, f"add {key} 1".encode(), partition=partition)
        assert producer.flush(DEADLINE_S) == 0

    def skip(self, *ranges: tuple[int, int]) -> None:
        producer = Producer(self._broker.client_config())
        for first, last in ranges:
            skip = Skip(topic=self.topic, partition=0, first=first, last=last, made=True)
            producer.produce(self.settings.skips_topic, encode_skip(skip), skip.key, partition=0)
        assert producer.flush(DEADLINE_S) == 0

    def replay(self, settings: Settings | None = None, **options: Any) -> Replayed:
        return replay(self.processor, settings or self.settings, ReplayOptions(**options))


@pytest.fixture
def source(broker: SessionBroker, settings: Settings, request: pytest.FixtureRequest) -> Iterator[Source]:
    app = f"skips-{abs(hash(request.node.name)) % 10**8}"
    yield Source(broker, replace(settings, app=app, unpacked_batch_bytes=MIB))
    broker.delete_topics([f"{app}-skips"])


def test_a_batch_that_cannot_be_read_and_is_not_skipped_ends_a_replay_and_says_the_ways_on(
    source: Source,
) -> None:
    with pytest.raises(UnreadableError) as refused:
        source.replay(engine="local")
    for part in (
        source.topic,
        "partition 0",
        f"offsets 3 to {HIDDEN + 2} cannot be read",
        "raise unpacked_batch_bytes",
        f"skip {source.topic} 0 3",
    ):
        assert part in str(refused.value)
    assert source.replay(engine="local", until=Until(offsets={0: 2, 1: 4})).records == 8, (
        "before it everything is read"
    )


def test_every_engine_leaves_out_the_same_from_topic_and_lake(
    spark: SparkSession, source: Source, lake: Path
) -> None:
    source.skip(*source.hidden)
    able = replace(source.settings, unpacked_batch_bytes=64 * MIB)
    want = source.replay(engine="local")
    assert (want.records, want.skipped) == (11, 4 * HIDDEN)
    assert want.applied == {0: source.hidden[-1][0] - 1, 1: 4}
    assert source.replay(able, engine="local").digest == want.digest, "who could read it leaves it out too"
    assert source.replay(engine="spark").digest == want.digest
    report = land(source.settings, source.topic, str(lake))
    assert report.vector == {0: source.hidden[-1][1] + 1, 1: 5}
    for engine in ("local", "spark"):
        found = source.replay(engine=engine, source="bronze", lake=str(lake))
        assert (found.digest, found.records, found.skipped) == (want.digest, 11, 4 * HIDDEN)
    another = replace(source.settings, app=f"{source.settings.app}-b", unpacked_batch_bytes=64 * MIB)
    source.add("b", 2, 1)
    assert land(another, source.topic, str(lake)).offsets == 2, (
        "another application goes on where this one had come to"
    )
    with pytest.raises(
        LostRecordsError,
        match=f"lacks offsets 3 to {HIDDEN + 2}, which the application that landed them skips",
    ):
        source.replay(another, engine="local", source="bronze", lake=str(lake))
    own = source.replay(engine="local", source="bronze", lake=str(lake))
    assert (own.records, own.skipped) == (13, 4 * HIDDEN)


@pytest.mark.variant
def test_records_landed_before_they_were_skipped_are_left_out_by_every_reader_of_the_lake(
    spark: SparkSession, source: Source, lake: Path
) -> None:
    with pytest.raises(UnreadableError, match="raise unpacked_batch_bytes"):
        land(source.settings, source.topic, str(lake))
    able = replace(source.settings, unpacked_batch_bytes=64 * MIB)
    land(able, source.topic, str(lake))
    before = source.replay(engine="local", source="bronze", lake=str(lake))
    assert before.records == 11 + 4 * HIDDEN
    source.skip(*source.hidden[:3])
    assert land(source.settings, source.topic, str(lake)).commits == 1, "a commit of no rows notes it"
    assert land(source.settings, source.topic, str(lake)).commits == 0
    for engine in ("local", "spark"):
        found = source.replay(engine=engine, source="bronze", lake=str(lake))
        assert (found.records, found.skipped) == (11 + HIDDEN, 3 * HIDDEN)
        assert found.digest == source.replay(able, engine="spark").digest
