"""A small OpenID provider: discovery, keys, the authorization endpoint, and a token endpoint that checks
client, code, address and PKCE.

It signs in `person` without asking. A test may have it return untruths.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import time
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote_plus, urlencode

from aiohttp import web
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

Claims = dict[str, Any]


async def in_pieces(request: web.Request, told: dict[str, Any]) -> web.StreamResponse:
    """Answer as a real network brings an answer of some KiB: in pieces."""
    body, response = (
        json.dumps(told).encode(),
        web.StreamResponse(headers={"Content-Type": "application/json"}),
    )
    await response.prepare(request)
    for piece in (body[: len(body) // 2], body[len(body) // 2 :]):
        await response.write(piece)
        await asyncio.sleep(0.02)
    return response


class OpenIdTestProvider:
    """The provider at *issuer*, which knows one client and the address that it sends people back to."""

    def __init__(self, port: int, client: str, secret: str, redirect: str) -> None:
        self.issuer = f"http://localhost:{port}"
        self._port, self._client, self._secret, self._redirect = port, client, secret, redirect
        self.key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"}, private=True)
        self.person: Claims = {"sub": "1", "email": "ada@example.org", "email_verified": True}
        self.change: Callable[[Claims], Claims] = dict
        self.sign: Callable[[Claims], str] = self._sign
        self.refuses: str | None = None
        self.authorization = f"{self.issuer}/authorize"
        self.names_keys = True
        self._codes: dict[str, dict[str, str]] = {}
        self.asked: list[str] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[OpenIdTestProvider]:
        application = web.Application()
        application.add_routes(
            [
                web.get("/.well-known/openid-configuration", self._discovery),
                web.get("/keys", self._keys),
                web.get("/authorize", self._authorize),
                web.post("/token", self._token),
            ]
        )
        runner = web.AppRunner(application)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", self._port).start()
            yield self
        finally:
            await runner.cleanup()

    async def _discovery(self, request: web.Request) -> web.StreamResponse:
        self.asked.append("discovery")
        return await in_pieces(
            request,
            {
                "issuer": self.issuer,
                "authorization_endpoint": self.authorization,
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
                "response_types_supported": ["code"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
            },
        )

    async def _keys(self, request: web.Request) -> web.StreamResponse:
        self.asked.append("keys")
        key = self.key.as_dict(private=False)
        if not self.names_keys:
            del key["kid"]
        return await in_pieces(request, {"keys": [key]})

    async def _authorize(self, request: web.Request) -> web.Response:
        asked = dict(request.query)
        assert (asked["client_id"], asked["redirect_uri"]) == (self._client, self._redirect)
        assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
        assert "openid" in asked["scope"].split()
        if self.refuses is not None:
            back = {"error": "access_denied", "error_description": self.refuses, "state": asked["state"]}
        else:
            code = secrets.token_urlsafe(16)
            self._codes[code] = asked
            back = {"code": code, "state": asked["state"]}
        raise web.HTTPFound(f"{self._redirect}?{urlencode(back)}")

    async def _token(self, request: web.Request) -> web.Response:
        form, asked = await request.post(), None
        kind, _, sent = request.headers.get("Authorization", "").partition(" ")
        client = base64.b64decode(sent).decode().partition(":") if kind == "Basic" else ("", "", "")
        if (unquote_plus(client[0]), unquote_plus(client[2])) != (self._client, self._secret):
            return web.json_response({"error": "invalid_client"}, status=401)
        asked = self._codes.pop(str(form.get("code")), None)  # a code counts once
        digest = hashlib.sha256(str(form.get("code_verifier")).encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (
            asked is None
            or form.get("redirect_uri") != asked["redirect_uri"]
            or challenge != asked["code_challenge"]
        ):
            return web.json_response({"error": "invalid_grant"}, status=400)
        now_s = int(time.time())
        claims = {
            **self.person,
            "iss": self.issuer,
            "aud": self._client,
            "iat": now_s,
            "exp": now_s + 300,
            "nonce": asked["nonce"],
        }
        return web.json_response(
            {"id_token": self.sign(self.change(claims)), "access_token": "a", "token_type": "Bearer"}
        )

    def _sign(self, claims: Claims) -> str:
        named = {"kid": self.key.kid} if self.names_keys else {}
        return jwt.encode({"alg": "RS256", **named}, claims, self.key)

    def sign_by_secret(self, claims: Claims) -> str:
        """Sign by what the client knows too, which proves nothing."""
        return jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(self._secret * 4), algorithms=["HS256"])

    def sign_by_stranger(self, claims: Claims) -> str:
        """Sign by another key under the name of the provider's own."""
        stranger = RSAKey.generate_key(2048, {"kid": str(self.key.kid)}, private=True)
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, stranger)

    def sign_not(self, claims: Claims) -> str:
        """Sign nothing."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this is not secure is the point
            return jwt.encode({"alg": "none"}, claims, OctKey.import_key("x" * 32), algorithms=["none"])
