"""An OpenID provider of authlib's own server side: its endpoints judge requests and make tokens, and only
what a framework and a database would do is done here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from authlib.oauth2.rfc6749 import AuthorizationServer, ClientMixin, OAuth2Request
from authlib.oauth2.rfc6749.grants import AuthorizationCodeGrant
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload
from authlib.oauth2.rfc6750 import BearerTokenGenerator
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oidc.core import UserInfo
from authlib.oidc.core.grants import OpenIDCode
from joserfc.jwk import ECKey, OKPKey, RSAKey

from tests.console.openid_provider import OpenIdTestProvider

Key = RSAKey | ECKey | OKPKey
KEYS: dict[str, Callable[[str], Key]] = {
    "RS256": lambda kid: RSAKey.generate_key(2048, {"kid": kid, "use": "sig"}, private=True),
    "PS384": lambda kid: RSAKey.generate_key(2048, {"kid": kid, "use": "sig"}, private=True),
    "ES256": lambda kid: ECKey.generate_key("P-256", {"kid": kid, "use": "sig"}, private=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownClient(ClientMixin):  # type: ignore[misc]  # authlib has no types
    """The console, as the provider has registered it."""

    name: str
    secret: str
    redirect: str

    def get_client_id(self) -> str:
        return self.name

    def get_default_redirect_uri(self) -> str:
        return self.redirect

    def get_allowed_scope(self, scope: str) -> str:
        return scope

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri == self.redirect

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == self.secret

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == "client_secret_basic"

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type == "authorization_code"


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedCode:
    """A code, with what it was asked for."""

    code: str
    redirect_uri: str
    scope: str
    nonce: str
    code_challenge: str
    code_challenge_method: str
    auth_time: int

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope

    def get_nonce(self) -> str:
        return self.nonce

    def get_auth_time(self) -> int:
        return self.auth_time

    def get_acr(self) -> None:
        return None

    def get_amr(self) -> None:
        return None


class TakenRequest(OAuth2Request):  # type: ignore[misc]
    """A request as authlib reads it."""

    def __init__(self, request: web.Request, issuer: str, payload: dict[str, str]) -> None:
        super().__init__(request.method, issuer + request.path_qs, headers=dict(request.headers))
        self.payload = BasicOAuth2Payload(payload)

    @property
    def form(self) -> dict[str, str]:
        return dict(self.payload.data) if self.method == "POST" else {}


class AuthlibProvider(OpenIdTestProvider):
    """A provider that signs by *algorithm*, and may change its key."""

    def __init__(self, port: int, client: str, secret: str, redirect: str, algorithm: str) -> None:
        super().__init__(port, client, secret, redirect)
        self.algorithm = algorithm
        self.signing: Key = KEYS[algorithm]("one")
        self.published: list[Key] = [self.signing]
        self.codes: dict[str, IssuedCode] = {}
        self.known = KnownClient(name=client, secret=secret, redirect=redirect)
        self._server = _server_of(self)

    def rotate(self, *, keep: bool) -> None:
        """Sign by a new key from now on; tokens of the one before are good while it is kept."""
        self.signing = KEYS[self.algorithm](f"key-{len(self.published)}-{time.monotonic_ns()}")
        self.published = [*(self.published if keep else ()), self.signing]

    def discovered(self) -> dict[str, Any]:
        """Return its description of itself."""
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [self.algorithm],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        }

    async def _discovery(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self.discovered())

    async def _keys(self, request: web.Request) -> web.StreamResponse:
        self.asked.append("keys")
        return web.json_response({"keys": [each.as_dict(private=False) for each in self.published]})

    async def _authorize(self, request: web.Request) -> web.Response:
        grant = self._server.get_consent_grant(TakenRequest(request, self.issuer, dict(request.query)))
        answer: web.Response = self._server.create_authorization_response(
            TakenRequest(request, self.issuer, dict(request.query)), grant_user=self.person, grant=grant
        )
        return answer

    async def _token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        answer: web.Response = self._server.create_token_response(TakenRequest(request, self.issuer, form))
        return answer


def _server_of(provider: AuthlibProvider) -> AuthorizationServer:
    class Server(AuthorizationServer):  # type: ignore[misc]
        def query_client(self, client_id: str) -> KnownClient | None:
            return provider.known if client_id == provider.known.name else None

        def save_token(self, token: Any, request: Any) -> None:
            """Nothing is asked for with it later."""

        def create_oauth2_request(self, request: OAuth2Request) -> OAuth2Request:
            return request

        def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None:
            """Signals have no receiver."""

        def handle_response(self, status: int, body: Any, headers: Any) -> web.Response:
            if isinstance(body, dict):
                return web.json_response(body, status=status)
            return web.Response(text=str(body or ""), status=status, headers=dict(headers))

    class Grant(AuthorizationCodeGrant):  # type: ignore[misc]
        TOKEN_ENDPOINT_AUTH_METHODS = ("client_secret_basic",)

        def save_authorization_code(self, code: str, request: OAuth2Request) -> None:
            asked = request.payload.data
            provider.codes[code] = IssuedCode(
                code=code,
                redirect_uri=asked["redirect_uri"],
                scope=asked["scope"],
                nonce=asked["nonce"],
                code_challenge=asked["code_challenge"],
                code_challenge_method=asked["code_challenge_method"],
                auth_time=int(time.time()),
            )

        def query_authorization_code(self, code: str, client: KnownClient) -> IssuedCode | None:
            return provider.codes.get(code)

        def delete_authorization_code(self, authorization_code: IssuedCode) -> None:
            del provider.codes[authorization_code.code]

        def authenticate_user(self, authorization_code: IssuedCode) -> dict[str, Any]:
            return provider.person

    class Code(OpenIDCode):  # type: ignore[misc]
        def exists_nonce(self, nonce: str, request: Any) -> bool:
            return any(each.nonce == nonce for each in provider.codes.values())

        def resolve_client_private_key(self, client: Any) -> Key:
            return provider.signing

        def get_client_algorithm(self, client: Any) -> str:
            return provider.algorithm

        def get_encode_header(self, client: Any) -> dict[str, str]:
            return {"alg": provider.algorithm, "kid": str(provider.signing.kid)}

        def get_client_claims(self, client: Any) -> dict[str, Any]:
            now_s = int(time.time())
            return {
                "iss": provider.issuer,
                "aud": [provider.known.name],
                "iat": now_s,
                "exp": now_s + 300,
            }

        def generate_user_info(self, user: dict[str, Any], scope: str) -> UserInfo:
            return UserInfo(**user)

    made = Server(scopes_supported=["openid", "email", "profile"])
    made.register_token_generator("default", BearerTokenGenerator(lambda **_: "opaque"))
    made.register_grant(Grant, [CodeChallenge(required=True), Code(require_nonce=True)])
    return made
