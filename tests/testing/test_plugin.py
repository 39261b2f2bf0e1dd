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
            "-rN",  # what a summary repeats of an error depends on where it runs
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


@pytest.mark.variant
def test_a_replay_that_differs_fails_the_test(tmp_path: Path) -> None:
    done = ran(tmp_path, PROGRAM.format(row="1 if next(numbers) < 4 else 2"))
    assert done.returncode == 1, done.stdout
    assert "ImpureFoldError: words partition 0: replay of 2 records gives other rows or timers" in done.stdout


def test_a_failing_test_shows_the_refusals_of_its_topologies(tmp_path: Path) -> None:
    program = PROGRAM.format(row="1 // 0") + "    assert made.table('words') == {'be': 1, 'to': 1}\n"
    done = ran(tmp_path, program)
    assert done.returncode == 1, done.stdout
    assert done.stdout.count("holdfast refused in this topology:") == 1, done.stdout
    assert "lines/0/0 by words, at fold: ZeroDivisionError" in done.stdout


def test_pytest_shows_of_an_error_of_the_kit_the_line_of_the_test_alone(tmp_path: Path) -> None:
    done = ran(tmp_path, PROGRAM.format(row="next(numbers)"))
    assert done.returncode == 1, done.stdout
    assert 'made.pipe("lines", "to")' in done.stdout
    assert "holdfast/testing/" not in done.stdout.replace("holdfast/testing/plugin.py", "")
    assert "words['to'] was 0, is 1" in done.stdout
    assert "runs.py" in ran(tmp_path, PROGRAM.format(row="next(numbers)"), "--full-trace").stdout


def test_the_schema_registry_in_memory_ends_with_the_test(tmp_path: Path) -> None:
    program = (
        PROGRAM.format(row="1")
        + "\n\nfrom holdfast.testing.schemas import KitSchemas\n\nclosed = []\nKitSchemas.close = lambda"
        " self: closed.append(self)\n\n\ndef test_closed():\n    assert len(closed) == 1\n"
    )
    done = ran(tmp_path, program, "--fold-hash-seeds=0")
    assert done.returncode == 0, done.stdout


def test_no_kafka_client_is_loaded_for_a_test_without_a_broker(tmp_path: Path) -> None:
    program = (
        "import sys\n\n\ndef test_it(topology):\n    assert not {'confluent_kafka', 'faust', 'pyarrow'} &"
        " set(sys.modules)\n"
    )
    done = ran(tmp_path, program)
    assert done.returncode == 0, done.stdout


def test_an_embedded_kafka_is_a_fixture(tmp_path: Path) -> None:
    done = ran(tmp_path, example_file("embedded_kafka.py").read_text())
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
