"""The Kafka credentials of the settings in Faust's form, so that its own consumer and admin client connect
as ours do.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from faust.auth import GSSAPICredentials, OAuthCredentials, SASLCredentials, SSLCredentials

from holdfast.config import Settings
from holdfast.errors import ConfigError
from holdfast.kafka.requests.oidc import OidcTokens

if TYPE_CHECKING:
    from faust.types.auth import CredentialsT


def broker_credentials(settings: Settings) -> CredentialsT | None:
    """Return the value of Faust's `broker_credentials` setting, None for plaintext; reads the PEM files."""
    context = settings.ssl_context()
    sasl = settings.sasl()
    if sasl is None:
        return SSLCredentials(context) if context is not None else None
    if sasl.oidc is not None:
        return OAuthCredentials(
            oauth_cb=OidcTokens(
                sasl.oidc, context=settings.token_ssl_context(), timeout_s=settings.request_timeout_s
            ),
            ssl_context=context,
        )
    if sasl.mechanism == "GSSAPI":
        if importlib.util.find_spec("gssapi") is None:
            raise ConfigError(
                "sasl.mechanism is GSSAPI, for which Faust's client needs a package that is not installed:"
                " `pip install gssapi`"
            )
        return GSSAPICredentials(
            kerberos_service_name=sasl.kerberos_service_name, ssl_context=context, mechanism=sasl.mechanism
        )
    return SASLCredentials(
        username=sasl.username, password=sasl.password, mechanism=sasl.mechanism, ssl_context=context
    )
