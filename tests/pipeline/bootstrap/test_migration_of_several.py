"""A version of several sources, and of globals, that begins with the rows of the previous version: while
workers run, on both engines, and from the lake.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import create_topics
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.rows import Rows
from holdfast.dev.fixtures import SessionBroker
from holdfast.errors import LostRecordsError, PipelineError
from holdfast.pipeline.bootstrap.bootstrap import BootstrapOptions, Bootstrapped, bootstrap
from holdfast.pipeline.bootstrap.sink import BootstrapOutcome
from holdfast.pipeline.bronze.extent import Until
from holdfast.pipeline.landing.land_several import land_processor
from holdfast.pipeline.landing.options import LandOptions
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.run import EngineChoice
from holdfast.pipeline.verify.emits import verify_emits
from holdfast.pipeline.verify.table import verify
from tests.chaos.joining import Known
from tests.support.harness import running
from tests.support.joining_app import JoinApplication

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = LandOptions(engine="local")


def kept(rows: Rows[Known], key: str, row: Known) -> None:
    rows[key] = row


@pytest.fixture
def app(broker: SessionBroker, tmp_path: Path) -> Iterator[JoinApplication]:
    made = JoinApplication(broker, tmp_path, rates=True)
    with running(made):
        yield made.create_topics()


def migrating(app: JoinApplication, version: int) -> Processor[Any, Known]:
    """Return the application's processor in its version, which begins with the rows of the one before; topics
    made.
    """
    found = replace(app.joined, version=version, migrate={version - 1: kept})
    create_topics(app.settings, [found], partitions=app.partitions)
    return found


def begun(app: JoinApplication, processor: Processor[Any, Any], engine: EngineChoice) -> Bootstrapped:
    options = BootstrapOptions(replay=ReplayOptions(engine=engine), migrate=True)
    done = bootstrap(processor, app.settings, options)
    assert [each.outcome for each in done.partitions] == [BootstrapOutcome.WRITTEN] * app.partitions
    assert done.engine == engine
    return done


@pytest.mark.slow
def test_it_begins_while_workers_run_and_is_a_function_of_base_sources_and_choices(
    spark: SparkSession, app: JoinApplication, lake: Path
) -> None:
    old = app.worker("old").start(JOIN_LIE="1").wait_ready()
    app.write_late_orders(2)
    app.write(300, seed=5)
    app.prove()
    app.raise_version(2, handover=True)
    second = migrating(app, 2)
    done = begun(app, second, "local")
    assert all(each.rows for each in done.partitions)
    app.write(100, seed=6)  # which version 1 folds and emits, perhaps with choices
    old.kill()
    new = app.worker("new").start(JOIN_LIE="1").wait_ready()
    app.write_late_orders(1)
    app.write(100, seed=7)
    # The rows are those of version 1, unchanged: so the emits of both are those that one alone would make,
    # from the beginning.
    app.prove()
    new.kill()

    lived = verify(second, app.settings)
    assert lived.equal, [each.explain() for each in lived.partitions]
    assert len(lived.bases) == app.partitions
    assert f"of version 1 behind the offsets {app.customers} " in lived.bases[0]
    assert verify_emits(second, app.settings).equal
    land_processor(app.settings, second, str(lake), options=HERE)
    for engine in ("local", "spark"):
        for source in ("topic", "bronze"):
            options = ReplayOptions(
                engine=engine, source=source, lake=str(lake) if source == "bronze" else None
            )
            found = replay(second, app.settings, options)
            assert (found.engine, found.digest) == (engine, lived.live_digest), source
            assert found.records < 600, "it read from the base on alone"
            assert len(found.bases) == app.partitions

    third, on_spark = migrating(app, 3), begun(app, migrating(app, 3), "spark")
    local = begun(app, replace(migrating(app, 4), migrate={2: kept}), "local")
    assert [each.digest for each in on_spark.partitions] == [each.digest for each in local.partitions]
    verdict = verify(third, app.settings, ReplayOptions(engine="spark"))
    assert (verdict.equal, verdict.live_digest) == (True, lived.live_digest)
    assert "which began with " in verdict.bases[0]


@pytest.mark.slow
def test_sources_are_needed_from_the_base_on_and_no_replay_ends_before_it(app: JoinApplication) -> None:
    old = app.worker("old").start().wait_ready()
    app.write(100, seed=5)
    app.prove()
    old.stop()
    app.raise_version(2, handover=True)
    second = migrating(app, 2)
    begun(app, second, "local")
    before = Until(sources={0: {app.orders: 3}})
    for until in (before, Until(at_ms=1_000)):
        with pytest.raises(PipelineError, match="cannot be replayed up to a place before that"):
            replay(second, app.settings, ReplayOptions(engine="local", until=until))
    app.write(50, seed=6)
    ends = app.ends()[0]
    admin, place = Admin(app.settings), (app.orders, 0)
    admin.delete_before({place: 1})
    assert verify(second, app.settings).equal
    admin.delete_before({place: ends[1] + 1})
    with pytest.raises(LostRecordsError, match=f"{app.orders} partition 0 begins at offset"):
        replay(second, app.settings, ReplayOptions(engine="local"))
