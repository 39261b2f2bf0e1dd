"""One set of Kafka properties, every client: librdkafka's and Faust's own connect by SASL/SCRAM over TLS,
or neither does.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import faust
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, Producer
from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth

from holdfast.agents.faust.transport.credentials import broker_credentials
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.types import CreateTopic, TopicRole, TopicSpec
from holdfast.config import Settings
from holdfast.errors import BrokerError
from tests.support.patience import DEADLINE_S
from tests.support.places import TLS
from tests.support.secured import Guarded


@pytest.fixture
def secured(guarded_broker: Guarded) -> dict[str, str]:
    """Give the Kafka properties for a broker that asks for SCRAM-SHA-512 over TLS."""
    properties = guarded_broker.root()
    assert (properties["security.protocol"], properties["sasl.mechanism"]) == ("SASL_SSL", "SCRAM-SHA-512")
    return properties


@pytest.fixture
def topic(secured: dict[str, str]) -> str:
    """Give the name of a new topic with one partition."""
    name = f"secured-{uuid.uuid4().hex[:8]}"
    spec = TopicSpec(name=name, partitions=1, config={}, replication_factor=1, role=TopicRole.SOURCE)
    Admin(Settings(kafka=secured), timeout_s=DEADLINE_S).apply([CreateTopic(spec=spec, partitions=1)])
    return name


def produce(settings: Settings, topic: str, *values: bytes) -> None:
    producer = Producer(settings.producer())
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(DEADLINE_S) == 0


def test_confluent_clients_write_and_read(secured: dict[str, str], topic: str) -> None:
    settings = Settings(kafka=secured)
    produce(settings, topic, b"one")
    consumer = Consumer(settings.consumer(**{"group.id": topic, "auto.offset.reset": "earliest"}))
    try:
        consumer.subscribe([topic])
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        assert (message.error(), message.value()) == (None, b"one")
    finally:
        consumer.close()


def test_fausts_own_consumer_and_producer_use_the_same_settings(
    secured: dict[str, str], topic: str, tmp_path: Path
) -> None:
    settings = Settings(kafka=secured)
    produce(settings, topic, b"from librdkafka")
    seen: list[bytes] = []

    async def run() -> None:
        app = faust.App(
            f"faust-{topic}",
            datadir=tmp_path,
            broker=f"kafka://{settings.bootstrap_servers}",
            broker_credentials=broker_credentials(settings),
            web_enabled=False,
            topic_disable_leader=True,
            consumer_auto_offset_reset="earliest",
            loop=asyncio.get_running_loop(),
        )
        channel = app.topic(topic, value_serializer="raw")
        both = asyncio.Event()

        @app.agent(channel)
        async def collect(stream: Any) -> None:
            async for value in stream:
                seen.append(value)
                if len(seen) == 1:
                    await channel.send(value=b"from Faust")
                else:
                    both.set()

        await app.start()
        try:
            await asyncio.wait_for(both.wait(), DEADLINE_S)
        finally:
            await asyncio.wait_for(app.stop(), DEADLINE_S)

    asyncio.run(run())
    assert seen == [b"from librdkafka", b"from Faust"]


def with_aiokafka(settings: Settings, timeout_s: float = 5) -> None:
    """Connect as Faust's driver does, and only that."""

    async def run() -> None:
        auth = credentials_to_aiokafka_auth(broker_credentials(settings))
        producer = AIOKafkaProducer(
            bootstrap_servers=settings.bootstrap_servers, request_timeout_ms=int(timeout_s * 1000), **auth
        )
        try:
            await producer.start()
        finally:
            await producer.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sasl.password": "wrong"}, "cannot log in"),
        # The embedded Kafka takes passwords in plain text too.
        pytest.param({"sasl.mechanism": "PLAIN"}, "cannot log in", marks=pytest.mark.kafka),
        ({"ssl.ca.location": str(TLS / "stranger.pem")}, "certificate verify failed"),
        ({"security.protocol": "SASL_PLAINTEXT", "ssl.ca.location": ""}, "no Kafka broker"),
    ],
    ids=["wrong password", "wrong mechanism", "unknown authority", "no TLS"],
)
def test_what_one_client_refuses_the_other_refuses_too(
    secured: dict[str, str], change: dict[str, str], reason: str
) -> None:
    settings = Settings(kafka={name: value for name, value in (secured | change).items() if value})
    # A refusal is reported at once, however slow that is; only a client without an answer waits.
    timeout_s = 5 if reason == "no Kafka broker" else DEADLINE_S
    with pytest.raises(BrokerError) as refused:
        Admin(settings, timeout_s=timeout_s).cluster()
    assert reason in str(refused.value)
    assert secured["sasl.password"] not in str(refused.value)
    with pytest.raises(AioKafkaError):
        with_aiokafka(settings)


def test_the_refusals_are_not_for_another_reason(secured: dict[str, str]) -> None:
    assert Admin(Settings(kafka=secured), timeout_s=DEADLINE_S).cluster().brokers == (1,)
    with_aiokafka(Settings(kafka=secured), DEADLINE_S)


def test_the_command_line_connects_with_the_password_from_a_file(
    secured: dict[str, str], topic: str, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text(secured["sasl.password"] + "\n")
    variables = {
        f"HOLDFAST_KAFKA__{name.upper().replace('.', '_')}": value
        for name, value in secured.items()
        if name != "sasl.password"
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "holdfast.cli", "topics", "list", "--all"],
        env=os.environ | variables | {"HOLDFAST_KAFKA__SASL_PASSWORD_FILE": str(tmp_path / "password")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert topic in done.stdout
