"""Free TCP ports for servers that will bind them in a moment."""

from __future__ import annotations

import fcntl
import os
import random
import socket
from functools import cache
from pathlib import Path

from holdfast.errors import DevBrokerError
from holdfast.jars import cache_folder

_LOWEST = 20_000
_CEILING = 32_768  # where Linux begins to hand out ports to outgoing connections, unless it says otherwise
_TRIES = 200

_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Return *count* different ports on loopback that are unused now, and that no process of this user, this
    one too, has got from here and may still bind: a server that is killed finds its port again, whatever else
    begins since.

    They lie below the range for outgoing connections. A client that keeps dialling a dead server's port
    *inside* that range can get that very port as its own source and connect to itself; the server then never
    gets its port back.
    """
    ceiling = _ephemeral_floor()
    taken: list[int] = []
    for tried in range(2 * _TRIES):
        if len(taken) == count:
            return taken
        port = random.randrange(_LOWEST, ceiling)
        given = port in _given if tried < _TRIES else port in taken  # one that has given all gives them again
        if not given and is_free(port) and _reserve(port):
            _given.add(port)
            taken.append(port)
    raise DevBrokerError(
        f"found only {len(taken)} of {count} free ports between {_LOWEST} and {ceiling}; choose one with"
        " --port"
    )


def _reserve(port: int) -> bool:
    """Return whether no other process holds *port*; this one does until it ends."""
    if (locks := _locks()) is None:
        return True
    try:
        fcntl.lockf(locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@cache
def _locks() -> int | None:
    """Return the file of which each byte is the lock of a port; None where there can be none. It stays open:
    closing it gives up all locks.
    """
    path = cache_folder() / "ports"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return None


def is_free(port: int) -> bool:
    """Return whether a server could listen on this loopback port now (connections left in TIME_WAIT do not
    count).
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _ephemeral_floor() -> int:
    try:
        floor = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        floor = _CEILING
    return floor if floor >= _LOWEST + 2_000 else _CEILING
