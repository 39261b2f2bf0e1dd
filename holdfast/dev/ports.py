"""Free TCP ports for servers that will bind them in a moment."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from holdfast.errors import DevBrokerError

_LOWEST = 20_000
_CEILING = 32_768  # where Linux begins to hand out ports to outgoing connections, unless it says otherwise
_TRIES = 200


def free_ports(count: int) -> list[int]:
    """Return *count* different ports on loopback that nobody uses now.

    They lie below the range for outgoing connections. A client that keeps dialling a dead server's port
    *inside* that range can get that very port as its own source and connect to itself; the server then never
    gets its port back.
    """
    ceiling = _ephemeral_floor()
    taken: list[int] = []
    for _ in range(_TRIES):
        if len(taken) == count:
            return taken
        port = random.randrange(_LOWEST, ceiling)
        if port not in taken and is_free(port):
            taken.append(port)
    raise DevBrokerError(
        f"found only {len(taken)} of {count} free ports between {_LOWEST} and {ceiling}; choose one with --port"
    )


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
