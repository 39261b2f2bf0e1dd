"""The listening socket of a web server, with its limits: how many connections it admits, how long each may be
silent, and the answers to bad requests.

Connections are counted from the moment they are accepted, before any TLS handshake: a connection over a limit
costs one descriptor for one turn of the event loop. Bodies are never inflated here, and what a refused
request has yet to send is not read.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web
from aiohttp.web_log import AccessLogger

from holdfast.clock import Clock
from holdfast.web.listening import ANY_TO_LISTEN, listen_on

logger = logging.getLogger(__name__)

KEEPALIVE_S = 75.0
HEADERS_S = 10.0
"""A request's head, and a TLS handshake, must be whole within so long of their first byte; a new
connection must have sent one.
"""
WRITE_S = 60.0
"""A client that reads nothing of an answer for so long gets no more of it."""
CLOSE_S = 2.0
SHUTDOWN_S = 2.0
LOG_EVERY_S = 10.0
ACCEPT_PAUSE_S = 0.2
LIMIT_LINE_BYTES = 48 << 10
"""Keys travel in the request's line, percent-encoded."""
LIMIT_FIELD_BYTES = 8 << 10
LIMIT_HEADERS = 64


Malformed = Callable[[int, str], web.Response]
"""Makes the answer to bytes that are no HTTP request, from its status and the fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The most connections that the port admits, in all and from one peer; *setting* begins the names of the
    settings for them.
    """

    connections: int
    per_peer: int
    setting: str | None = None

    def refusal(self, *, of_peer: bool) -> str:
        """Return the rest of the message about a connection too many.

        >>> ConnectionLimits(connections=2, per_peer=1, setting="web_connections").refusal(of_peer=True)
        'it has 1 connections, all that web_connections_per_peer allows'
        """
        held = (
            f"it has {self.per_peer} connections" if of_peer else f"{self.connections} connections are open"
        )
        if self.setting is None:
            return f"{held}, and no more are admitted"
        return f"{held}, all that {self.setting}{'_per_peer' if of_peer else ''} allows"


class Troubles:
    """Counts what the port refuses, and logs one line of each cause every `LOG_EVERY_S`, with how many it
    stands for.
    """

    def __init__(self, name: str, counts: Counter[str], clock: Clock) -> None:
        self._name, self._counts, self._clock = name, counts, clock
        self._logged: dict[str, tuple[float, int]] = {}

    def note(self, cause: str, text: str) -> None:
        self._counts[cause] += 1
        now_s = self._clock.monotonic_s()
        logged_s, logged = self._logged.get(cause, (-LOG_EVERY_S, 0))
        if now_s - logged_s >= LOG_EVERY_S:
            self._logged[cause] = now_s, self._counts[cause]
            logger.warning(
                "%(port)s: %(problem)s (%(count)d since the last such line)",
                {"port": self._name, "problem": text, "count": self._counts[cause] - logged},
            )


class Connection(web.RequestHandler):
    """One connection, which ends when its peer is silent for too long where it is the peer's turn."""

    __slots__ = ("_head_deadline", "_malformed", "_released", "_troubles", "_write_deadline")

    def __init__(self, manager: web.Server, troubles: Troubles, malformed: Malformed, **options: Any) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), **options)
        self._troubles, self._malformed = troubles, malformed
        self._released: Callable[[], None] | None = None
        self._head_deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None

    def on_end(self, call: Callable[[], None]) -> None:
        """Have *call* called when the connection is gone."""
        self._released = call

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        requests = self._request_count
        super().data_received(data)
        if self._request_count != requests:
            _cancel(self._head_deadline)
            self._head_deadline = None
        elif self._head_deadline is None and self._waiter is not None and not self._waiter.done():
            self._await_head()

    def _await_head(self) -> None:
        self._head_deadline = self._loop.call_later(
            HEADERS_S, self._late, f"sent no whole request within {HEADERS_S:.0f} s"
        )

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_deadline is None:
            self._write_deadline = self._loop.call_later(
                WRITE_S, self._late, f"took nothing of its answer for {WRITE_S:.0f} s"
            )

    def resume_writing(self) -> None:
        _cancel(self._write_deadline)
        self._write_deadline = None
        super().resume_writing()

    def _late(self, what: str) -> None:
        self._troubles.note("slow", f"closed a connection of {self._peer()}, which {what}")
        transport = self.transport
        self.force_close()
        if transport is not None:
            transport.abort()  # a close would wait until the peer has taken the buffered bytes

    def connection_lost(self, exc: BaseException | None) -> None:
        _cancel(self._head_deadline)
        _cancel(self._write_deadline)
        self._head_deadline = self._write_deadline = None
        super().connection_lost(exc)
        released, self._released = self._released, None
        if released is not None:
            released()

    def _peer(self) -> str:
        name = self.peername
        return str(name[0]) if isinstance(name, tuple) else "a peer"

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that is not HTTP, in one line for the log and one for the peer."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        what = " ".join(str(message or exc or "not HTTP").split())[:120]
        self._troubles.note("malformed", f"a malformed request of {self._peer()}: {what!a}")
        if request.writer.output_size > 0:
            raise ConnectionError("part of an answer is sent already")
        response = self._malformed(status, what)
        response.force_close()
        return response


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class _Server(web.Server):
    """aiohttp's server, of `Connection`s."""

    def __init__(self, inner: web.Server, troubles: Troubles, malformed: Malformed) -> None:
        super().__init__(inner.request_handler, request_factory=inner.request_factory)
        self._troubles, self._malformed = troubles, malformed

    def __call__(self) -> Connection:
        return Connection(
            self,
            self._troubles,
            self._malformed,
            access_log_class=AccessLogger,
            access_log=None,
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=0.0,
            auto_decompress=False,
            max_line_size=LIMIT_LINE_BYTES,
            max_field_size=LIMIT_FIELD_BYTES,
            max_headers=LIMIT_HEADERS,
        )


class _Runner(web.AppRunner):
    """Runs an application whose connections come from a `_Door`."""

    def __init__(
        self,
        application: web.Application,
        troubles: Troubles,
        malformed: Malformed,
        *,
        shutdown_timeout_s: float,
    ) -> None:
        super().__init__(application, access_log=None, shutdown_timeout=shutdown_timeout_s)
        self._troubles, self._malformed = troubles, malformed

    async def _make_server(self) -> web.Server:
        return _Server(await super()._make_server(), self._troubles, self._malformed)


class WebPort:
    """Serves *application* within *limits*, from `open` to `close`.

    Refused connections and requests are noted in *troubles*; *malformed* words the answer to bytes that are
    no HTTP request.
    """

    def __init__(
        self,
        application: web.Application,
        limits: ConnectionLimits,
        *,
        tls: ssl.SSLContext | None = None,
        troubles: Troubles,
        malformed: Malformed,
    ) -> None:
        self._limits, self._tls, self._troubles = limits, tls, troubles
        self._runner = _Runner(application, troubles, malformed, shutdown_timeout_s=SHUTDOWN_S)
        self._door: _Door | None = None

    async def open(self, host: str, port: int) -> None:
        """Listen on every address of *host*; raises OSError, and nothing is left open, when one is not
        free.
        """
        await self._runner.setup()
        server = cast(Callable[[], Connection], self._runner.server)
        door = _Door(server, self._limits, self._tls, self._troubles)
        try:
            await door.open(host, port)
        except OSError:
            await self._runner.cleanup()
            raise
        self._door = door

    @property
    def doors(self) -> tuple[Sequence[socket.socket], ssl.SSLContext | None]:
        """Return the sockets that it listens on, and the TLS of what they accept."""
        return (() if self._door is None else self._door.sockets), self._tls

    async def close(self) -> None:
        """Accept no more, and end the open connections: requests that are being answered have SHUTDOWN_S."""
        door, self._door = self._door, None
        if door is not None:
            await door.close()
            await self._runner.cleanup()


class _Door:
    """Accepts connections within *limits* and hands them to *server*, from `open` to `close`."""

    def __init__(
        self,
        server: Callable[[], Connection],
        limits: ConnectionLimits,
        tls: ssl.SSLContext | None,
        troubles: Troubles,
    ) -> None:
        self._server, self._limits, self._tls, self._troubles = server, limits, tls, troubles
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._greeting: set[asyncio.Task[None]] = set()
        self._peers: Counter[str] = Counter()
        self._count = 0

    async def open(self, host: str, port: int) -> None:
        """Listen on every address of *host*; raises OSError when one is not free."""
        loop = asyncio.get_running_loop()
        self._sockets = listen_on(await loop.getaddrinfo(host or None, port, **ANY_TO_LISTEN))
        self._accepting = [loop.create_task(self._accept(each)) for each in self._sockets]

    async def close(self) -> None:
        """Accept no more; accepted connections belong to the server."""
        tasks = [*self._accepting, *self._greeting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._close_sockets()

    def _close_sockets(self) -> None:
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            each.close()

    @property
    def sockets(self) -> Sequence[socket.socket]:
        return tuple(self._sockets)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError as error:
                self._troubles.note(
                    "accept",
                    f"cannot accept a connection: {error.strerror}; raise the limit of open files"
                    " (ulimit -n)",
                )
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            self._admit(connection, peer_of(address[0]))
            await asyncio.sleep(0)  # a flood of connections must not keep the event loop from its other work

    def _admit(self, connection: socket.socket, peer: str) -> None:
        limits = self._limits
        if self._count >= limits.connections:
            self._troubles.note("connections", f"refused {peer}: {limits.refusal(of_peer=False)}")
            connection.close()
            return
        if self._peers[peer] >= limits.per_peer:
            self._troubles.note("peer", f"refused {peer}: {limits.refusal(of_peer=True)}")
            connection.close()
            return
        self._count += 1
        self._peers[peer] += 1
        task = asyncio.get_running_loop().create_task(self._greet(connection, peer))
        self._greeting.add(task)
        task.add_done_callback(self._greeting.discard)

    def _release(self, peer: str) -> None:
        self._count -= 1
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]

    async def _greet(self, connection: socket.socket, peer: str) -> None:
        protocol, ended = self._server(), False

        def end() -> None:
            nonlocal ended
            if not ended:
                ended = True
                self._release(peer)

        protocol.on_end(end)
        times = (
            {"ssl_handshake_timeout": HEADERS_S, "ssl_shutdown_timeout": CLOSE_S}
            if self._tls is not None
            else {}
        )
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls, **times
            )
        except asyncio.CancelledError:
            connection.close()
            end()
            raise
        except Exception as error:  # noqa: BLE001  whatever a stranger's handshake meets
            connection.close()
            end()
            self._troubles.note(
                "handshake", f"no connection with {peer}: {str(error)[:120] or type(error).__name__}"
            )


def peer_of(host: str) -> str:
    """Return the peer under which a connection is counted: an IPv4 address, or the /64 of an IPv6 one, all of
    which belongs to one host.

    >>> peer_of("10.1.2.3"), peer_of("::ffff:10.1.2.3"), peer_of("2001:db8::1:2"), peer_of("2001:db8::9:9")
    ('10.1.2.3', '10.1.2.3', '2001:db8::/64', '2001:db8::/64')
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return "::1" if address.is_loopback else str(ipaddress.ip_network((address, 64), strict=False))
