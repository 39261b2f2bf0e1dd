"""Faust's own command on a project of one file, and the examples as their docstrings say to run them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.clients.tables.blocking import BlockingTableClient
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.dev.fixtures import SessionBroker
from tests.agents.fleet import Writer, environment_of
from tests.support.harness import Worker
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT, example_file

pytestmark = pytest.mark.process

TOOLS = Path(sys.executable).parent


def run(*command: str, cwd: Path, code: int = 0, environment: Mapping[str, str] | None = None) -> str:
    """Return the output of a command of this environment, with its errors; fails unless it exits with
    *code*.
    """
    plain = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOLDFAST_", "PYTHON", "KAFKA_", "F_"))
    }
    done = subprocess.run(
        [str(TOOLS / command[0]), *command[1:]],
        cwd=cwd,
        env={**plain, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    printed = done.stdout + done.stderr
    assert done.returncode == code, f"{' '.join(command)} exited with {done.returncode}\n{printed}"
    return printed


def test_faust_lists_the_tables_and_agents_of_a_project_of_one_file_without_a_broker(tmp_path: Path) -> None:
    shutil.copy(example_file("shop.py"), tmp_path)
    tables = run("faust", "-A", "shop", "tables", cwd=tmp_path)
    assert "totals.v1" in tables
    assert "rows of totals, folded from orders" in tables
    agents = run("faust", "-A", "shop", "agents", cwd=tmp_path)
    assert [
        part for part in ("@holdfast.totals", "orders", "@greeter", "big-customers") if part not in agents
    ] == []


@pytest.mark.parametrize(
    ("before", "behind", "remedy"),
    [
        ([], ["--web-port", "7000"], "HOLDFAST_WEB_PORT=7000"),
        (["--datadir", "elsewhere"], [], "HOLDFAST_DATA_DIR=elsewhere"),
    ],
)
def test_options_of_faust_that_would_be_obeyed_by_half_are_refused(
    tmp_path: Path, before: list[str], behind: list[str], remedy: str
) -> None:
    shutil.copy(example_file("counting.py"), tmp_path)
    assert remedy in run("faust", *before, "-A", "counting", "worker", *behind, cwd=tmp_path, code=1)


def load(name: str) -> ModuleType:
    """Return an example as a module."""
    spec = importlib.util.spec_from_file_location(name, example_file(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where the annotations of its row types are looked up
    spec.loader.exec_module(module)
    return module


@pytest.mark.variant
def test_the_counting_example_runs_from_a_checkout(broker: SessionBroker, tmp_path: Path) -> None:
    counts: Processor[Any, Any] = load("counting").counts
    settings = Settings(
        app=f"counting-{ending()}",
        kafka={name: str(value) for name, value in broker.config.items()},
    )
    environment = {**environment_of(settings), "HOLDFAST_DATA_DIR": str(tmp_path / "data")}
    create = ("holdfast", "-A", "examples.counting", "topics", "create", "--partitions", "2")
    assert counts.changelog(settings.app) in run(*create, cwd=ROOT, environment=environment)
    worker = Worker(
        "counting",
        tmp_path,
        environment,
        [str(TOOLS / "faust"), "-A", "examples.counting", "worker", "-l", "info"],
        ROOT,
    )
    try:
        worker.start(PYTHONPATH="").wait_ready()
        one, other = f"one-{uuid.uuid4().hex}", f"other-{uuid.uuid4().hex}"
        words = [one, other, one, one, other]
        places = Writer(broker).write_all(
            counts.source, [(word.encode(), None, at // 3, 0) for at, word in enumerate(words)]
        )
        with BlockingTableClient(settings, [counts]) as tables:
            found = tables.scan(counts, one, at_least=dict(places), timeout_s=DEADLINE_S)
            rows = {answer.partition: answer.value.seen for answer in found}
        assert rows == {0: 2, 1: 1}, "a row belongs to the partition of its records"
        worker.stop()
    finally:
        worker.close()
