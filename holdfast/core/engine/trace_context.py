"""W3C trace context in the headers of records: the trace that a record belongs to, and whether it is
recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from holdfast.core.engine.emits import Headers

TRACEPARENT: Final = "traceparent"
TRACE_LIMITS: Final[Mapping[str, int]] = {TRACEPARENT: 55, "tracestate": 512, "baggage": 8192}
"""The headers of W3C's trace context and baggage, with the most bytes of each that are carried."""

ROOM_BYTES: Final = 900_000
"""A record that takes more goes without a trace: to carry it must not make a record one too large."""

_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


_MEMBER = re.compile(
    rb"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    rb"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_ENTRY = re.compile(
    rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++[ \t]*+=[ \t]*+[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*+["
    rb" \t]*+(?:;[\x20-\x2b\x2d-\x7e]*+)?"
)
"""Possessive throughout: of spaces alone, each number could be before a value that is empty, and after it."""
_LISTS: Final = {"tracestate": (_MEMBER, 32), "baggage": (_ENTRY, 180)}
"""The form of the members of the lists, and the most members that W3C allows."""


def is_readable(name: str, value: bytes) -> bool:
    """Return whether *value* is a header *name* of W3C's trace context or baggage as it must be written.

    Invalid headers are ignored: a hostile producer may have crafted them to be quoted in full.

    >>> [is_readable("tracestate", value) for value in (b"a=1, t@v=2", b"a=1," * 200, b"A=1")]
    [True, False, False]
    >>> [is_readable("baggage", value) for value in (b"user=ada;seen, plan=%41", b"user", bytes([97, 61, 13, 10]))]
    [True, False, False]
    """  # noqa: E501
    if len(value) > TRACE_LIMITS[name]:
        return False
    if name == TRACEPARENT:
        return is_traceparent(value)
    pattern, limit = _LISTS[name]
    members = [stripped for each in value.split(b",") if (stripped := each.strip(b" \t"))]
    return len(members) <= limit and all(map(pattern.fullmatch, members))


def is_traceparent(value: bytes | None) -> bool:
    """Return whether *value* is a W3C traceparent.

    >>> is_traceparent(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), is_traceparent(b"00-0-0-01")
    (True, False)
    """  # noqa: E501
    return value is not None and _TRACEPARENT.fullmatch(value) is not None


def is_sampled(value: bytes | None) -> bool:
    """Return whether *value* is the traceparent of a trace that is recorded.

    >>> [is_sampled(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-" + flags) for flags in (b"01", b"00", b"03", b"zz")]
    [True, False, True, False]
    """  # noqa: E501
    return value is not None and is_traceparent(value) and bool(int(value[-2:], 16) & 1)


def trace_of(headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    """Return the trace context among the headers of a record, of each name the first; () without a valid one.

    >>> parent = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    >>> trace_of([("who", b"ada"), ("tracestate", b"a=1"), ("traceparent", parent)])[0][0]
    'traceparent'
    >>> trace_of([("tracestate", b"a=1")])
    ()
    """
    found: dict[str, bytes] = {}
    for name, value in headers:
        if name in TRACE_LIMITS and name not in found and value is not None:
            found[name] = value
    if not is_traceparent(found.get(TRACEPARENT)):
        return ()
    return tuple(
        (name, found[name])
        for name, limit in TRACE_LIMITS.items()
        if len(found.get(name, b"")) <= limit and name in found
    )
