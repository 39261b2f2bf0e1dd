"""Authorization of requests to the web port."""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web

from holdfast.agents.web.replies import RequestRefused
from holdfast.config import WebSettings, is_loopback
from holdfast.web.headers import bearer, is_of_another_site, is_secret, names_this_machine

OPEN_ON_LOOPBACK = frozenset({"/health/live", "/health/ready", "/metrics"})


class Access:
    """The rules of the web port.

    With a token, every request must bear it, with mutual TLS the handshake has asked for a certificate
    already; one of them is required by the settings wherever others than this machine can reach the port.
    Health and metrics, which hold no row, are open on loopback.

    Answers without the token must not be available to a page of another site, since a browser on this machine
    reaches the port too, and shows its certificate. On loopback the Host header must name this machine,
    unless the worker's certificate does: a page may have a name of its own resolve to it.
    """

    def __init__(self, settings: WebSettings) -> None:
        self._token = None if settings.web_token is None else settings.web_token.encode()
        self._loopback = is_loopback(settings.web_bind)
        self._check_host = self._loopback and settings.web_tls_ca is None
        self._advertised = (urlsplit(settings.advertised_url).hostname or "").lower()

    def check(self, request: web.Request) -> None:
        """Raise RequestRefused unless the request may be answered."""
        if self._token is not None and not (self._loopback and request.path in OPEN_ON_LOOPBACK):
            self._check_token(request, self._token)
            return
        if self._check_host and not names_this_machine(request.host, self._advertised):
            raise RequestRefused(
                403, "forbidden", "the Host header must name this machine, since no token protects this port"
            )
        if is_of_another_site(request):
            raise RequestRefused(
                403,
                "forbidden",
                "a page of another site asks for this, by its Origin or Sec-Fetch-Site header",
            )

    def _check_token(self, request: web.Request, token: bytes) -> None:
        given = bearer(request)
        if given is None:
            message = (
                "this port asks for a token: send `Authorization: Bearer TOKEN` with the workers' web_token"
            )
            raise RequestRefused(
                401, "no_token", message, headers={"WWW-Authenticate": 'Bearer realm="holdfast"'}
            )
        if not is_secret(given, token):
            raise RequestRefused(403, "wrong_token", "the token is not this worker's web_token")
