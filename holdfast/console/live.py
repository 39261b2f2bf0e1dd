"""Server-sent events: a page's block `live`, sent again whenever it has changed."""

from __future__ import annotations

import asyncio
import json
import logging

from aiohttp import web

from holdfast.clock import Clock, system_clock
from holdfast.console.access import ConsoleAccess, RequestDenied
from holdfast.console.desk import ConsoleDesk
from holdfast.console.pages.page import ConsolePage
from holdfast.console.showing.rendering import render_block
from holdfast.console.watching.history import ChartPoint
from holdfast.console.watching.picture import Picture

logger = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream"
LIMIT_STREAMS = 64
QUIET_S = 10.0
WRITE_S = 20.0
"""A browser that takes nothing of what it is sent for so long gets no more of it."""


class LiveStreams:
    """The streams that are open, each for one browser's page."""

    def __init__(self, desk: ConsoleDesk, access: ConsoleAccess, clock: Clock = system_clock) -> None:
        self._desk, self._access, self._clock = desk, access, clock
        self._open: set[asyncio.Task[None]] = set()
        self._made: tuple[Picture, dict[str, str]] = desk.watch.picture, {}

    async def serve(self, request: web.Request, page: ConsolePage) -> web.StreamResponse:
        """Send *page* as it changes until the browser leaves, or the console ends."""
        if len(self._open) >= LIMIT_STREAMS:
            raise RequestDenied(503, f"{LIMIT_STREAMS} pages are live already; this one is loaded by hand.")
        response = web.StreamResponse(headers={"Content-Type": EVENT_STREAM, "X-Accel-Buffering": "no"})
        await response.prepare(request)
        task = asyncio.create_task(self._send(request, response, page))
        self._open.add(task)
        try:
            await task
        except (asyncio.CancelledError, ConnectionError, TimeoutError, RequestDenied):
            task.cancel()
        except Exception:  # the answer has begun: no other can be sent
            logger.exception("a live page failed: %(path)s", {"path": request.path[:200]})
        finally:
            self._open.discard(task)
        return response

    async def close(self) -> None:
        """End all streams."""
        tasks = [*self._open]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, request: web.Request, response: web.StreamResponse, page: ConsolePage) -> None:
        before, sent_s, point = "", self._clock.monotonic_s(), _last(self._desk)
        with self._desk.watch.watched():
            while True:
                self._access.check(request)  # whose session may have ended
                await self._desk.watch.next_look(QUIET_S)
                html = await self._block(request, page)
                events = [] if html == before else [_event("live", html)]
                if (latest := _last(self._desk)) is not point and latest is not None:
                    events.append(_event("point", json.dumps([latest.at_s, latest.rate, latest.behind])))
                if events or self._clock.monotonic_s() - sent_s > QUIET_S:
                    async with asyncio.timeout(WRITE_S):
                        await response.write("".join(events or [": quiet\n\n"]).encode())
                    sent_s = self._clock.monotonic_s()
                before, point = html, latest
                await asyncio.sleep(page.every_s)

    async def _block(self, request: web.Request, page: ConsolePage) -> str:
        """Return the block as of now; that of a page which shows nothing but the picture is made once for all
        who look at it.
        """
        picture = self._desk.watch.picture
        if page.every_s:
            return await self._make(request, page)
        if self._made[0] is not picture:
            self._made = picture, {}
        made = self._made[1]
        if (found := made.get(request.path_qs)) is None:
            found = made[request.path_qs] = await self._make(request, page)
        return found

    async def _make(self, request: web.Request, page: ConsolePage) -> str:
        common = {"picture": self._desk.watch.picture, "root": self._access.place.root}
        try:
            context = await page.build(self._desk, request.query)
        except RequestDenied as denied:
            return render_block("trouble.html", "live", {**common, "trouble": str(denied)})
        return render_block(page.template, "live", {**common, **context})


def _last(desk: ConsoleDesk) -> ChartPoint | None:
    points = desk.watch.history.points
    return points[-1] if points else None


def _event(name: str, text: str) -> str:
    r"""Return an event of a stream: text may have lines.

    >>> _event("live", "a\nb")
    'event: live\ndata: a\ndata: b\n\n'
    """
    lines = "".join(f"data: {line}\n" for line in text.splitlines() or [""])
    return f"event: {name}\n{lines}\n"
