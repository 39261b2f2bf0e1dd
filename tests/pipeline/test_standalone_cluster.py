"""A real standalone cluster of Spark on loopback: a master and two workers, as processes of their own. What it folds is what one process folds."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest

from holdfast.config import Settings
from holdfast.jars import find_java, spark_jars
from holdfast.pipeline.derived.claim_intervals import INTERVALS
from holdfast.pipeline.derived.derive import derived_path
from tests.pipeline.conftest import FOR_TINY_DATA
from tests.pipeline.folds import Log, Record
from tests.pipeline.lakes import write_bronze
from tests.pipeline.test_claim_tables import value_of, with_resets
from tests.support.harness import wait_for
from tests.support.places import ROOT

SPARK_HOME = Path(pyspark.__file__).parent
PATIENCE_S = 240.0
SMALL = {
    **FOR_TINY_DATA,
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
RULES = """
import os, signal

def bonus(amount):
    return amount * 3

def die_once():
    where = os.environ.get("DIE_ONCE")
    if where is None:
        return
    try:
        os.close(os.open(where, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    daemon = os.getppid()
    with open(f"/proc/{daemon}/stat") as told:
        executor = int(told.read().rpartition(")")[2].split()[1])
    os.kill(executor, signal.SIGKILL)
"""
APP = """
import msgspec
from cluster_rules import bonus, die_once
from holdfast.core.engine.declared.processor import Processor

class Row(msgspec.Struct, frozen=True):
    total: int = 0

def decode(value):
    die_once()
    key, amount = value.decode().split(" ")
    return key, int(amount)

def fold(rows, event, at_ms):
    key, amount = event
    rows[key] = Row(rows.get(key, Row()).total + bonus(amount))

processors = [Processor(name="cluster", source="t", decode=decode, fold=fold, row=Row)]
"""
SCRIPT = """
import json, sys
from cluster_app import processors
from holdfast.config import Settings
from holdfast.pipeline.replay import ReplayOptions, replay

options = ReplayOptions(engine="spark", source="bronze", lake=sys.argv[1])
print(json.dumps({"digest": replay(processors[0], Settings(app="c"), options).digest}))
"""


def free_ports(count: int) -> list[int]:
    with ExitStack() as opened:
        found = []
        for _ in range(count):
            listener = opened.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            found.append(int(listener.getsockname()[1]))
        return found


@dataclass(slots=True)
class StandaloneCluster:
    """A master and its workers in *folder*; `spark-class` of the pyspark package starts each."""

    folder: Path
    master: str
    web_port: int
    processes: list[subprocess.Popen[bytes]]

    def alive(self) -> int:
        """Return how many workers the master knows to be there."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.web_port}/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except OSError:
            return 0

    def close(self) -> None:
        for each in reversed(self.processes):
            os.killpg(each.pid, signal.SIGKILL)  # with the executors that a worker has started
            each.wait()


def spark_environment(folder: Path) -> dict[str, str]:
    java = find_java()
    return {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "JAVA_HOME": str(Path(java).resolve().parents[1]),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOG_DIR": str(folder),
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONSAFEPATH": "1",
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    folder = tmp_path_factory.mktemp("standalone")
    port, web, *workers = free_ports(4)
    made = StandaloneCluster(folder, f"spark://127.0.0.1:{port}", web, [])

    def start(kind: str, *words: str) -> None:
        with (folder / f"{kind}-{len(made.processes)}.log").open("wb") as log:
            made.processes.append(
                subprocess.Popen(
                    [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *words],
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    env=spark_environment(folder),
                    cwd=folder,
                    start_new_session=True,
                )
            )

    try:
        start("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web))
        for worker in workers:
            start(
                "worker.Worker",
                "--host",
                "127.0.0.1",
                "--webui-port",
                str(worker),
                "--cores",
                "1",
                "--memory",
                "700m",
                made.master,
            )
        wait_for("two workers", lambda: made.alive() == 2, PATIENCE_S)
        yield made
    finally:
        made.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Give a folder with an application that imports a module beside it, and a lake with its topic."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in (("cluster_app", APP), ("cluster_rules", RULES), ("job", SCRIPT)):
        (folder / f"{name}.py").write_text(text)
    log: Log = {
        p: [Record(at, 1_000 + at, None, b"k%d %d" % (at % 7, at)) for at in range(200)] for p in range(4)
    }
    write_bronze(tmp_path / "lake", "t", log)
    return folder


def run(words: Sequence[str], project: Path, **env: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(project), str(ROOT)])
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=project,
        env={**spark_environment(project), "PYTHONPATH": path, **env},
    )


def holdfast(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-P", "-m", "holdfast.cli", "--set", "app=c", *words], project)


def replayed(project: Path, *more: str) -> dict[str, Any]:
    lake = str(project.parent / "lake")
    ran = holdfast(
        project,
        "-A",
        "cluster_app",
        "-o",
        "json",
        "replay",
        "cluster",
        "--from",
        "bronze",
        "--lake",
        lake,
        *more,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def on(cluster: StandaloneCluster, *conf: str) -> list[str]:
    words = [f"{name}={value}" for name, value in SMALL.items()] + [*conf]
    return [
        "--engine",
        "spark",
        "--master",
        cluster.master,
        *(word for each in words for word in ("--conf", each)),
    ]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.process
@pytest.mark.spark
def test_a_cluster_folds_what_one_process_does_although_an_executor_is_killed(
    cluster: StandaloneCluster, project: Path
) -> None:
    local = replayed(project, "--engine", "local")
    died = project / "died"
    there = replayed(project, *on(cluster, f"spark.executorEnv.DIE_ONCE={died}"))
    assert died.exists(), "an executor was killed"
    assert (there["engine"], there["digest"], there["records"]) == ("spark", local["digest"], 800)
    assert cluster.alive() == 2


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.process
@pytest.mark.spark
def test_spark_submit_runs_a_script_with_the_python_api(cluster: StandaloneCluster, project: Path) -> None:
    local = replayed(project, "--engine", "local")
    conf = {
        **SMALL,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    words = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.master]
    words += ["--jars", ",".join(map(str, spark_jars()))]
    words += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    ran = run([*words, str(project / "job.py"), str(project.parent / "lake")], project)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert json.loads(ran.stdout.splitlines()[-1])["digest"] == local["digest"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.process
@pytest.mark.spark
def test_derived_tables_are_made_on_a_cluster(cluster: StandaloneCluster, project: Path) -> None:
    from deltalake import DeltaTable

    claims = Settings().coordination_topic
    frames = [value_of(frame) for frame, _ in with_resets(1, 100)]
    log: Log = {0: [Record(at, 10_000_000 + at * 9_000, None, value) for at, value in enumerate(frames)]}
    rows = {}
    for engine, words in (("local", ["--engine", "local"]), ("spark", on(cluster))):
        lake = project.parent / f"lake-{engine}"
        write_bronze(lake, claims, log)
        ran = holdfast(project, "pipeline", "derive", INTERVALS, "--lake", str(lake), *words)
        assert ran.returncode == 0, ran.stderr[-3000:]
        found = DeltaTable(derived_path(str(lake), INTERVALS)).to_pyarrow_table().to_pylist()
        rows[engine] = sorted(found, key=lambda row: (row["began_at"], row["epoch"]))
    assert rows["spark"] == rows["local"]
    assert len(rows["local"]) > 10
