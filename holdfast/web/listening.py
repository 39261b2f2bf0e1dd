"""Sockets that listen on every address of a host."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

Address: TypeAlias = tuple[int, int, int, str, Any]
"""One result of `getaddrinfo`."""

ANY_TO_LISTEN: Final[dict[str, int]] = {"type": socket.SOCK_STREAM, "flags": socket.AI_PASSIVE}
"""The arguments of `getaddrinfo`."""
BACKLOG = 128


def listen_on(addresses: Iterable[Address]) -> list[socket.socket]:
    """Listen on each of *addresses*; raises OSError, and nothing is left open, when one is not free."""
    made: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            made.append(socket.socket(family, kind, protocol))
            _listen(made[-1], family, address)
    except OSError:
        for each in made:
            each.close()
        raise
    return made


def require_free(host: str, port: int) -> None:
    """Raise OSError where a server could not listen on *host* and *port* now."""
    for each in listen_on(socket.getaddrinfo(host or None, port, **ANY_TO_LISTEN)):
        each.close()


def _listen(listening: socket.socket, family: int, address: Any) -> None:
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listening.bind(address)
    listening.listen(BACKLOG)
    listening.setblocking(False)
