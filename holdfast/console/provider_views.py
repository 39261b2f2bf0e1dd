"""The two steps of signing in with an OpenID provider: going there, and coming back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from holdfast.console.access import ConsoleAccess, RequestDenied, peer_of_request
from holdfast.console.openid import PENDING_S, OpenIdSignIn

Html = Callable[[web.Request, str, Mapping[str, Any], int], web.Response]


class ProviderViews:
    """Answers what browsers ask for on their way to the provider and back."""

    def __init__(self, access: ConsoleAccess, openid: OpenIdSignIn, html: Html) -> None:
        self._access, self._openid, self._html = access, openid, html
        self._cookie, self._path = f"{access.place.cookie}-oidc", f"{access.place.root}/sign-in"

    async def go(self, request: web.Request) -> web.Response:
        """Send a browser to the provider, with a cookie by which it is known when it comes back."""
        try:
            address, browser = await self._openid.begin(peer_of_request(request))
        except RequestDenied as denied:
            return self._denied(request, denied)
        response = web.Response(status=303, headers={"Location": address})
        # Lax, since the way back begins on the provider's page.
        response.set_cookie(
            self._cookie,
            browser,
            max_age=int(PENDING_S),
            httponly=True,
            samesite="Lax",
            secure=self._access.place.secure,
            path=self._path,
        )
        return response

    async def come_back(self, request: web.Request) -> web.Response:
        """Begin the session of whom the provider names.

        The answer is a page that leads on: a redirect would continue from the provider's page, and browsers
        would not send the new cookie along.
        """
        try:
            who = await self._openid.finish(request.query, request.cookies.get(self._cookie, ""))
            key = self._access.admit(who.name, who.subject)
        except RequestDenied as denied:
            return self._denied(request, denied)
        response = self._html(request, "signed_in.html", {"title": "Signed in", "name": who.name}, 200)
        response.del_cookie(self._cookie, path=self._path)
        self._access.remember(response, key)
        return response

    def _denied(self, request: web.Request, denied: RequestDenied) -> web.Response:
        return self._html(
            request, "sign_in.html", {"title": "Sign in", "trouble": str(denied)}, denied.status
        )
