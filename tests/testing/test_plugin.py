"""The pytest plugin, as a user's project meets it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT, example_file

pytestmark = pytest.mark.process

PROGRAM = """
import itertools

from holdfast import Processor

numbers = itertools.count()


def fold(rows, word, at_ms):
    rows[word] = {row}


words = Processor(name="words", source="lines", decode=bytes.decode, fold=fold, row=int)


def test_words(topology):
    made = topology([words], partitions=1)
    made.pipe("lines", "to")
    made.pipe("lines", "be")
"""


def ran(folder: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a test of a user's in *folder*."""
    (folder / "test_mine.py").write_text(program)
    return subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "pytest",
            "-q",
            "-p",
            "holdfast.testing.plugin",
            "-p",
            "no:cacheprovider",
            *options,
            ".",
        ],
        cwd=folder,
        # No other plugins, and not by the entry point, which a checkout may not have installed yet.
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_the_entry_point_names_the_plugin() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert declared == {"holdfast": "holdfast.testing.plugin"}


def test_the_fixture_makes_topologies_and_checks_them(tmp_path: Path) -> None:
    done = ran(tmp_path, PROGRAM.format(row="len(word)"))
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_a_replay_that_differs_fails_the_test(tmp_path: Path) -> None:
    done = ran(tmp_path, PROGRAM.format(row="1 if next(numbers) < 4 else 2"))
    assert done.returncode == 1, done.stdout
    assert "ImpureFoldError: words partition 0: replay of 2 records gives other rows or timers" in done.stdout


def test_no_kafka_client_is_loaded_for_a_test_without_a_broker(tmp_path: Path) -> None:
    program = "import sys\n\n\ndef test_it(topology):\n    assert not {'confluent_kafka', 'faust', 'pyarrow'} & set(sys.modules)\n"
    done = ran(tmp_path, program)
    assert done.returncode == 0, done.stdout


def test_an_embedded_kafka_is_a_fixture(tmp_path: Path) -> None:
    done = ran(tmp_path, example_file("embedded_kafka.py").read_text())
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
