"""A standalone cluster that cannot run a job: the command ends within its time and prints in one line Spark's
message and the path of its log.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from tests.pipeline.lakes import write_bronze
from tests.pipeline.spark.standalone import (
    StandaloneCluster,
    free_ports,
    holdfast,
    holdfast_words,
    make_project,
    on_master,
    project_environment,
    run,
    small_log,
    standalone,
)
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S, SCENARIO_S

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.process,
    pytest.mark.spark,
]

SHORT_S, LONG_S = 12.0, 240.0
"""Time that a job waits for executors that never come, and for those that a loaded machine starts."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with standalone(tmp_path_factory.mktemp("standalone"), workers=1) as made:
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_bronze(tmp_path / "lake", "t", small_log(50, 2))
    return make_project(tmp_path / "project")


def command(
    project: Path, master: str, conf: dict[str, str] | None = None, *, timeout_s: float = LONG_S
) -> list[str]:
    bronze = ["--from", "bronze", "--lake", str(project.parent / "lake")]
    waits = ["--set", f"spark_executors_timeout_s={timeout_s}"]
    return [*waits, "-A", "cluster_app", "replay", "cluster", *bronze, *on_master(master, conf)]


def refused(
    project: Path, master: str, conf: dict[str, str] | None = None, *, timeout_s: float = LONG_S
) -> str:
    """Return the line with which a replay ends that cannot be done."""
    ran = holdfast(project, *command(project, master, conf, timeout_s=timeout_s))
    assert ran.returncode == 1, ran.stdout + ran.stderr
    return line_in(ran.stderr)


def line_in(err: str) -> str:
    lines = [line for line in err.splitlines() if " so far" not in line]  # how far it is
    assert len(lines) == 1, err
    assert lines[0].startswith("holdfast: "), err
    assert "str() failed" not in err
    assert "Spark's log is " in err
    assert Path(err.rpartition("Spark's log is ")[2].strip()).exists()
    return lines[0]


def test_a_master_that_is_not_there(project: Path) -> None:
    told = refused(project, f"spark://127.0.0.1:{free_ports(1)[0]}")
    assert "All masters are unresponsive" in told


def test_a_master_without_workers(project: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    folder.mkdir()
    with standalone(folder, workers=0) as bare:
        told = refused(project, bare.master, timeout_s=SHORT_S)
    assert "no executor has taken a task for 12 s" in told
    assert "the cluster has no worker" in told
    assert "Initial job has not accepted any resources" in told


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"spark.executor.memory": "4g"}, ["none with 4g", "Initial job has not accepted any resources"]),
        (
            {"spark.driver.host": "127.0.0.2", "spark.driver.bindAddress": "127.0.0.1"},
            ["reach the driver at 127.0.0.2:", "is now EXITED (Command exited with code 1)"],
        ),
        (
            {"spark.executor.extraJavaOptions": "-agentlib:nosuch"},
            ["is now EXITED (Command exited with code 1)"],
        ),
    ],
    ids=["larger than the workers", "that cannot reach the driver", "whose JVM does not start"],
)
def test_executors(cluster: StandaloneCluster, project: Path, conf: dict[str, str], said: list[str]) -> None:
    told = refused(project, cluster.master, conf, timeout_s=SHORT_S)
    assert "no executor has taken a task for 12 s" in told
    assert [each for each in said if each not in told] == [], told


def test_executors_without_python(cluster: StandaloneCluster, project: Path) -> None:
    told = refused(project, cluster.master, {"spark.pyspark.python": "/no/such/python"})
    assert "a worker cannot run its Python, /no/such/python: set spark.pyspark.python" in told


def test_executors_whose_python_lacks_a_package(cluster: StandaloneCluster, project: Path) -> None:
    venv.create(project / "bare")
    told = refused(
        project, cluster.master, {"spark.pyspark.python": str(project / "bare" / "bin" / "python")}
    )
    assert "the Python of a worker has no module " in told


@pytest.mark.parametrize(
    ("dying", "said"), [("executor", "its executor ended ("), ("worker", "its Python was killed, or crashed")]
)
def test_an_executor_or_worker_that_is_killed_again_and_again(
    cluster: StandaloneCluster, project: Path, dying: str, said: str
) -> None:
    told = refused(project, cluster.master, {"spark.executorEnv.DIE": dying})
    assert "a task was given up after 4 attempts" in told
    assert said in told


def test_a_driver_whose_jvm_is_killed(cluster: StandaloneCluster, project: Path) -> None:
    reached = project / "reached"
    conf = {"spark.executorEnv.DIE": "nobody", "spark.executorEnv.DIE_ONCE": str(reached)}
    with subprocess.Popen(
        holdfast_words(*command(project, cluster.master, conf)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=project,
        env=project_environment(project),
    ) as running:
        try:
            wait_for("a task", reached.exists, SCENARIO_S)
            [jvm] = [each for each in psutil.Process(running.pid).children() if "java" in each.name()]
            jvm.kill()
            _, err = running.communicate(timeout=DEADLINE_S)
        finally:
            running.kill()
    assert running.returncode == 1
    assert "Spark's JVM is gone" in line_in(err)


HURRIED = """
import sys
from pathlib import Path
from holdfast.errors import SparkError
from holdfast.pipeline.spark import session

session.START_DEADLINE_S = 0.5
try:
    with session.open_session(session.SparkOptions(master="local[1]", log_dir=Path(sys.argv[1]), executors_timeout_s=0.5)):
        print("it has started")
except SparkError as error:
    print(error)
"""  # noqa: E501


def test_a_session_that_does_not_come_to_be_in_time(tmp_path: Path) -> None:
    ran = run([sys.executable, "-P", "-c", HURRIED, str(tmp_path)], tmp_path)
    assert ran.stdout.startswith("no Spark session within 1 s (see --master)"), ran.stdout + ran.stderr
    assert "Spark's log is " in ran.stdout
    assert "str() failed" not in ran.stdout + ran.stderr
