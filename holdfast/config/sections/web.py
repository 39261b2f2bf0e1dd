"""Settings of a worker's web port."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.config.hosts import why_no_host
from holdfast.config.sections.section import Section, names_in, setting

_HOST = re.compile(r"(?=.*[A-Za-z_])[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")


@dataclass(frozen=True, kw_only=True)
class WebSettings(Section):
    """Section `[web]`: address, token and TLS of the port of queries, health and metrics."""

    web_bind: str = setting("127.0.0.1", "address the web port listens on")
    web_port: int = setting(6066, "port of queries, health and metrics", low=1, high=65_535)
    web_url: str | None = setting(
        None, "URL at which other workers reach this one; default from bind address and port"
    )
    web_token: str | None = setting(None, "shared secret that every query must carry", secret=True)
    web_token_networks: str = setting(
        "127.0.0.0/8,::1/128,localhost",
        "hosts and networks of the workers, which alone are sent the token, over https too; *.NAME is every"
        " host below NAME",
    )
    web_connections: int = setting(1_000, "most connections of the web port", low=1, high=60_000)
    web_connections_per_peer: int = setting(
        500, "most connections of the web port from one address, loopback too", low=1, high=60_000
    )
    web_tls_cert: Path | None = setting(None, "PEM certificate of the web port")
    web_tls_key: Path | None = setting(None, "PEM key of the web port")
    web_tls_ca: Path | None = setting(None, "PEM authorities of client certificates; turns mutual TLS on")

    @property
    def advertised_url(self) -> str:
        """Return the URL other workers use for this one: `web_url`, else made from bind address and port."""
        if self.web_url is not None:
            return self.web_url
        host = socket.gethostname() if _is_wildcard(self.web_bind) else self.web_bind
        host = f"[{host}]" if ":" in host else host
        return f"{'https' if self.web_tls_cert else 'http'}://{host}:{self.web_port}"

    @property
    def web_is_open(self) -> bool:
        """Return whether the web port answers without authentication, which it does only for this machine."""
        return is_loopback(self.web_bind) and self.web_token is None and self.web_tls_ca is None

    def problems(self) -> Iterator[str]:
        yield from bind_problems(self, "web_bind")
        yield from self._tls_problems()
        yield from self._token_problems()
        if self.web_url is not None and not is_origin(self.web_url):
            yield (
                f"{self.place('web_url')} is {self.web_url!r:.300}; write http://host:port or"
                " https://host:port"
            )

    def _tls_problems(self) -> Iterator[str]:
        if (self.web_tls_cert is None) != (self.web_tls_key is None):
            yield "web_tls_cert and web_tls_key belong together: set both or none"
        if self.web_tls_ca is not None and self.web_tls_cert is None:
            yield (
                "web_tls_ca asks clients for certificates, which needs TLS: "
                "set web_tls_cert and web_tls_key too"
            )

    def _token_problems(self) -> Iterator[str]:
        if (problem := token_problem(self.web_token)) is not None:
            yield f"{self.place('web_token')} {problem}"
        if not is_loopback(self.web_bind) and self.web_token is None and self.web_tls_ca is None:
            yield (
                f"{self.place('web_bind')} is {self.web_bind:.300}, which others can reach: "
                "set web_token (best by HOLDFAST_WEB_TOKEN_FILE) "
                "or mutual TLS (web_tls_cert, web_tls_key, web_tls_ca), or bind to 127.0.0.1"
            )
        try:
            HostList(self.web_token_networks)
        except ValueError as error:
            yield (
                f"{self.place('web_token_networks')}: {error!s:.300}; write hosts and networks separated by"
                " commas, like tables.internal,*.workers.internal,10.0.0.0/8"
            )


def bind_problems(section: Section, name: str) -> Iterator[str]:
    """Yield a problem if no host can have the address that setting *name* holds; "" is every address of this
    one.
    """
    host = getattr(section, name)
    if host and (why := why_no_host(host)) is not None:
        yield f"{section.place(name)} is {host!r:.300}: {why}; write an address of this machine, as 127.0.0.1"


class HostList:
    """Hosts and networks, read from a list with commas: a host is in it by its name, or by its address.

    Names are compared as they are written, and not looked up. `*.NAME` stands for all names below NAME.
    Raises ValueError for any other text.

    >>> hosts = HostList("Localhost, 10.0.0.0/8, ::1, *.workers.internal")
    >>> [each in hosts for each in ("LOCALHOST", "10.1.2.3", "::1", "shop-0.workers.internal", "a.b.workers.internal")]
    [True, True, True, True, True]
    >>> [each in hosts for each in ("workers.internal", "evilworkers.internal", "11.1.2.3", "localhost.", "10.1", "")]
    [False, False, False, False, False, False]
    """  # noqa: E501

    def __init__(self, text: str) -> None:
        self._hosts, self._below = set[str](), list[str]()
        self._networks = list[ipaddress.IPv4Network | ipaddress.IPv6Network]()
        for name in names_in(text):
            if _HOST.fullmatch(name):
                self._hosts.add(name.lower())
            elif name.startswith("*.") and _HOST.fullmatch(name[2:]):
                self._below.append(name[1:].lower())
            else:
                self._networks.append(ipaddress.ip_network(name))

    def __contains__(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            if not host.isascii():
                return False
            name = host.lower()
            return name in self._hosts or (name.endswith(tuple(self._below)) and not name.startswith("."))
        return any(address in network for network in self._networks)


def is_origin(url: str) -> bool:
    """Return whether *url* is scheme, host and port alone."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # brackets without an address in them, or a port that is not a number to 65535
        return False
    rest = parts.path or parts.query or parts.fragment or port == 0
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not rest


def _is_wildcard(host: str) -> bool:
    return host in ("", "0.0.0.0", "::")


def token_problem(token: str | None) -> str | None:
    """Return the fault of a token that is set, None if it has none.

    >>> token_problem(None), token_problem("s3cret"), token_problem("a b")
    (None, None, 'must be visible ASCII without spaces: it travels in a header')
    """
    if token is None or (token and token.isascii() and token.isprintable() and " " not in token):
        return None
    return "must be visible ASCII without spaces: it travels in a header"


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach *host*; a name other than localhost could be anything.

    >>> [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "0.0.0.0", "::", "", "example.org")]
    [True, True, True, True, False, False, False, False]
    """  # noqa: E501
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
