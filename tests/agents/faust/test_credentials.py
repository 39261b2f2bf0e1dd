"""Faust's credentials made of the settings; connections to a broker that asks for them are in
test_secure_broker.py.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from faust.auth import GSSAPICredentials, OAuthCredentials, SASLCredentials, SSLCredentials
from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth

from holdfast.agents.faust.transport.credentials import broker_credentials
from holdfast.clock import ManualClock
from holdfast.config import Settings
from holdfast.errors import BrokerError, ConfigError
from holdfast.kafka.requests.oidc import OidcTokens
from tests.support.patience import DEADLINE_S
from tests.support.places import TLS

CA = str(TLS / "ca.pem")


def test_plaintext_needs_no_credentials() -> None:
    assert broker_credentials(Settings()) is None


def test_tls_alone_gives_a_context() -> None:
    credentials = broker_credentials(Settings(kafka={"security.protocol": "SSL", "ssl.ca.location": CA}))
    assert isinstance(credentials, SSLCredentials)
    auth = credentials_to_aiokafka_auth(credentials)
    assert auth["security_protocol"] == "SSL"
    assert isinstance(auth["ssl_context"], ssl.SSLContext)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_user_and_password_reach_the_driver(mechanism: str, protocol: str) -> None:
    kafka = {
        "security.protocol": protocol,
        "sasl.mechanisms": mechanism,
        "sasl.username": "ada",
        "sasl.password": "x",
    }
    credentials = broker_credentials(Settings(kafka=kafka))
    assert isinstance(credentials, SASLCredentials)
    auth = credentials_to_aiokafka_auth(credentials)
    assert auth["security_protocol"] == protocol
    user: tuple[object, ...] = (
        auth["sasl_mechanism"],
        auth["sasl_plain_username"],
        auth["sasl_plain_password"],
    )
    assert user == (mechanism, "ada", "x")
    assert (auth["ssl_context"] is not None) == (protocol == "SASL_SSL")


def test_kerberos_names_the_service_or_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(
        kafka={
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.service.name": "broker",
        }
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install gssapi"):
        broker_credentials(settings)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    credentials = broker_credentials(settings)
    assert isinstance(credentials, GSSAPICredentials)
    assert credentials_to_aiokafka_auth(credentials)["sasl_kerberos_service_name"] == "broker"


Handler = Callable[[web.Request], Awaitable[web.Response]]


async def ask_with(
    handler: Handler,
    then: Callable[[OidcTokens, ManualClock], Awaitable[None]],
    *,
    timeout_s: float = DEADLINE_S,
) -> None:
    """Run *then* with tokens from an endpoint on the loopback that answers as *handler* does, over TLS."""
    application = web.Application()
    application.router.add_post("/token", handler)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(TLS / "server.pem", TLS / "server-key.pem")
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_context)
    await site.start()
    try:
        port = runner.addresses[0][1]
        names = {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "OIDC",
            "sasl.oauthbearer.token.endpoint.url": f"https://localhost:{port}/token",
            "sasl.oauthbearer.client.id": "shop",
            "sasl.oauthbearer.client.secret": "s3cret",
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.extensions": "logicalCluster=lkc-1",
        }
        settings = Settings(kafka=names | {"security.protocol": "SASL_PLAINTEXT", "https.ca.location": CA})
        credentials = broker_credentials(settings)
        assert isinstance(credentials, OAuthCredentials)
        sasl, clock = settings.sasl(), ManualClock()
        assert sasl is not None
        assert sasl.oidc is not None
        await then(
            OidcTokens(sasl.oidc, context=settings.token_ssl_context(), timeout_s=timeout_s, clock=clock),
            clock,
        )
    finally:
        await runner.cleanup()


def test_a_token_is_asked_for_once_and_again_when_it_grows_old() -> None:
    asked: list[tuple[str, dict[str, object]]] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append((request.headers["Authorization"], dict(await request.post())))
        return web.json_response({"access_token": f"token-{len(asked)}", "expires_in": 100})

    async def then(tokens: OidcTokens, clock: ManualClock) -> None:
        assert set(await asyncio.gather(*(tokens.token() for _ in range(3)))) == {"token-1"}
        clock.advance_ms(79_999)
        assert await tokens.token() == "token-1"
        clock.advance_ms(1)
        assert await tokens.token() == "token-2"
        assert tokens.extensions() == {"logicalCluster": "lkc-1"}

    asyncio.run(ask_with(handler, then))
    basic = base64.b64encode(b"shop:s3cret").decode()
    assert asked == [(f"Basic {basic}", {"grant_type": "client_credentials", "scope": "kafka"})] * 2


def test_a_token_without_a_lifetime_is_used_once() -> None:
    answers = iter(("one", "two"))

    async def handler(request: web.Request) -> web.Response:
        return web.json_response({"access_token": next(answers)})

    async def then(tokens: OidcTokens, clock: ManualClock) -> None:
        assert [await tokens.token(), await tokens.token()] == ["one", "two"]

    asyncio.run(ask_with(handler, then))


@pytest.mark.parametrize(
    ("status", "body", "part"),
    [
        (401, b"{}", "answered 401; check sasl.oauthbearer.client.id"),
        (302, b"", "answered 302"),
        (200, b"<html>", "access_token in JSON"),
        (200, b'{"token": 1}', "access_token in JSON"),
        (200, b"[]", "access_token in JSON"),
        (200, b'{"access_token": "a", "expires_in": "soon"}', "access_token in JSON"),
        (200, b" " * (2 << 20), "more than 1048576 bytes"),
    ],
)
def test_an_endpoint_that_gives_no_token_is_a_broker_error_that_says_what_to_check(
    status: int, body: bytes, part: str
) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(
            status=status, body=body, headers={"Location": "/token"} if status == 302 else None
        )

    async def then(tokens: OidcTokens, clock: ManualClock) -> None:
        with pytest.raises(BrokerError) as refused:
            await tokens.token()
        assert part in str(refused.value)
        assert "s3cret" not in str(refused.value)

    asyncio.run(ask_with(handler, then))


def test_an_endpoint_that_does_not_answer_is_given_up_after_the_deadline() -> None:
    async def handler(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def then(tokens: OidcTokens, clock: ManualClock) -> None:
        with pytest.raises(BrokerError, match=r"within 0\.2 s: TimeoutError"):
            await tokens.token()

    asyncio.run(ask_with(handler, then, timeout_s=0.2))
