"""Names of hosts: which no host can have."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

LIMIT_NAME = 253
LAST_PORT = 65_535
_FOREIGN = re.compile(r"[\s:/?#@\[\]\\%,]")
_WEB = ("http", "https", "tcp", "kafka")
"""Schemes that newcomers put before a broker's address, which has none of these."""
_SCHEME = re.compile(r"[A-Za-z_]+://")


def why_no_host(host: str) -> str | None:
    """Return why no host can have this name or address, None when one can.

    >>> why_no_host("tables.internal"), why_no_host("::1"), why_no_host("fe80::1%eth0")
    (None, None, None)
    >>> why_no_host("tables..internal")
    'a part between dots is empty, or longer than 63 characters'
    >>> why_no_host("http://tables")
    "':' cannot be in the name of a host"
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return None
    if not host:
        return "it is empty"
    if not host.isprintable() or (found := _FOREIGN.search(host)) is not None:
        shown = "a character that cannot be printed" if not host.isprintable() else repr(found and found[0])
        return f"{shown} cannot be in the name of a host"
    if len(host) > LIMIT_NAME:
        return f"it has {len(host)} characters, and {LIMIT_NAME} are the most"
    try:
        host.encode("idna")
    except UnicodeError:
        return "a part between dots is empty, or longer than 63 characters"
    return None


def broker_problems(servers: str) -> Iterator[str]:
    """Yield the faults of each of the addresses host:port,host:port, where Kafka's default port may be left
    out. librdkafka ignores anything after the host and port of a URL.

    >>> [*broker_problems("kafka-1:9092,SSL://[::1]:9093,kafka-3,fe80::1%eth0,PLAINTEXT://kafka-4:9092/")]
    []
    >>> [*broker_problems("http://kafka-1:9092/")]
    ["'http://kafka-1:9092/' begins with http://: a broker is host:port, as kafka-1:9092"]
    >>> [*broker_problems("kafka-1:http, ,:9092")]
    ["'kafka-1:http' has no port from 1 to 65535", "' ' names no host: it is empty", "':9092' names no host: it is empty"]
    """  # noqa: E501
    for part in servers.split(","):
        address = part.strip()
        scheme = _SCHEME.match(address)
        if scheme and scheme[0].lower().removesuffix("://") in _WEB:
            yield f"{part!r:.300} begins with {scheme[0]}: a broker is host:port, as {_plain(address)}"
            continue
        host, port = _host_and_port(address[scheme.end() :].partition("/")[0] if scheme else address)
        if (why := why_no_host(host)) is not None:
            yield f"{part!r:.300} names no host: {why}"
        elif port is not None and not (port.isdecimal() and len(port) < 6 and 0 < int(port) <= LAST_PORT):
            yield f"{part!r:.300} has no port from 1 to {LAST_PORT}"


def _plain(address: str) -> str:
    return f"{address.partition('://')[2].partition('/')[0]:.200}"


def _host_and_port(address: str) -> tuple[str, str | None]:
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        return host, rest.removeprefix(":") if rest else None
    host, colon, port = address.rpartition(":")
    if not colon or _is_ipv6(address):
        return address, None
    return host, port


def _is_ipv6(address: str) -> bool:
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return True
