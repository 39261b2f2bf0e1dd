"""`--metrics-port` of commands that run until they are stopped: a page for Prometheus on loopback."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.clock import system_clock
from holdfast.errors import ConfigError
from holdfast.loop_thread import LoopThread

if TYPE_CHECKING:
    from aiohttp import web
    from prometheus_client import CollectorRegistry

LOOPBACK = "127.0.0.1"
LIMIT_CONNECTIONS = 32
"""Prometheus needs one."""
OPEN_S = 10.0
SERVED = "Serve metrics for Prometheus on this port of loopback."


def port_option(text: str) -> Any:
    """Return the option with a help of its own."""
    return typer.Option("--metrics-port", min=1, max=65_535, help=text)


MetricsPortOption = Annotated[int | None, port_option(SERVED)]


@contextmanager
def metrics_on(port: int | None) -> Iterator[CollectorRegistry]:
    """Listen while the block runs, and give what takes the pages to serve; nothing is served for None.

    The block is not begun where the port is not free, so open it before the command takes part in anything:
    that is a ConfigError. Connections are limited as those of a worker's web port, and what a browser on this
    machine asks for a page of another site is refused.
    """
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    if port is None:
        yield registry
        return
    from holdfast.web.port import ConnectionLimits, Troubles, WebPort

    served = WebPort(
        _application(registry),
        ConnectionLimits(connections=LIMIT_CONNECTIONS, per_peer=LIMIT_CONNECTIONS),
        troubles=Troubles("metrics port", Counter(), system_clock),
        malformed=_malformed,
    )
    thread = LoopThread("holdfast-metrics")
    thread.start()
    try:
        thread.wait(served.open(LOOPBACK, port), OPEN_S)
    except OSError as error:
        thread.stop(served.close())
        raise ConfigError(
            f"--metrics-port {port} cannot be listened on: {error.strerror}; choose a free port"
        ) from error
    try:
        yield registry
    finally:
        thread.stop(served.close())


def _application(registry: CollectorRegistry) -> web.Application:
    """Return an application that answers every path with all registered metrics."""
    from aiohttp import web
    from prometheus_client.exposition import choose_encoder

    from holdfast.web.headers import NO_PAGE, is_of_another_site, names_this_machine

    async def page(request: web.Request) -> web.Response:
        if not names_this_machine(request.host) or is_of_another_site(request):
            raise web.HTTPForbidden(text="Ask from this machine, by its own name, and from no other page.\n")
        encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        headers = {"Content-Type": content_type, "Cache-Control": "no-store", **NO_PAGE}
        response = web.Response(body=encoder(registry), headers=headers)
        response.enable_compression()
        return response

    application = web.Application(client_max_size=0)
    application.router.add_get("/{path:.*}", page)
    return application


def _malformed(status: int, what: str) -> web.Response:
    from aiohttp import web

    return web.Response(text=f"This is no HTTP request: {what}\n", status=status)
