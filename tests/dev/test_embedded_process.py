"""The embedded Kafka in a process of its own, as `holdfast dev up --embedded` starts it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from holdfast.cli.__main__ import main
from holdfast.core.groups.java_order import coordinator_partition
from holdfast.core.kafka.record_batch import TRANSACTIONAL_BIT, batches
from holdfast.dev import processes
from holdfast.dev.embedded_process import EmbeddedFault, EmbeddedProcess, EmbeddedStart
from holdfast.embedded.internal_log import OFFSETS
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.errors import DevBrokerError, WireError
from tests.embedded.clients.raw_client import RawClient
from tests.embedded.transcripts.asking import batch
from tests.support.patience import DEADLINE_S

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
    ran = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
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
    move_and_tell(run, embedded.bootstrap, folder)
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


def move_and_tell(run: Run, bootstrap: str, folder: str) -> None:
    """Have the coordinator of a group move: clients hear of another one."""
    home = coordinator_partition("readers", 8)
    with RawClient(bootstrap) as client:

        def coordinator() -> int:
            (found,) = client.ask("FindCoordinator", 6, key_type=0, coordinator_keys=["readers"])[
                "coordinators"
            ]
            assert found["error_code"] == 0
            node_id: int = found["node_id"]
            return node_id

        before = coordinator()
        assert run("fault", "move", OFFSETS, str(home), "--dir", folder)[0] == 0
        assert coordinator() != before


class OneBroker(NamedTuple):
    """A process with one broker, a topic of which it has written a batch, and a connection to it."""

    fault: Callable[..., tuple[int, str]]
    client: RawClient
    bootstrap: str

    def produce(self, **told: Any) -> dict[str, Any]:
        """Write a batch to the topic, and return the answer for its partition."""
        fields: dict[str, Any] = {"transactional_id": None, "acks": -1, "timeout_ms": 1_000}
        name = fields["transactional_id"] = told.pop("transactional_id", None)
        data = batch(b"a", attributes=TRANSACTIONAL_BIT if name else 0, **told)
        fields["topic_data"] = [{"name": "orders", "partition_data": [{"index": 0, "records": data}]}]
        answer = self.client.ask("Produce", 12, **fields)
        found: dict[str, Any] = answer["responses"][0]["partition_responses"][0]
        return found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("embedded")
    embedded = EmbeddedProcess.start(folder, nodes=1, port=None, told=EmbeddedStart(seed=7))
    with RawClient(embedded.bootstrap) as client:
        stamps = [{"name": "message.timestamp.type", "value": "LogAppendTime"}]
        topic = {"name": "orders", "num_partitions": 1, "replication_factor": 1, "configs": stamps}
        client.ask("CreateTopics", 7, topics=[topic], timeout_ms=10_000)
    yield folder
    embedded.stop()


@pytest.fixture
def one(run: Run, shared: Path) -> Iterator[OneBroker]:
    embedded = EmbeddedProcess.find(shared)
    assert embedded is not None
    with RawClient(embedded.bootstrap) as client:
        yield OneBroker(lambda *words: run("fault", *words, "--dir", str(shared)), client, embedded.bootstrap)
    assert run("fault", "none", "--dir", str(shared))[0] == 0


def test_a_full_disk_is_asked_for_and_ends_with_none(one: OneBroker) -> None:
    assert one.fault("disk")[0] == 0
    assert one.produce()["error_code"] == KafkaCode.KAFKA_STORAGE_ERROR
    assert "nothing goes wrong any more" in one.fault("none")[1]
    assert one.produce()["error_code"] == KafkaCode.NONE


def test_a_clock_is_moved_and_back_with_none(one: OneBroker) -> None:
    before_ms = one.produce()["log_append_time_ms"]
    assert one.fault("clock", "--ms", "-3600000")[0] == 0
    moved_ms = one.produce()["log_append_time_ms"]
    assert one.fault("none")[0] == 0
    assert moved_ms < before_ms <= one.produce()["log_append_time_ms"]


def test_markers_are_lost(one: OneBroker) -> None:
    assert one.fault("markers")[0] == 0
    told = {"transactional_id": "writer", "transaction_timeout_ms": 60_000}
    begun = one.client.ask("InitProducerId", 5, **told)
    who = {"producer_id": begun["producer_id"], "producer_epoch": begun["producer_epoch"]}
    written = one.produce(transactional_id="writer", base_sequence=0, **who)
    assert written["error_code"] == KafkaCode.NONE
    assert one.client.ask("EndTxn", 4, transactional_id="writer", committed=True, **who)["error_code"] == 0
    wanted = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    topics = [{"name": "orders", "partitions": [wanted]}]
    answer = one.client.ask("ListOffsets", 10, replica_id=-1, isolation_level=1, topics=topics)
    assert answer["topics"][0]["partitions"][0]["offset"] == written["base_offset"], "it is still open there"


def test_a_batch_is_corrupted(one: OneBroker) -> None:
    at = one.produce()["base_offset"]
    assert one.fault("corrupt", "orders", "0", str(at))[0] == 0
    where = {"partition": 0, "fetch_offset": at, "partition_max_bytes": 1 << 20}
    topics = [{"topic": "orders", "partitions": [where]}]
    answer = one.client.ask("Fetch", 12, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics)
    with pytest.raises(WireError, match="checksum"):
        list(batches(bytes(answer["responses"][0]["partitions"][0]["records"])))
    code, output = one.fault("corrupt", "orders", "0", "1000000")
    assert code != 0
    assert "there is no record 1000000 in orders/0" in output


def test_a_member_is_forgotten(one: OneBroker) -> None:
    told = {"session_timeout_ms": 300_000, "rebalance_timeout_ms": 300_000, "protocol_type": "consumer"}
    protocols = [{"name": "range", "metadata": b""}]
    joined = one.client.ask("JoinGroup", 3, group_id="readers", member_id="", protocols=protocols, **told)
    said = {"group_id": "readers", "member_id": joined["member_id"]}
    said["generation_id"] = joined["generation_id"]
    assert one.client.ask("Heartbeat", 4, **said)["error_code"] == KafkaCode.NONE
    assert one.fault("forget", "readers", joined["member_id"])[0] == 0
    assert one.client.ask("Heartbeat", 4, **said)["error_code"] == KafkaCode.UNKNOWN_MEMBER_ID
    code, output = one.fault("forget", "readers", joined["member_id"])
    assert code != 0
    assert "there is no member" in output


def test_answers_are_dropped_delayed_repeated_and_swapped(one: OneBroker) -> None:
    client = one.client

    def numbers(count: int) -> list[int]:
        """Return which requests the next answers are to: the first four bytes say it."""
        return [int.from_bytes(client.receive_frame()[:4], "big") for _ in range(count)]

    def send(times: int) -> None:
        for _ in range(times):
            client.send("DescribeCluster", 0)

    assert one.fault("drop", "DescribeCluster", "--skip", "1")[0] == 0
    send(3)
    assert numbers(2) == [1, 3]
    assert one.fault("repeat", "DescribeCluster")[0] == 0
    send(2)
    assert numbers(3) == [4, 4, 5]
    assert one.fault("reorder", "DescribeCluster", "--ms", "60000")[0] == 0
    send(2)
    assert numbers(2) == [7, 6]
    assert one.fault("delay", "DescribeCluster", "--ms", "50")[0] == 0
    began_s = time.monotonic()
    send(1)
    assert numbers(1) == [8]
    assert time.monotonic() - began_s >= 0.05


def test_another_seed_than_that_of_the_running_one_is_refused(run: Run, shared: Path) -> None:
    assert run("up", "--embedded", "--seed", "7", "--dir", str(shared))[0] == 0
    code, output = run("up", "--embedded", "--seed", "8", "--dir", str(shared))
    assert code != 0
    assert "with the seed 7" in " ".join(output.split())
    code, output = run("up", "--seed", "0", "--dir", str(shared))
    assert code != 0
    assert "--seed without --embedded" in output


def test_a_seed_gives_the_same_ids_at_each_start(tmp_path: Path, shared: Path) -> None:
    found = []
    again = EmbeddedProcess.start(tmp_path, nodes=1, port=None, told=EmbeddedStart(seed=7))
    try:
        for folder in (tmp_path, shared):
            embedded = EmbeddedProcess.find(folder)
            assert embedded is not None
            with RawClient(embedded.bootstrap) as client:
                topic = {"name": "orders", "num_partitions": 1, "replication_factor": 1}
                client.ask("CreateTopics", 7, topics=[topic], timeout_ms=10_000)
                (told,) = client.ask("Metadata", 12, topics=[{"name": "orders"}])["topics"]
                found.append(told["topic_id"])
    finally:
        again.stop()
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("words", "trouble"),
    [
        (("move", "orders"), "move takes TOPIC PARTITION"),
        (("move", "orders", "first"), "'first' is no partition: write a number from 0"),
        (("corrupt", "orders", "0"), "corrupt takes TOPIC PARTITION OFFSET"),
        (("corrupt", "orders", "0", "-5"), "No such option"),
        (("forget", "readers"), "forget takes GROUP MEMBER"),
        (("disk", "orders"), "disk takes no further words"),
        (("cut", "EndTxn", "Fetch"), "cut takes API, or nothing for answers to any"),
        (("cut", "EndTx"), "EndTx is no api of the embedded Kafka"),
    ],
)
def test_a_wrong_location_of_a_fault_is_refused(words: tuple[str, ...], trouble: str, one: OneBroker) -> None:
    code, output = one.fault(*words)
    assert code != 0
    assert trouble in " ".join(output.split())


def test_each_of_several_clients_at_once_gets_its_own_fault(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    "words",
    [
        ("--auto-create", "--partitions", "7"),
        pytest.param(
            ("--property", "auto.create.topics.enable=true", "--property", "num.partitions=7"),
            marks=pytest.mark.variant,
        ),
    ],
)
def test_topics_are_made_when_they_are_asked_for_with_auto_create(
    run: Run, tmp_path: Path, words: tuple[str, ...]
) -> None:
    asked = ("up", "--embedded", "--dir", str(tmp_path))
    assert run(*asked, *words)[0] == 0
    embedded = EmbeddedProcess.find(tmp_path)
    assert embedded is not None
    try:
        with RawClient(embedded.bootstrap) as client:
            wanted = {"topics": [{"name": "orders"}], "allow_auto_topic_creation": True}
            found = [client.ask("Metadata", 12, **wanted)["topics"][0] for _ in range(2)]
        assert [len(each["partitions"]) for each in found] == [0, 7]
        assert run(*asked)[0] == 0
        code, output = run(*asked, "--partitions", "8")
        assert code != 0
        assert "without num.partitions=8" in " ".join(output.split())
    finally:
        embedded.stop()


def test_a_folder_keeps_its_content(run: Run, tmp_path: Path) -> None:
    state, kept = str(tmp_path / "state"), str(tmp_path / "kept")
    asked = ("up", "--embedded", "--dir", state, "--folder", kept, "--fsync")
    code, output = run(*asked)
    assert code == 0
    assert f"data in {kept}" in output
    embedded = EmbeddedProcess.find(tmp_path / "state")
    assert embedded is not None
    admin = AdminClient({"bootstrap.servers": embedded.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("orders", 2)])["orders"].result(DEADLINE_S)
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
    assert len(admin.list_topics("orders", timeout=DEADLINE_S).topics["orders"].partitions) == 2
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


def test_a_port_that_is_taken_is_reported_with_the_last_words_of_the_process(tmp_path: Path) -> None:
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
        root.create_topics([NewTopic("orders", 1)])["orders"].result(DEADLINE_S)
        admin = AdminClient({**shop})
        with pytest.raises(KafkaException) as caught:
            admin.create_topics([NewTopic("payments", 1)])["payments"].result(DEADLINE_S)
        assert caught.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert "orders" not in admin.list_topics(timeout=DEADLINE_S).topics
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
        (("--sasl", "--property", "a=b"), "a is no property of the embedded Kafka; it has auto.create"),
        (("--property", "num.partitions=many"), "num.partitions=many: write a number from 1 to"),
        (("--property", "num.partitions=0"), "num.partitions=0: write a number from 1 to"),
        (("--property", "auto.create.topics.enable=yes"), "enable=yes: write true or false"),
        (("--fsync",), "--fsync without --folder F: there is nothing to sync"),
        (("--folder", "users"), "cannot make"),
    ],
)
def test_a_wrong_request_is_reported(
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
