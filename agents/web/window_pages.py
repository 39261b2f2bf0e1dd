"""A page of the windows of a partition: found by looking at its rows in the order of their keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.agents.web.bounding import FIRST_CHUNK, size_of_row
from holdfast.core.engine.query_wire import LIMIT_PAGE_ROWS, LIMIT_REPLY_BYTES, WindowsPage
from holdfast.core.streams.windowing.rows import BEHIND_RESERVED, starts_within, windows_prefix

Scan = Callable[[str, str | None, int], Sequence[tuple[str, bytes]]]
"""Returns up to so many rows with a prefix and keys above another, in the order of their keys."""


def page_of_windows(scan: Scan, asked: WindowsPage) -> tuple[list[tuple[str, bytes]], str | None]:
    """Return the rows of windows that are asked for, and the key after which the next page continues, None at
    the end.

    Row keys begin with the windows' keys, so windows of other times lie between those asked for. A page ends
    when it has looked at LIMIT_PAGE_ROWS rows or LIMIT_REPLY_BYTES, which keeps the event loop no longer than
    a page of a scan; it may have found none. The chunks grow as the rows seen so far allow: many large ones
    are never in memory together.
    """
    prefix, after = "", asked.after
    if asked.key is not None:
        prefix = windows_prefix(asked.key, asked.since_ms, asked.until_ms)
    elif after is None:
        after = BEHIND_RESERVED
    limit = min(asked.limit, LIMIT_PAGE_ROWS)
    found: list[tuple[str, bytes]] = []
    seen, seen_bytes, count = 0, 0, FIRST_CHUNK
    while True:
        chunk = scan(prefix, after, count)
        for row in chunk:
            size_bytes = size_of_row(row)
            if seen and seen_bytes + size_bytes > LIMIT_REPLY_BYTES:
                return found, after
            seen, seen_bytes, after = seen + 1, seen_bytes + size_bytes, row[0]
            if starts_within(row[0], asked.key, asked.since_ms, asked.until_ms):
                found.append(row)
                if len(found) == limit:
                    return found, after
        if len(chunk) < count:
            return found, None
        if seen >= LIMIT_PAGE_ROWS:
            return found, after
        affordable = (LIMIT_REPLY_BYTES - seen_bytes) // (seen_bytes // seen + 1) + 1
        count = max(1, min(count * 8, LIMIT_PAGE_ROWS - seen, affordable))
