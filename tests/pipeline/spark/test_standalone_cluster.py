"""A standalone cluster of a master and two workers gives the results of one process, whatever is killed in
between.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from holdfast.config import Settings
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.jars import spark_jars
from holdfast.pipeline.bronze.lake import bronze_path
from holdfast.pipeline.derived.claim_intervals import INTERVALS
from holdfast.pipeline.derived.derive import derived_path
from tests.pipeline.accounts import Log, Record
from tests.pipeline.derived.test_claim_tables import value_of, with_resets
from tests.pipeline.lakes import write_bronze
from tests.pipeline.spark.standalone import (
    SMALL,
    SPARK_HOME,
    StandaloneCluster,
    conf_words,
    holdfast,
    make_project,
    on_master,
    quick_start,
    replayed,
    run,
    small_log,
    standalone,
)
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.process,
    pytest.mark.spark,
]

DIES_WRITING = """
import os, signal

if (once := os.environ.get("DIE_ONCE")) is not None:
    from holdfast.pipeline.landing import task_table

    write = task_table.write_partition

    def write_and_die(*args):
        made = write(*args)
        try:
            os.close(os.open(once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return made
        with open(f"/proc/{os.getppid()}/stat") as told:
            os.kill(int(told.read().rpartition(")")[2].split()[1]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    task_table.write_partition = write_and_die
"""
"""Imported by every Python of an executor: that which has written a file of a landing first dies, and its
executor.
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with standalone(tmp_path_factory.mktemp("standalone"), workers=2) as made:
        yield made


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(seed=19) as running:
        yield running


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Give a folder with an application, and next to it a lake with its topic."""
    write_bronze(tmp_path / "lake", "t", small_log())
    return make_project(tmp_path / "project")


@pytest.mark.parametrize("dying", ["executor", "worker"])
def test_a_cluster_gives_the_results_of_one_process_although_a_part_is_killed(
    cluster: StandaloneCluster, project: Path, dying: str
) -> None:
    bronze = ["--from", "bronze", "--lake", str(project.parent / "lake")]
    local = replayed(project, *bronze, "--engine", "local")
    died = project / "died"
    conf = {"spark.executorEnv.DIE": dying, "spark.executorEnv.DIE_ONCE": str(died)}
    there = replayed(project, *bronze, *on_master(cluster.master, conf))
    assert died.exists(), f"the {dying} was killed, and its task done again"
    assert (there["engine"], there["digest"], there["records"]) == ("spark", local["digest"], 800)
    assert cluster.alive() == 2


def test_a_topic_is_landed_and_folded_there_although_an_executor_is_killed_that_has_written(
    cluster: StandaloneCluster, project: Path, kafka: EmbeddedKafka
) -> None:
    topic, log = "t", small_log(500, 3)
    kafka.create_topic(topic, partitions=len(log), config={"retention.ms": "-1"})
    producer = Producer(kafka.client_config())
    for partition, records in log.items():
        for each in records:
            producer.produce(topic, each.value, each.key, partition, timestamp=each.at_ms)
    assert producer.flush(DEADLINE_S) == 0
    broker = ["--bootstrap", str(kafka.client_config()["bootstrap.servers"])]
    local = replayed(project, *broker, "--from", "topic", "--engine", "local")
    assert local["records"] == 1_500

    (project / "sitecustomize.py").write_text(DIES_WRITING)
    died, lake = project / "died", project.parent / "landed"
    conf = {
        "spark.executorEnv.DIE_ONCE": str(died),
        "spark.executorEnv.PYTHONPATH": f"{project}:{ROOT}",
    }
    landing = ["pipeline", "land", "--topics", topic, "--lake", str(lake)]
    ran = holdfast(project, *broker, *landing, *on_master(cluster.master, conf))
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert died.exists(), "an executor was killed behind the file that it had written"
    rows = DeltaTable(bronze_path(str(lake), topic)).to_pyarrow_table(columns=["partition", "offset"])
    assert rows.num_rows == 1_500
    assert rows.group_by(["partition", "offset"]).aggregate([]).num_rows == 1_500

    for source in (["--from", "topic"], ["--from", "bronze", "--lake", str(lake)]):
        there = replayed(project, *broker, *source, *on_master(cluster.master))
        assert (there["engine"], there["digest"]) == ("spark", local["digest"]), source


def test_spark_submit_runs_a_script_with_the_python_api(cluster: StandaloneCluster, project: Path) -> None:
    lake = str(project.parent / "lake")
    local = replayed(project, "--from", "bronze", "--lake", lake, "--engine", "local")
    conf = {
        **SMALL,
        **quick_start(),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    words = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.master]
    words += ["--jars", ",".join(map(str, spark_jars())), *conf_words(conf)]
    ran = run([*words, str(project / "job.py"), lake], project)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert json.loads(ran.stdout.splitlines()[-1])["digest"] == local["digest"]


def test_the_users_spark_defaults_count_and_are_added_to_ours(
    cluster: StandaloneCluster, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults, events, jar = tmp_path / "conf", tmp_path / "events", tmp_path / "mine.jar"
    defaults.mkdir()
    events.mkdir()
    zipfile.ZipFile(jar, "w").close()
    told = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.jars": str(jar),
        "spark.holdfast.test": "told",
    }
    lines = [f"{name} {value}\n" for name, value in told.items()]
    (defaults / "spark-defaults.conf").write_text("".join(lines))
    monkeypatch.setenv("SPARK_CONF_DIR", str(defaults))
    lake = str(project.parent / "lake")
    there = replayed(project, "--from", "bronze", "--lake", lake, *on_master(cluster.master))
    assert there["records"] == 800
    [log] = events.rglob("events_*")
    updates = [json.loads(line) for line in log.read_text().splitlines() if "EnvironmentUpdate" in line]
    found = updates[0]["Spark Properties"]
    assert found["spark.holdfast.test"] == "told"
    added = updates[-1][
        "Classpath Entries"
    ]  # the property itself is not shown: a name within it has "token" in it
    names = {Path(each).name for each, by in added.items() if by == "Added By User"}
    assert names >= {each.name for each in (jar, *spark_jars())}
    assert "spark.sql.adaptive.enabled" not in found, "Spark is made small on one machine alone"


def test_derived_tables_are_made_on_a_cluster(cluster: StandaloneCluster, project: Path) -> None:
    claims = Settings().coordination_topic
    frames = [value_of(frame) for frame, _ in with_resets(1, 100)]
    log: Log = {0: [Record(at, 10_000_000 + at * 9_000, None, value) for at, value in enumerate(frames)]}
    rows = {}
    for engine, words in (("local", ["--engine", "local"]), ("spark", on_master(cluster.master))):
        lake = project.parent / f"lake-{engine}"
        write_bronze(lake, claims, log)
        ran = holdfast(project, "pipeline", "derive", INTERVALS, "--lake", str(lake), *words)
        assert ran.returncode == 0, ran.stderr[-3000:]
        found = DeltaTable(derived_path(str(lake), INTERVALS)).to_pyarrow_table().to_pylist()
        rows[engine] = sorted(found, key=lambda row: (row["began_at"], row["epoch"]))
    assert rows["spark"] == rows["local"]
    assert len(rows["local"]) > 10
