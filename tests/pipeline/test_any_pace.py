"""A day's backlog in perfect order, read by one worker or two of which one is killed: every record is in its
window, and every pair is made, whatever is read first; replays give the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.dev.fixtures import SessionBroker
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.run import EngineChoice
from holdfast.pipeline.verify.table import read_live, verify
from tests.support.paced_app import PacedApplication
from tests.support.patience import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakePaced = Callable[..., PacedApplication]
RECORDS, PAIRED = 24_000, 125_000
"""Input of the variants: fares, and records of each side of the join."""
LOCAL = ReplayOptions(engine="local")


@pytest.fixture(scope="module")
def embedded() -> Iterator[SessionBroker]:
    with EmbeddedKafka(seed=41) as kafka:
        yield SessionBroker(config={key: str(value) for key, value in kafka.client_config().items()})


@pytest.fixture
def paced(tmp_path: Path) -> Iterator[MakePaced]:
    """Give a maker of applications; all they started is gone after the test."""
    with ExitStack() as stack:

        def make(broker: SessionBroker, **settings: Any) -> PacedApplication:
            app = PacedApplication(broker, tmp_path, **settings)
            stack.callback(app.close)
            return app

        yield make


def through_a_kill(app: PacedApplication, workers: int, records: int) -> None:
    """Have *workers* read the existing records; the first is killed in the middle, and started again."""
    started = [app.worker().start() for _ in range(workers)]
    app.wait_read(0.3, records)
    started[0].kill()
    if workers > 1:
        app.wait_read(0.5, records)
    started[0].start()


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("of", ["windows", "emits"])
def test_windows_after_a_rekey_or_a_fold_have_every_record_of_a_backlog(
    paced: MakePaced, embedded: SessionBroker, of: str
) -> None:
    app = paced(embedded, of=of, partitions=4, fetch_records=100, standbys=1)
    wanted = app.write_day(2_400)
    first = app.worker().start(CHAOS_FAULT="committed:6")
    second = app.worker().start()
    assert first.wait_exit(DEADLINE_S) == -SIGKILL
    first.start()
    app.wait_windows(wanted, "two workers, one killed")
    assert not app.late().total()
    for worker in (first, second):
        worker.stop()
    assert all(verify(each, app.settings, LOCAL).equal for each in app.processors)


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("run", [2_000, 100])
def test_a_join_of_two_topics_has_every_pair(paced: MakePaced, embedded: SessionBroker, run: int) -> None:
    app = paced(embedded, of="join", partitions=2, fetch_records=300)
    wanted = app.write_pairs(2_000, run)
    worker = app.worker().start(CHAOS_FAULT="committed:3")
    assert worker.wait_exit(DEADLINE_S) == -SIGKILL
    worker.start()
    app.wait_pairs(wanted, f"runs of {run}")
    assert not app.late().total()
    worker.stop()
    assert verify(app.processors[-1], app.settings, LOCAL).equal


@pytest.mark.variant
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("partitions", [1, 4, 16])
def test_windows_of_a_day_with_a_kill_in_the_middle(
    paced: MakePaced, broker: SessionBroker, partitions: int, workers: int
) -> None:
    app = paced(broker, partitions=partitions)
    wanted = app.write_day(RECORDS)
    through_a_kill(app, workers, RECORDS)
    app.wait_windows(wanted, f"{partitions} partitions, {workers} workers")
    assert not app.late().total()
    equal_in_replays(app, "local")


@pytest.mark.variant
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("partitions", [1, 4, 16])
@pytest.mark.parametrize("run", [PAIRED, 250])
def test_pairs_of_a_day_with_a_kill_in_the_middle(
    paced: MakePaced, broker: SessionBroker, run: int, partitions: int, workers: int
) -> None:
    app = paced(broker, of="join", partitions=partitions)
    wanted = app.write_pairs(PAIRED, run)
    through_a_kill(app, workers, wanted.total())
    app.wait_pairs(wanted, f"runs of {run}, {partitions} partitions, {workers} workers")
    assert not app.late().total()
    equal_in_replays(app, "local")


@pytest.mark.variant
@pytest.mark.parametrize("of", ["windows", "join"])
def test_spark_gives_the_results_of_workers(
    paced: MakePaced, broker: SessionBroker, spark: SparkSession, of: str
) -> None:
    app = paced(broker, of=of, partitions=4)
    if of == "windows":
        wanted = app.write_day(RECORDS)
        through_a_kill(app, 2, RECORDS)
        app.wait_windows(wanted, "on Spark")
    else:
        pairs = app.write_pairs(RECORDS, RECORDS)
        through_a_kill(app, 2, pairs.total())
        app.wait_pairs(pairs, "on Spark")
    equal_in_replays(app, "local", "spark")


def equal_in_replays(app: PacedApplication, *engines: EngineChoice) -> None:
    """Stop the workers, and compare their results with replays."""
    for worker in app.workers:
        worker.stop()
    done = app.processors[-1]
    live = [(each.applied, each.digest) for each in read_live(done, app.settings)]
    for engine in engines:
        replayed = replay(done, app.settings, ReplayOptions(engine=engine))
        assert [(each.applied, each.digest) for each in replayed.partitions] == live, engine
