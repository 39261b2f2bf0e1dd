"""aiokafka's client with the credentials of the settings, for what holdfast says to brokers in words of
its own.
"""

from __future__ import annotations

from collections.abc import Callable
from ssl import SSLCertVerificationError
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)

from holdfast.config import Settings
from holdfast.kafka.requests.oidc import OidcTokens


def connector(settings: Settings, *, timeout_s: float) -> Callable[[], AIOKafkaClient]:
    """Return a function that makes unconnected clients, whose requests each wait up to *timeout_s*; reads the
    PEM files once.
    """
    how = _connections(settings, timeout_s)
    return lambda: AIOKafkaClient(bootstrap_servers=settings.bootstrap_servers.split(","), **how)


async def log_in_refused(settings: Settings, *, timeout_s: float) -> str | None:
    """Return why a broker refuses this client's authentication; None if no broker does.

    aiokafka's `bootstrap` reports only that it cannot connect.
    """
    how = _connections(settings, timeout_s)
    for host, port, _ in collect_hosts(settings.bootstrap_servers.split(",")):
        try:
            connection = await create_conn(host, port, **how)
        except (AuthenticationFailedError, SaslAuthenticationFailed, UnsupportedSaslMechanismError) as error:
            return str(error)
        except SSLCertVerificationError as error:
            return str(error)
        except (KafkaError, OSError, TimeoutError):
            continue
        connection.close()
    return None


def _connections(settings: Settings, timeout_s: float) -> dict[str, Any]:
    """Return how aiokafka is to connect."""
    sasl, more = settings.sasl(), dict[str, Any]()
    if sasl is not None:
        more = {
            "sasl_mechanism": sasl.mechanism,
            "sasl_plain_username": sasl.username,
            "sasl_plain_password": sasl.password,
        }
        more["sasl_kerberos_service_name"] = sasl.kerberos_service_name
        if sasl.oidc is not None:
            more["sasl_oauth_token_provider"] = OidcTokens(
                sasl.oidc, context=settings.token_ssl_context(), timeout_s=settings.request_timeout_s
            )
    return {
        "client_id": settings.kafka.get("client.id", settings.app),
        "request_timeout_ms": int(timeout_s * 1000),
        "security_protocol": settings.kafka.get("security.protocol", "PLAINTEXT"),
        "ssl_context": settings.ssl_context(),
        **more,
    }
