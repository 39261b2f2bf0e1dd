"""A step, or a fold whose emits carry origins, that is begun by a command continues as one that workers have
folded: its sources' watermarks come with its position, by whatever command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.cli.tables.mending import Mender
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.stepping import WATERMARKS
from holdfast.core.engine.origins import NAMELESS, decode_clock
from holdfast.dev.fixtures import SessionBroker
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.pipeline.bootstrap.bootstrap import BootstrapOptions, bootstrap
from holdfast.pipeline.comparing.compare import compare
from holdfast.pipeline.landing.land import land
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.verify.table import read_live, verify
from tests.chaos.pacing import Fare
from tests.support.books_app import LOCAL
from tests.support.paced_app import BEGIN_MS, HOUR_MS, LAST, PacedApplication

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGUN = BootstrapOptions(replay=LOCAL)
RECORDS = 480


@pytest.fixture(scope="module")
def embedded() -> Iterator[SessionBroker]:
    with EmbeddedKafka(seed=43) as kafka:
        yield SessionBroker(config={key: str(value) for key, value in kafka.client_config().items()})


@pytest.fixture(params=["windows", "emits"])
def app(
    embedded: SessionBroker, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[PacedApplication]:
    found = PacedApplication(embedded, tmp_path, of=request.param, partitions=2)
    try:
        yield found
    finally:
        found.close()


def note_of(processor: Processor[Any, Any], settings: Settings, partition: int) -> bytes | None:
    return asyncio.run(Mender(processor, settings).look(partition)).notes().get(WATERMARKS)


def highest_of(note: bytes | None) -> int:
    """Return the watermark of the one source in a step's note."""
    assert note is not None, "there is none"
    (source,) = decode_clock(note).sources
    return dict(source[2])[NAMELESS]


def write_late(app: PacedApplication) -> None:
    """Append records that are late in their own partitions, and a last one that is not."""
    late = Fare("0", BEGIN_MS, 1_000_000)
    app.write([("fares", late, 0), ("fares", late, 1), ("fares", Fare(LAST, BEGIN_MS + 9_000 * HOUR_MS), 0)])


@pytest.mark.long
@pytest.mark.process
def test_records_after_a_begun_step_are_late_as_by_its_whole_log(app: PacedApplication, lake: Path) -> None:
    wanted = app.write_day(RECORDS)
    step, hours = app.processors
    for each in (step, hours):
        bootstrap(each, app.settings, BootstrapOptions(replay=LOCAL, emits="send"))
    for partition in range(2):
        assert highest_of(note_of(step, app.settings, partition)) == BEGIN_MS + 1_000 * HOUR_MS
    worker = app.worker().start().wait_ready()
    write_late(app)
    wanted[LAST, BEGIN_MS + 1_000 * HOUR_MS] = 2
    app.wait_windows(wanted, "begun by a command")
    worker.stop()
    assert app.late()["OriginRow"] == 2
    assert all(verify(each, app.settings, LOCAL).equal for each in app.processors)
    check_other_ways(app, lake)


def check_other_ways(app: PacedApplication, lake: Path) -> None:
    """Compare the workers' windows with those of the lake, of another version that is folded for comparison,
    and of a version that a command begins.
    """
    hours = app.processors[1]
    live = [each.digest for each in read_live(hours, app.settings)]
    land(app.settings, hours.source, str(lake))
    landed = replay(hours, app.settings, replace(LOCAL, source="bronze", lake=str(lake)))
    assert [each.digest for each in landed.partitions] == live
    assert verify(hours, app.settings, replace(LOCAL, source="bronze", lake=str(lake))).equal
    app.declare(done=2)
    assert compare(hours, app.processors[1], app.settings, LOCAL).equal
    bootstrap(app.processors[1], app.settings, BootstrapOptions(replay=LOCAL, emits="send"))
    assert [each.digest for each in read_live(app.processors[1], app.settings)] == live
    assert app.windows().total() == RECORDS + 2


@pytest.mark.long
def test_a_step_that_is_put_back_has_the_watermarks_of_there(app: PacedApplication) -> None:
    app.write_day(RECORDS)
    step = app.processors[0]
    bootstrap(step, app.settings, BEGUN)
    mender = Mender(step, app.settings)
    asyncio.run(mender.write(0, rebuild=False, applied=99))
    assert read_live(step, app.settings)[0].applied == 99
    assert highest_of(note_of(step, app.settings, 0)) == BEGIN_MS + 99 * 2 * 86_400_000 // RECORDS
    asyncio.run(mender.write(0, rebuild=True, applied=None))
    assert note_of(step, app.settings, 0) is None, "it begins with nothing"


@pytest.mark.variant
def test_spark_begins_a_step_with_the_watermarks_that_this_process_does(
    app: PacedApplication, spark: SparkSession, lake: Path
) -> None:
    app.write_day(RECORDS)
    step = app.processors[0]
    land(app.settings, step.source, str(lake))
    here = replay(step, app.settings, LOCAL).partitions
    for source in ("topic", "bronze"):
        options = ReplayOptions(engine="spark", source=source, lake=str(lake))
        there = replay(step, app.settings, options).partitions
        assert [each.watermarks for each in there] == [each.watermarks for each in here]
        assert all(each.watermarks for each in here)
    bootstrap(step, app.settings, replace(BEGUN, replay=options))
    assert [highest_of(note_of(step, app.settings, at)) for at in range(2)] == [
        BEGIN_MS + 1_000 * HOUR_MS
    ] * 2
