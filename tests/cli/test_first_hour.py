"""The first commands of a newcomer, on the embedded Kafka, or without one: each mistake names its cure."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agents.faust.process.leaving import _show_banner
from holdfast.cli.__main__ import main
from holdfast.cli.worker import worker as worker_command
from holdfast.clients.topics.admin import NO_ANSWER, WAITS_LOGGER, Admin
from holdfast.clients.topics.types import PURPOSES, TopicRole
from holdfast.config import Settings
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import BrokerError
from tests.test_mistakes import SHOP

NOBODY = "127.0.0.1:1"


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as made:
        yield made


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [each for each in os.environ if each.startswith(("HOLDFAST_", "KAFKA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


class Shell:
    """Runs commands in this process, of an application whose module is its own."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], kafka: EmbeddedKafka) -> None:
        self._folder, self._capsys, self._servers = folder, capsys, kafka.bootstrap
        self._made = 0

    def __call__(self, *arguments: str, of: str | None = SHOP, code: int = 0) -> tuple[str, str]:
        named = []
        if of is not None:
            self._made += 1
            name = f"{self._folder.name}_{self._made}"
            (self._folder / f"{name}.py").write_text(of)
            named = ["-A", name]
        given = ["--bootstrap", self._servers, "--set", "app=shop", *named, *arguments]
        with pytest.raises(SystemExit) as caught:
            main(given)
        out, err = self._capsys.readouterr()
        assert caught.value.code == code, (out, err)
        return out, err


@pytest.fixture
def shell(folder: Path, capsys: pytest.CaptureFixture[str], kafka: EmbeddedKafka) -> Shell:
    return Shell(folder, capsys, kafka)


def rows(out: str) -> dict[str, dict[str, Any]]:
    return {row["topic"]: row for row in json.loads(out)}


def test_each_created_topic_says_what_it_is_for_and_the_last_line_what_claims_need(shell: Shell) -> None:
    out, err = shell("topics", "create", "--partitions", "2", "-o", "json")
    assert {row["purpose"] for row in rows(out).values()} <= set(PURPOSES.values())
    assert rows(out)["orders"]["purpose"] == PURPOSES[TopicRole.SOURCE]
    assert err.splitlines()[-1].endswith("also need __marshal: add --claims")
    out, err = shell("topics", "create", "--partitions", "2", "--claims", "-o", "json")
    assert rows(out)["__marshal"]["partition_count"] == 2
    assert err == ""


def test_each_role_has_a_purpose() -> None:
    assert PURPOSES.keys() == set(TopicRole)


def test_another_count_of_partitions_than_exists_is_no_success(shell: Shell) -> None:
    shell("topics", "create", "--partitions", "2")
    shell("topics", "create", "--partitions", "2")
    out, err = shell("topics", "create", "--partitions", "8", "-o", "json", code=1)
    assert (rows(out)["orders"]["action"], rows(out)["orders"]["partition_count"]) == ("keep", 2)
    assert "--partitions 8 is for topics that do not" in err


def test_a_renamed_table_names_the_topic_that_it_leaves(shell: Shell) -> None:
    _, err = shell("topics", "create", "--partitions", "2")
    assert "changelog of no table" not in err
    _, err = shell("topics", "create", of=SHOP.replace('name="totals"', 'name="sums"'))
    assert "topic shop-totals.v1-changelog is the changelog of no table declared here" in err
    assert "give it its old name" in err


def test_a_wait_for_a_broker_is_not_silent(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(kafka={"bootstrap.servers": NOBODY})
    admin = Admin(settings, timeout_s=5.5)
    with caplog.at_level("WARNING", WAITS_LOGGER), pytest.raises(BrokerError):
        admin.partition_counts()
    (said,) = [record for record in caplog.records if record.msg == NO_ANSWER]
    assert f"no Kafka broker at {NOBODY} answers yet" in said.getMessage()
    assert "trying for 3.5 s more" in said.getMessage()


def test_the_default_address_says_that_no_file_was_found(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise BrokerError("no Kafka broker answered")

    monkeypatch.setattr(Admin, "cluster", refused)
    (folder / "holdfast.toml").write_text("[kafka]\n'bootstrap.servers' = '127.0.0.1:1'\n")
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    with pytest.raises(SystemExit):
        main(["topics", "list"])
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert f"no holdfast.toml is in {folder / 'below'}; there is one in {folder}: start there" in said[0]
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit):
        main(["topics", "list"])
    assert "no holdfast.toml" not in capsys.readouterr().err


def test_a_worker_without_an_application_says_how_to_name_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []

    def become(launch: object) -> None:
        started.append(launch)
        sys.exit()  # as what replaces a process, it does not return

    monkeypatch.setattr(worker_command, "become", become)
    for arguments in (["worker"], ["--set", "log_format=json", "worker"], ["-A", "shop", "worker"]):
        with pytest.raises(SystemExit):
            main(arguments)
    said = capsys.readouterr().err
    assert said.count("no -A: ") == 1, "not where each line is JSON"
    assert "`holdfast -A MODULE worker`" in said
    assert "-A holdfast.agents.builtin:app" in said
    assert len(started) == 3


@pytest.mark.parametrize(("log_format", "said"), [("json", []), ("text", ["banner"])])
def test_a_banner_is_no_line_of_json(log_format: str, said: list[str]) -> None:
    shown: list[str] = []
    command = SimpleNamespace(say=shown.append, banner=lambda worker: "banner")
    settings = Settings(log_format=log_format)
    _show_banner(command, SimpleNamespace(app=SimpleNamespace(settings=settings)))
    assert shown == said


def test_a_missing_extra_is_reported_once(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "lacking.py").write_text(
        "raise ModuleNotFoundError(\"x needs rocksdict: pip install 'holdfast[worker]'\", name='rocksdict')\n"
    )
    with pytest.raises(SystemExit):
        main(["-A", "lacking", "topology"])
    assert capsys.readouterr().err.count("pip install 'holdfast[worker]'") == 1
