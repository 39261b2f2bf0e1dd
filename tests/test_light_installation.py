"""What works where no extra of holdfast is installed, and what is said of the rest."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.__main__ import COMMANDS
from holdfast.extras import EXTRAS
from tests.support.places import ROOT

pytestmark = pytest.mark.process

DEADLINE_S = 60
BLOCKED = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if any(f"{name}.".startswith(f"{each}.") for each in ABSENT):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


def light(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run *code* where no package of an extra can be imported."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return subprocess.run(
        [sys.executable, "-P", "-c", f"ABSENT = {sorted(EXTRAS)!r}\n{BLOCKED}\n{code}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def command(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return light(f"from holdfast.cli.__main__ import main\nmain({arguments!r})", folder)


def test_all_of_the_public_face_but_workers_and_schemas_is_there(tmp_path: Path) -> None:
    with_extras = ["Avro", "JsonSchema", "Protobuf", "create_app"]
    names = [name for name in holdfast.__all__ if name not in with_extras]
    done = light(f"import holdfast\nfor name in {names!r}: getattr(holdfast, name)\nprint('all')", tmp_path)
    assert done.stdout == "all\n", done.stderr
    told = light("from holdfast import create_app", tmp_path)
    assert told.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: create_app needs faust, which is not installed: pip install 'holdfast[worker]'"
    )


def test_the_test_kit_and_the_embedded_kafka_are_there(tmp_path: Path) -> None:
    code = "import holdfast.streams, holdfast.testing, holdfast.testing.plugin, holdfast.embedded.kafka\nprint('all')"
    assert light(code, tmp_path).stdout == "all\n"


@pytest.mark.parametrize(
    "arguments",
    [*([noun, "--help"] for noun in COMMANDS), ["config"], ["doctor", "--offline"]],
    ids=" ".join,
)
def test_the_command_shows_its_help_and_settings(arguments: list[str], tmp_path: Path) -> None:
    done = command(arguments, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["outbox", "init", "--database", "sqlite:///x.db"], "outbox"),
        (["-A", "shop", "replay", "totals"], "lake"),
        (["-A", "shop", "verify", "totals"], "lake"),
        (["pipeline", "land", "--topics", "orders", "--lake", "x"], "lake"),
        (["demo", "--embedded"], "worker"),
        (["worker"], "worker"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_what_needs_an_extra_names_it_in_one_line(arguments: list[str], extra: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from holdfast import Processor, by_key\nfold = lambda rows, event, at_ms: None\n"
        "processors = [Processor(name='totals', source='orders', decode=bytes.decode, fold=fold, row=int, route=by_key)]\n"
    )
    if arguments == ["worker"]:  # which becomes another process, where everything may be imported
        done = light(
            "from holdfast.cli.worker import process\nimport sys\nsys.argv[1:] = ['', '']\nprocess.main()",
            tmp_path,
        )
    else:
        done = command(arguments, tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("holdfast: ")
    assert f"pip install 'holdfast[{extra}]'" in line


def test_each_package_is_one_of_the_extra_that_is_named_for_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    always = " ".join(project["dependencies"])
    assert not [package for package in EXTRAS if package in always.split() or f"{package}=" in always]
    assert set(EXTRAS.values()) <= project["optional-dependencies"].keys()
