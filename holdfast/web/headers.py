"""What the headers of a request say of who asks."""

from __future__ import annotations

from hmac import compare_digest
from urllib.parse import urlsplit

from aiohttp import web

from holdfast.config import is_loopback


def bearer(request: web.Request) -> str | None:
    """Return the token that a request bears, None when it bears none."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" and given else None


def is_secret(given: str, secret: bytes | None) -> bool:
    """Return whether *given* is *secret*, in a time that tells nothing of it; nothing is where there is none.

    >>> is_secret("s3cret", b"s3cret"), is_secret("s3cre", b"s3cret"), is_secret("", None)
    (True, False, False)
    """
    return secret is not None and compare_digest(given.encode("utf-8", "surrogateescape"), secret)


def names_this_machine(host: str, *own: str) -> bool:
    """Return whether a Host header names loopback, or one of the names that are this machine's *own*, in
    lower case.

    A page of a browser on this machine can reach a loopback port by a name of its own that resolves to
    127.0.0.1, and so read the answers. It cannot choose the Host header.

    >>> [names_this_machine(host, "shop-1") for host in ("127.0.0.1:6066", "[::1]", "Shop-1:80", "evil.example", "[", "")]
    [True, True, True, False, False, False]
    """  # noqa: E501
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return False
    return name in own or is_loopback(name)
