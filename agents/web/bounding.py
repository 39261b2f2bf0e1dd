"""The limits of a reply about a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.core.engine import query_wire

T = TypeVar("T")

FIRST_CHUNK = 16


def bounded(
    limit: int, fetch: Callable[[list[T], int], Sequence[T]], size: Callable[[T], int]
) -> tuple[list[T], bool]:
    """Return up to *limit* items as far as the reply's limit in bytes lets them, at least one, and whether
    there are no more.

    *fetch(got, count)* returns the next *count* items. The chunks grow only as the items seen so far allow,
    so that a table of rows of 1 MB is not read into memory to answer one page.
    """
    got: list[T] = []
    size_bytes, count = 0, FIRST_CHUNK
    while len(got) < limit:
        count = min(count, limit - len(got))
        chunk = fetch(got, count)
        for item in chunk:
            size_bytes += size(item)
            if size_bytes > query_wire.LIMIT_REPLY_BYTES and got:
                return got, False
            got.append(item)
        if len(chunk) < count:
            return got, True
        average = size_bytes // len(got) + 1
        count = max(1, min(count * 8, (query_wire.LIMIT_REPLY_BYTES - size_bytes) // average + 1))
    return got, False


def size_of_value(value: bytes | None) -> int:
    return len(value or b"") + 8


def size_of_row(row: tuple[str, bytes]) -> int:
    key = row[0]
    return (len(key) if key.isascii() else len(key.encode("utf-8", "surrogatepass"))) + len(row[1]) + 16
