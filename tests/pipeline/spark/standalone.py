"""A real standalone cluster of Spark on loopback, a master and workers as processes of their own, and an
application to be folded there.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyspark

from holdfast.jars import find_java, spark_jars
from holdfast.pipeline.spark.session import SparkOptions, archive_of
from tests.pipeline.accounts import Log, Record
from tests.pipeline.conftest import FOR_TINY_DATA
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S, SCENARIO_S
from tests.support.places import ROOT

SPARK_HOME = Path(pyspark.__file__).parent
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SMALL = {
    **FOR_TINY_DATA,
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.starvation.timeout": "5s",
}

RULES = """
import os, signal, time

def bonus(amount):
    return amount * 3

def perhaps_die():
    how, once = os.environ.get("DIE"), os.environ.get("DIE_ONCE")
    if how is None:
        return
    if once is not None:
        try:
            os.close(os.open(once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
    if how == "nobody":
        return time.sleep(60)
    dying = os.getpid()
    if how == "executor":  # the parent of the daemon that forked this process
        with open(f"/proc/{os.getppid()}/stat") as told:
            dying = int(told.read().rpartition(")")[2].split()[1])
    os.kill(dying, signal.SIGKILL)
"""
APP = """
import msgspec
from cluster_rules import bonus, perhaps_die
from holdfast.core.engine.declared.processor import Processor

class Row(msgspec.Struct, frozen=True):
    total: int = 0

def decode(value):
    perhaps_die()
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
    port: int
    web_port: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def state(self) -> dict[str, Any]:
        """Return the master's description of itself; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.web_port}/json/", timeout=60) as answer:
                told: dict[str, Any] = json.load(answer)
                return told
        except OSError:
            return {}

    def alive(self) -> int:
        """Return how many workers the master knows to be there."""
        return int(self.state().get("aliveworkers", 0))

    def start_master(self) -> None:
        web = str(self.web_port)
        self._start("master.Master", "--host", "127.0.0.1", "--port", str(self.port), "--webui-port", web)
        wait_for("the master", lambda: bool(self.state()), DEADLINE_S)

    def start_worker(self, memory: str) -> None:
        wanted, [web] = self.alive() + 1, free_ports(1)
        told = {"--host": "127.0.0.1", "--webui-port": str(web), "--cores": "1", "--memory": memory}
        self._start("worker.Worker", *(word for pair in told.items() for word in pair), self.master)
        wait_for("the worker", lambda: self.alive() == wanted, DEADLINE_S)

    def _start(self, kind: str, *words: str) -> None:
        with (self.folder / f"{kind}-{len(self.processes)}.log").open("wb") as log:
            started = subprocess.Popen(
                [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *words],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=spark_environment(self.folder),
                cwd=self.folder,
                start_new_session=True,
            )
        self.processes.append(started)

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
        "SPARK_DAEMON_JAVA_OPTS": QUICK,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONSAFEPATH": "1",
    }


@contextmanager
def standalone(folder: Path, workers: int, memory: str = "700m") -> Iterator[StandaloneCluster]:
    """Give a cluster; its processes end with the block."""
    port, web = free_ports(2)
    made = StandaloneCluster(folder, port, web)
    try:
        made.start_master()
        for _ in range(workers):
            made.start_worker(memory)
        yield made
    finally:
        made.close()


def conf_words(conf: dict[str, str]) -> list[str]:
    return [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]


def on_master(master: str, conf: dict[str, str] | None = None) -> list[str]:
    """Return the options of a command that runs on *master*, with little memory."""
    return ["--engine", "spark", "--master", master, *conf_words({**SMALL, **quick_start(), **(conf or {})})]


@cache
def quick_start() -> dict[str, str]:
    """Return the settings with which driver and executors use the archive of classes, where a session has
    made it: it fits only a class path that has the jars.
    """
    archive = archive_of(SparkOptions(master="local[2]"))
    flags = " ".join([QUICK, *(archive.flags() if archive is not None and archive.made_at is None else [])])
    told = {"extraJavaOptions": flags, "extraClassPath": os.pathsep.join(map(str, spark_jars()))}
    return {f"spark.{who}.{name}": value for who in ("driver", "executor") for name, value in told.items()}


def project_environment(project: Path) -> dict[str, str]:
    """Return the environment of a program that imports the application in *project*."""
    return {**spark_environment(project), "PYTHONPATH": os.pathsep.join([str(project), str(ROOT)])}


def run(words: Sequence[str], project: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in the folder of an application, which it can import."""
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=SCENARIO_S,
        check=False,
        cwd=project,
        env=project_environment(project),
    )


def holdfast_words(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "holdfast.cli", "--set", "app=c", *words]


def holdfast(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run(holdfast_words(*words), project)


def make_project(folder: Path) -> Path:
    """Write an application that imports a module from its own folder, and a script with the Python API."""
    folder.mkdir()
    for name, text in (("cluster_app", APP), ("cluster_rules", RULES), ("job", SCRIPT)):
        (folder / f"{name}.py").write_text(text)
    return folder


def small_log(records: int = 200, partitions: int = 4) -> Log:
    """Return the input of the application."""
    return {
        partition: [Record(at, 1_000 + at, None, b"k%d %d" % (at % 7, at)) for at in range(records)]
        for partition in range(partitions)
    }


def replayed(project: Path, *more: str) -> dict[str, Any]:
    """Return the JSON output of a replay of the application."""
    ran = holdfast(project, "-A", "cluster_app", "-o", "json", "replay", "cluster", *more)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout)
    return found
