"""The Kafka properties of the settings, as the Java client inside Spark's connector wants them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.config import Settings
from holdfast.config.security import Sasl
from holdfast.errors import ConfigError

_SAME = (
    "bootstrap.servers",
    "client.rack",
    "client.dns.lookup",
    "security.protocol",
    "connections.max.idle.ms",
    "metadata.max.age.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "retry.backoff.ms",
    "retry.backoff.max.ms",
    "fetch.min.bytes",
    "fetch.max.bytes",
    "max.partition.fetch.bytes",
    "check.crcs",
)
_RENAMED = {
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.connection.setup.timeout.ms": "socket.connection.setup.timeout.ms",
}
_OAUTH = "org.apache.kafka.common.security.oauthbearer"


def java_properties(settings: Settings) -> dict[str, str]:
    """Return the consumer properties of the Java client that mean what librdkafka's mean here; certificates
    are given as text.

    A property that the Java client does not know is a ConfigError; one that only tunes librdkafka is left
    out.
    """
    kafka = settings.kafka
    properties = {name: kafka[name] for name in _SAME if name in kafka}
    properties |= {java: kafka[name] for name, java in _RENAMED.items() if name in kafka}
    properties["request.timeout.ms"] = str(int(settings.request_timeout_s * 1000))
    properties["default.api.timeout.ms"] = str(int(settings.request_timeout_s * 2000))
    if kafka.get("security.protocol", "PLAINTEXT").endswith("SSL"):
        properties |= _tls(kafka)
    sasl = settings.sasl()
    if sasl is not None:
        properties |= _sasl(sasl, kafka)
    return properties


def _tls(kafka: Mapping[str, str]) -> dict[str, str]:
    if kafka.get("enable.ssl.certificate.verification", "true") == "false":
        raise ConfigError(
            "enable.ssl.certificate.verification=false has no equivalent in Spark's connector: name the"
            " authority with ssl.ca.location, or use --engine local"
        )
    out = (
        {"ssl.endpoint.identification.algorithm": ""}
        if kafka.get("ssl.endpoint.identification.algorithm") == "none"
        else {}
    )
    authorities = _pem(kafka, "ssl.ca")
    if authorities:
        out |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authorities}
    certificate, key = _pem(kafka, "ssl.certificate"), _pem(kafka, "ssl.key")
    if certificate and key:
        out |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": certificate,
            "ssl.keystore.key": key,
        }
        if "ssl.key.password" in kafka:
            out["ssl.key.password"] = kafka["ssl.key.password"]
    return out


def _pem(kafka: Mapping[str, str], name: str) -> str | None:
    """Return a PEM given as text or by its file; text reaches executors, a file of this machine would not."""
    location = kafka.get(f"{name}.location")
    if not location or location == "probe":
        return kafka.get(f"{name}.pem")
    try:
        return Path(location).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Kafka property {name}.location: cannot read {location}: {error}") from error


def _sasl(sasl: Sasl, kafka: Mapping[str, str]) -> dict[str, str]:
    out = {"sasl.mechanism": sasl.mechanism}
    match sasl.mechanism:
        case "PLAIN":
            out["sasl.jaas.config"] = _jaas(
                "org.apache.kafka.common.security.plain.PlainLoginModule",
                username=sasl.username,
                password=sasl.password,
            )
        case "SCRAM-SHA-256" | "SCRAM-SHA-512":
            out["sasl.jaas.config"] = _jaas(
                "org.apache.kafka.common.security.scram.ScramLoginModule",
                username=sasl.username,
                password=sasl.password,
            )
        case "GSSAPI":
            out["sasl.kerberos.service.name"] = sasl.kerberos_service_name
            keytab, principal = kafka.get("sasl.kerberos.keytab"), kafka.get("sasl.kerberos.principal")
            how = (
                {"useKeyTab": "true", "storeKey": "true", "keyTab": keytab}
                if keytab
                else {"useTicketCache": "true"}
            )
            out["sasl.jaas.config"] = _jaas(
                "com.sun.security.auth.module.Krb5LoginModule", **how, principal=principal
            )
        case _:
            assert sasl.oidc is not None, sasl.mechanism
            extensions = {f"extension_{name}": value for name, value in sasl.oidc.extensions}
            out["sasl.jaas.config"] = _jaas(
                f"{_OAUTH}.OAuthBearerLoginModule",
                clientId=sasl.oidc.client_id,
                clientSecret=sasl.oidc.client_secret,
                scope=sasl.oidc.scope,
                **extensions,
            )
            out["sasl.oauthbearer.token.endpoint.url"] = sasl.oidc.token_endpoint_url
            out["sasl.login.callback.handler.class"] = f"{_OAUTH}.secured.OAuthBearerLoginCallbackHandler"
    return out


def _jaas(module: str, **options: str | None) -> str:
    r"""Return one line of JAAS; values are quoted, so that a password may hold anything.

    >>> _jaas("M", username="ada", password='a"b\\c', scope=None)
    'M required username="ada" password="a\\"b\\\\c";'
    """
    quoted = " ".join(
        f'{name}="{value.translate({34: chr(92) + chr(34), 92: chr(92) * 2})}"'
        for name, value in options.items()
        if value is not None
    )
    return f"{module} required {quoted};"
