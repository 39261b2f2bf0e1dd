"""The console on a port of its own, as `holdfast console` runs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from holdfast.clients.tables.directory import Directory
from holdfast.clients.tables.web_tls import port_tls
from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.console.asking.why import Load
from holdfast.console.opening import ConsoleSources, open_application
from holdfast.console.place import own_place
from holdfast.console.showing.rendering import prepare
from holdfast.console.watching.groups import GroupDesk
from holdfast.core.engine.declared.processor import Processor
from holdfast.errors import ConfigError
from holdfast.web.headers import NO_PAGE
from holdfast.web.port import ConnectionLimits, Troubles, WebPort

LIMITS = ConnectionLimits(connections=400, per_peer=300)
"""One peer may be the proxy of all who look: each has a live page or two, and a browser opens six connections
for a moment.
"""


class Console:
    """Serves the pages of one application at *url* from `async with` on until its end.

    *directory*, with *groups* or without any, and *table_directory* replace Kafka in tests; this object
    closes them. *load* loads the application again for folding it; it can be pickled.
    """

    def __init__(
        self,
        settings: Settings,
        processors: Sequence[Processor[Any, Any]],
        *,
        directory: Directory | None = None,
        groups: GroupDesk | None = None,
        table_directory: Directory | None = None,
        load: Load | None = None,
    ) -> None:
        self._settings, self._place = settings, own_place(settings)
        self._sources = ConsoleSources(
            settings=settings,
            processors=tuple(processors),
            directory=directory,
            groups=groups,
            table_directory=table_directory,
            load=load,
        )
        self._stack = AsyncExitStack()
        self.url = self._place.url

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _open(self, stack: AsyncExitStack) -> None:
        settings = self._settings
        tls = port_tls(
            "console_tls", settings.console_tls_cert, settings.console_tls_key, settings.console_tls_ca
        )
        application = await open_application(stack, self._sources, self._place, at_once=True)
        prepare()
        port = WebPort(
            application,
            LIMITS,
            tls=tls,
            troubles=Troubles("console", Counter(), system_clock),
            malformed=_malformed,
        )
        try:
            await port.open(settings.console_bind, settings.console_port)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {settings.console_bind} port {settings.console_port}: {error.strerror}; "
                "set console_bind and console_port to a free place, or give --port"
            ) from error
        stack.push_async_callback(port.close)


def _malformed(status: int, what: str) -> web.Response:
    """Return the answer to bytes that are no HTTP request: its sender is unknown, so it gets one line."""
    return web.Response(
        text=f"This is no HTTP request that the console reads: {what}\n", status=status, headers=NO_PAGE
    )
