"""The arguments of aiokafka's clients, from the settings that every other client has too."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.agents.cluster import _compression
from holdfast.config import Settings
from holdfast.errors import ConfigError
from holdfast.kafka.requests.connections import connector


def test_a_client_has_the_settings_servers_name_and_credentials() -> None:
    kafka = {
        "bootstrap.servers": "one:9092,two:9093",
        "client.id": "me",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "who",
        "sasl.password": "secret",
    }

    async def run() -> None:
        connect = connector(Settings(app="a", kafka=kafka), timeout_s=7)
        client = connect()
        assert client is not connect(), "one for each who asks"
        assert {(host, port) for host, port, _ in client.hosts} == {("one", 9092), ("two", 9093)}
        assert (client._client_id, client._request_timeout_ms, client._security_protocol) == (
            "me",
            7_000,
            "SASL_PLAINTEXT",
        )
        assert (client._sasl_mechanism, client._sasl_plain_username, client._sasl_plain_password) == (
            "SCRAM-SHA-512",
            "who",
            "secret",
        )

    asyncio.run(run())


@pytest.mark.parametrize(
    ("name", "number"),
    [(None, 0), ("none", 0), ("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4), ("LZ4", 3)],
)
def test_compression_is_kafkas_own_property(name: str | None, number: int) -> None:
    kafka = {"bootstrap.servers": "one:9092"} | ({} if name is None else {"compression.type": name})
    assert _compression(Settings(app="a", kafka=kafka)) == number


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"compression\.type is 'lz5': write one of none, gzip, snappy, lz4, zstd"
    ):
        _compression(Settings(app="a", kafka={"bootstrap.servers": "one:9092", "compression.type": "lz5"}))
