"""Strangers on the port: whatever they send, or do not send, others are served, and nothing is answered by
accident.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from random import Random

import pytest

from holdfast.embedded.apis.handlers import offered
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.embedded.protocol.codec import encode, is_flexible
from holdfast.embedded.protocol.table import message
from holdfast.embedded.serving import connection, descriptors
from tests.embedded.clients.raw_client import RawClient
from tests.embedded.serving.hostile_requests import HostileRequests
from tests.embedded.transcripts.transaction_scenarios import hostile_frame
from tests.support.patience import DEADLINE_S

NEVER = {"DeleteTopics", "SaslHandshake", "SaslAuthenticate"}
"""Apis left out, because they would leave no topic or connection for the next requests."""
SETTLE_S, BUSY_SETTLE_S = 0.005, 0.5


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(seed=1) as running:
        yield running


def is_served(kafka: EmbeddedKafka) -> bool:
    with RawClient(kafka.bootstrap) as client:
        return bool(client.ask("ApiVersions", 0)["error_code"] == 0)


def answered(kafka: EmbeddedKafka, seed: int, count: int) -> int:
    """Ask *count* hostile requests, each on a connection of its own; return how many are answered soon."""
    topics = [
        kafka.cluster.topics.get(kafka.create_topic(each, partitions=2)) for each in ("orders", "payments")
    ]
    made = HostileRequests(seed, [each.topic_id for each in topics if each is not None])
    apis = [(name, each) for _, name, versions in offered() for each in versions if name not in NEVER]
    found = 0
    for asked in range(count):
        api, version = made.chance.choice(apis)
        if version not in message(f"{api}Request").versions:
            continue
        frame = bytearray(hostile_frame(message(f"{api}Request").api, version))
        frame += bytes(1 if is_flexible(f"{api}Request", version) else 0)
        whole = bytes(encode(f"{api}Request", version, made.request(api, version), frame))
        with RawClient(kafka.bootstrap) as client:
            client.send_frame(made.damaged(whole) if made.chance.random() < 0.15 else whole)
            behind = found < 0.4 * asked  # as on a machine that lets the broker answer none so soon
            found += bool(client.settle(BUSY_SETTLE_S if behind else SETTLE_S))
    return found


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_request_without_sense_is_answered_or_ends_its_connection(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    with caplog.at_level(logging.WARNING):
        assert answered(kafka, seed, 150) > 50
    assert [each.getMessage() for each in caplog.records if each.levelno > logging.WARNING] == []
    assert is_served(kafka)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 9))
def test_many_requests_without_sense_are(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    with caplog.at_level(logging.WARNING):
        assert answered(kafka, seed, 5_000) > 1_500
    assert [each.getMessage() for each in caplog.records if each.levelno > logging.WARNING] == []


def test_two_billion_partitions_are_refused_before_one_is_made(kafka: EmbeddedKafka) -> None:
    """Apache Kafka 4.3.1 ends when CreatePartitions requests them."""
    topic = kafka.create_topic("orders")
    with RawClient(kafka.bootstrap) as client:
        told = {"name": topic, "count": 2**31 - 1, "assignments": None}
        (grown,) = client.ask("CreatePartitions", 3, topics=[told])["results"]
        wanted = {"name": "more", "num_partitions": 2**31 - 1, "replication_factor": -1}
        (made,) = client.ask("CreateTopics", 7, topics=[wanted])["topics"]
    assert (grown["error_code"], made["error_code"]) == (-1, 44)


def test_half_requests_and_noise_hold_up_no_other_client(kafka: EmbeddedKafka) -> None:
    chance = Random(1)
    whole = len(hostile_frame(18, 0)).to_bytes(4, "big") + hostile_frame(18, 0)
    with ExitStack() as strangers:
        for number in range(500):
            stranger = strangers.enter_context(socket.socket())
            stranger.connect(("127.0.0.1", kafka.cluster.nodes[1].port))
            if number % 3:
                stranger.sendall(whole[: number % len(whole)])
            elif number % 2:
                stranger.sendall((100_000_000).to_bytes(4, "big") + chance.randbytes(100))
            if number % 5 == 0:
                stranger.close()
        assert is_served(kafka)
        for _ in range(20):
            with RawClient(kafka.bootstrap) as noisy:
                noisy.send_frame(chance.randbytes(chance.randrange(200)))
                noisy.settle()
        assert is_served(kafka)


def test_more_connections_than_files_may_be_open_are_refused(
    kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the broker could open none of its own files, and would stop."""
    with RawClient(kafka.bootstrap) as client, ExitStack() as strangers:
        client.ask("ApiVersions", 0)
        lowest_free = os.dup(0)
        os.close(lowest_free)
        allowed = lowest_free + 50
        monkeypatch.setattr(resource, "getrlimit", lambda _: (allowed, allowed))
        monkeypatch.setattr(descriptors, "RESERVED", 10)
        for _ in range(60):
            stranger = strangers.enter_context(
                socket.create_connection(("127.0.0.1", kafka.cluster.nodes[1].port))
            )
            stranger.settimeout(DEADLINE_S)
        with contextlib.suppress(ConnectionError):
            assert stranger.recv(1) == b"", "the last one is closed"
        assert client.ask("ApiVersions", 0)["error_code"] == 0
        assert len(kafka._server._connections[1]) < 50
    assert is_served(kafka)


def test_no_more_is_read_from_a_client_that_never_reads(kafka: EmbeddedKafka) -> None:
    """Its answers fill the sockets, then its requests do: the broker keeps neither."""
    asked_for = [{"name": "x" * 30_000}] * 30
    with RawClient(kafka.bootstrap) as client:
        client.ask("ApiVersions", 0)
        (held,) = kafka._server._connections[1]
        client.give_up_after(0.5)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 300:
                client.send("Metadata", 12, topics=asked_for)
                sent += 1
        assert sent < 300, "it is read from, whatever it reads"
        assert held._frames_bytes <= connection.LIMIT_WAITING_BYTES + (1 << 20)
        assert held._transport is not None
        assert held._transport.get_write_buffer_size() < 2_000_000
        assert is_served(kafka)
