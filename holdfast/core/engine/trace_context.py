"""W3C trace context in the headers of records: which trace a record belongs to, and whether that is recorded."""

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


def is_traceparent(value: bytes | None) -> bool:
    """Return whether *value* is a W3C traceparent.

    >>> is_traceparent(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), is_traceparent(b"00-0-0-01")
    (True, False)
    """
    return value is not None and _TRACEPARENT.fullmatch(value) is not None


def is_sampled(value: bytes | None) -> bool:
    """Return whether *value* is the traceparent of a trace that is recorded.

    >>> [is_sampled(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-" + flags) for flags in (b"01", b"00", b"03", b"zz")]
    [True, False, True, False]
    """
    return value is not None and is_traceparent(value) and bool(int(value[-2:], 16) & 1)


def trace_of(headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    """Return the trace context among the headers of a record, of each name the first; () where it has none that is valid.

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
