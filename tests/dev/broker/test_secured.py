"""SASL/SCRAM over TLS on a real node: the right password reads and writes, everything else is refused."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from holdfast.dev.broker.cluster import Cluster, Credentials
from holdfast.errors import DevBrokerError
from tests.support.parts import part
from tests.support.patience import DEADLINE_S

PASSWORD = "s3cret._~+/@%!?:;*#&|(){}<>^$-"


@pytest.fixture(scope="module")
@part("kafka")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(
        tmp_path_factory.mktemp("secured"),
        sasl=Credentials(username="alice", password=PASSWORD),
        short_lived=True,
    ) as cluster:
        yield cluster


def first_refusal(config: dict[str, str], **other: str) -> KafkaError:
    """Return the first error a client with these settings reports; it must not get any metadata."""
    errors: list[KafkaError] = []
    settings: dict[str, Any] = {**config, **other, "log_level": 0, "error_cb": errors.append}
    client = AdminClient({name: value for name, value in settings.items() if value != ""})
    until_s = time.monotonic() + DEADLINE_S
    while not errors:
        assert time.monotonic() < until_s
        with pytest.raises(KafkaException):
            client.list_topics(timeout=0.5)
        client.poll(0.1)
    return errors[0]


def test_the_right_password_writes_and_reads(secured: Cluster) -> None:
    config = secured.client_config()
    assert (config["security.protocol"], config["sasl.mechanism"], config["sasl.username"]) == (
        "SASL_SSL",
        "SCRAM-SHA-512",
        "alice",
    )
    client = AdminClient(dict(config))
    client.create_topics([NewTopic("orders", 1)])["orders"].result(DEADLINE_S)
    producer = Producer(dict(config))
    producer.produce("orders", b"one")
    assert producer.flush(DEADLINE_S) == 0
    consumer = Consumer({**config, "group.id": "shop", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["orders"])
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        assert (message.error(), message.value()) == (None, b"one")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


@pytest.mark.parametrize("other", [{"sasl.password": PASSWORD[:-1]}, {"sasl.username": "mallory"}])
def test_a_wrong_password_or_user_is_refused(other: dict[str, str], secured: Cluster) -> None:
    assert first_refusal(secured.client_config(), **other).code() == KafkaError._AUTHENTICATION


def test_a_client_without_tls_is_refused(secured: Cluster) -> None:
    without = dict.fromkeys(
        ["security.protocol", "ssl.ca.location", "sasl.mechanism", "sasl.username", "sasl.password"], ""
    )
    assert first_refusal(secured.client_config(), **without).code() in (
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
    )


def test_a_client_that_trusts_others_refuses_the_broker(secured: Cluster) -> None:
    others = ssl.get_default_verify_paths().cafile
    error = first_refusal(secured.client_config(), **{"ssl.ca.location": others or ""})
    # A broker that answers before the client first looks is refused by its connect, which calls everything
    # transport trouble.
    assert error.code() in (KafkaError._SSL, KafkaError._TRANSPORT)
    assert "certificate verify failed" in error.str()


def test_the_certificate_holds_for_pythons_own_tls_and_for_this_machine_only(secured: Cluster) -> None:
    context = ssl.create_default_context(cafile=secured.client_config()["ssl.ca.location"])
    host, _, port = secured.bootstrap.rpartition(":")
    for name in (host, "localhost"):
        with (
            socket.create_connection((host, int(port)), DEADLINE_S) as plain,
            context.wrap_socket(plain, server_hostname=name) as secure,
        ):
            assert secure.version() == "TLSv1.3"
    with (
        socket.create_connection((host, int(port)), DEADLINE_S) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
        context.wrap_socket(plain, server_hostname="example.com"),
    ):
        pass


def test_the_controller_asks_for_the_nodes_certificate(secured: Cluster) -> None:
    settings = dict(
        line.split("=", 1)
        for line in (secured.folder / "node-1" / "server.properties").read_text().splitlines()
    )
    (controller,) = [each for each in settings["listeners"].split(",") if each.startswith("CONTROLLER")]
    context = ssl.create_default_context(cafile=str(secured.folder / "ca.pem"))
    port = int(controller.rpartition(":")[2])
    with (
        socket.create_connection(("127.0.0.1", port), DEADLINE_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        pytest.raises(ssl.SSLError, match=r"(?i)alert.*certificate|certificate.*required"),
    ):
        secure.recv(1)  # in TLS 1.3 the refusal arrives with the first read


def test_what_holds_a_password_is_readable_by_its_user_alone(secured: Cluster) -> None:
    holding = []
    for folder, _, names in os.walk(secured.folder):
        for path in (Path(folder) / name for name in names):
            content = path.read_bytes()
            if path.suffix != ".log" and (PASSWORD.encode() in content or path.name == "broker.p12"):
                holding.append(path.name)
                assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert {*holding} >= {"cluster.json", "client.properties", "server.properties", "broker.p12"}


def test_the_folder_keeps_its_credentials(secured: Cluster) -> None:
    assert Cluster.attach(secured.folder).client_config() == secured.client_config()
    with pytest.raises(DevBrokerError, match="run already"):
        Cluster(secured.folder, sasl=True).start()
