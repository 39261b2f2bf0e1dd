"""The time that a job waits for a cluster that gives it no executor."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from holdfast.clock import ManualClock
from holdfast.pipeline.spark import executors
from holdfast.pipeline.spark.errors import said_of_executors
from holdfast.pipeline.spark.executors import ExecutorWatch
from holdfast.pipeline.spark.session import SparkOptions, _python
from tests.support.patience import DEADLINE_S

TIMEOUT_S = 5.0


class Played:
    """A cluster that is starved at some of the looks; the watch ends after the last one. A second passes
    before each.
    """

    def __init__(self, *starved: bool) -> None:
        self.clock, self.cancelled = ManualClock(), list[int]()
        self._left, self._seconds = iter(starved), 0
        self._now = False

    def pause(self, seconds: float) -> bool:
        self.clock.advance_ms(int(seconds * 1000))
        self._seconds += 1
        try:
            self._now = next(self._left)
        except StopIteration:
            return True
        return False

    def is_starved(self) -> bool:
        return self._now

    def cancel(self) -> None:
        self.cancelled.append(self._seconds)

    def told(self) -> str:
        return "of two workers none is large enough"

    def looked_at(self) -> ExecutorWatch:
        watch = ExecutorWatch(self, TIMEOUT_S, clock=self.clock, pause=self.pause)
        watch.look()
        return watch


def test_a_job_without_executors_is_ended_when_its_time_is_over() -> None:
    cluster = Played(*[True] * 6)
    watch = cluster.looked_at()
    assert cluster.cancelled == [6]
    assert (
        watch.starved
        == "no executor has taken a task for 5 s (spark_executors_timeout_s): of two workers none is large"
        " enough"
    )


@pytest.mark.parametrize(
    "looks", [[True] * 5, [False] * 20, [*[True] * 5, False, *[True] * 5], [True, True, False] * 9]
)
def test_a_job_with_executors_now_and_then_continues(looks: list[bool]) -> None:
    cluster = Played(*looks)
    assert cluster.looked_at().starved is None
    assert cluster.cancelled == []


def test_each_job_that_comes_after_has_its_own_time() -> None:
    cluster = Played(*[True] * 12)
    cluster.looked_at()
    assert cluster.cancelled == [6, 12]


class Gone(Played):
    """A cluster whose JVM has ended."""

    def is_starved(self) -> bool:
        raise ConnectionRefusedError


def test_a_watch_ends_with_the_jvm_and_says_nothing_of_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "LOOK_S", 0.0)
    watch = ExecutorWatch(Gone(), TIMEOUT_S)
    with caplog.at_level(logging.INFO):
        watch.start()
        watch._thread.join(DEADLINE_S)
        watch.close()
    assert not watch._thread.is_alive()
    assert watch.starved is None
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_a_watch_that_is_closed_looks_no_more() -> None:
    watch = ExecutorWatch(Played(), TIMEOUT_S)
    watch.start()
    watch.close()
    assert not watch._thread.is_alive()


def test_sparks_message_about_executors_is_quoted_and_else_that_it_waits(tmp_path: Path) -> None:
    log = tmp_path / "spark-1.log"
    waits = "3 WARN TaskSchedulerImpl: Initial job has not accepted any resources; check your cluster UI"
    ended = "2 INFO Client: Executor updated: app-1/4 is now EXITED (Command exited with code 1)"
    log.write_text(f"1 WARN other\n{waits}\n")
    assert said_of_executors(log) == f'; Spark said "{waits}"'
    log.write_text(f"1 WARN other\n{ended}\n{waits}\n")
    assert said_of_executors(log) == f'; Spark said "{ended}"'
    assert said_of_executors(tmp_path / "missing") == said_of_executors(None) == ""


def test_workers_of_a_cluster_have_the_python_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"spark.pyspark.python": "/opt/asked"}
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/named")
    assert _python(SparkOptions(master="spark://h:1", conf=asked)) == "/opt/asked"
    assert _python(SparkOptions(master="spark://h:1")) == "/opt/named"
    assert _python(SparkOptions(master="local[2]", conf=asked)) == sys.executable
    monkeypatch.delenv("PYSPARK_PYTHON")
    assert _python(SparkOptions(master="spark://h:1")) == sys.executable
