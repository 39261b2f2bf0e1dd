"""The console's web application: pages, assets, signing in; what every answer says to browsers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from aiohttp import ClientError, web
from aiohttp.http_exceptions import HttpProcessingError

from holdfast.console.access import ConsoleAccess, RequestDenied
from holdfast.console.acting.acts import Acts
from holdfast.console.desk import ConsoleDesk
from holdfast.console.live import EVENT_STREAM, LiveStreams
from holdfast.console.openid import BACK, OpenIdSignIn
from holdfast.console.pages import (
    groups,
    lake,
    log,
    outbox,
    overview,
    producers,
    quarantine,
    tables,
    topology,
    transactions,
    why,
    workers,
)
from holdfast.console.pages.page import ConsolePage
from holdfast.console.provider_views import ProviderViews
from holdfast.console.showing.rendering import ASSETS, asset, render, style_hash

logger = logging.getLogger(__name__)

PAGES = (
    overview.OVERVIEW,
    topology.TOPOLOGY,
    workers.WORKERS,
    workers.WORKER,
    tables.TABLES,
    tables.TABLE,
    why.WHY,
    groups.GROUPS,
    groups.GROUP,
    groups.RESET,
    outbox.OUTBOX,
    producers.PRODUCERS,
    transactions.TRANSACTIONS,
    quarantine.QUARANTINE,
    quarantine.QUARANTINED,
    log.LOG,
    lake.LAKE,
    lake.LANDED,
)
MENU = {page.menu: page.path for page in PAGES if page.path.count("/") == 1}
LIMIT_BODY_BYTES = 64 << 10
BODY_S = 10.0
GONE_S = 0.5
"""The interval at which a page that takes long checks whether its client still waits."""
FIRST_LOOK_S = 5.0
HTML = "text/html; charset=utf-8"
SECURITY = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src 'self'; style-src 'self' {style_hash()}; img-src 'self' data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
FOR_EVER = "private, max-age=31536000, immutable"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_application(
    desk: ConsoleDesk,
    access: ConsoleAccess,
    streams: LiveStreams,
    acts: Acts,
    openid: OpenIdSignIn | None,
) -> web.Application:
    """Return the aiohttp application of the console."""
    views = _Views(desk, access, streams, acts)

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            access.check(request)
            return await handler(request)
        except RequestDenied as denied:
            return views.denied(request, denied)
        except web.HTTPException as error:
            return views.denied(
                request, RequestDenied(error.status, f"{request.method} {request.path[:200]}: {error.reason}")
            )
        except ConnectionError:
            raise  # the client is gone
        except Exception:
            logger.exception("a page failed: %(path)s", {"path": request.path[:200]})
            return views.denied(
                request, RequestDenied(500, "The console failed to make this page; its log has the cause.")
            )

    async def secure(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(SECURITY)
        response.headers.setdefault("Cache-Control", "no-store")
        response.headers["Vary"] = "Accept"

    application = web.Application(middlewares=[guard], client_max_size=LIMIT_BODY_BYTES)

    async def end_streams(application: web.Application) -> None:
        await streams.close()

    application.on_response_prepare.append(secure)
    application.on_shutdown.append(end_streams)  # else the port would wait for them
    for page in PAGES:
        application.router.add_get(page.path, views.page(page))
    if access.place.root:
        application.router.add_get("", views.to_overview)
    application.router.add_get("/assets/{name}", views.asset)
    application.router.add_get("/sign-in", views.sign_in_form)
    application.router.add_post("/sign-in", views.sign_in)
    application.router.add_post("/sign-out", views.sign_out)
    if openid is not None:
        leaving = ProviderViews(access, openid, views.html)
        application.router.add_get("/sign-in/oidc", leaving.go)
        application.router.add_get(BACK, leaving.come_back)
    application.router.add_post("/act", views.act)
    return application


class _Views:
    def __init__(self, desk: ConsoleDesk, access: ConsoleAccess, streams: LiveStreams, acts: Acts) -> None:
        self._desk, self._access, self._streams, self._acts = desk, access, streams, acts
        self._root = access.place.root

    def page(self, page: ConsolePage) -> Handler:
        """Return a handler of requests for *page*, and for its changes."""

        async def answer(request: web.Request) -> web.StreamResponse:
            if page.live and request.method == "GET" and EVENT_STREAM in request.headers.get("Accept", ""):
                return await self._streams.serve(request, page)
            self._desk.watch.asked()
            if not self._desk.watch.looked:
                await self._desk.watch.next_look(FIRST_LOOK_S)
            context = await _for_whom_waits(request, page.build(self._desk, request.query))
            reading = await tables.read(self._desk, request.query) if page is tables.TABLE else None
            points = [[each.at_s, each.rate, each.behind] for each in self._desk.watch.history.points]
            return self._html(request, page.template, {**context, "reading": reading, "points": points}, page)

        return answer

    def _html(
        self,
        request: web.Request,
        template: str,
        context: Mapping[str, Any],
        page: ConsolePage | None = None,
        *,
        status: int = 200,
    ) -> web.Response:
        text = render(
            template,
            {
                "picture": self._desk.watch.picture,
                "root": self._root,
                "menu": MENU,
                "here": None if page is None else page.menu,
                "live": page is not None and page.live,
                "session": self._access.session(request),
                "may_sign_in": self._access.known,
                "access": self._access,
                "query": request.query,
                **context,
            },
        )
        return web.Response(text=text, status=status, headers={"Content-Type": HTML})

    async def asset(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in ASSETS:
            raise RequestDenied(404, f"There is no asset {name[:100]}.")
        return web.Response(
            body=asset(name), headers={"Content-Type": ASSETS[name], "Cache-Control": FOR_EVER}
        )

    def denied(self, request: web.Request, denied: RequestDenied) -> web.Response:
        """Return the page that says why there is none; browsers that have to sign in get the form."""
        if denied.sign_in and request.method == "GET" and "text/html" in request.headers.get("Accept", ""):
            return self._led("/sign-in")
        context = {"title": f"Error {denied.status}", "trouble": str(denied)}
        known = not self._access.guarded or self._access.session(request) is not None
        template = "trouble.html" if known else "stranger.html"
        response = self._html(request, template, context, status=denied.status)
        if request.body_exists and not request.content.is_eof():
            response.force_close()  # the rest of the body is not read
        return response

    async def sign_in_form(self, request: web.Request) -> web.Response:
        if not self._access.known:
            return self._led("/")
        return self._html(request, "sign_in.html", {"title": "Sign in", "trouble": None})

    def html(
        self, request: web.Request, template: str, context: Mapping[str, Any], status: int
    ) -> web.Response:
        """Return a page that belongs to no entry of the menu."""
        return self._html(request, template, context, status=status)

    async def sign_in(self, request: web.Request) -> web.Response:
        form = await _form(request)
        try:
            key = self._access.sign_in(request, form.get("token", ""), form.get("who", ""))
        except RequestDenied as denied:
            context = {"title": "Sign in", "trouble": str(denied)}
            return self._html(request, "sign_in.html", context, status=denied.status)
        response = self._led("/")
        self._access.remember(response, key)
        return response

    async def act(self, request: web.Request) -> web.Response:
        form = await _form(request)
        actor = self._access.actor(request, form.get("form_token", ""))
        what, on = form.get("what", ""), form.get("on", "")
        outcome = await self._acts.act(what, on, form, actor=actor, address=request.remote or "")
        context = {"title": "Not done" if outcome.failed else "Done", "outcome": outcome}
        return self._html(request, "acted.html", context, status=409 if outcome.failed else 200)

    async def sign_out(self, request: web.Request) -> web.Response:
        response = self._led("/sign-in")
        self._access.sign_out(request, response)
        return response

    def _led(self, path: str) -> web.Response:
        """Return a response that leads a browser on to another page."""
        return web.Response(status=303, headers={"Location": f"{self._root}{path}"})

    async def to_overview(self, request: web.Request) -> web.Response:
        """Lead from the root without a slash to the overview."""
        return self._led("/")


async def _for_whom_waits(request: web.Request, page: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Return the context made by *page*; give it up when the client has left, for others may wait for the
    same resources.
    """
    made = asyncio.create_task(page)
    try:
        while not (await asyncio.wait({made}, timeout=GONE_S))[0]:
            if request.transport is None:
                raise ConnectionResetError("nobody waits for this page any more")
        return made.result()
    finally:
        made.cancel()


async def _form(request: web.Request) -> dict[str, str]:
    try:
        async with asyncio.timeout(BODY_S):
            # A worker's port, which serves programs too, would take far more.
            sent = await request.clone(client_max_size=LIMIT_BODY_BYTES).post()
    except TimeoutError:
        raise RequestDenied(408, f"The form did not come within {BODY_S:.0f} s.") from None
    except (web.RequestPayloadError, HttpProcessingError, ClientError, ConnectionError, ValueError):
        raise RequestDenied(400, "The form broke off, or is none.") from None
    return {name: value for name, value in sent.items() if isinstance(value, str)}
