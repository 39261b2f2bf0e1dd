"""Timers of event time, and decoders that ask for append time and topic: one table from topics and lake, here
and on Spark, and in the test kit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import msgspec
import pytest

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.emits import Emit
from holdfast.core.engine.positions import Position
from holdfast.core.engine.state.codec import EVENT
from holdfast.core.engine.state.rows import Rows
from holdfast.core.engine.state.timers import NEVER
from holdfast.pipeline.folds.result_rows import FoldSummary, other_event_time
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.spark.session import SparkOptions
from holdfast.testing import Topology
from tests.pipeline.accounts import Log, Record
from tests.pipeline.conftest import MakeTopic
from tests.pipeline.lakes import write_bronze
from tests.pipeline.recorded import recorded_runs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
FAR = SparkOptions(master="spark://elsewhere:7077")


class Reading(msgspec.Struct, frozen=True):
    """A meter's value at its own time, with its topic and append time."""

    meter: str
    own_ms: int
    topic: str
    timestamp: int


def decode(timestamp: int, value: bytes, topic: str) -> Reading:
    meter, own_ms = value.decode().split(" ")
    return Reading(meter, int(own_ms), topic, timestamp)


def own_time(reading: Reading) -> int:
    if reading.own_ms % 17 == 0:
        raise ValueError("a time that cannot be")
    return reading.own_ms


def fold(rows: Rows[str], reading: Reading, at_ms: int) -> None:
    rows[reading.meter] = f"{rows.get(reading.meter, '')[-90:]} {reading.topic}:{reading.timestamp}"
    rows.wake_at(reading.meter, reading.own_ms + 30, clock="event")


def silent(rows: Rows[str], meter: str, at_ms: int) -> Iterator[Emit]:
    rows[meter] = f"{rows.get(meter, '')[-90:]} silent:{at_ms}"
    yield Emit("silent", meter, b"%d" % at_ms)


def meters(topic: str) -> Processor[Reading, str]:
    return Processor(
        name="meters",
        source=topic,
        decode=decode,
        inputs=("timestamp", "value", "topic"),
        time=own_time,
        fold=fold,
        on_event=silent,
        row=str,
        emits=("silent",),
    )


def readings() -> Log:
    """Return records whose own times lag append time, out of order."""
    rng = Random(5)
    return {
        partition: [
            Record(
                at,
                1_700_000_000_000 + 20 * at,
                None,
                f"m{rng.randrange(4)} {5 * at + rng.choice((0, 0, -40, 12))}".encode(),
            )
            for at in range(120)
        ]
        for partition in range(PARTITIONS)
    }


def test_topics_and_lake_here_and_on_spark_give_one_table(
    spark: SparkSession, settings: Settings, make_topic: MakeTopic, tmp_path: Path
) -> None:
    log = readings()
    processor = meters(make_topic(log))
    write_bronze(tmp_path, processor.source, log, commits=3)
    found = [
        replay(processor, settings, replace(how, source="bronze", lake=str(tmp_path)) if lake else how)
        for lake in (False, True)
        for how in (
            ReplayOptions(engine="local"),
            ReplayOptions(engine="spark"),
            ReplayOptions(engine="spark", spark=FAR),
        )
    ]
    assert {each.digest for each in found} == {found[0].digest}
    assert all(each.partitions == found[0].partitions for each in found)
    assert all(each.table("refused", processor) == found[0].table("refused", processor) for each in found)
    assert all(
        isinstance(each.event_ms, int) and each.refused and each.timers for each in found[0].partitions
    )

    with Topology([processor], partitions=PARTITIONS) as topology:
        for partition, records in log.items():
            for each in records:
                topology.pipe(processor.source, each.value, partition=partition, at=each.at_ms)
        kit = list(recorded_runs(topology))
        assert topology.timers(processor, clock="event", partition=0)
        assert topology.read("silent")
        assert {each.error for each in topology.refused} == {"ValueError"}
    assert [each.digest for each in kit] == [each.digest for each in found[0].partitions]
    assert EVENT in {key[:1] for key, _ in found[0].state(0)}


@pytest.mark.parametrize(
    ("position", "summary", "told"),
    [
        (Position((7,), 9, 1), FoldSummary(partition=0), None),
        (Position((7,), 9, 1, event_ms=5), FoldSummary(partition=0, event_ms=5), None),
        (Position((7,), 9, 1, event_ms=5), FoldSummary(partition=0, event_ms=0), "5, replayed 0"),
        (Position((7,), 9, 1, event_ms=0), FoldSummary(partition=0, event_ms=5), "0, replayed 5"),
        (Position((-1,), -1, 1, event_ms=-NEVER), FoldSummary(partition=0), None),
    ],
)
def test_an_event_time_that_a_replay_does_not_reach_is_reported(
    position: Position, summary: FoldSummary, told: str | None
) -> None:
    assert other_event_time(position, summary) == told
