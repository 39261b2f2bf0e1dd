"""The commands that work without any extra of holdfast, and the errors of the rest."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.__main__ import COMMANDS
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.extras import EXTRAS
from tests.support.installations import Installation, Installations
from tests.support.page_commands import NEEDS
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT
from tests.test_exports import PUBLIC_MODULES

pytestmark = pytest.mark.process

SHOP = """
from holdfast import Processor, by_key
fold = lambda rows, event, at_ms: None
processors = [Processor(name='totals', source='orders', decode=bytes.decode, fold=fold, row=int, route=by_key)]
"""  # noqa: E501
# One process imports what all commands need, and each command is a child of it: a start takes half a second.
FORKING = """
import json, os, sys, tempfile
from holdfast.cli.__main__ import main
import holdfast.cli.tables.tables, holdfast.clients.groups.broker, holdfast.clients.topics.application, rich.table, sqlalchemy
done = []
for words in json.load(sys.stdin):
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        sys.stdout.flush()
        if (child := os.fork()) == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            try:
                main(words)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
            except BaseException:
                import traceback
                traceback.print_exc()
                code = 99
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        texts = []
        for each in (out, errors):
            each.seek(0)
            texts.append(each.read())
        done.append((os.waitstatus_to_exitcode(status), *texts))
json.dump(done, sys.stdout)
"""  # noqa: E501
Ended = tuple[int, str, str]


@pytest.fixture(scope="module")
def light(installations: Installations) -> Installation:
    """Give an environment that `pip install holdfast` makes."""
    return installations.of(())


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as kafka:
        for topic in ("orders", "__marshal"):
            kafka.create_topic(topic, partitions=2, config={"message.timestamp.type": "LogAppendTime"})
        yield kafka


def python(light: Installation, folder: Path, code: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run *code* where no package of an extra is installed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTHON"))}
    return subprocess.run(
        [str(light.python), "-P", "-c", code],
        cwd=folder,
        env=kept | more.pop("env", {}),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        **more,
    )


def commands(light: Installation, folder: Path, lines: Sequence[Sequence[str]], **env: str) -> list[Ended]:
    """Run commands of holdfast there, one after another; return exit code and texts of each."""
    (folder / "shop.py").write_text(SHOP)
    done = python(light, folder, FORKING, input=json.dumps([[*each] for each in lines]), env=env)
    assert done.returncode == 0, done.stderr
    return [(code, out, errors) for code, out, errors in json.loads(done.stdout)]


def test_all_of_the_public_face_but_workers_and_schemas_is_there(light: Installation, tmp_path: Path) -> None:
    with_extras = ["Avro", "JsonSchema", "Protobuf", "create_app"]
    names = [name for name in holdfast.__all__ if name not in with_extras]
    modules = ["holdfast.streams", "holdfast.testing", "holdfast.embedded.kafka", "holdfast.clients"]
    code = f"import {', '.join(modules)}\nfor name in {names!r}: getattr(holdfast, name)\nprint('all')"
    done = python(light, tmp_path, code)
    assert done.stdout == "all\n", done.stderr


def first_importers() -> dict[str, str]:
    """Return for each package of an extra a module of holdfast that imports it as it is imported itself."""
    found: dict[str, str] = {}
    for path in sorted(
        path
        for room in ("holdfast", "agents", "outbox", "pipeline", "tables")
        for path in (ROOT / room).rglob("*.py")
    ):
        parts = path.relative_to(ROOT).with_suffix("").parts
        module = ".".join(parts if parts[0] == "holdfast" else ("holdfast", *parts))
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom | ast.Import):
                names = (
                    [node.module or ""]
                    if isinstance(node, ast.ImportFrom)
                    else [each.name for each in node.names]
                )
                for package in {
                    each for each in EXTRAS for name in names if f"{name}.".startswith(f"{each}.")
                }:
                    found.setdefault(package, module)
    return found


def test_a_module_whose_package_is_missing_names_the_extra_in_one_line(
    light: Installation, tmp_path: Path
) -> None:
    modules = sorted(
        {*first_importers().values(), *PUBLIC_MODULES} - {"holdfast.dev.fixtures"}
    )  # that needs pytest
    assert len(modules) > 20
    code = f"""
import importlib, json
said = {{}}
for module in {modules!r}:
    try:
        importlib.import_module(module)
    except ImportError as error:
        said[module] = (str(error), error.name)
print(json.dumps(said))
"""
    done = python(light, tmp_path, code)
    assert done.returncode == 0, done.stderr
    said: dict[str, tuple[str, str]] = json.loads(done.stdout)
    for text, package in said.values():
        assert text.endswith(
            f" needs {package}, which is not installed: pip install 'holdfast[{EXTRAS[package]}]'"
        )
    assert said["holdfast.outbox.schema.migrate"][0].startswith(
        "holdfast.outbox.schema.migrate needs alembic, "
    )
    assert {*first_importers()} >= {"alembic", "faust", "jinja2", "pyarrow", "rocksdict"}


def test_imports_of_other_packages_and_looks_for_a_package_are_left_alone(
    light: Installation, tmp_path: Path
) -> None:
    (tmp_path / "theirs.py").write_text(
        "try:\n    import faust\nexcept ImportError as error:\n    print(error)\n"
    )
    (tmp_path / "probing.py").write_text(
        "from importlib.util import find_spec\n__name__ = 'holdfast.probing'\nprint(find_spec('faust'))\n"
    )
    code = "import sys; sys.path.append('.')\nimport holdfast, theirs, probing"
    assert python(light, tmp_path, code).stdout == "No module named 'faust'\nNone\n"


@pytest.mark.variant
def test_the_command_shows_its_help_and_settings(light: Installation, tmp_path: Path) -> None:
    lines = [*([noun, "--help"] for noun in COMMANDS), ["config"], ["doctor", "--offline"], ["new", "faust"]]
    for words, (code, out, errors) in zip(lines, commands(light, tmp_path, lines), strict=True):
        assert code == 0, f"{words}: {errors}"
        assert "--install-completion" not in out, f"{words}: it would be installed for a noun alone"


WITH_EXTRAS: dict[str, list[str]] = {
    "audit": ["audit", "outbox", "--outbox", "shop"],
    "bootstrap": ["-A", "shop", "bootstrap", "totals"],
    "compare": ["-A", "shop", "compare", "totals", "--with", "shop:totals"],
    "console": ["-A", "shop", "console"],
    "demo": ["demo", "--embedded"],
    "groups committed": ["groups", "committed"],
    "groups lag": ["groups", "lag"],
    "outbox": ["outbox", "init", "--database", "sqlite:///x.db"],
    "pipeline": ["pipeline", "land", "--topics", "orders", "--lake", "x"],
    "producers hanging": ["producers", "hanging"],
    "producers transactions": ["producers", "transactions"],
    "replay": ["-A", "shop", "replay", "totals"],
    "report": [
        "report",
        "--lake",
        "x",
        "--html",
        "x.html",
        "--from",
        "2026-11-25T08:00:00Z",
        "--to",
        "2026-11-25T12:00:00Z",
    ],
    "tables take-over": ["-A", "shop", "tables", "take-over", "totals", "--execute"],
    "verify": ["-A", "shop", "verify", "totals"],
}
"""A command line of each beginning of NEEDS. `worker` becomes another process."""


def test_what_needs_an_extra_names_it_in_one_line(
    light: Installation, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    told = commands(
        light, tmp_path, [*WITH_EXTRAS.values()], KAFKA_BOOTSTRAP_SERVERS=kafka.bootstrap, HOLDFAST_APP="shop"
    )
    for beginning, (code, _, errors) in zip(WITH_EXTRAS, told, strict=True):
        assert code == 2, f"{beginning}: {errors}"
        (line,) = errors.splitlines()
        assert line.startswith("holdfast: ")
        assert f"pip install 'holdfast[{dict(NEEDS)[beginning]}]'" in line, line
    worker = python(
        light,
        tmp_path,
        "from holdfast.cli.worker import process\nimport sys\nsys.argv[1:] = ['', '']\nprocess.main()",
    )
    assert worker.returncode == 2
    (line,) = worker.stderr.splitlines()
    assert "pip install 'holdfast[worker]'" in line
    assert dict(NEEDS).keys() == WITH_EXTRAS.keys() | {"worker"}


WITHOUT: list[list[str]] = [
    ["-A", "shop", "topics", "create"],
    ["-A", "shop", "topics", "list"],
    ["-A", "shop", "topology"],
    ["-A", "shop", "quarantine", "list"],
    ["-A", "shop", "tail", "orders"],
    ["-A", "shop", "tables", "list"],
    ["-A", "shop", "acls", "worker"],
    ["groups", "list"],
    ["groups", "pause", "billing", "--for", "1s"],
    ["claims", "list"],
    ["-A", "shop", "reset"],
    ["explain", "orders", "0", "0"],
    ["size", "--partitions", "8"],
]


@pytest.mark.variant
def test_the_other_commands_need_no_extra(light: Installation, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    told = commands(light, tmp_path, WITHOUT, KAFKA_BOOTSTRAP_SERVERS=kafka.bootstrap, HOLDFAST_APP="shop")
    for words, (code, out, errors) in zip(WITHOUT, told, strict=True):
        assert "pip install" not in errors, f"{words}: {errors}"
        assert code in {0, 1}, f"{words}: {out}{errors}"


def test_each_package_is_one_of_the_extra_that_is_named_for_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    always = " ".join(project["dependencies"])
    assert not [package for package in EXTRAS if package in always.split() or f"{package}=" in always]
    assert set(EXTRAS.values()) <= project["optional-dependencies"].keys()
