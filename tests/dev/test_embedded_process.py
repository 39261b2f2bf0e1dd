"""The embedded Kafka in a process of its own, as `holdfast dev up --embedded` starts it."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from holdfast.cli.__main__ import main
from holdfast.dev import processes
from holdfast.dev.embedded_process import EmbeddedFault, EmbeddedProcess
from holdfast.errors import DevBrokerError
from tests.embedded.clients.raw_client import RawClient

pytestmark = pytest.mark.process


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Give what runs a command in this process, and returns its exit code with what it printed."""

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["dev", *arguments])
        said = capsys.readouterr()
        return (ended.value.code if isinstance(ended.value.code, int) else 0), said.out + said.err

    return run


def run_alone(*arguments: str) -> tuple[int, str]:
    """Run a command in a process of its own, which has ended when this returns."""
    command = [sys.executable, "-P", "-m", "holdfast.cli", "dev", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def test_it_runs_until_it_is_stopped(run: Run, tmp_path: Path) -> None:
    folder = str(tmp_path)
    code, output = run_alone("up", "--embedded", "--nodes", "3", "--dir", folder)
    assert code == 0
    assert output.count("running") == 3
    embedded = EmbeddedProcess.find(tmp_path)
    assert embedded is not None
    with RawClient(embedded.bootstrap) as client:
        assert len(client.ask("DescribeCluster", 0)["brokers"]) == 3
        port = int(client.ask("DescribeCluster", 0)["brokers"][0]["port"])
        assert run("fault", "cut", "DescribeCluster", "--dir", folder)[0] == 0
        with pytest.raises(ConnectionError):
            client.ask("DescribeCluster", 0)
    assert run("fault", "kill", "--node", "1", "--dir", folder)[0] == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
    assert run("fault", "revive", "--node", "1", "--dir", folder)[0] == 0
    code, output = run("fault", "explode", "--dir", folder)
    assert code != 0
    assert "'explode' is no fault" in output
    assert run("status", "--dir", folder)[0] == 0
    again = EmbeddedProcess.find(tmp_path)
    assert run("up", "--embedded", "--dir", folder)[0] == 0
    assert again is not None
    assert again.bootstrap == embedded.bootstrap, "the same one"
    assert "stopped 3 nodes" in run_alone("down", "--dir", folder)[1]
    assert not embedded.is_running
    assert EmbeddedProcess.find(tmp_path) is None


def test_each_of_those_who_ask_at_once_hears_of_its_own_fault(tmp_path: Path) -> None:
    embedded = EmbeddedProcess.start(tmp_path, nodes=1, port=None)

    def ask(kind: str) -> str:
        try:
            embedded.fault(EmbeddedFault(kind=kind, api="DescribeCluster"))
        except DevBrokerError as error:
            return str(error)
        return ""

    try:
        kinds = [f"odd-{number}" if number % 2 else "drop" for number in range(16)]
        with ThreadPoolExecutor(len(kinds)) as threads:
            told = list(threads.map(ask, kinds))
        assert [each.split(" ")[0] for each in told] == [
            repr(each) if "odd" in each else "" for each in kinds
        ]
        assert not list(tmp_path.glob("embedded-fault*"))
    finally:
        embedded.stop()


def test_a_folder_keeps_what_was_there(run: Run, tmp_path: Path) -> None:
    state, kept = str(tmp_path / "state"), str(tmp_path / "kept")
    asked = ("up", "--embedded", "--dir", state, "--folder", kept, "--fsync")
    code, output = run(*asked)
    assert code == 0
    assert f"data in {kept}" in output
    embedded = EmbeddedProcess.find(tmp_path / "state")
    assert embedded is not None
    admin = AdminClient({"bootstrap.servers": embedded.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("orders", 2)])["orders"].result(60)
    code, output = run("up", "--embedded", "--dir", state)
    assert code != 0
    assert f"with its records in {kept}" in output
    code, output = run("up", "--embedded", "--dir", str(tmp_path / "another"), "--folder", kept)
    assert code != 0
    assert f"a broker runs in {kept} already" in output
    processes.kill(embedded._state.pid, embedded._state.birth)
    assert run(*asked)[0] == 0
    again = EmbeddedProcess.find(tmp_path / "state")
    assert again is not None
    admin = AdminClient({"bootstrap.servers": again.bootstrap, "log_level": 0})
    assert len(admin.list_topics("orders", timeout=60).topics["orders"].partitions) == 2
    assert f"data stays in {kept}" in run("down", "--dir", state)[1]


def test_a_process_that_was_killed_is_not_taken_for_a_running_one(run: Run, tmp_path: Path) -> None:
    embedded = EmbeddedProcess.start(tmp_path, nodes=1, port=None)
    processes.kill(embedded._state.pid, embedded._state.birth)
    code, output = run("status", "--dir", str(tmp_path))
    assert code == 1
    assert "stopped" in output
    again = EmbeddedProcess.start(tmp_path, nodes=1, port=None)
    assert again.is_running
    again.stop()


def test_a_port_that_is_taken_is_told_with_its_last_words(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(DevBrokerError, match="cannot listen on"),
    ):
        EmbeddedProcess.start(tmp_path, nodes=1, port=taken.getsockname()[1])


def test_a_state_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "embedded.json").write_text("{")
    with pytest.raises(DevBrokerError, match="remove it if no embedded Kafka runs"):
        EmbeddedProcess.find(tmp_path)


def test_it_asks_who_comes_and_lets_each_do_what_rules_allow(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "kafka"
    (tmp_path / "users").write_text("shop=shop-secret\n")
    rule = "--add --allow-principal User:shop --operation Describe --cluster"
    (tmp_path / "rules").write_text(f"# what `holdfast acls` prints\n{rule}\n")
    told = ("--users", str(tmp_path / "users"), "--acls", str(tmp_path / "rules"), "--dir", str(folder))
    code, output = run("up", "--embedded", "--sasl", *told)
    assert code == 0, output
    embedded = EmbeddedProcess.find(folder)
    assert embedded is not None
    try:
        assert f"clients need the properties in {embedded.client_file}" in output
        assert embedded.client_file.stat().st_mode & 0o777 == 0o600
        assert embedded.client_config["sasl.password"] in embedded.client_file.read_text()
        assert embedded.client_config["sasl.password"] not in output
        shop = {**embedded.client_config, "sasl.username": "shop", "sasl.password": "shop-secret"}
        root = AdminClient({**embedded.client_config})
        root.create_topics([NewTopic("orders", 1)])["orders"].result(60)
        admin = AdminClient({**shop})
        with pytest.raises(KafkaException) as caught:
            admin.create_topics([NewTopic("payments", 1)])["payments"].result(60)
        assert caught.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert "orders" not in admin.list_topics(timeout=60).topics
        assert "without --sasl" not in run("up", "--embedded", "--sasl", "--dir", str(folder))[1]
        code, output = run("up", "--embedded", "--dir", str(folder))
        assert code != 0
        assert "runs already" in output
    finally:
        embedded.stop()
    assert not embedded.client_file.exists()


@pytest.mark.parametrize(
    ("arguments", "trouble"),
    [
        (("--sasl", "--users", "nowhere"), "nowhere cannot be read"),
        (("--sasl", "--users", "users"), "--users a line: write NAME=VALUE"),
        (("--sasl", "--acls", "rules"), "line 1 of the access rules cannot be read"),
        (("--users", "users"), "--users without --embedded --sasl: only the embedded Kafka has users"),
        (("--sasl", "--property", "a=b"), "the embedded Kafka has none"),
        (("--fsync",), "--fsync without --folder F: there is nothing to sync"),
        (("--folder", "users"), "cannot make"),
    ],
)
def test_what_is_asked_wrongly_is_told(
    arguments: tuple[str, ...], trouble: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "users").write_text("hidden\n")
    (tmp_path / "rules").write_text("--add --allow-principal User:a\n")
    code, output = run("up", "--embedded", "--dir", str(tmp_path / "kafka"), *arguments)
    assert code != 0
    assert trouble in " ".join(output.split())
    assert "hidden" not in output
    assert EmbeddedProcess.find(tmp_path / "kafka") is None
