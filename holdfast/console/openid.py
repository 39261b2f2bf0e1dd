"""Signing in with an OpenID provider: the authorization code flow with PKCE. authlib judges the provider's
token.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote_plus, urlsplit

import aiohttp
import msgspec

from holdfast.clock import Clock, system_clock
from holdfast.config import Settings, is_loopback
from holdfast.console.access import RequestDenied
from holdfast.console.place import ConsolePlace
from holdfast.web.bodies import whole_body
from holdfast.web.headers import is_secret

T = TypeVar("T")

BACK = "/sign-in/oidc/back"
"""The path to which the provider sends people back; it has to know that address."""
PENDING_S = 600.0
LIMIT_PENDING, LIMIT_PENDING_OF_PEER = 1_000, 100
TIMEOUT_S = 10.0
LIMIT_BYTES = 1 << 20
KNOWN_S = 3600.0
KEYS_S = 5.0
"""The provider's keys are fetched again after so long, if a token is signed by none of them."""
FAILED_S = 5.0
"""A provider that did not answer is not asked again for so long: strangers must not have the console wait for
it again and again.
"""
LEEWAY_S = 60
LIMIT_NAME = 200
LIMIT_SUBJECT = 255
"""OpenID Connect Core allows no more."""
LIMIT_TOLD = 200
ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
"""Signatures of the provider's own key alone: neither none, nor one by a secret that the console has too."""


class OpenIdProvider(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's description of itself (OpenID Connect Discovery 1.0)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    id_token_signing_alg_values_supported: tuple[str, ...] = ("RS256",)
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class GrantedTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The provider's answer to a code."""

    id_token: str
    access_token: str = ""


class ProviderKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys by which a provider signs."""

    keys: list[dict[str, Any]]


_decode_provider = msgspec.json.Decoder(OpenIdProvider).decode
_decode_tokens = msgspec.json.Decoder(GrantedTokens).decode
_decode_keys = msgspec.json.Decoder(ProviderKeys).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSignIn:
    """A person of *peer* who was sent to the provider: only the browser with the cookie *browser* may come
    back, once, until *ends_s*.
    """

    peer: str
    nonce: str
    verifier: str
    browser: str
    ends_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """A person whom the provider knows: by a *name*, which may change and be given to another later, and by a
    *subject*, which is not.
    """

    name: str
    subject: str


class OpenIdSignIn:
    """Sends people to the provider, and knows who comes back. Use it with `async with`."""

    def __init__(self, settings: Settings, place: ConsolePlace, *, clock: Clock = system_clock) -> None:
        import authlib  # noqa: F401  what is missing is told when the console starts, not when the first person signs in

        assert settings.console_oidc_issuer is not None
        self._settings, self._clock = settings, clock
        self._issuer = settings.console_oidc_issuer
        self._client = settings.console_oidc_client or ""
        self._redirect = f"{place.url.rstrip('/')}{BACK}"
        self._pending: dict[str, PendingSignIn] = {}
        self._provider: tuple[float, OpenIdProvider] | None = None
        self._one = asyncio.Lock()
        self._failed: tuple[float, RequestDenied] | None = None
        self._keys: tuple[float, ProviderKeys] | None = None
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), cookie_jar=aiohttp.DummyCookieJar()
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # -- there and back

    async def begin(self, peer: str) -> tuple[str, str]:
        """Return the provider's address to go to, and the cookie that the browser of *peer* has to bring
        back.
        """
        from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        provider = await self._told()
        state, pending = secrets.token_urlsafe(32), self._new(peer)
        self._make_room(peer)
        self._pending[state] = pending
        address = prepare_grant_uri(
            provider.authorization_endpoint,
            self._client,
            "code",
            redirect_uri=self._redirect,
            scope="openid email profile",
            state=state,
            nonce=pending.nonce,
            code_challenge=create_s256_code_challenge(pending.verifier),
            code_challenge_method="S256",
        )
        return str(address), pending.browser

    def _make_room(self, peer: str) -> None:
        """Forget expired sign-ins, and the oldest of *peer* if it has too many: so no peer makes others'
        sign-ins be forgotten by repeated attempts.
        """
        now_s = self._clock.monotonic_s()
        for state in [state for state, each in self._pending.items() if each.ends_s <= now_s]:
            del self._pending[state]
        own = [state for state, each in self._pending.items() if each.peer == peer]
        if len(own) >= LIMIT_PENDING_OF_PEER:
            del self._pending[own[0]]
        elif len(self._pending) >= LIMIT_PENDING:
            del self._pending[next(iter(self._pending))]

    def _new(self, peer: str) -> PendingSignIn:
        return PendingSignIn(
            peer=peer,
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            browser=secrets.token_urlsafe(32),
            ends_s=self._clock.monotonic_s() + PENDING_S,
        )

    async def finish(self, query: Mapping[str, str], browser: str) -> SignedIn:
        """Return the person who came back with *query*; RequestDenied unless the provider confirms them to
        this browser.
        """
        pending = self._pending.pop(query.get("state", ""), None)
        if pending is None or pending.ends_s <= self._clock.monotonic_s():
            raise RequestDenied(403, "This sign-in is not known, or took too long: begin again.")
        if not is_secret(browser, pending.browser.encode()):
            raise RequestDenied(403, "This sign-in was begun in another browser: begin again.")
        if query.get("iss", self._issuer) != self._issuer:  # RFC 9207: another provider's answer
            raise RequestDenied(403, "Another provider sent you back: begin again.")
        if "code" not in query:
            told = query.get("error_description") or query.get("error") or "no code came"
            raise RequestDenied(403, f"The provider signed nobody in: {told[:LIMIT_TOLD]}")
        claims = await self._claims(query["code"], pending)
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject.isprintable() or len(subject) > LIMIT_SUBJECT:
            raise RequestDenied(403, "The provider's token has no sub that could be a subject.")
        return SignedIn(name=self._name_in(claims), subject=subject)

    def _name_in(self, claims: Mapping[str, Any]) -> str:
        claim = self._settings.console_oidc_claim
        name = claims.get(claim)
        if not isinstance(name, str) or not 1 <= len(name) <= LIMIT_NAME or not name.isprintable():
            raise RequestDenied(
                403, f"The provider's token has no {claim} that could be a name; see console_oidc_claim."
            )
        if claim == "email" and name.count("@") != 1:  # else * before @example.org could be another's domain
            raise RequestDenied(403, "The provider's token has no email that could be a name.")
        if claim == "email" and str(claims.get("email_verified", True)).lower() != "true":  # some write text
            raise RequestDenied(403, "The provider has not verified this email address.")
        return name

    # -- the provider's token

    async def _claims(self, code: str, pending: PendingSignIn) -> Mapping[str, Any]:
        provider = await self._told()
        granted = await self._granted(provider, code, pending)
        from joserfc.errors import BadSignatureError, InvalidKeyIdError, JoseError

        try:
            try:
                return self._judged(provider, granted, pending, await self._signing_keys(provider, KNOWN_S))
            except (InvalidKeyIdError, BadSignatureError):  # keys may have changed, and bear no names
                return self._judged(provider, granted, pending, await self._signing_keys(provider, KEYS_S))
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise RequestDenied(
                403, f"The provider's token is not accepted: {str(error)[:LIMIT_TOLD]}"
            ) from None

    def _judged(
        self, provider: OpenIdProvider, granted: GrantedTokens, pending: PendingSignIn, keys: ProviderKeys
    ) -> Mapping[str, Any]:
        """Return the claims of a token that this provider signed for this console and this sign-in, and that
        counts now.
        """
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.jwk import KeySet

        allowed = sorted(ALGORITHMS.intersection(provider.id_token_signing_alg_values_supported))
        token = jwt.decode(granted.id_token, KeySet.import_key_set({"keys": keys.keys}), algorithms=allowed)
        claims = CodeIDToken(
            token.claims,
            token.header,
            options={
                "iss": {"essential": True, "value": provider.issuer},
                "aud": {"essential": True, "value": self._client},
                "exp": {"essential": True},
            },
            params={"nonce": pending.nonce, "client_id": self._client, "access_token": granted.access_token},
        )
        claims.validate(now=self._clock.now_ms() // 1000, leeway=LEEWAY_S)
        return dict(claims)

    async def _granted(self, provider: OpenIdProvider, code: str, pending: PendingSignIn) -> GrantedTokens:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect,
            "client_id": self._client,
            "code_verifier": pending.verifier,
        }
        secret, basic = self._settings.console_oidc_secret, None
        if secret is not None and "client_secret_basic" in provider.token_endpoint_auth_methods_supported:
            basic = aiohttp.BasicAuth(quote_plus(self._client), quote_plus(secret))
        elif secret is not None:
            form["client_secret"] = secret
        return await self._fetch("POST", provider.token_endpoint, _decode_tokens, data=form, auth=basic)

    # -- the provider's description of itself

    async def _told(self) -> OpenIdProvider:
        """Return the provider's description of itself; it is asked once for all that wait for it."""
        async with self._one:
            now_s = self._clock.monotonic_s()
            if self._provider is not None and now_s - self._provider[0] <= KNOWN_S:
                return self._provider[1]
            if self._failed is not None and now_s - self._failed[0] <= FAILED_S:
                raise self._failed[1]
            try:
                found = await self._discovered()
            except RequestDenied as denied:
                self._failed = self._clock.monotonic_s(), denied
                raise
            self._provider = now_s, found
            return found

    async def _discovered(self) -> OpenIdProvider:
        address = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        found = await self._fetch("GET", address, _decode_provider)
        if found.issuer != self._issuer:
            raise RequestDenied(
                502, f"The provider calls itself {found.issuer[:LIMIT_TOLD]}: set console_oidc_issuer so."
            )
        for each in (found.authorization_endpoint, found.token_endpoint, found.jwks_uri):
            _require_private(each)
        return found

    async def _signing_keys(self, provider: OpenIdProvider, fresh_s: float) -> ProviderKeys:
        now_s = self._clock.monotonic_s()
        if self._keys is None or now_s - self._keys[0] > fresh_s:
            self._keys = now_s, await self._fetch("GET", provider.jwks_uri, _decode_keys)
        return self._keys[1]

    async def _fetch(self, method: str, address: str, decode: Callable[[bytes], T], **more: Any) -> T:
        """Return the provider's reply, as *decode* reads it; RequestDenied without a readable reply."""
        assert self._session is not None, "use `async with`"
        _require_private(address)
        try:
            async with self._session.request(method, address, allow_redirects=False, **more) as response:
                body = await whole_body(response, LIMIT_BYTES)
                if response.status == 200:
                    return decode(body)
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, ValueError) as error:
            raise RequestDenied(
                502,
                f"The provider did not answer as one does: {str(error)[:LIMIT_TOLD] or type(error).__name__}",
            ) from None
        raise RequestDenied(
            502, f"The provider refused: HTTP {response.status} {body[:LIMIT_TOLD].decode(errors='replace')}"
        )


def _require_private(address: str) -> None:
    """Refuse an address to which a secret or a person would go in the clear."""
    try:
        parts = urlsplit(address)
        private = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    except ValueError:
        private = False
    if not private:
        raise RequestDenied(502, f"The provider names {address[:LIMIT_TOLD]}, which is not https.")
