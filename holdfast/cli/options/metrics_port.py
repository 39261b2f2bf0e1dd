"""`--metrics-port` of commands that run until they are stopped: a page for Prometheus on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

LOOPBACK = "127.0.0.1"
SERVED = "Serve metrics for Prometheus on this port of loopback."


def port_option(text: str) -> Any:
    """Return the option with a help of its own."""
    return typer.Option("--metrics-port", min=1, max=65_535, help=text)


MetricsPortOption = Annotated[int | None, port_option(SERVED)]


@contextmanager
def metrics_on(port: int | None) -> Iterator[CollectorRegistry]:
    """Listen while the block runs, and give what takes the pages to serve; nothing is served for None.

    The block is not begun where the port is not free, so open it before the command takes part in anything:
    that is a ConfigError.
    """
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    if port is None:
        yield registry
        return
    try:
        server, _ = start_http_server(port, addr=LOOPBACK, registry=registry)
    except OSError as error:
        raise ConfigError(
            f"--metrics-port {port} cannot be listened on: {error.strerror}; choose a free port"
        ) from error
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
