"""The TLS context made of Kafka properties, against a TLS server on the loopback."""

from __future__ import annotations

import asyncio
import queue
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError as AioKafkaError

from holdfast.clients.topics.admin import Admin
from holdfast.config import Settings
from holdfast.errors import BrokerError, ConfigError
from tests.support.patience import DEADLINE_S
from tests.support.places import TLS


@contextmanager
def tls_server(
    certificate: str = "server", *, asks_for_certificate: bool = False, seen: queue.Queue[str] | None = None
) -> Iterator[int]:
    """Serve TLS on a free port; each connection that completes its handshake is answered with the client's
    common name or '-'.

    With *seen* it is not answered, and the name and the first bytes that the client sends go there.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / f"{certificate}.pem", TLS / f"{certificate}-key.pem")
    if asks_for_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(TLS / "ca.pem")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                raw, _ = listener.accept()
            except OSError:
                return  # the test closed the listener
            raw.settimeout(DEADLINE_S)
            try:
                with context.wrap_socket(raw, server_side=True) as connection:
                    names = re.findall(
                        r"'commonName', '([^']*)'", str((connection.getpeercert() or {}).get("subject"))
                    )
                    if seen is None:
                        connection.sendall((names[0] if names else "-").encode())
                    elif first := connection.recv(100):
                        seen.put(f"{names} {first!r}")
            except OSError:
                raw.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def greeting(port: int, **properties: str) -> str:
    context = Settings(
        kafka={"security.protocol": "SSL"}
        | {name.replace("_", "."): value for name, value in properties.items()}
    ).ssl_context()
    assert context is not None
    with (
        socket.create_connection(("127.0.0.1", port), DEADLINE_S) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as tls,
    ):
        return tls.recv(100).decode()


CA = str(TLS / "ca.pem")


def test_plaintext_has_no_context() -> None:
    assert Settings().ssl_context() is None
    assert (
        Settings(kafka={"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}).ssl_context()
        is None
    )


def test_the_named_authority_is_trusted_given_as_file_folder_or_text(tmp_path: Path) -> None:
    with tls_server() as port:
        assert greeting(port, ssl_ca_location=CA) == "-"
        assert greeting(port, ssl_ca_pem=(TLS / "ca.pem").read_text()) == "-"


def test_a_folder_of_authorities_is_read_by_their_hashes(tmp_path: Path) -> None:
    import subprocess

    hashed = subprocess.run(
        ["openssl", "x509", "-in", CA, "-noout", "-hash"],
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    (tmp_path / f"{hashed.stdout.strip()}.0").write_text((TLS / "ca.pem").read_text())
    with tls_server() as port:
        assert greeting(port, ssl_ca_location=str(tmp_path)) == "-"


def test_an_unknown_authority_is_refused() -> None:
    with tls_server() as port:
        for properties in ({"ssl_ca_location": str(TLS / "stranger.pem")}, {}, {"ssl_ca_location": "probe"}):
            with pytest.raises(ssl.SSLCertVerificationError):
                greeting(port, **properties)


def test_the_host_name_is_checked_by_default() -> None:
    with tls_server("misnamed") as port:
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            greeting(port, ssl_ca_location=CA)
        assert greeting(port, ssl_ca_location=CA, ssl_endpoint_identification_algorithm="none") == "-"


def test_a_wrong_authority_is_refused_even_without_host_name_check() -> None:
    with tls_server("misnamed") as port, pytest.raises(ssl.SSLCertVerificationError):
        greeting(
            port, ssl_ca_location=str(TLS / "stranger.pem"), ssl_endpoint_identification_algorithm="none"
        )


def test_verification_can_be_switched_off_altogether() -> None:
    with tls_server("misnamed") as port:
        assert greeting(port, enable_ssl_certificate_verification="false") == "-"


def test_a_revoked_certificate_is_refused() -> None:
    with tls_server() as port, pytest.raises(ssl.SSLCertVerificationError, match="revoked"):
        greeting(port, ssl_ca_location=CA, ssl_crl_location=str(TLS / "revoked.pem"))


@pytest.mark.parametrize(
    "identity",
    [
        {
            "ssl_certificate_location": str(TLS / "client.pem"),
            "ssl_key_location": str(TLS / "client-key.pem"),
        },
        {
            "ssl_certificate_location": str(TLS / "client.pem"),
            "ssl_key_location": str(TLS / "client-key-encrypted.pem"),
            "ssl_key_password": "open-sesame",
        },
        {
            "ssl_certificate_pem": (TLS / "client.pem").read_text(),
            "ssl_key_pem": (TLS / "client-key.pem").read_text(),
        },
    ],
    ids=["files", "encrypted key", "text"],
)
def test_the_client_presents_its_certificate(identity: dict[str, str]) -> None:
    with tls_server(asks_for_certificate=True) as port:
        assert greeting(port, ssl_ca_location=CA, **identity) == "holdfast-client"


@pytest.mark.long
@pytest.mark.parametrize("client", ["librdkafka", "aiokafka"])
def test_both_kafka_clients_present_the_same_certificate(client: str) -> None:
    seen: queue.Queue[str] = queue.Queue()
    with tls_server(asks_for_certificate=True, seen=seen) as port:
        settings = Settings(
            kafka={
                "bootstrap.servers": f"localhost:{port}",
                "security.protocol": "SSL",
                "ssl.ca.location": CA,
                "ssl.certificate.location": str(TLS / "client.pem"),
                "ssl.key.location": str(TLS / "client-key-encrypted.pem"),
                "ssl.key.password": "open-sesame",
                "broker.address.family": "v4",
            }
        )
        if client == "librdkafka":
            while seen.empty():  # a slow client may not get as far in a second
                with pytest.raises(BrokerError):
                    Admin(settings, timeout_s=1).cluster()
        else:
            asyncio.run(connect_with_aiokafka(settings))
        name = seen.get(timeout=DEADLINE_S)
    assert name.startswith("['holdfast-client']")
    assert r"\x00\x12" in name, "what follows the handshake is Kafka's ApiVersions request"


async def connect_with_aiokafka(settings: Settings) -> None:
    client = AIOKafkaClient(
        bootstrap_servers=settings.bootstrap_servers,
        security_protocol="SSL",
        ssl_context=settings.ssl_context(),
        request_timeout_ms=int(DEADLINE_S * 1000),
    )
    try:
        with pytest.raises(AioKafkaError):
            await client.bootstrap()
    finally:
        await client.close()


def test_a_server_that_asks_for_a_certificate_refuses_a_client_without() -> None:
    with tls_server(asks_for_certificate=True) as port, pytest.raises(ssl.SSLError):
        greeting(port, ssl_ca_location=CA)


@pytest.mark.parametrize(
    ("properties", "parts"),
    [
        ({"ssl.ca.location": "/nowhere/ca.pem"}, ["ssl.ca.location", "/nowhere/ca.pem", "no such file"]),
        ({"ssl.ca.location": __file__}, ["ssl.ca.location"]),
        ({"ssl.ca.pem": "not a certificate"}, ["ssl.ca.pem"]),
        ({"ssl.crl.location": "/nowhere"}, ["ssl.crl.location"]),
        ({"ssl.cipher.suites": "rot13"}, ["ssl.cipher.suites", "rot13"]),
        ({"ssl.certificate.location": CA}, ["ssl.key.location is missing"]),
        ({"ssl.key.location": CA}, ["ssl.certificate.location is missing"]),
        (
            {"ssl.certificate.location": CA, "ssl.key.location": str(TLS / "client-key.pem")},
            ["ssl.key.location", "MISMATCH"],
        ),
        (
            {
                "ssl.certificate.location": str(TLS / "client.pem"),
                "ssl.key.location": str(TLS / "client-key-encrypted.pem"),
            },
            ["ssl.key.location"],
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_a_configuration_error_that_names_the_property(
    properties: dict[str, str], parts: list[str]
) -> None:
    settings = Settings(kafka={"security.protocol": "SSL"} | properties)
    with pytest.raises(ConfigError) as refused:
        settings.ssl_context()
    for part in parts:
        assert part in str(refused.value)


def test_a_password_is_never_asked_for_on_the_terminal() -> None:
    settings = Settings(
        kafka={
            "security.protocol": "SSL",
            "ssl.certificate.location": str(TLS / "client.pem"),
            "ssl.key.location": str(TLS / "client-key-encrypted.pem"),
            "ssl.key.password": "wrong",
        }
    )
    with pytest.raises(ConfigError, match=r"ssl\.key\.location") as refused:
        settings.ssl_context()
    assert "wrong" not in str(refused.value)


def test_sasl_is_given_as_plain_data() -> None:
    base = {"security.protocol": "SASL_SSL", "sasl.username": "ada", "sasl.password": "x"}
    sasl = Settings(kafka=base | {"sasl.mechanism": "SCRAM-SHA-512"}).sasl()
    assert sasl is not None
    assert (sasl.mechanism, sasl.username, sasl.password) == ("SCRAM-SHA-512", "ada", "x")
    assert Settings().sasl() is None


def test_oidc_extensions_must_be_pairs() -> None:
    names = {
        "method": "oidc",
        "token.endpoint.url": "https://localhost/token",
        "client.id": "a",
        "client.secret": "b",
        "extensions": "x",
    }
    kafka = {f"sasl.oauthbearer.{name}": value for name, value in names.items()}
    settings = Settings(kafka=kafka | {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"})
    with pytest.raises(ConfigError, match="name=value"):
        settings.sasl()
