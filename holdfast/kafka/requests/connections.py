"""aiokafka's client with the credentials of the settings, for what holdfast says to brokers in words of
its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiokafka.client import AIOKafkaClient

from holdfast.config import Settings
from holdfast.kafka.requests.oidc import OidcTokens


def connector(settings: Settings, *, timeout_s: float) -> Callable[[], AIOKafkaClient]:
    """Return what makes clients that are not yet connected, each of whose requests waits up to
    *timeout_s*; reads the PEM files once.
    """
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
    context = settings.ssl_context()

    def connect() -> AIOKafkaClient:
        return AIOKafkaClient(
            bootstrap_servers=settings.bootstrap_servers.split(","),
            client_id=settings.kafka.get("client.id", settings.app),
            request_timeout_ms=int(timeout_s * 1000),
            security_protocol=settings.kafka.get("security.protocol", "PLAINTEXT"),
            ssl_context=context,
            **more,
        )

    return connect
