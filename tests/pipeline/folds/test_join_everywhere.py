"""A join on real workers, then restored, then folded again here and on Spark, from the topics and from the
lake: one digest.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.cli.__main__ import main
from holdfast.clients.topics.admin import Admin
from holdfast.dev.fixtures import SessionBroker
from holdfast.errors import LakeError, LostRecordsError
from holdfast.pipeline.bronze.commits import history_of, last_landed
from holdfast.pipeline.bronze.lake import Cut, Landed, bronze_path, open_table
from holdfast.pipeline.comparing.compare import compare
from holdfast.pipeline.folds.extent import ReadLimit
from holdfast.pipeline.folds.plan import FoldPlan
from holdfast.pipeline.folds.replay_logs import open_logs
from holdfast.pipeline.folds.result_rows import RESULT
from holdfast.pipeline.folds.results import Replayed
from holdfast.pipeline.histories.fold import FoldOptions, fold
from holdfast.pipeline.landing import local_table
from holdfast.pipeline.landing.land_several import ChoiceNumbers, land_processor
from holdfast.pipeline.landing.landing import Landing
from holdfast.pipeline.landing.options import LandOptions
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.run import fold_each
from holdfast.pipeline.topic import Span, TopicLog, TopicReader
from holdfast.pipeline.verify.table import verify
from tests.support.harness import running
from tests.support.joining_app import JoinApplication

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = LandOptions(engine="local")
"""Results of landings in these tests hold for either engine: Spark takes twenty times the processor time."""


@pytest.fixture
def app(broker: SessionBroker, tmp_path: Path) -> Iterator[JoinApplication]:
    """Give an application of two sources; all it started is gone after the test."""
    made = JoinApplication(broker, tmp_path)
    with running(made):
        yield made.create_topics()


def replayed(app: JoinApplication, lake: Path | None, **more: Any) -> Replayed:
    source: Any = "topic" if lake is None else "bronze"
    lake_of = None if lake is None else str(lake)
    return replay(app.joined, app.settings, ReplayOptions(**{"source": source, "lake": lake_of, **more}))


def landed(lake: Path, topic: str) -> Landed:
    path = bronze_path(str(lake), topic)
    found = last_landed(path, history_of(open_table(path)))
    assert found is not None
    return found


def test_live_restored_local_and_spark_are_one_table(
    spark: SparkSession, app: JoinApplication, lake: Path
) -> None:
    worker = app.worker(source_wait_ms=0).start(JOIN_LIE="1").wait_ready()
    app.write_late_orders(3)
    app.write(600, seed=5)
    live = app.prove()
    assert sum(len(each.choices) for each in live.values()) > 5
    worker.kill()
    worker.wipe()
    worker.start().wait_ready()
    stores = app.command("verify", "joined", "--store", "--output", "json")
    assert json.loads(stores.stdout)["equal"], stores.stderr

    reports = land_processor(app.settings, app.joined, str(lake))
    assert [each.topic for each in reports] == [*app.joined.topics, app.joined.choices(app.name)]
    lived = verify(app.joined, app.settings).live_digest
    engines = {
        ("topic", "local"): replayed(app, None, engine="local"),
        ("topic", "spark"): replayed(app, None, engine="spark"),
        ("bronze", "local"): replayed(app, lake, engine="local"),
        ("bronze", "spark"): replayed(app, lake, engine="spark"),
    }
    assert {each: found.digest for each, found in engines.items()} == dict.fromkeys(engines, lived)
    partitions = engines["topic", "local"].partitions
    assert all(found.partitions == partitions for found in engines.values())
    assert engines["topic", "spark"].engine == "spark"
    plan = FoldPlan(processor=app.joined)
    logs = open_logs(plan, app.settings, "topic", None, ReadLimit())
    extent = logs.extent
    folded = fold_each(spark, extent.partitions, partial(logs.fold, plan), RESULT)
    assert "Exchange" not in folded._jdf.queryExecution().executedPlan().toString()
    from_lake = ReplayOptions(source="bronze", lake=str(lake), engine="spark")
    verdict = verify(app.joined, app.settings, from_lake)
    assert verdict.equal, [each.explain() for each in verdict.partitions]

    # The table was at the lake's end, so its fold's tables reach the same offsets.
    folding = FoldOptions(lake=str(lake), engine="local")
    assert fold(app.joined, app.settings, folding).digest == lived
    second = replace(app.joined, version=2)
    assert compare(app.joined, second, app.settings, replace(from_lake, engine="local")).equal

    # More is lived and not landed: the lake gives the state of its own records.
    app.write(200, seed=6)
    app.prove()
    assert replayed(app, lake).digest == lived
    assert fold(app.joined, app.settings, folding).records == 0
    assert replayed(app, None).digest != lived

    # Both are one history, and prove the live table once the topics have forgotten their beginnings.
    lived = verify(app.joined, app.settings).live_digest
    heads = {(topic, at): 1 + at for topic in app.joined.topics for at in extent.partitions}
    Admin(app.settings).delete_before(heads)
    one = ReplayOptions(source="history", lake=str(lake))
    for engine in ("local", "spark"):
        verdict = verify(app.joined, app.settings, replace(one, engine=engine))
        assert (verdict.equal, verdict.partial, verdict.live_digest) == (True, (), lived)
    assert replayed(app, lake, source="history", engine="local").digest == lived
    gone = landed(lake, app.orders).end[0] + 1
    Admin(app.settings).delete_before({(app.orders, 0): gone})
    with pytest.raises(LostRecordsError, match=f"offsets {gone - 1} to {gone - 1} are in neither"):
        verify(app.joined, app.settings, one)


@pytest.mark.variant
def test_a_landing_that_ends_between_sources_and_choices_leaves_the_previous_state(
    app: JoinApplication, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.worker(source_wait_ms=0).start(JOIN_LIE="1").wait_ready()
    app.write(300, seed=7)
    app.prove()
    small = replace(HERE, max_records=100)
    first = land_processor(app.settings, app.joined, str(lake), options=small)
    assert all(each.commits > 1 for each in first[:2])
    then = replayed(app, lake, engine="local").digest
    assert then == verify(app.joined, app.settings).live_digest
    assert [each.commits for each in land_processor(app.settings, app.joined, str(lake), options=HERE)] == [
        0,
        0,
        0,
    ]

    app.write_late_orders(2)
    app.prove()
    step = Landing.step

    def dies(self: Landing, ends: dict[int, int], cut: Cut | None = None) -> Landed | None:
        if cut is not None:
            raise ConnectionAbortedError("killed")
        return step(self, ends, cut)

    with monkeypatch.context() as patch:
        patch.setattr(Landing, "step", dies)
        with pytest.raises(ConnectionAbortedError):
            land_processor(app.settings, app.joined, str(lake), options=HERE)
    cut = landed(lake, app.joined.choices(app.name)).cut
    assert cut is not None
    assert landed(lake, app.orders).end != cut.sources[app.orders]
    assert replayed(app, lake, engine="local").digest == then

    land_processor(app.settings, app.joined, str(lake), options=HERE)
    now = verify(app.joined, app.settings).live_digest
    assert replayed(app, lake, engine="local").digest == now != then


@pytest.mark.variant
def test_a_landing_counts_the_choices_and_misses_one_that_it_did_not_land(
    app: JoinApplication, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.worker(source_wait_ms=0).start(JOIN_LIE="1").wait_ready()
    app.write_late_orders(4)
    app.write(100, seed=8)
    choices = {at: len(each.choices) for at, each in app.prove().items()}
    with (
        TopicLog(app.settings, app.joined.choices(app.name)) as log,
        TopicReader(app.settings, log.topic) as reader,
    ):
        spans = log.spans()
        counted = ChoiceNumbers(reader)
        assert {at: counted.up_to(at, span) for at, span in spans.items()} == choices
        assert {at: counted.up_to(at, span) for at, span in spans.items()} == choices
    write = local_table.write_partition

    def short(reader: TopicReader, files: Any, topic: str, partition: int, span: Span, at_ms: int) -> Any:
        last = max(span.first, min(span.end, spans[0].end - 4))
        cut = span if topic != log.topic else Span(first=span.first, end=last)
        return write(reader, files, topic, partition, cut, at_ms)

    monkeypatch.setattr(local_table, "write_partition", short)
    land_processor(app.settings, app.joined, str(lake), options=HERE)
    with pytest.raises(LakeError, match=f"though {choices[0]} were landed"):
        replayed(app, lake)


@pytest.mark.variant
def test_globals_are_landed_and_read_by_each_task_as_they_were(
    spark: SparkSession, broker: SessionBroker, tmp_path: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = JoinApplication(broker, tmp_path, rates=True)
    with running(app):
        app.create_topics().worker().start().wait_ready()
        app.write(500, seed=11, rest_s=0.1)
        live = app.prove()
        assert sum(len(each.choices) for each in live.values()) > 5
        reports = land_processor(app.settings, app.joined, str(lake))
        assert [each.topic for each in reports] == [
            *app.joined.topics,
            app.rates,
            app.joined.choices(app.name),
        ]
        lived = verify(app.joined, app.settings).live_digest
        found = {
            (source, engine): replayed(app, source, engine=engine).digest
            for source in (None, lake)
            for engine in ("local", "spark")
        }
        assert found == dict.fromkeys(found, lived)
        read, batches = list[tuple[str, int]](), TopicReader.batches

        def noted(self: TopicReader, partition: int, *more: Any) -> Any:
            read.append((self.topic, partition))
            return batches(self, partition, *more)

        with monkeypatch.context() as watched:
            watched.setattr(TopicReader, "batches", noted)
            assert replayed(app, None, engine="local").digest == lived
        assert sum(topic == app.joined.topics[0] for topic, _ in read) > 1, "of several partitions"
        of_rates = [partition for topic, partition in read if topic == app.rates]
        assert of_rates, "folds look rates up"
        assert len(of_rates) == len({*of_rates}), "all partitions read the topic of rates once"

        # More is lived and not landed: the lake gives the state of its own records.
        app.write(200, seed=12, rest_s=0.1)
        app.prove()
        assert replayed(app, lake, engine="local").digest == lived
        land_processor(app.settings, app.joined, str(lake), options=HERE)
        assert (
            replayed(app, lake, engine="local").digest
            == verify(app.joined, app.settings).live_digest
            != lived
        )
        folded = fold(app.joined, app.settings, FoldOptions(lake=str(lake), engine="local", max_records=300))
        assert (folded.digest, folded.commits > 1) == (replayed(app, lake, engine="local").digest, True)
        bronze = ReplayOptions(source="bronze", lake=str(lake), engine="local")
        assert compare(app.joined, replace(app.joined, version=2), app.settings, bronze).equal


@pytest.mark.variant
def test_the_command_lands_a_processor_and_replays_it(
    spark: SparkSession,
    app: JoinApplication,
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = ModuleType("joined_app")
    module.__dict__["processors"] = [app.joined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    kafka = [
        part for name, value in app.settings.kafka.items() for part in ("--set", f"kafka.{name}={value}")
    ]

    def command(*words: str) -> tuple[int, str, str]:
        """Run a command in this process, where it finds the session of Spark."""
        with pytest.raises(SystemExit) as ended:
            main(["--set", f"app={app.name}", *kafka, "-A", module.__name__, *words])
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    app.worker().start().wait_ready()
    app.write(200, seed=9)
    app.prove()
    code, out, err = command(
        "pipeline", "land", "--processor", "joined", "--lake", str(lake), "--output", "json"
    )
    assert code == 0, err
    assert {row["topic"] for row in json.loads(out)} == {*app.joined.topics, app.joined.choices(app.name)}
    _, out, _ = command("replay", "joined", "--from", "bronze", "--lake", str(lake), "--output", "json")
    assert json.loads(out)["digest"] == verify(app.joined, app.settings).live_digest
    _, _, err = command(
        "pipeline", "land", "--processor", "joined", "--topic", app.orders, "--lake", str(lake)
    )
    assert "say what to land" in err
