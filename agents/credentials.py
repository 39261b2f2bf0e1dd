"""The Kafka credentials of the settings in Faust's form, so that its own consumer and admin client connect as ours do."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from typing import TYPE_CHECKING

import aiohttp
from aiokafka.abc import AbstractTokenProvider
from faust.auth import GSSAPICredentials, OAuthCredentials, SASLCredentials, SSLCredentials

from holdfast.clock import Clock, system_clock
from holdfast.config import Oidc, Settings
from holdfast.errors import BrokerError, ConfigError

if TYPE_CHECKING:
    from ssl import SSLContext

    from faust.types.auth import CredentialsT

REUSED_SHARE = 0.8
"""Share of a token's lifetime after which the next connection asks for a new one; librdkafka's choice too."""

LIMIT_ANSWER_BYTES = 1 << 20


def broker_credentials(settings: Settings) -> CredentialsT | None:
    """Return what Faust's `broker_credentials` setting takes, None for plaintext; reads the PEM files."""
    context = settings.ssl_context()
    sasl = settings.sasl()
    if sasl is None:
        return SSLCredentials(context) if context is not None else None
    if sasl.oidc is not None:
        return OAuthCredentials(
            oauth_cb=OidcTokens(sasl.oidc, context=settings.token_ssl_context(), timeout_s=settings.request_timeout_s), ssl_context=context
        )
    if sasl.mechanism == "GSSAPI":
        if importlib.util.find_spec("gssapi") is None:
            raise ConfigError(
                "sasl.mechanism is GSSAPI, for which Faust's client needs a package that is not installed: `pip install gssapi`"
            )
        return GSSAPICredentials(kerberos_service_name=sasl.kerberos_service_name, ssl_context=context, mechanism=sasl.mechanism)
    return SASLCredentials(username=sasl.username, password=sasl.password, mechanism=sasl.mechanism, ssl_context=context)


class OidcTokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka is untyped
    """Bearer tokens from an OpenID Connect endpoint (client credentials), each used by all connections until it grows old."""

    def __init__(self, oidc: Oidc, *, context: SSLContext, timeout_s: float, clock: Clock = system_clock) -> None:
        self._oidc = oidc
        self._context = context
        self._timeout_s = timeout_s
        self._clock = clock
        self._asking = asyncio.Lock()
        self._token = ""
        self._refresh_at_s = float("-inf")

    async def token(self) -> str:
        """Return a token that is not old, asking the endpoint at most once at a time; BrokerError when it does not give one."""
        async with self._asking:
            asked_at_s = self._clock.monotonic_s()
            if asked_at_s >= self._refresh_at_s:
                self._token, lifetime_s = await self._ask()
                self._refresh_at_s = asked_at_s + lifetime_s * REUSED_SHARE
            return self._token

    def extensions(self) -> dict[str, str]:
        """Return the SASL extensions that go with each token."""
        return dict(self._oidc.extensions)

    async def _ask(self) -> tuple[str, float]:
        form = {"grant_type": "client_credentials"} | ({"scope": self._oidc.scope} if self._oidc.scope else {})
        url = self._oidc.token_endpoint_url
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._timeout_s)) as session,
                session.post(
                    url,
                    data=form,
                    auth=aiohttp.BasicAuth(self._oidc.client_id, self._oidc.client_secret),
                    ssl=self._context,
                    allow_redirects=False,
                ) as answer,
            ):
                body = bytearray()
                async for chunk in answer.content.iter_chunked(1 << 16):
                    body += chunk
                    if len(body) > LIMIT_ANSWER_BYTES:
                        raise BrokerError(f"no token: {url} answered more than {LIMIT_ANSWER_BYTES} bytes")
                status = answer.status
        except (aiohttp.ClientError, TimeoutError) as error:
            raise BrokerError(
                f"no token from {url} within {self._timeout_s:g} s: {str(error) or type(error).__name__}; check sasl.oauthbearer.token.endpoint.url"
            ) from error
        if status != 200:
            raise BrokerError(f"no token: {url} answered {status}; check sasl.oauthbearer.client.id, client.secret and scope")
        return _read_token(body, url)


def _read_token(body: bytes | bytearray, url: str) -> tuple[str, float]:
    """Return token and lifetime in seconds; a token without `expires_in` is used once.

    >>> _read_token(b'{"access_token": "abc", "expires_in": 60}', "u")
    ('abc', 60.0)
    """
    try:
        answer = json.loads(body)
        return str(answer["access_token"]), float(answer.get("expires_in", 0))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BrokerError(f"no token: {url} did not answer with an access_token in JSON") from error
