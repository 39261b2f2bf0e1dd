"""Identifies the sender of a request by its headers."""

from __future__ import annotations

from collections.abc import Mapping
from hmac import compare_digest
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from holdfast.config import is_loopback

SAFE: Final = frozenset({"GET", "HEAD"})
"""Methods that ask for a page, and change nothing."""
NO_PAGE: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of an answer for programs: a browser shows it as it is, and in no frame."""


def bearer(request: web.Request) -> str | None:
    """Return the token that a request bears, None when it bears none."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" and given else None


def is_secret(given: str, secret: bytes | None) -> bool:
    """Return whether *given* is *secret*, in a time that reveals nothing about it; False without a secret.

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


def is_of_another_site(request: web.Request) -> bool:
    """Return whether a page of another site has a browser send this, and no person followed a link to here.

    Browsers say so in Sec-Fetch-Site, or in Origin if they are old, and pages cannot change it. Programs that
    are not browsers send neither.

    A page of another site reads nothing of the answer. It could have this machine work again and again all
    the same, send what acts, or show a page in a frame of its own.
    """
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is not None:
        # not the Origin too: it is null for a form of this very site whose Referrer-Policy is no-referrer
        return site not in ("same-origin", "none") and not _follows_a_link(request)
    return origin is not None and not _is_origin_of(origin, request)


def _follows_a_link(request: web.Request) -> bool:
    """Return whether the whole of a window or tab is to show the answer, and not a frame of another page."""
    mode, target = request.headers.get("Sec-Fetch-Mode"), request.headers.get("Sec-Fetch-Dest", "document")
    return request.method in SAFE and mode == "navigate" and target == "document"


def _is_origin_of(origin: str, request: web.Request) -> bool:
    try:
        return urlsplit(origin).netloc.lower() == request.host.lower()
    except ValueError:  # brackets without an address in them
        return False
