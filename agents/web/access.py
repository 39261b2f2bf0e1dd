"""Who may ask the web port what."""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web

from holdfast.agents.web.replies import RequestRefused
from holdfast.config import WebSettings, is_loopback
from holdfast.web.headers import bearer, is_secret, names_this_machine

OPEN_ON_LOOPBACK = frozenset({"/health/live", "/health/ready", "/metrics"})


class Access:
    """The rules of the web port.

    With a token, every request must bear it, with mutual TLS the handshake has asked for a certificate
    already; one of them is required by the settings wherever others than this machine can reach the port.
    Health and metrics, which hold no row, are open on loopback.

    Without a token the Host header must name this machine.
    """

    def __init__(self, settings: WebSettings) -> None:
        self._token = None if settings.web_token is None else settings.web_token.encode()
        self._loopback = is_loopback(settings.web_bind)
        self._check_host = self._loopback and self._token is None and settings.web_tls_ca is None
        self._advertised = (urlsplit(settings.advertised_url).hostname or "").lower()

    def check(self, request: web.Request) -> None:
        """Raise Refused unless the request may be answered."""
        if self._check_host and not names_this_machine(request.host, self._advertised):
            raise RequestRefused(
                403, "forbidden", "the Host header must name this machine, since no token protects this port"
            )
        if self._token is None or (self._loopback and request.path in OPEN_ON_LOOPBACK):
            return
        given = bearer(request)
        if given is None:
            message = (
                "this port asks for a token: send `Authorization: Bearer TOKEN` with the workers' web_token"
            )
            raise RequestRefused(
                401, "no_token", message, headers={"WWW-Authenticate": 'Bearer realm="holdfast"'}
            )
        if not is_secret(given, self._token):
            raise RequestRefused(403, "wrong_token", "the token is not this worker's web_token")
