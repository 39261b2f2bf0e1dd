"""The depth to which a page reads a long log, and its remark on the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from holdfast.console.showing.paging import number

DEPTHS = (5_000, 50_000, 500_000)
"""The numbers of offsets that a page reads, from the end back: the visitor chooses one."""


def depth_of(query: Mapping[str, str]) -> int:
    """Return how far back a log is read: what the URL says, within what a page may take.

    >>> depth_of({}), depth_of({"depth": "50000"}), depth_of({"depth": "7"}), depth_of({"depth": "99999999"})
    (5000, 50000, 5000, 500000)
    """
    return min(max(number(query, "depth") or 0, DEPTHS[0]), DEPTHS[-1])


def deeper(query: Mapping[str, str], path: str, left_out: int) -> dict[str, Any]:
    """Return the page's remark on the *left_out* offsets that it did not read, with the link that
    reads more, None without a deeper page.
    """
    depth = depth_of(query)
    more = next((each for each in DEPTHS if each > depth), None)
    link = (
        None if more is None or not left_out else f"{path}?{urlencode({**query, 'page': 1, 'depth': more})}"
    )
    return {"depth": depth, "left_out": left_out, "deeper": link}
