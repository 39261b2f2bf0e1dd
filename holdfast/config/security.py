"""The security part of the Kafka properties in forms that clients other than librdkafka understand."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from ssl import SSLContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Oidc:
    """The endpoint and identity for requests of a bearer token (OAuth 2.0 client credentials)."""

    token_endpoint_url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    extensions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sasl:
    """The credentials of a client: *mechanism* says which of the other fields are set."""

    mechanism: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    kerberos_service_name: str = "kafka"
    oidc: Oidc | None = None


def protocol_of(properties: Mapping[str, str]) -> str:
    """Return the security protocol, PLAINTEXT unless set."""
    return properties.get("security.protocol", "PLAINTEXT")


def check_security(properties: Mapping[str, str]) -> None:
    """Refuse credentials that would not be used and protocols that lack theirs."""
    protocol = protocol_of(properties)
    for prefix, marker, remedy in (
        ("sasl.", "SASL", "SASL_SSL (or SASL_PLAINTEXT)"),
        ("ssl.", "SSL", "SSL (or SASL_SSL)"),
    ):
        unused = next((name for name in properties if name.startswith(prefix)), None)
        if unused and (
            not protocol.startswith(marker) if marker == "SASL" else not protocol.endswith(marker)
        ):
            raise ConfigError(
                f"Kafka property {unused} is set but security.protocol is {protocol}: set"
                f" security.protocol={remedy} or remove it"
            )
    if not protocol.startswith("SASL"):
        return
    mechanism = properties.get("sasl.mechanism")
    if mechanism is None:
        raise ConfigError(
            f"security.protocol is {protocol} but sasl.mechanism is missing: name PLAIN, SCRAM-SHA-256,"
            " SCRAM-SHA-512, GSSAPI or OAUTHBEARER"
        )
    for name in _required_by(mechanism):
        if not properties.get(name):
            raise ConfigError(f"sasl.mechanism {mechanism} needs the Kafka property {name}")


def _required_by(mechanism: str) -> tuple[str, ...]:
    match mechanism:
        case "PLAIN" | "SCRAM-SHA-256" | "SCRAM-SHA-512":
            return ("sasl.username", "sasl.password")
        case "OAUTHBEARER":
            names = ("method", "token.endpoint.url", "client.id", "client.secret")
            return tuple(f"sasl.oauthbearer.{name}" for name in names)
        case _:
            return ()


def sasl_of(properties: Mapping[str, str]) -> Sasl | None:
    """Return how to authenticate, None without SASL."""
    if not protocol_of(properties).startswith("SASL"):
        return None
    mechanism = properties["sasl.mechanism"]
    oidc = None
    if mechanism == "OAUTHBEARER":
        oidc = Oidc(
            token_endpoint_url=properties["sasl.oauthbearer.token.endpoint.url"],
            client_id=properties["sasl.oauthbearer.client.id"],
            client_secret=properties["sasl.oauthbearer.client.secret"],
            scope=properties.get("sasl.oauthbearer.scope"),
            extensions=_pairs(properties.get("sasl.oauthbearer.extensions", "")),
        )
    return Sasl(
        mechanism=mechanism,
        username=properties.get("sasl.username"),
        password=properties.get("sasl.password"),
        kerberos_service_name=properties.get("sasl.kerberos.service.name", "kafka"),
        oidc=oidc,
    )


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Read "a=1,b=2".

    >>> _pairs("traceId=7, cluster=lkc-1")
    (('traceId', '7'), ('cluster', 'lkc-1'))
    """
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not sign for _, sign, _ in pairs):
        raise ConfigError(
            f"sasl.oauthbearer.extensions is {text!r}; write name=value pairs separated by commas"
        )
    return tuple((name.strip(), value.strip()) for name, _, value in pairs)


def ssl_context_of(properties: Mapping[str, str]) -> SSLContext | None:
    """Return a TLS context that trusts, presents and checks what librdkafka would, None without TLS.

    Files are read now: a missing or damaged one is a ConfigError that names the property.
    """
    if not protocol_of(properties).endswith("SSL"):
        return None
    context = trust(properties, location="ssl.ca.location", pem="ssl.ca.pem")
    _check_peer(context, properties)
    certificate = properties.get("ssl.certificate.location") or properties.get("ssl.certificate.pem")
    key = properties.get("ssl.key.location") or properties.get("ssl.key.pem")
    if certificate and key:
        _present(context, properties)
    elif certificate or key:
        missing = "ssl.key.location" if certificate else "ssl.certificate.location"
        raise ConfigError(f"a client certificate needs both its parts: Kafka property {missing} is missing")
    return context


def trust(properties: Mapping[str, str], *, location: str, pem: str) -> SSLContext:
    """Return a client context that trusts the authorities named by the properties *location* or *pem*,
    else the system's.
    """
    import ssl

    place = properties.get(location)
    if place == "probe":
        place = None
    text = properties.get(pem)
    with _explained(location if place else pem, place or "the given text"):
        if place and not os.path.exists(place):
            raise FileNotFoundError("no such file or directory")
        directory = place if place and os.path.isdir(place) else None
        return ssl.create_default_context(cafile=None if directory else place, capath=directory, cadata=text)


def _check_peer(context: SSLContext, properties: Mapping[str, str]) -> None:
    import ssl

    if properties.get("ssl.endpoint.identification.algorithm", "https") == "none":
        context.check_hostname = False
    if properties.get("enable.ssl.certificate.verification", "true") == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if crl := properties.get("ssl.crl.location"):
        with _explained("ssl.crl.location", crl):
            context.load_verify_locations(cafile=crl)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    if ciphers := properties.get("ssl.cipher.suites"):
        with _explained("ssl.cipher.suites", ciphers):
            context.set_ciphers(ciphers)


def _present(context: SSLContext, properties: Mapping[str, str]) -> None:
    password = properties.get("ssl.key.password")
    with (
        _as_file(properties, "ssl.certificate") as certificate,
        _as_file(properties, "ssl.key") as key,
        _explained("ssl.certificate.location and ssl.key.location", f"{certificate}, {key}"),
    ):
        # A callable even without a password: OpenSSL would otherwise stop a worker to ask for one on the
        # terminal.
        context.load_cert_chain(certificate, key, lambda: password or "")


@contextmanager
def _as_file(properties: Mapping[str, str], name: str) -> Iterator[str]:
    """Give the path of a PEM; one that was given as text is written to a private file while it is read."""
    location = properties.get(f"{name}.location")
    if location:
        yield location
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # created with mode 0600
        file.write(properties[f"{name}.pem"])
        file.flush()
        yield file.name


@contextmanager
def _explained(name: str, place: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(f"Kafka property {name}: cannot use {place}: {error}") from error
