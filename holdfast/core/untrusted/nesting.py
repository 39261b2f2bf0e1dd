"""The deepest nesting of a value: less than any stack allows, however much of it its caller has used.

msgspec reads into Python's stack, of which a worker, a query and a replay have used more or less. Without a
limit of its own, a value at the edge would be read by one and refused by another.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any, Final

import msgspec

LIMIT_DEPTH: Final = 500
"""The deepest nesting of a value: readers of all languages have a limit, and this is below that of each."""
TEXTS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
"""The texts in JSON."""
_NOT_BRACKETS: Final = bytes(each for each in range(256) if each not in b"[]{}")


def is_shallow(encoded: bytes, limit: int = LIMIT_DEPTH) -> bool:
    """Return whether JSON nests no deeper than *limit*.

    >>> is_shallow(b"[" * 500 + b"]" * 500), is_shallow(b"[" * 501), is_shallow(b'["' + b"[" * 501 + b'"]')
    (True, False, True)
    """
    if len(encoded) <= limit or encoded.count(b"[") + encoded.count(b"{") <= limit:
        return True
    brackets = TEXTS.sub(b"", encoded).translate(None, _NOT_BRACKETS)
    return max(accumulate(1 if each in b"[{" else -1 for each in brackets), default=0) <= limit


def is_shallow_row(encoded: bytes) -> bool:
    """Return whether a row in MessagePack nests no deeper than `LIMIT_DEPTH`.

    >>> is_shallow_row(b"\\x91" * 500 + b"\\x01"), is_shallow_row(b"\\x91" * 501 + b"\\x01")
    (True, False)
    """
    if len(encoded) <= LIMIT_DEPTH:
        return True
    try:
        level: list[Any] = [msgspec.msgpack.decode(encoded)]
    except RecursionError:
        return False
    depth = -1
    while level and depth <= LIMIT_DEPTH:
        level, depth = [each for outer in level for each in _items(outer)], depth + 1
    return depth <= LIMIT_DEPTH


def _items(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
