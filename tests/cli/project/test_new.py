"""`holdfast new`: the project that it lays out passes its tests as created, and its other files hold
together.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from holdfast import by_key
from holdfast.cli.options.application import load_application
from holdfast.cli.project.new import lay_out, require_free_name
from holdfast.clients.tables.web_tls import WorkerToken
from holdfast.config import load_settings
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import ConfigError
from holdfast.outbox.settings import harvest_settings
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT
from tests.test_deploying import understood


@pytest.fixture
def project(tmp_path: Path) -> Path:
    lay_out("bakery", tmp_path / "bakery")
    return tmp_path / "bakery"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTEST_"))
    }
    return subprocess.run(
        [sys.executable, "-P", "-m", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.process
def test_its_tests_pass_as_created(project: Path) -> None:
    done = run(project, "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


@pytest.mark.process
def test_it_is_clean_by_the_checks_of_this_house(project: Path) -> None:
    for arguments in (
        ("check", "--config", str(ROOT / "pyproject.toml"), "--ignore", "I001,INP001"),
        ("format", "--check", "--line-length", "110"),
    ):
        done = run(project, "ruff", *arguments, ".")
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.process
def test_its_order_goes_to_the_partition_that_its_table_looks_in(project: Path) -> None:
    with EmbeddedKafka() as kafka:
        kafka.create_topic("orders", partitions=4)
        settings = (project / "holdfast.toml").read_text().replace("127.0.0.1:9092", kafka.bootstrap)
        (project / "holdfast.toml").write_text(settings)
        done = subprocess.run(
            [sys.executable, "order.py", "ada", "1999"],
            cwd=project,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        partitions = [kafka.cluster.topics.partition("orders", number) for number in range(4)]
    ends = [each.log.end_offset for each in partitions if each is not None]
    assert ends == [int(number == by_key("ada", 4)) for number in range(4)]


@pytest.mark.variants("arguments1", "arguments2", "arguments3", "arguments4")
@pytest.mark.process
@pytest.mark.parametrize("arguments", [(), ("ada",), ("ada", "19.99"), ("ada", "-1"), ("ada", "1", "2")])
def test_its_order_shows_how_it_is_used(project: Path, arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "order.py", *arguments],
        cwd=project,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "usage: python order.py CUSTOMER CENTS\n")


@pytest.mark.long
def test_its_application_and_settings_load(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    settings = load_settings(flags={}, env={}, file=project / "holdfast.toml")
    loaded = load_application("bakery", settings)
    assert [processor.name for processor in loaded.processors] == ["totals"]
    assert (settings.app, loaded.settings.app) == ("bakery", "bakery")


def test_its_containers_could_start(project: Path) -> None:
    """Their settings are accepted: a worker whose port others reach needs a token, and an address that gets
    it.
    """
    services = yaml.safe_load((project / "compose.yaml").read_text())["services"]
    image = dict(re.findall(r"(HOLDFAST_\w+)=(\S+)", (project / "Dockerfile").read_text()))
    ours = {name: each for name, each in services.items() if each.get("build") == "."}
    assert {*ours} == {"topics", "worker", "console", "outbox", "harvester"}
    for name, service in ours.items():
        given = {key: re.sub(r"\$\{.*:-(.*)\}", r"\1", each) for key, each in service["environment"].items()}
        settings = load_settings(flags={}, env=image | given, file=project / "holdfast.toml")
        assert settings.web_bind == "0.0.0.0"
        assert WorkerToken(settings).headers("http://172.18.0.3:6066")
        assert settings.kafka["bootstrap.servers"] == "kafka:29092"
        assert {*service.get("depends_on", ())} <= {*services}
        if name == "harvester":
            assert (
                harvest_settings(settings).database == "postgresql://bakery:for-a-first-try@postgres/bakery"
            )
        if name != "worker":
            understood(service["command"][1:])
    assert services["worker"]["command"][-1].startswith(
        "HOLDFAST_WEB_URL=http://$$(hostname -i):6066 exec holdfast -A bakery "
    )


def test_no_file_keeps_a_placeholder(project: Path) -> None:
    texts = {path: path.read_text() for path in project.rglob("*") if path.is_file()}
    assert len(texts) == 11
    assert not [
        path
        for path, text in texts.items()
        if "$name" in text or "NAME" in path.name or "template" in path.name
    ]
    assert tomllib.loads(texts[project / "pyproject.toml"])["project"]["name"] == "bakery"
    assert "${PORT:-6066}" in texts[project / "Procfile"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("My-Shop", "such as my_shop"),
        ("class", "cannot name a project"),
        ("1st", "write lower-case letters, digits and _$"),
        ("", "cannot name a project"),
        ("../up", "such as up"),
        ("json", "json is a module that is installed here"),
        ("holdfast", "holdfast is a module that is installed here"),
    ],
)
def test_a_name_that_cannot_be_imported_or_is_taken_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        require_free_name(name)


def test_nothing_of_a_folder_is_overwritten(tmp_path: Path) -> None:
    kept = tmp_path / "holdfast.toml"
    kept.write_text("mine")
    with pytest.raises(ConfigError, match="is not empty: name another folder with --dir"):
        lay_out("bakery", tmp_path)
    assert [*tmp_path.iterdir()] == [kept]
    assert kept.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written: Not a directory"):
        lay_out("bakery", tmp_path / "file" / "bakery")


@pytest.mark.parametrize("name", ["a", "shop", "a_name_of_more_letters"])
def test_the_comments_of_its_readme_are_below_each_other(name: str, tmp_path: Path) -> None:
    lay_out(name, tmp_path)
    commands = [
        line for line in (tmp_path / "README.md").read_text().splitlines() if re.match(r"    \S.* # ", line)
    ]
    assert len(commands) == 8
    assert len({line.index(" # ") for line in commands}) == 1, "\n".join(commands)
