"""Bearer tokens for brokers from an OpenID Connect endpoint."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from aiokafka.abc import AbstractTokenProvider

from holdfast.clock import Clock, system_clock
from holdfast.config import Oidc
from holdfast.errors import BrokerError

if TYPE_CHECKING:
    from ssl import SSLContext

REUSED_SHARE = 0.8
"""Share of a token's lifetime after which the next connection asks for a new one; librdkafka's choice too."""

LIMIT_ANSWER_BYTES = 1 << 20


class OidcTokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka is untyped
    """Bearer tokens from an OpenID Connect endpoint (client credentials), each used by all connections
    until it grows old.
    """

    def __init__(
        self, oidc: Oidc, *, context: SSLContext, timeout_s: float, clock: Clock = system_clock
    ) -> None:
        self._oidc = oidc
        self._context = context
        self._timeout_s = timeout_s
        self._clock = clock
        self._asking = asyncio.Lock()
        self._token = ""
        self._refresh_at_s = float("-inf")

    async def token(self) -> str:
        """Return a token that is not old, asking the endpoint at most once at a time; BrokerError when it
        does not give one.
        """
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
        import aiohttp  # half of what a command without tokens would need to start

        form = {"grant_type": "client_credentials"} | (
            {"scope": self._oidc.scope} if self._oidc.scope else {}
        )
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
                f"no token from {url} within {self._timeout_s:g} s: {str(error) or type(error).__name__};"
                " check sasl.oauthbearer.token.endpoint.url"
            ) from error
        if status != 200:
            raise BrokerError(
                f"no token: {url} answered {status}; check sasl.oauthbearer.client.id, client.secret and"
                " scope"
            )
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
