"""Settings for Spark itself take effect: its page, its event log, and any property."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.lakes import write_bronze
from tests.pipeline.spark.standalone import (
    conf_words,
    free_ports,
    holdfast_words,
    make_project,
    project_environment,
    small_log,
)
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S, SCENARIO_S

ASKED = "spark.holdfast.test"


def answer(url: str) -> Any:
    """Return the answer of Spark's page, None while it does not exist, or says that it is starting."""
    try:
        with urllib.request.urlopen(url, timeout=60) as got:
            return json.load(got)
    except (OSError, ValueError):
        return None


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.spark
def test_the_page_answers_and_the_event_log_has_the_jobs_and_any_property(tmp_path: Path) -> None:
    write_bronze(tmp_path / "lake", "t", small_log(50, 2))
    project, events, [port] = make_project(tmp_path / "project"), tmp_path / "events", free_ports(1)
    events.mkdir()
    conf = {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(port),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        ASKED: "asked",
    }
    words = ["-A", "cluster_app", "replay", "cluster", "--from", "bronze", "--lake", str(tmp_path / "lake")]
    words += ["--engine", "spark", "--master", "local[1]", *conf_words(conf)]
    with subprocess.Popen(
        holdfast_words(*words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=project,
        env=project_environment(project),
    ) as running:
        try:
            url = f"http://127.0.0.1:{port}/api/v1/applications"
            [shown] = wait_for("the page", lambda: answer(url), DEADLINE_S)
            _, err = running.communicate(timeout=SCENARIO_S)
        finally:
            running.kill()
    assert running.returncode == 0, err
    assert shown["name"] == "holdfast"
    [log] = events.rglob("events_*")
    told = [json.loads(line) for line in log.read_text().splitlines()]
    kinds = {each["Event"] for each in told}
    assert {"SparkListenerJobEnd", "SparkListenerApplicationEnd"} <= kinds
    updates = [each for each in told if each["Event"] == "SparkListenerEnvironmentUpdate"]  # one for each zip
    assert {each["Spark Properties"][ASKED] for each in updates} == {"asked"}
