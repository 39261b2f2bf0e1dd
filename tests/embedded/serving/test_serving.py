"""Starting, stopping, and invalid requests."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import subprocess
import sys

import pytest

from holdfast.embedded.kafka import NOTICE, EmbeddedKafka
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.errors import DevBrokerError
from tests.embedded.clients.raw_client import RawClient
from tests.embedded.transcripts.talk import Talk
from tests.embedded.transcripts.transaction_scenarios import hostile_frame


def test_it_logs_its_purpose(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), EmbeddedKafka() as kafka:
        assert kafka.bootstrap.startswith("127.0.0.1:")
    assert NOTICE in caplog.text


def test_it_listens_on_loopback_alone_and_not_after_its_end() -> None:
    with EmbeddedKafka() as kafka:
        host, port = kafka.bootstrap.split(":")
        with RawClient(kafka.bootstrap) as client:
            assert client.ask("Metadata", 12, topics=[])["cluster_id"] == kafka.cluster.cluster_id
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 5)
    kafka.stop()  # a second time does nothing


def test_it_runs_on_a_loop_of_the_callers() -> None:
    async def run() -> None:
        async with EmbeddedKafka() as kafka:
            reader, writer = await asyncio.open_connection(*kafka.bootstrap.split(":"))
            writer.write(struct.pack(">ihhih", 10, 18, 0, 7, -1))
            size = int.from_bytes(await reader.readexactly(4), "big")
            answer = await reader.readexactly(size)
            assert answer[:4] == (7).to_bytes(4, "big")
            writer.close()

    asyncio.run(run())


def test_a_port_that_is_taken_is_an_error_that_says_so() -> None:
    with EmbeddedKafka() as kafka:
        port = int(kafka.bootstrap.split(":")[1])
        with pytest.raises(DevBrokerError, match=f"cannot listen on 127.0.0.1:{port}"):
            EmbeddedKafka(port=port).start()
        with RawClient(kafka.bootstrap) as client:
            client.ask("ApiVersions", 0)


_BROUGHT = """
import sys
from holdfast.embedded.kafka import EmbeddedKafka
with EmbeddedKafka() as kafka:
    kafka.create_topic("orders")
print(*sys.modules, sep="\\n")
"""


@pytest.mark.long
def test_a_broker_imports_only_the_modules_it_needs() -> None:
    """Modules with few users are imported by these: that saved 1.4 of 31 MB."""
    told = subprocess.run([sys.executable, "-P", "-c", _BROUGHT], capture_output=True, text=True, check=True)
    brought = set(told.stdout.split())
    assert "holdfast.embedded.serving.connection" in brought
    few = {"hashlib", "tempfile", "shutil", "cramjam", "cryptography", "holdfast.core.engine.declared"}
    assert not brought & (few | {"holdfast.embedded.storage.folder", "concurrent.futures.thread"})


def test_two_nodes_are_none() -> None:
    with pytest.raises(DevBrokerError, match="choose 1, or 3"):
        EmbeddedKafka(nodes=2)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00",
        hostile_frame(999, 0),
        hostile_frame(1, 99),
        hostile_frame(3, 12),
        *(hostile_frame(0, version) for version in range(3)),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_an_invalid_request_closes_the_connection(
    embedded: EmbeddedKafka, frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with RawClient(embedded.bootstrap) as client:
        client.send_frame(frame)
        with pytest.raises(ConnectionError):
            client.receive_frame()
    with RawClient(embedded.bootstrap) as another:
        another.ask("ApiVersions", 0)
    assert [each for each in caplog.records if each.levelno > logging.WARNING] == []


def test_a_frame_that_is_too_large_is_not_waited_for(embedded: EmbeddedKafka) -> None:
    for size in (-1, 1 << 30):
        with RawClient(embedded.bootstrap) as client:
            client._socket.sendall(size.to_bytes(4, "big", signed=True))
            with pytest.raises(ConnectionError):
                client.receive_frame()


def test_a_client_of_the_future_learns_the_supported_versions(embedded: EmbeddedKafka) -> None:
    with RawClient(embedded.bootstrap) as client:
        client.send_frame(hostile_frame(18, 99))
        answer = client.receive("ApiVersions", 0)
    assert answer["error_code"] == 35
    assert answer["api_keys"] == [{"api_key": 18, "min_version": 0, "max_version": 4}]


def test_answers_come_in_the_order_of_the_questions(embedded: EmbeddedKafka) -> None:
    """Also where the first one waits: a fetch holds up later requests on its connection, as on Kafka."""
    talk = Talk(embedded.bootstrap)
    topic = talk.topic("orders")
    client = talk.client("reader")
    want = {"topic": topic, "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]}
    client.send("Fetch", 12, topics=[want], max_wait_ms=100, min_bytes=1, max_bytes=1000)
    client.send("Metadata", 12, topics=[{"name": topic}])
    assert client.receive("Fetch", 12)["error_code"] == 0
    assert client.receive("Metadata", 12)["topics"][0]["name"] == topic
    talk.close()


def test_many_questions_at_once_are_all_answered(embedded: EmbeddedKafka) -> None:
    with RawClient(embedded.bootstrap) as client:
        for _ in range(500):
            client.send("ApiVersions", 0)
        assert all(client.receive("ApiVersions", 0)["error_code"] == 0 for _ in range(500))


def test_random_choices_follow_from_the_seed() -> None:
    assert EmbeddedKafka(seed=3).cluster.cluster_id == EmbeddedKafka(seed=3).cluster.cluster_id
    assert EmbeddedKafka(seed=3).cluster.cluster_id != EmbeddedKafka(seed=4).cluster.cluster_id


def test_a_topic_that_metadata_creates_is_there_when_it_is_asked_for_again() -> None:
    """As in Kafka: the first answer does not know it, and the next one has its leaders."""
    with EmbeddedKafka(auto_create_topics=True, num_partitions=3) as kafka, RawClient(kafka.bootstrap) as raw:

        def told(name: str, **more: bool) -> tuple[int, int]:
            (topic,) = raw.ask("Metadata", 12, topics=[{"name": name}], **more)["topics"]
            return topic["error_code"], len(topic["partitions"])

        unknown, invalid = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION, KafkaCode.INVALID_TOPIC_EXCEPTION
        wanted = {"allow_auto_topic_creation": True}
        assert [told("orders", allow_auto_topic_creation=False) for _ in range(2)] == [(unknown, 0)] * 2
        assert [told("orders", **wanted) for _ in range(2)] == [(unknown, 0), (0, 3)]
        assert [told("a b", **wanted) for _ in range(2)] == [(invalid, 0)] * 2
