"""One real node: started, stopped, found, paused, continued and cleaned up, from this process and from
others.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType  # type: ignore[attr-defined]

from holdfast.dev import ports, processes
from holdfast.dev.broker import node, state
from holdfast.dev.broker.cluster import Cluster, Credentials
from holdfast.errors import DevBrokerError, JavaMissingError
from tests.support.parts import QUICK_JAVA, part
from tests.support.patience import DEADLINE_S


def holdfast_dev(*arguments: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "holdfast.cli", "dev", *arguments, "--dir", str(folder)],
        env={**os.environ, **QUICK_JAVA, **env},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.fixture(scope="module")
@part("kafka")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Give the folder of a broker started by the command, and what the command printed."""
    folder = tmp_path_factory.mktemp("up")
    try:
        done = holdfast_dev("up", "-o", "json", "--property", "num.partitions=3", folder=folder)
        assert done.returncode == 0, done.stderr
        yield folder, json.loads(done.stdout)
    finally:
        if found := Cluster.find(folder):
            found.purge()


@pytest.mark.variant
def test_up_answers_when_kafka_does_and_leaves_it_running(up: tuple[Path, dict[str, Any]]) -> None:
    folder, printed = up
    client = AdminClient(printed["client"])
    assert set(client.list_topics(timeout=DEADLINE_S).brokers) == {1}
    attached = Cluster.attach(folder)
    assert printed["client"] == attached.client_config() == {"bootstrap.servers": attached.bootstrap}
    (running,) = attached.status()
    assert (running.condition, running.pid) == ("running", printed["nodes"][0]["pid"])


def test_nodes_listen_on_loopback_only(up: tuple[Path, dict[str, Any]]) -> None:
    settings = (up[0] / "node-1" / "server.properties").read_text()
    listeners = dict(line.split("=", 1) for line in settings.splitlines())["listeners"]
    assert [each.partition("://")[2].rpartition(":")[0] for each in listeners.split(",")] == [
        "127.0.0.1",
        "127.0.0.1",
    ]


def test_properties_given_win_over_the_defaults(up: tuple[Path, dict[str, Any]]) -> None:
    resource = ConfigResource(ResourceType.BROKER, "1")
    client = AdminClient(up[1]["client"])
    found = client.describe_configs([resource])[resource].result(DEADLINE_S)
    assert (found["num.partitions"].value, found["offsets.topic.num.partitions"].value) == ("3", "8")
    assert found["auto.create.topics.enable"].value == "false"


def test_status_serves_people_and_programs(up: tuple[Path, dict[str, Any]]) -> None:
    folder, printed = up
    table, as_json = (
        holdfast_dev("status", folder=folder),
        holdfast_dev("status", "-o", "json", folder=folder),
    )
    assert (table.returncode, as_json.returncode) == (0, 0)
    assert table.stdout.split() == [
        "NODE",
        "ENDPOINT",
        "STATE",
        "PID",
        "1",
        printed["client"]["bootstrap.servers"],
        "running",
        str(printed["nodes"][0]["pid"]),
    ]
    assert f"export KAFKA_BOOTSTRAP_SERVERS={printed['client']['bootstrap.servers']}" in table.stderr
    assert json.loads(as_json.stdout) == printed


def test_up_again_changes_nothing_and_up_otherwise_is_refused(up: tuple[Path, dict[str, Any]]) -> None:
    folder, printed = up
    again = holdfast_dev("up", "-o", "json", folder=folder)
    assert (again.returncode, json.loads(again.stdout)) == (0, printed)
    for arguments, option in (
        (["--nodes", "3"], "--nodes"),
        (["--port", "20001"], "--port"),
        (["--sasl"], "--sasl"),
        (["--property", "a=b"], "--property"),
    ):
        other = holdfast_dev("up", *arguments, folder=folder)
        assert (other.returncode, other.stdout) == (1, "")
        assert f"with another {option}" in other.stderr
    with pytest.raises(DevBrokerError, match="run already"):
        Cluster(folder).start()


def test_a_paused_node_does_not_answer_until_it_is_resumed(up: tuple[Path, dict[str, Any]]) -> None:
    folder, printed = up
    cluster = Cluster.attach(folder)
    client = AdminClient(printed["client"] | {"log_level": 0})
    client.list_topics(timeout=DEADLINE_S)
    cluster.pause(1)
    try:
        assert cluster.status()[0].condition == "paused"
        assert holdfast_dev("status", folder=folder).returncode == 1
        with pytest.raises(KafkaException):
            client.list_topics(timeout=0.5)
    finally:
        cluster.resume(1)
    assert cluster.status()[0].condition == "running"
    client.list_topics(timeout=DEADLINE_S)


def test_compaction_works_within_seconds(up: tuple[Path, dict[str, Any]]) -> None:
    client = AdminClient(up[1]["client"])
    # Each record rolls a segment, and only the newest one of a key may stay in those that are closed.
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": "1048576",
        "segment.ms": "1",
        "min.cleanable.dirty.ratio": "0.001",
    }
    client.create_topics([NewTopic("compacted", 1, config=config)])["compacted"].result(DEADLINE_S)
    producer = Producer(up[1]["client"] | {"linger.ms": 0})
    consumer = Consumer(
        up[1]["client"] | {"group.id": "none", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    )
    try:
        first = None
        for number in range(
            2_000
        ):  # each round gives the cleaner one more closed segment, and asks for the rest of the oldest
            producer.produce("compacted", str(number).encode(), b"key")
            assert producer.flush(DEADLINE_S) == 0
            consumer.assign([TopicPartition("compacted", 0, 0)])
            first = consumer.poll(DEADLINE_S)
            if first is not None and first.error() is None and first.value() != b"0":
                break
        assert first is not None
        assert first.value() != b"0"
    finally:
        consumer.close()


def test_a_record_of_another_process_is_never_signalled(
    up: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    known = state.load(up[0])
    assert known is not None
    running = known.nodes[0].pid
    assert running is not None
    known.nodes[0].birth = "another boot/1"
    state.save(tmp_path, known)
    down = holdfast_dev("down", folder=tmp_path)
    assert (down.returncode, down.stdout) == (0, f"stopped 0 nodes; data stays in {tmp_path}\n")
    assert processes.birth_of(running) is not None


@pytest.mark.variant
def test_restart_down_and_up_again_keep_data_port_and_properties(up: tuple[Path, dict[str, Any]]) -> None:
    folder, printed = up
    client = AdminClient(printed["client"] | {"log_level": 0})
    client.create_topics([NewTopic("kept", 2)])["kept"].result(DEADLINE_S)
    producer = Producer(printed["client"] | {"log_level": 0})
    producer.produce("kept", b"before", partition=1)
    assert producer.flush(DEADLINE_S) == 0
    attached = Cluster.attach(folder)
    attached.kill(1)
    assert holdfast_dev("status", folder=folder).stdout.split()[-2:] == ["stopped", "-"]
    attached.restart(1)
    del attached  # it was started to run on, so it runs on
    down = holdfast_dev("down", folder=folder)
    assert (down.returncode, down.stdout) == (0, f"stopped 1 node; data stays in {folder}\n"), down.stderr
    assert holdfast_dev("status", folder=folder).returncode == 1
    down_again = json.loads(holdfast_dev("down", "-o", "json", folder=folder).stdout)
    assert down_again == {"folder": str(folder), "nodes_stopped": 0, "purged": False}
    with Cluster(folder, short_lived=True) as again:
        assert again.client_config() == printed["client"]
        assert again.server_properties == {"num.partitions": "3"}
        consumer = Consumer(again.client_config() | {"group.id": "g"})
        assert consumer.get_watermark_offsets(TopicPartition("kept", 1), timeout=DEADLINE_S) == (0, 1)
        consumer.close()
    assert [each.condition for each in again.status()] == ["stopped"]
    with pytest.raises(DevBrokerError, match="cluster of 1 nodes, not 3"):
        Cluster(folder, nodes=3).start()
    with pytest.raises(DevBrokerError, match="without SASL"):
        Cluster(folder, sasl=True).start()
    mine = folder / "notes.txt"
    mine.write_text("not Kafka's")
    purged = holdfast_dev("down", "--purge", folder=folder)
    assert purged.stdout == f"stopped 0 nodes; removed {folder}\n"
    assert list(folder.iterdir()) == [mine], "only what the broker made is removed"


@pytest.mark.variant
@pytest.mark.kafka
def test_a_broker_that_is_back_leads_all_its_partitions_at_once(tmp_path: Path) -> None:
    with Cluster(tmp_path, short_lived=True) as cluster:
        admin = AdminClient({**cluster.client_config()})
        admin.create_topics([NewTopic("wide", 300)])["wide"].result(DEADLINE_S)
        del admin
        rounds = 0
        while rounds < 2:
            cluster.kill(1)
            cluster.restart(1)
            asking = AdminClient({**cluster.client_config()})
            asking.list_topics(timeout=DEADLINE_S)
            latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
            asked = asking.list_offsets(
                {TopicPartition("wide", number): latest for number in range(300)}, request_timeout=DEADLINE_S
            )
            wait(asked.values(), DEADLINE_S)
            if stood_still_since_its_start(tmp_path):
                continue  # the machine froze for seconds: leaders were elected again
            assert {each.result(0).offset for each in asked.values()} == {0}
            rounds += 1


def stood_still_since_its_start(folder: Path) -> bool:
    """Return whether the controller fenced node 1 once more than the killed process before it, or left a
    heartbeat unanswered.

    It fences a node that sends no heartbeat for 4 s, and gives its partitions leaders of a new epoch. A
    controller that says that it is overloaded gave the machine's time to others in the midst of that.
    """
    log = (folder / "node-1" / "server.log").read_text(encoding="utf-8")
    return log.count("Fencing broker 1 ") > 1 or "Timed out heartbeat from broker 1" in log


# --- starts that fail ---------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_a_start_that_fails_says_why_leaves_nothing_running_and_spoils_no_later_one(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "b", properties={"log.flush.interval.messages": "no number"})
    with pytest.raises(DevBrokerError, match=r"log\.flush\.interval\.messages"):
        cluster.start()
    assert [each.condition for each in cluster.status()] == ["stopped"]
    assert cluster._children == []
    cluster.stop()
    # Formatting does not read this one; the node itself refuses it.
    done = holdfast_dev("up", "--property", "metric.reporters=org.no.such.Reporter", folder=tmp_path / "b")
    assert (done.returncode, done.stdout) == (1, "")
    assert "node 1 ended; its last words:" in done.stderr
    assert "org.no.such.Reporter" in done.stderr
    left = state.load(tmp_path / "b")
    assert left is not None
    assert left.properties == {}, "so a later start is free of it"


@pytest.mark.variant
@pytest.mark.kafka
def test_a_port_lost_between_choice_and_bind_is_chosen_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, controller = ports.free_ports(2)
    really = ports.free_ports
    choices = [[lost, controller]]
    monkeypatch.setattr(ports, "free_ports", lambda count: choices.pop() if choices else really(count))
    monkeypatch.setattr(ports, "is_free", lambda port: port != lost)
    with socket.create_server(("127.0.0.1", lost)), Cluster(tmp_path / "b", short_lived=True) as cluster:
        assert not choices
        assert cluster.bootstrap != f"127.0.0.1:{lost}"
        assert AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=DEADLINE_S).brokers


@pytest.mark.process
def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = holdfast_dev("up", "--port", str(taken.getsockname()[1]), folder=tmp_path / "b")
    assert done.returncode == 1
    assert "is taken by another program" in done.stderr


@pytest.mark.kafka
def test_without_java_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(JavaMissingError, match="install a JDK 17"):
        Cluster(tmp_path / "b").start()
    done = holdfast_dev("up", folder=tmp_path / "b", PATH="")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no java in PATH; install a JDK 17" in done.stderr
    assert not (tmp_path / "b").exists()


@pytest.mark.process
def test_without_network_and_cache_up_says_so_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        nobody = f"http://127.0.0.1:{reserved.getsockname()[1]}/"
    done = holdfast_dev(
        "up", folder=tmp_path / "b", HOLDFAST_CACHE=str(tmp_path / "cache"), HOLDFAST_MAVEN_REPOSITORY=nobody
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "A network is needed once" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["up", "--nodes", "2"], "choose 1, or 3"),
        (["up", "--password", "secret"], "add --sasl"),
        (["up", "--sasl", "--password", "a,b"], "the password of a development broker may hold"),
        (["up", "--property", "nonsense"], "write NAME=VALUE"),
        (["status"], "no broker was ever started"),
    ],
)
@pytest.mark.process
def test_what_cannot_be_is_refused_with_advice(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    done = holdfast_dev(*arguments, folder=tmp_path / "b")
    assert done.returncode in (1, 2)
    assert complaint in done.stderr
    assert not (tmp_path / "b").exists()


def test_a_foreign_state_file_is_an_error_with_advice(tmp_path: Path) -> None:
    (tmp_path / state.STATE_FILE).write_text("{}")
    with pytest.raises(DevBrokerError, match="is not a state file"):
        Cluster.find(tmp_path)
    (tmp_path / state.STATE_FILE).write_text('{"format": 2, "kafka": "9", "cluster_id": "x", "nodes": []}')
    with pytest.raises(DevBrokerError, match="has format 2"):
        Cluster.find(tmp_path)


def test_a_cluster_not_started_says_so() -> None:
    with pytest.raises(DevBrokerError, match="call start"):
        _ = Cluster("/nowhere").bootstrap
    Cluster("/nowhere").stop()


@pytest.mark.kafka
def test_nodes_end_with_the_process_that_started_them_even_by_sigkill(tmp_path: Path) -> None:
    code = (
        f"from holdfast.dev.broker.cluster import Cluster; c = Cluster({str(tmp_path)!r}).start();"
        " print(c.status()[0].pid, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        born = processes.birth_of(pid)
        assert born is not None
        owner.kill()
    try:
        assert processes.wait_gone(pid, born, deadline_s=DEADLINE_S)
    finally:
        processes.kill(pid, born)
    (left,) = Cluster.attach(tmp_path).status()
    assert left.condition == "stopped"
    assert node.last_words(tmp_path, state.NodeState(node_id=1, port=0, controller_port=0))


def test_a_lock_file_that_a_purge_removed_excludes_no_process(tmp_path: Path) -> None:
    with state.exclusive(tmp_path):
        with (
            pytest.raises(DevBrokerError, match="another process"),
            state.exclusive(tmp_path, deadline_s=0.2),
        ):
            pass
        (tmp_path / state.LOCK_FILE).unlink()
        with state.exclusive(tmp_path, deadline_s=DEADLINE_S):
            pass


def test_credentials_hold_what_kafkas_tool_can_read() -> None:
    assert Credentials(password="aB3._~+/@%!?:;*#&|(){}<>^$-").username == "holdfast"
    for wrong in ("", "a b", "a,b", "a]b", "a=b", 'a"b', "a\\b", "é"):
        with pytest.raises(DevBrokerError):
            Credentials(password=wrong)
